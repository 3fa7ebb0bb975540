"""A column of a list, and the kinds of columns: names, texts, numbers, durations and times.

Owns what all columns of a kind have in common. Knows no list.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final

from attrs import frozen

from lanelog._base.text import CELL_MAX, age, ago, number, shown, summary

NAME_LEAST: Final = 12
"""Cells that a name keeps at least. They are enough to distinguish names with the same beginning by their ends."""
NAME_WANT: Final = 24
"""Cells that a name should have."""
TEXT_LEAST: Final = 18
TEXT_WANT: Final = 28


class Tone(StrEnum):
    """What a colour means, as the name of a style of rich."""

    BAD = "red"
    WARN = "yellow"
    GOOD = "green"
    FAINT = "dim"
    HEAD = "bold"


Get = Callable[[Any], Any]
ToneOf = Callable[[Any], Tone | None]


def when(condition: Callable[[Any], object], tone: Tone) -> ToneOf:
    """Return a function that colours the rows for which the condition holds."""
    return lambda row: tone if condition(row) else None


def _no_tone(_row: Any) -> Tone | None:
    return None


@frozen(kw_only=True)
class Column:
    """One column: the source of its values, their format, and what happens if there is little room."""

    head: str
    """As a terminal shows it: `LAST-ATTEMPT`."""
    get: Get
    """The value, from a row."""
    show: Callable[[Any], str] | None
    """Makes one line of text from the value, without control characters. None: the distance of a time from now."""
    rank: int = 0
    """Without room, columns with the highest rank are dropped first. Columns of rank 0 stay."""
    right: bool = False
    """Whether it is aligned to the right."""
    least: int | None = None
    """Cells to which its text may be cropped. None: it is never cropped."""
    want: int = 0
    """Cells that its text should have before columns that are dropped early get any."""
    tone: ToneOf = _no_tone
    """The colour of its cell in a row."""

    @property
    def title(self) -> str:
        """The head as a page shows it: `Last attempt`."""
        return self.head.replace("-", " ").capitalize()

    def text(self, row: Any, now: datetime) -> str:
        """Return the text of a row's cell."""
        value = self.get(row)
        return ago(value, now) if self.show is None else self.show(value)


@frozen(kw_only=True)
class _Kind:
    """What all columns of a kind have in common."""

    show: Callable[[Any], str] | None
    right: bool = False
    least: int | None = None
    want: int = 0

    def __call__(
        self, head: str, get: str | Get, *, rank: int = 0, least: int | None = None, tone: ToneOf = _no_tone
    ) -> Column:
        """Make a column. `get`: its value in a row, or the name of its field."""
        return Column(
            head=head,
            get=attrgetter(get) if isinstance(get, str) else get,
            show=self.show,
            rank=rank,
            right=self.right,
            least=least or self.least,
            want=self.want,
            tone=tone,
        )


def _summary(error: str | None) -> str:
    return shown(summary(error))


name = _Kind(show=shown, least=NAME_LEAST, want=NAME_WANT)
"""Names, or other short texts: they are cropped if there is no room."""
error = _Kind(show=_summary, least=TEXT_LEAST, want=TEXT_WANT)
"""Errors without their stack frames, which `show` prints."""
word = _Kind(show=lambda value: shown(None if value is None else str(value)))
"""Values that are few fixed words: never cropped."""
count = _Kind(show=number, right=True)
"""Numbers: aligned to the right, never cropped."""
seconds = _Kind(show=age, right=True)
"""Durations."""
time = _Kind(show=None, right=True)
"""Times, shown as the distance from now."""


def text(head: str, get: str | Get, *, rank: int = 0, most: int = CELL_MAX, tone: ToneOf = _no_tone) -> Column:
    """Make a column of payloads or reasons, of at most `most` characters: like names, but wider."""
    kind = _Kind(show=lambda value: shown(value, most), least=TEXT_LEAST, want=TEXT_WANT)
    return kind(head, get, rank=rank, tone=tone)
