"""Names, ages, times and counts as people read them.

Owns these words, so that `status` says the same in Python, in a terminal and in a report. Lets no control character of
a name or an error through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from datetime import datetime

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
CELL_MAX: Final = 200
NOTHING: Final = "-"
TRACEBACK_HEAD: Final = "Traceback (most recent call last):"
"""What begins the frames in an error text, behind the exception's own message."""


def shown(value: str | None, most: int = CELL_MAX) -> str:
    """Return foreign text on one line, cut, and without characters that would steer a terminal."""
    return NOTHING if value is None else printable(value, most) or NOTHING


def printable(value: str, most: int) -> str:
    """Return one line of at most `most` characters. Characters that do not print are escaped after the cut."""
    cut = value if len(value) <= most else value[: most - 1] + "…"
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in cut)


def age(seconds: float | None, *, exact: bool = True) -> str:
    """Return a duration as people read it: `0.3s`, `12s`, `3m05s`, `2h07m`, `4d02h`. Not `exact`: `≥3m05s`."""
    if seconds is None:
        return NOTHING
    if not exact:
        return f"≥{age(seconds)}"
    if seconds < 1:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{whole}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m{whole % _MINUTE:02}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02}m"
    return f"{whole // _DAY}d{whole % _DAY // _HOUR:02}h"


def moment(value: datetime | None) -> str:
    """Return a time in UTC, in the form that `seek` and `purge` take."""
    return NOTHING if value is None else value.isoformat(timespec="seconds").replace("+00:00", "Z")


def plural(count: int, noun: str, many: str | None = None) -> str:
    """`1 lane`, `2,000 lanes`."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def payload(data: bytes, most: int = CELL_MAX) -> str:
    """Return a payload on one line: as text if it is UTF-8, else with its bytes escaped."""
    try:
        return shown(data.decode(), most)
    except UnicodeDecodeError:
        return shown(repr(data)[2:-1], most)


def number(value: float | None) -> str:
    """Return a number with separators between thousands."""
    return NOTHING if value is None else f"{value:,}"


def ago(value: datetime | None, now: datetime) -> str:
    """Return how long ago a time was, or in how long it will be, in the largest unit: `5m ago`, `in 2h`."""
    if value is None:
        return NOTHING
    seconds = (now - value).total_seconds()
    distance = _rough(abs(seconds))
    return f"in {distance}" if seconds < 0 else f"{distance} ago"


def _rough(seconds: float) -> str:
    for unit, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "m")):
        if seconds >= unit:
            return f"{int(seconds // unit)}{name}"
    return f"{int(seconds)}s"


def summary(error: str | None) -> str | None:
    """Return the exception's own message, out of the error text that is kept with a message."""
    return None if error is None else error.split(f"\n{TRACEBACK_HEAD}", 1)[0]


def describe(error: BaseException) -> str:
    """Return the class and text of an exception; never raises."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - an application's exception may fail to render
        text = "(its text could not be rendered)"
    name = type(error).__name__
    return f"{name}: {text}" if text else name
