"""The columns of the report's tables: a head, and the cell for a row.

Owns how a row of `analyze` becomes cells, and where a table is cut. Chooses no column: `sections` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from attrs import frozen

from lanelog.spark.report.parts import MOST_ROWS, Cell, ReportTable, Row
from lanelog.spark.report.text import count, plain

SHOWN: Final = 15
"""The most rows of a table that the report shows; the files hold more."""


@frozen
class ReportColumn:
    """One column of a table."""

    head: str
    cell: Callable[[Row], Cell]
    number: bool = False
    """Whether its cells are aligned to the right."""


def text(head: str, column: str) -> ReportColumn:
    """Make a column of text from the log, escaped for display."""
    return ReportColumn(head, lambda row: Cell(plain(row[column])))


def number(
    head: str,
    column: str,
    form: Callable[[Any], str] = count,
    *,
    of: float | None = None,
) -> ReportColumn:
    """Make a column of numbers in their form. `of`: the number that a full bar stands for; None or 0: no bar."""
    return ReportColumn(head, lambda row: Cell(form(row[column]), row[column] / of if of else None), number=True)


def table(
    columns: Sequence[ReportColumn], rows: Sequence[Row], *, most: int = SHOWN, of: int | None = None
) -> list[ReportTable]:
    """Return a table of the first rows; none if there are no rows.

    `of`: the number of all rows, if `rows` are not all.
    """
    if not rows:
        return []
    there = len(rows) if of is None else of
    held = "all of them" if there <= MOST_ROWS else f"the first {count(MOST_ROWS)}"
    return [
        ReportTable(
            heads=tuple(column.head for column in columns),
            rows=[[column.cell(row) for column in columns] for row in rows[:most]],
            numbers=tuple(column.head for column in columns if column.number),
            more=f"The first {most} of {count(there)}; the file has {held}." if there > most else "",
        )
    ]
