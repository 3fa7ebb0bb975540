"""The kinds of columns: names, texts, numbers, ages and times, each with its format and how it is cropped.

Owns what all columns of a kind have in common. Knows no verb.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from operator import attrgetter
from typing import Any

from lanelog._engine.lane.error_text import summary
from lanelog._text import age, shown
from lanelog.cli.output.answer import ago, number
from lanelog.cli.output.table import Column, Tone

ToneOf = Callable[[Any], Tone | None]
Get = Callable[[Any], Any]

NAME_LEAST = 12
"""Cells that a name keeps at least. They are enough to tell names with the same beginning apart by their ends."""
NAME_WANT = 24
"""Cells that a name should have."""
TEXT_LEAST = 18
TEXT_WANT = 28


def when(condition: Callable[[Any], object], tone: Tone) -> ToneOf:
    """Return a function that colours the rows for which the condition holds."""
    return lambda row: tone if condition(row) else None


def _getter(get: str | Get) -> Get:
    return attrgetter(get) if isinstance(get, str) else get


def name(head: str, get: str | Get, *, rank: int = 0, least: int = NAME_LEAST, tone: ToneOf | None = None) -> Column:
    """Make a column of names, or of other short texts: they are cropped if there is no room."""
    return _column(head, get, lambda value, _now: shown(value), rank=rank, least=least, want=NAME_WANT, tone=tone)


def text(head: str, get: str | Get, *, rank: int = 0, most: int = 200, tone: ToneOf | None = None) -> Column:
    """Make a column of errors or payloads, of at most `most` characters: like names, but wider."""
    return _column(
        head, get, lambda value, _now: shown(value, most), rank=rank, least=TEXT_LEAST, want=TEXT_WANT, tone=tone
    )


def error(head: str, get: str | Get, *, rank: int = 0, tone: ToneOf | None = None) -> Column:
    """Make a column of errors without their stack frames, which `show` prints."""
    return _column(
        head, get, lambda value, _now: shown(summary(value)), rank=rank, least=TEXT_LEAST, want=TEXT_WANT, tone=tone
    )


def word(head: str, get: str | Get, *, rank: int = 0, tone: ToneOf | None = None) -> Column:
    """Make a column whose values are few fixed words: never cropped."""
    return _column(head, get, lambda value, _now: shown(None if value is None else str(value)), rank=rank, tone=tone)


def count(head: str, get: str | Get, *, rank: int = 0, tone: ToneOf | None = None) -> Column:
    """Make a column of numbers: aligned to the right, never cropped."""
    return _column(head, get, lambda value, _now: number(value), rank=rank, right=True, tone=tone)


def seconds(head: str, get: str | Get, *, rank: int = 0, tone: ToneOf | None = None) -> Column:
    """Make a column of durations."""
    return _column(head, get, lambda value, _now: age(value), rank=rank, right=True, tone=tone)


def time(head: str, get: str | Get, *, rank: int = 0, tone: ToneOf | None = None) -> Column:
    """Make a column of times, shown as the distance from now."""
    return _column(head, get, _ago, rank=rank, right=True, tone=tone)


def _ago(value: datetime | None, now: datetime) -> str:
    return ago(value, now)


def _column(
    head: str,
    get: str | Get,
    show: Callable[[Any, datetime], str],
    *,
    rank: int,
    right: bool = False,
    least: int | None = None,
    want: int = 0,
    tone: ToneOf | None,
) -> Column:
    given = {} if tone is None else {"tone": tone}
    return Column(head=head, get=_getter(get), show=show, rank=rank, right=right, least=least, want=want, **given)
