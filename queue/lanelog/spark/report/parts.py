"""What a report is made of: facts, tables, plots, sections. Values only.

They know neither HTML nor Spark. `sections` makes them, `page` hands them to the template.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from attrs import field, frozen
from markupsafe import Markup

from lanelog.spark.report.text import UNKNOWN

MOST_ROWS: Final = 10_000
"""Of tables that can be longer, dead letters and stalled lanes, the files hold so many rows: the foremost."""

_SHORT: Final = 14

Row = Mapping[str, Any]
"""A row of a table of `analyze`, by column."""


@frozen(kw_only=True)
class Facts:
    """What was read, up to which instant. `archive` and `live` are names for people, None where it was not read."""

    archive: str | None
    live: str | None
    cutoff: datetime
    topics: Sequence[str]
    messages: int
    size: int
    lanes: int
    first: datetime | None
    last: datetime | None
    step_ms: int
    """Of the table `timeline`."""
    stalled_after_ms: int
    keeps_history: bool
    """Whether any group of consumers does."""
    dead_letters: int
    outstanding: int | None
    """Dead letters that nobody has redriven or deleted; None: the live log was not read."""
    reasons: int
    """Of the dead letters, different ones."""
    stalled: int
    """Stalled lanes, but for the postponed ones."""
    counted: Mapping[str, int]
    """All rows that there are for `dead_letters` and `stalled_lanes`, of which only the foremost are in the tables."""
    files: str
    """Which files hold the tables: `parquet` or `csv`."""


@frozen
class Cell:
    """One place of a table: text, and how long its bar is (0 to 1), if it has one."""

    text: str
    bar: float | None = None
    tone: str = ""

    @property
    def short(self) -> bool:
        """Whether it is better not broken: hyphens in names are no places to break them at."""
        return len(self.text) <= _SHORT

    @property
    def absent(self) -> bool:
        """Whether there is nothing in it, so that a phone need not show it."""
        return self.text == UNKNOWN


@frozen(kw_only=True)
class ReportTable:
    """Heads and rows; `numbers` are heads whose cells are aligned to the right."""

    heads: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    numbers: tuple[str, ...] = ()
    more: str = ""


@frozen(kw_only=True)
class Plot:
    """A plot, what it shows, and the names of its colours."""

    svg: Markup = field(repr=False)
    title: str
    note: str = ""
    legend: Sequence[tuple[int, str]] = ()
    """Number of the colour, from 1, and what has it."""


@frozen(kw_only=True)
class Section:
    """A part of the report."""

    name: str
    title: str
    text: str
    plots: Sequence[Plot] = ()
    tables: Sequence[ReportTable] = ()
    nothing: str = ""
    """Said instead, where there is nothing to show."""


@frozen
class Tile:
    """A figure at the top of the page."""

    label: str
    value: str
    note: str
    tone: str = ""


def total(rows: Iterable[Row], column: str) -> int:
    """The sum of a column."""
    return sum(row[column] or 0 for row in rows)
