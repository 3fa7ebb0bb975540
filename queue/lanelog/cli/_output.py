"""What the commands print: tables for people, plain columns for pipes, JSON for programs.

Owns the form and nothing of the content; lets no control character of a key, an error or a payload reach a terminal.
Called by every room of the command line.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import cast

import attrs
import click
from attrs import frozen
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from lanelog.admin._words import CELL_MAX, NOTHING, age, moment, plural, shown

__all__ = [
    "NOTHING",
    "Answer",
    "Table",
    "age",
    "moment",
    "number",
    "payload",
    "plural",
    "print_answer",
    "rendered",
    "shown",
    "to_json",
]


@frozen
class Table:
    """Columns with their heads; cells are text already. `numbers` are aligned to the right and never broken."""

    heads: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[str] = ()

    def plain(self) -> str:
        """Columns two blanks apart, nothing cut: for pipes, files and tests."""
        lines = [self.heads, *self.rows]
        widths = [max(len(line[place]) for line in lines) for place in range(len(self.heads))]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if head in self.numbers else cell.ljust(width)
                for head, cell, width in zip(self.heads, line, widths, strict=True)
            ).rstrip()
            for line in lines
        )

    def rich(self) -> RenderableType:
        """The same for a terminal: what does not fit is folded, not hidden."""
        table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for place, head in enumerate(self.heads):
            if head in self.numbers:
                width = max(len(line[place]) for line in [self.heads, *self.rows])
                table.add_column(head, justify="right", no_wrap=True, min_width=width)
            else:
                table.add_column(head, overflow="fold")
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table


@frozen(kw_only=True)
class Answer:
    """What a command found or did: the values for `--json`, a table or lines for people, and what is alarming."""

    data: object
    before: Sequence[str] = ()
    table: Table | None = None
    lines: Sequence[str] = ()
    alarms: Sequence[str] = ()
    """One line each for standard error; the command then ends with exit status 1."""
    silent: bool = False
    """Whether it has been written already."""


def print_answer(answer: Answer, *, as_json: bool) -> None:
    """Print it once."""
    if answer.silent:
        return
    if as_json:
        click.echo(to_json(answer.data, indent=2))
        return
    for line in answer.before:
        click.echo(line)
    if answer.table is not None:
        if sys.stdout.isatty():
            Console(highlight=False).print(answer.table.rich())
        else:
            click.echo(answer.table.plain())
    for line in answer.lines:
        click.echo(line)


def rendered(answer: Answer) -> RenderableType:
    """The same as one thing that a terminal shows, and shows again."""
    parts: list[RenderableType] = [] if answer.table is None else [answer.table.rich()]
    return Group(*map(Text, answer.before), *parts, *map(Text, answer.lines))


# -- values as text ----------------------------------------------------------------------------------------------------


def payload(data: bytes, most: int = CELL_MAX) -> str:
    """A payload on one line: as text if it is UTF-8, else its bytes escaped."""
    try:
        return shown(data.decode(), most)
    except UnicodeDecodeError:
        return shown(repr(data)[2:-1], most)


def number(value: float | None) -> str:
    """An int, or nothing."""
    return NOTHING if value is None else str(value)


# -- JSON --------------------------------------------------------------------------------------------------------------


def to_json(value: object, *, indent: int | None = None) -> str:
    """Values of attrs, lists and dicts as JSON: times in UTC as ISO 8601, bytes as text, or as `{"base64": …}`.

    In printable ASCII: a terminal obeys no control character or bidirectional mark of a key or an error.
    """
    return json.dumps(_plain(value), indent=indent)


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if attrs.has(type(value)):
        names = (each.name for each in attrs.fields(cast("type[attrs.AttrsInstance]", type(value))))
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    return value
