"""An occurrence of a schedule: a time on the wall clock of the schedule's zone. Pure arithmetic, without I/O or clock.

Owns what an occurrence is, its form in ids and rows, and the rule that none is fired again.

Processes with different versions of the time zone data find different moments for one wall-clock time, after a country
has changed its rules. So a moment does not name an occurrence. Its wall-clock time does, with PEP 495's fold: 1 for the
second of two equal times, when clocks are set back. A row keeps the last wall-clock time that was fired, and no process
fires one at or before it, whatever moment it finds for it. Two such times are kept, one for each fold: a process may
know no second 02:30, and must see that the first one was fired.

A fixed time of day that the zone skips is fired at the end of the gap instead. It is not, if another process knew no
gap there and fired a time within it.
"""

from __future__ import annotations

import re
from datetime import MAXYEAR, UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final

from attrs import frozen

from lanelog.message import utc_from_ms

if TYPE_CHECKING:
    from lanelog._base.cron import Cron

_SECOND: Final = timedelta(seconds=1)
_SECOND_MS: Final = 1000
_MINUTE_MS: Final = 60 * _SECOND_MS
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ROW_FORM: Final = re.compile(r"(?P<time>[^\[]+)\[(?P<zone>[^\]]+)\](?P<fold>\[fold=1\])?")


@frozen
class Occurrence:
    """A wall-clock time, and the moment that it was planned for or fired at."""

    at: int
    """Epoch milliseconds."""
    local: datetime
    """What the clock on the wall shows, without a zone."""
    fold: int = 0
    """1: it is the second of two equal times."""

    def id_form(self, zone: str) -> str:
        """Return the form in ids: `2026-10-25T02:30:00[Europe/Berlin]`, with `[fold=1]` after it for a second one.

        It has no offset, because processes may disagree about that.
        """
        return f"{self.local.isoformat(timespec='seconds')}[{zone}]" + ("[fold=1]" if self.fold else "")

    def row_form(self, zone: str) -> str:
        """Return the form in rows, that of RFC 9557: `2026-10-25T02:30:00+01:00[Europe/Berlin][fold=1]`.

        Empty: such an offset does not exist, so the row is not one that this library planned.
        """
        offset = self.local - utc_from_ms(self.at).replace(tzinfo=None)
        if abs(offset) >= timedelta(days=1):
            return ""
        there = self.local.replace(tzinfo=timezone(offset))
        return f"{there.isoformat()}[{zone}]" + ("[fold=1]" if self.fold else "")


def occurrence(cron: Cron, at: int) -> Occurrence:
    """Return what the clock on the wall shows at a moment, by the data of this process."""
    there = utc_from_ms(at).astimezone(cron.zone)
    return Occurrence(at, there.replace(tzinfo=None, fold=0), there.fold)


def from_row(text: str, zone: str) -> Occurrence | None:
    """Read the form of rows. None: there is none, it is of another zone, or beyond the calendar."""
    match = _ROW_FORM.fullmatch(text)
    if match is None or match["zone"] != zone:
        return None
    try:
        there = datetime.fromisoformat(match["time"])
    except ValueError:
        return None
    if there.tzinfo is None or not _EPOCH.year <= there.year < MAXYEAR:
        return None
    at = (there - _EPOCH) // timedelta(milliseconds=1)
    return Occurrence(at, there.replace(tzinfo=None), 1 if match["fold"] else 0)


def reached(cron: Cron, planned: Occurrence) -> int:
    """Return the moment at which the clock shows an occurrence's time, by the data of this process.

    The times after this moment are those after the occurrence. If the clock skips the time, it is the last second
    before the gap.
    """
    there = planned.local.replace(tzinfo=cron.zone, fold=planned.fold).astimezone(UTC)
    if there.astimezone(cron.zone).replace(tzinfo=None) == planned.local:
        return _ms(there)
    # In a gap, fold 1 has the offset after it, and so is the earlier moment of the two.
    before = planned.local.replace(tzinfo=cron.zone, fold=1).astimezone(UTC)
    after = planned.local.replace(tzinfo=cron.zone, fold=0).astimezone(UTC)
    offset = before.astimezone(cron.zone).utcoffset()
    while after - before > _SECOND:
        middle = (before + (after - before) / 2).replace(microsecond=0)
        if middle <= before:
            middle += _SECOND
        if middle.astimezone(cron.zone).utcoffset() == offset:
            before = middle
        else:
            after = middle
    return _ms(after) - _SECOND_MS


def is_exact(cron: Cron, planned: Occurrence) -> bool:
    """Whether the clock shows the occurrence's time at all, by the data of this process."""
    return occurrence(cron, reached(cron, planned)).local == planned.local


@frozen
class Fired:
    """The occurrences of a schedule that were fired: those up to `highest`, and second ones up to `again`."""

    highest: Occurrence | None = None
    """The one with the latest wall-clock time."""
    again: Occurrence | None = None
    """The one with the latest wall-clock time among those that are the second of two equal times."""

    def has(self, cron: Cron, one: Occurrence) -> bool:
        """Whether an occurrence is at or before the last one that was fired."""
        last = self.again if one.fold else self.highest
        if last is None:
            return False
        if one.local <= last.local:
            return True
        # What is fired at the end of a gap, instead of a time within it: another one within it may have been fired.
        instead = not (cron.follows_the_clock or one.fold or cron.names(one.local))
        return instead and not is_exact(cron, last) and reached(cron, last) >= one.at - _MINUTE_MS

    def following(self, cron: Cron, after_ms: int) -> Occurrence:
        """Return the first occurrence later than a moment that was not fired. ConfigurationError if there is none."""
        found = occurrence(cron, cron.after(after_ms))
        while self.has(cron, found):
            last = self.again if found.fold else self.highest
            assert last is not None  # noqa: S101 - for the type checker: `has` compared with it
            found = occurrence(cron, cron.after(max(found.at, reached(cron, last))))
        return found

    def with_one(self, one: Occurrence) -> Fired:
        """Return these and one more."""
        return Fired(_later(self.highest, one), _later(self.again, one) if one.fold else self.again)


def _later(one: Occurrence | None, other: Occurrence) -> Occurrence:
    return other if one is None or one.local <= other.local else one


def _ms(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)
