"""How the report writes numbers, sizes, times and text of the log.

Owns the form. Numbers carry their units. Text of the log is on one line, cut, and free of characters that mislead a
reader (control characters, marks that turn the writing direction). The template escapes it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from lanelog._base.text import printable

UNKNOWN: Final = "—"

_TEXT_MAX: Final = 120
_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_STEP: Final = 1024
_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
_TENS: Final = 10
_THOUSAND: Final = 1000


def count(value: int | None) -> str:
    """Return a number with separators: `1,234,567`."""
    return UNKNOWN if value is None else f"{value:,}"


def short_count(value: float) -> str:
    """Return a number for an axis: `0`, `250`, `1.5k`, `20k`, `3M`."""
    for bound, letter in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if value >= bound:
            return f"{value / bound:.3g}{letter}"
    return f"{value:.3g}"


def size(value: int | None) -> str:
    """Return bytes: `0 bytes`, `1 byte`, `999 bytes`, `1.5 KiB`, `117 MiB`."""
    if value is None:
        return UNKNOWN
    if value < _STEP:
        return f"{value} byte{'' if value == 1 else 's'}"
    scaled, power = float(value), 0
    while scaled >= _STEP - 0.5 and power < len(_UNITS) - 1:
        scaled, power = scaled / _STEP, power + 1
    return f"{scaled:.1f} {_UNITS[power]}" if scaled < _TENS else f"{scaled:.0f} {_UNITS[power]}"


def short_size(value: float) -> str:
    """Return bytes for an axis: `0`, `512 bytes`, `64 KiB`, `1.5 MiB`."""
    power = 0
    while value >= _STEP and power < len(_UNITS) - 1:
        value, power = value / _STEP, power + 1
    return f"{value:g} {_UNITS[power]}" if value else "0"


def duration(ms: int | None) -> str:
    """Return milliseconds as text, rounded down: `7 ms`, `1.25 s`, `59.9 s`, `3 min 05 s`, `2 h 07 min`, `4 d 02 h`."""
    if ms is None:
        return UNKNOWN
    if ms < _SECOND:
        return f"{ms} ms"
    if ms < _TENS * _SECOND:
        return f"{ms // 10 / 100:.2f} s"
    if ms < _MINUTE:
        return f"{ms // 100 / 10:.1f} s"
    for unit, name, part, part_name in ((_DAY, "d", _HOUR, "h"), (_HOUR, "h", _MINUTE, "min")):
        if ms >= unit:
            return _in_two(ms, unit, name, part, part_name)
    return _in_two(ms, _MINUTE, "min", _SECOND, "s")


def _in_two(ms: int, unit: int, name: str, part: int, part_name: str) -> str:
    rest = ms % unit // part
    return f"{ms // unit} {name}" + (f" {rest:02} {part_name}" if rest else "")


def span(ms: int) -> str:
    """Return a step of a time axis in words: `200 ms`, `second`, `10 seconds`, `hour`, `7 days`."""
    if ms < _SECOND:
        return f"{ms} ms"
    for unit, name in ((_DAY, "day"), (_HOUR, "hour"), (_MINUTE, "minute")):
        if ms % unit == 0:
            return name if ms == unit else f"{ms // unit} {name}s"
    return "second" if ms == _SECOND else f"{ms / _SECOND:g} seconds"


def share(value: float | None) -> str:
    """Return a part of 1 as per cent: `0 %`, `0.05 %`, `< 0.01 %`, `12.5 %`, `100 %`."""
    if value is None:
        return UNKNOWN
    per_cent = value * 100
    if 0 < per_cent < 0.01:  # noqa: PLR2004 - the last digit shown
        return "< 0.01 %"
    digits = 2 if 0 < per_cent < 1 else 1 if per_cent < 100 else 0  # noqa: PLR2004 - 100 %
    return f"{per_cent:.{digits}f} %".replace(".0 %", " %")


def moment(value: datetime | None) -> str:
    """Return a time to the second: `2026-06-01 10:00:00 UTC`."""
    return UNKNOWN if value is None else f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def hour(value: datetime) -> str:
    """Return the hour that begins at a time: `2026-06-01 10:00 UTC`."""
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def plain(text: str | None, most: int = _TEXT_MAX) -> str:
    """Return text of the log on one line, at most `most` characters, with unprintable ones escaped."""
    return UNKNOWN if text is None else printable(text, most)
