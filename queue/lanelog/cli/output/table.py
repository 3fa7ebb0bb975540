"""One renderer for all tables: which columns have room, how wide each is, what is cropped and what is coloured.

Owns the arithmetic of widths. Knows no column by name (`_views` does), and prints nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from attrs import field, frozen
from rich.cells import cell_len
from rich.text import Text

from lanelog._base.text import NOTHING
from lanelog._views.column import Column, Tone
from lanelog.cli.output.crop import crop, cropped, padded

_GAP: Final = 2
"""Blanks between two columns."""
_OPTIONAL: Final = 3
"""Columns of this rank and above are dropped before names are cropped below the width they want."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


@frozen
class Table:
    """Rows, and the columns in which they may be shown. `now` is the time from which ages count."""

    columns: Sequence[Column]
    rows: Sequence[Any]
    now: datetime = field(factory=_utc_now)

    def cells(self) -> list[list[str]]:
        """Return the text of every cell, uncropped."""
        return [[column.text(row, self.now) for column in self.columns] for row in self.rows]

    def plain(self) -> str:
        """Return all columns, two blanks apart, nothing cropped: for pipes, files and tests."""
        lines = [[column.head for column in self.columns], *self.cells()]
        widths = [max(cell_len(line[index]) for line in lines) for index in range(len(self.columns))]
        return "\n".join(
            (" " * _GAP)
            .join(
                padded(cell, width, right=column.right)
                for column, cell, width in zip(self.columns, line, widths, strict=True)
            )
            .rstrip()
            for line in lines
        )

    def screen(self, width: int | None) -> Screen:
        """Return the table for a terminal of `width` cells, coloured. None: as wide as it needs to be."""
        cells = self.cells()
        measured = [
            _Measured(
                column=column,
                index=index,
                natural=max([cell_len(column.head), *(cell_len(line[index]) for line in cells)]),
                empty=all(line[index] == NOTHING for line in cells),
            )
            for index, column in enumerate(self.columns)
        ]
        kept = measured if width is None else _kept(measured, width)
        widths = [each.natural for each in kept] if width is None else _widths(kept, width)
        lines = [
            _line(
                kept, widths, [crop(*each) for each in zip(_heads(kept), widths, strict=True)], [Tone.HEAD] * len(kept)
            )
        ]
        columns = [
            cropped([line[each.index] for line in cells], each_width)
            for each, each_width in zip(kept, widths, strict=True)
        ]
        for row, line in zip(self.rows, zip(*columns, strict=True), strict=True):
            lines.append(_line(kept, widths, line, [each.column.tone(row) for each in kept]))
        hidden = tuple(each.column.head for each in measured if each not in kept and not each.empty)
        if width is not None:
            for each in lines:
                if cell_len(each.plain) > width:  # the window is narrower than the columns that cannot be cropped
                    each.plain = crop(each.plain, width)
        return Screen(lines, tuple(_heads(kept)), hidden)


@frozen
class Screen:
    """A table as lines."""

    lines: list[Text]
    heads: tuple[str, ...]
    """Heads of the columns that are shown."""
    hidden: tuple[str, ...]
    """Heads of the columns that have values and no room."""


@frozen(kw_only=True)
class _Measured:
    """A column, and how wide its cells are."""

    column: Column
    index: int
    natural: int
    empty: bool
    """Whether its cells are empty in all rows."""

    @property
    def least(self) -> int:
        if self.column.least is None:
            return self.natural
        return min(self.natural, max(self.column.least, cell_len(self.column.head)))

    @property
    def wanted(self) -> int:
        return max(self.least, min(self.natural, self.column.want))


def _heads(kept: Sequence[_Measured]) -> list[str]:
    return [each.column.head for each in kept]


def _room(width: int, columns: int) -> int:
    return width - _GAP * max(0, columns - 1)


def _kept(measured: Sequence[_Measured], width: int) -> list[_Measured]:
    """Return the columns that have room, in their order.

    Empty columns are dropped first, then those with the highest rank, and of equal rank the last.
    """
    kept = list(measured)
    leaving = sorted((each for each in measured if each.column.rank), key=lambda each: (-each.column.rank, -each.index))
    leaving = [*(each for each in leaving if each.empty), *(each for each in leaving if not each.empty)]
    for each in leaving:
        if sum(one.wanted for one in kept) <= _room(width, len(kept)):
            break
        if each.empty or each.column.rank >= _OPTIONAL:
            kept.remove(each)
    for each in leaving:
        if sum(one.least for one in kept) <= _room(width, len(kept)):
            break
        if each in kept:
            kept.remove(each)
    return kept


def _widths(kept: Sequence[_Measured], width: int) -> list[int]:
    """Return the widths: at least the least of each.

    The rest of the room goes to what they want, then to what they could use.
    """
    widths = [each.least for each in kept]
    left = _room(width, len(kept)) - sum(widths)
    if left < 0:  # a very narrow window: columns that may be cropped are cropped to almost nothing
        for index, each in enumerate(kept):
            if each.column.least is not None and left < 0:
                taken = min(-left, widths[index] - 1)
                widths[index] -= taken
                left += taken
    left = _given(widths, left, [each.wanted for each in kept])
    _given(widths, left, [each.natural for each in kept])
    return widths


def _given(widths: list[int], left: int, wishes: Sequence[int]) -> int:
    """Spread the room that is left over the columns whose wish exceeds their width.

    Return the room that is left then.
    """
    wanting = [index for index, wish in enumerate(wishes) if wish > widths[index]]
    while left > 0 and wanting:
        # The smallest wish first: the room that it does not use is left for the others.
        index = min(wanting, key=lambda index: wishes[index] - widths[index])
        more = min(wishes[index] - widths[index], max(1, left // len(wanting)))
        widths[index] += more
        left -= more
        wanting.remove(index)
    return left


def _line(kept: Sequence[_Measured], widths: Sequence[int], cells: Sequence[str], tones: Sequence[Tone | None]) -> Text:
    line = Text()
    for index, (each, width, cell, tone) in enumerate(zip(kept, widths, cells, tones, strict=True)):
        last = index == len(kept) - 1 and not each.column.right
        line.append(cell if last else padded(cell, width, right=each.column.right), style=tone)
        if index < len(kept) - 1:
            line.append(" " * _GAP)
    line.rstrip()
    return line
