"""What the row of a schedule says about its occurrences, and whether the next one is planned too late.

Owns that reading, and the rule for a correction. Without I/O or clock: a row has the database's clock.

The row's moments show whether the database's clock went back. Its wall-clock times say which occurrence is meant. A
process of an older version, or one that found older tables, writes the moments alone. So a wall-clock time in a row
counts only if it stands for the moment beside it. Otherwise it is found anew from that moment, by the data of this
process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attrs import evolve, frozen

from lanelog._base import cron as _cron
from lanelog._log.fire import zone_data
from lanelog._log.fire.occurrences import Fired, Occurrence, from_row, is_exact, occurrence, reached
from lanelog._stores.later.schedules import Wall

if TYPE_CHECKING:
    from lanelog._base.cron import Cron
    from lanelog._stores.later.schedules import ScheduleRow, ToCome

CLOCK_BACK_MS: Final = 5_000
"""When the clock went back by no more than this, the schedules wait for it. The clocks of two servers, of which one
takes over from the other, may differ by so much."""


@frozen
class PlannedRow:
    """The row of a schedule, read by this process."""

    cron: Cron
    next: Occurrence
    """The next one, as the process that planned it meant it, or as this process understands its moment."""
    noted: bool
    """Whether it was noted with its wall-clock time."""
    fired: Fired
    tzdata: str
    """The version of the time zone data that it was planned with. Empty: not known."""

    @property
    def differs(self) -> bool:
        """Whether this process finds another moment for it, so has other time zone data than the one that planned."""
        return self.noted and is_exact(self.cron, self.next) and reached(self.cron, self.next) != self.next.at


def cron_of(row: ScheduleRow | ToCome) -> Cron:
    """Parse the expression of a row. Raises ConfigurationError."""
    return _cron.parse(row.expression, row.timezone)


def plan(row: ScheduleRow | ToCome, cron: Cron) -> PlannedRow:
    """Read a row."""
    noted = from_row(row.next_local, row.timezone)
    if noted is not None and noted.at != row.next_fire_at:
        noted = None
    return PlannedRow(
        cron,
        noted or occurrence(cron, row.next_fire_at),
        noted is not None,
        _fired(row, cron),
        row.tzdata if noted else "",
    )


def plan_due(row: ScheduleRow, cron: Cron) -> PlannedRow:
    """Read a row that is due.

    A moment without a note that does not match the expression here was planned by an older version with other time zone
    data. It counts as the latest occurrence before it, which is fired now unless it was fired. A moment that was due
    when the expression was declared belongs to the expression or zone before, and stands for itself.
    """
    found, at = plan(row, cron), row.next_fire_at
    if found.noted or at <= row.expression_at or not _is_foreign(cron, at):
        return found
    latest = cron.last(0, at)
    return found if latest is None else evolve(found, next=evolve(occurrence(cron, latest), at=at))


def _fired(row: ScheduleRow | ToCome, cron: Cron) -> Fired:
    """Return what was fired. A time in the future, from a clock that was set back, does not count."""
    if not row.last_fire_at or row.last_fire_at > row.now + CLOCK_BACK_MS:
        return Fired()
    fired = Fired(from_row(row.fired_local, row.timezone), from_row(row.fired_again, row.timezone))
    if row.last_fire_at in (each.at for each in (fired.highest, fired.again) if each is not None):
        return fired
    return Fired().with_one(occurrence(cron, row.last_fire_at))


def _is_foreign(cron: Cron, at: int) -> bool:
    """Whether a moment is no time of the expression here, so was found with other time zone data."""
    return cron.timezone != "UTC" and next(cron.between(at - 1, at), None) is None


def wall(cron: Cron, following: Occurrence, fired: Fired) -> Wall:
    """Return what a row notes of the next occurrence and of those that were fired."""
    return Wall(
        next_local=following.row_form(cron.timezone),
        fired_local=fired.highest.row_form(cron.timezone) if fired.highest else "",
        fired_again=fired.again.row_form(cron.timezone) if fired.again else "",
        tzdata=zone_data.version(cron.timezone),
    )


@frozen
class Correction:
    """The occurrence that must be the next one of a schedule, or the moment at which it must."""

    next: Occurrence
    clock: bool
    """Whether the clock went back. Otherwise another process planned with other time zone data."""


def correction(row: ScheduleRow | ToCome, cron: Cron) -> Correction | None:
    """Return what must become of a schedule that is not due. None: it waits for its next occurrence, as it should.

    It waits too long if an occurrence comes before its next one and was not fired. What was fired does not count, at
    whatever moment this process expects it. If both agree on the occurrence and not on its moment, the newer time zone
    data is right. If nobody knows which is newer, this process is right, because it has started later.
    """
    soon = row.now + CLOCK_BACK_MS
    if row.next_fire_at <= soon:
        return None
    found = plan(row, cron)
    own = found.fired.following(cron, soon)
    soonest = found.fired.following(cron, row.now)
    if not found.noted:
        # Another version has planned it, or nobody: no data says a time beyond the calendar.
        foreign = row.next_fire_at <= _cron.LATEST_MS and _is_foreign(cron, row.next_fire_at)
        return Correction(soonest, not foreign) if own.at < row.next_fire_at else None
    there = reached(cron, found.next)
    if own.at < there:
        return Correction(soonest, there == row.next_fire_at)
    if found.differs and there > soon and not zone_data.is_older(zone_data.version(row.timezone), row.tzdata):
        return Correction(evolve(found.next, at=there), clock=False)
    return None
