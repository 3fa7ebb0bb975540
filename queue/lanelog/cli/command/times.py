"""Times as people write them on a command line.

Owns which texts are a time, and how one is written. Relative times are read by the clock of this machine, and days in
the time zone of the terminal (TZ). Knows no command.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import Final

from lanelog._base.text import moment
from lanelog.errors import ConfigurationError

FORMS: Final = "2026-01-31T12:00:00Z, 2026-01-31, yesterday or -1h"
"""What an error and a help name as examples of times."""

_DAYS: Final = {"yesterday": -1, "today": 0, "tomorrow": 1}
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_RELATIVE: Final = re.compile(r"([+-])(?=\d)(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.ASCII)


def instant(text: str) -> datetime | None:
    """Return the time that a text names; None if the text is no time.

    An ISO 8601 time with its offset from UTC; a date, `yesterday`, `today` or `tomorrow`, which is the midnight that
    begins this day in the terminal's zone; or a distance from now: `-1h`, `+2d`, `-1h30m`.

    Raises ConfigurationError for a time of day without an offset from UTC: a wrong guess may delete.
    """
    try:
        if text in _DAYS:
            return _midnight(date.today() + timedelta(days=_DAYS[text]))  # noqa: DTZ011 - the day of the terminal
        if distance := _RELATIVE.fullmatch(text):
            return _from_now(distance)
        if _DATE.fullmatch(text):
            return _midnight(date.fromisoformat(text))
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        return None
    if found.tzinfo is None:
        raise ConfigurationError(
            f"the time {text!r} has no time zone: write {found.isoformat()}Z for UTC, or {found.isoformat()}+02:00"
        )
    return found


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day).astimezone()


def _from_now(distance: re.Match[str]) -> datetime:
    """Return a time in whole seconds: a preview shows it as exactly as it is meant."""
    sign, *parts = distance.groups()
    weeks, days, hours, minutes, seconds = (int(part or 0) for part in parts)
    by = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
    now = datetime.now(UTC).replace(microsecond=0)
    return now - by if sign == "-" else now + by


def time_text(value: datetime) -> str:
    """Return a time in UTC, and in the terminal's zone where that is another: who wrote `-1h` sees what it means."""
    local = value.astimezone()
    utc = moment(value.astimezone(UTC))
    return f"{utc} ({local:%Y-%m-%d %H:%M:%S %Z})" if local.utcoffset() else utc
