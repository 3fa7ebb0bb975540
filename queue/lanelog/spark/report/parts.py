"""The parts of a report: facts, tables, plots, sections. Values only.

They know neither HTML nor Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from attrs import field, frozen
from markupsafe import Markup

from lanelog.spark.report.text import UNKNOWN

MOST_ROWS: Final = 10_000
"""The most rows of the tables `dead_letters` and `stalled_lanes` in the files: the first ones."""

_SHORT: Final = 14

Row = Mapping[str, Any]
"""A row of a table of `analyze`, by column."""


@frozen(kw_only=True)
class Facts:
    """What was read, and sums. `archive` and `live` are names for people; None: not read."""

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
    """Milliseconds of a step of the table `timeline`."""
    stalled_after_ms: int
    keeps_history: bool
    """Whether any group of consumers keeps history."""
    dead_letters: int
    outstanding: int | None
    """Dead letters that are neither redriven nor deleted; None: the live log was not read."""
    reasons: int
    """Different reasons of the dead letters."""
    stalled: int
    """Stalled lanes, without the postponed ones."""
    counted: Mapping[str, int]
    """The number of all rows of `dead_letters` and `stalled_lanes`, of which the tables only hold the first."""
    files: str
    """The format of the tables' files: `parquet` or `csv`."""


@frozen
class Cell:
    """One cell of a table: text, and the length of its bar (0 to 1; None: no bar)."""

    text: str
    bar: float | None = None
    tone: str = ""

    @property
    def short(self) -> bool:
        """Whether a line break in it is unwanted: browsers break names at their hyphens."""
        return len(self.text) <= _SHORT

    @property
    def absent(self) -> bool:
        """Whether it is empty, so that a phone need not show it."""
        return self.text == UNKNOWN


@frozen(kw_only=True)
class ReportTable:
    """Heads and rows. `numbers` are the heads whose cells are aligned to the right."""

    heads: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    numbers: tuple[str, ...] = ()
    more: str = ""


@frozen(kw_only=True)
class Plot:
    """A plot, its title, and the names of its colours."""

    svg: Markup = field(repr=False)
    title: str
    note: str = ""
    legend: Sequence[tuple[int, str]] = ()
    """Number of a colour, from 1, and the name of the series in it."""


@frozen(kw_only=True)
class Section:
    """A part of the report."""

    name: str
    title: str
    text: str
    plots: Sequence[Plot] = ()
    tables: Sequence[ReportTable] = ()
    nothing: str = ""
    """Shown instead, if there is nothing to show."""


@frozen
class Tile:
    """A figure at the top of the page."""

    label: str
    value: str
    note: str
    tone: str = ""


def total(rows: Iterable[Row], column: str) -> int:
    """Return the sum of a column."""
    return sum(row[column] or 0 for row in rows)
