"""Cron expressions: what they mean in a time zone, and when they fire.

Owns the meaning of an expression. cronsim parses it and knows the calendar, zoneinfo knows the time zones. Never reads
a clock and never talks to a database.

Five fields are minute, hour, day of the month, month and day of the week. Six have the second in front. A job with a
fixed minute and hour fires once on each of its days, also where daylight saving time begins or ends. If its time is
skipped, it fires at the first moment after the gap. If its time comes twice, it fires at the first of the two. A job
whose minute or hour field begins with `*` follows the clock on the wall: times that are skipped are left out, and times
that come twice fire twice. These are the rules of Debian's cron. A field of seconds changes nothing in them.

There is one exception. Clocks on Lord Howe Island change by half an hour. There a job with `*` whose hour is the one
after the change in autumn begins at minute 30 on that day.
"""

from __future__ import annotations

import difflib
from contextlib import suppress
from datetime import MAXYEAR, UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo, available_timezones

from attrs import evolve, field, frozen
from cronsim import CronSim, CronSimError

from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

EXPRESSION_MAX: Final = 255
"""The most characters of an expression, as wide as its column."""
ZONE_MAX: Final = 64

_WITH_SECONDS: Final = 6
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NEW_YEAR: Final = datetime(2000, 1, 1)  # noqa: DTZ001 - wall clock only: seconds are the same in every zone
LATEST_MS: Final = (datetime(MAXYEAR, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
"""The end of the calendar: a time beyond it counts as this one, so that no damaged row fails. Epoch milliseconds."""
_SECOND: Final = timedelta(seconds=1)
_MINUTE: Final = timedelta(minutes=1)
_MINUTE_MS: Final = 60_000
_OF_THE_MACHINE: Final = frozenset({"localtime", "posixrules", "Factory"})
"""Names that the system may know. They mean something else on every machine."""


@frozen
class Cron:
    """An expression in a time zone. Make it with `parse`. All times are whole seconds."""

    expression: str
    """Its fields, with one blank between them."""
    timezone: str
    _minutes: str = field(repr=False)  # the five fields without the seconds
    _seconds: tuple[int, ...] = field(repr=False)
    zone: tzinfo = field(repr=False)

    @property
    def follows_the_clock(self) -> bool:
        """Whether it fires twice for a time that comes twice. Otherwise it fires once on each of its days."""
        return any(part.startswith("*") for part in self._minutes.split()[:2])

    def names(self, local: datetime) -> bool:
        """Whether its fields match a time on the clock, without a zone. The end of a gap may not be such a time."""
        at = local.replace(tzinfo=UTC)
        return next(evolve(self, zone=UTC).times(at - _SECOND), None) == at

    def times(self, after: datetime) -> Iterator[datetime]:
        """Yield the times later than `after` (aware), in order and in the expression's zone.

        It ends when none follows within fifty years.
        """
        last = after.astimezone(UTC)
        try:
            minutes = CronSim(self._minutes, (last.replace(second=0, microsecond=0) - _SECOND).astimezone(self.zone))
            for minute in minutes:
                begin = minute.astimezone(UTC)
                for second in self._seconds:
                    at = begin + second * _SECOND
                    # In the hour that comes twice, cronsim gives the times of the first hour once more.
                    if at > last:
                        last = at
                        yield at.astimezone(self.zone)
        except OverflowError:  # the end of the calendar
            return

    def after(self, ms: int) -> int:
        """Return the first time later than `ms`, both in epoch milliseconds. ConfigurationError if there is none."""
        found = next(self.times(_moment(ms)), None)
        if found is None:
            raise ConfigurationError(f"the cron expression {self.expression!r} never fires")
        return _ms(found)

    def between(self, after_ms: int, until_ms: int) -> Iterator[int]:
        """Yield the times later than `after_ms`, up to `until_ms`, in order. Epoch milliseconds."""
        return takewhile(lambda at: at <= until_ms, map(_ms, self.times(_moment(after_ms))))

    def last(self, after_ms: int, until_ms: int) -> int | None:
        """Return the last time of `between`, without going through all of them. None: there is none."""
        first_seconds = Cron(self.expression, self.timezone, self._minutes, self._seconds[:1], self.zone)
        reach = _MINUTE_MS
        while True:
            begin = max(after_ms, until_ms - reach)
            minute = max(first_seconds.between(begin, until_ms), default=None)
            if minute is not None:
                return max(self.between(minute - 1, until_ms))
            if begin == after_ms:
                return max(self.between(begin, until_ms), default=None)  # within the minute of `after_ms`
            reach *= 2


def parse(expression: str, timezone: str) -> Cron:
    """Parse an expression of five fields, or six with the second first. Raises ConfigurationError."""
    _check_text("the cron expression", expression, EXPRESSION_MAX)
    _check_text("the time zone", timezone, ZONE_MAX)
    return _parsed(expression, timezone)


@lru_cache(1024)
def _parsed(expression: str, timezone: str) -> Cron:
    parts = expression.split()
    seconds, minutes = ("0", parts) if len(parts) != _WITH_SECONDS else (parts[0], parts[1:])
    try:
        CronSim(" ".join(minutes), _NEW_YEAR)
        at = CronSim(f"{seconds} * * * * *", _NEW_YEAR - _SECOND)
        found = tuple(each.second for each in takewhile(lambda each: each < _NEW_YEAR + _MINUTE, at))
    except (CronSimError, ValueError) as exc:
        raise ConfigurationError(
            f"the cron expression {expression!r} has a fault: {str(exc).lower()}; it has five fields, minute hour "
            "day-of-month month day-of-week, or six with the second first"
        ) from exc
    return Cron(" ".join(parts), timezone, " ".join(minutes), found, _zone(timezone))


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    with suppress(KeyError, ValueError, OSError):  # unknown; a path; a directory
        if name not in _OF_THE_MACHINE:
            return ZoneInfo(name)
    close = difflib.get_close_matches(name, available_timezones() - _OF_THE_MACHINE, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "names are those of IANA, such as 'Europe/Berlin'"
    raise ConfigurationError(f"unknown time zone {name!r}: {hint}")


def _check_text(what: str, value: object, most: int) -> None:
    """Refuse anything but one line of plain text that fits into its column."""
    if not isinstance(value, str):
        raise ConfigurationError(f"{what} must be a str, not {type(value).__name__}")
    if not 0 < len(value) <= most:
        raise ConfigurationError(f"{what} must have 1 to {most} characters, not {len(value)}")
    if not value.isascii() or not value.replace("\t", " ").isprintable():
        raise ConfigurationError(f"{what} must be plain text, not {value!r}")


def _moment(ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=min(ms, LATEST_MS))


def _ms(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)
