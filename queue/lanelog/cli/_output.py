"""What the commands print: tables for people, plain columns for pipes, JSON for programs.

Owns the form and nothing of the content: columns are in `_columns`, their widths in `_table`. Lets no control character
of a key, an error or a payload reach a terminal. Called by every room of the command line.
"""

from __future__ import annotations

import base64
import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import cast

import attrs
import click
from attrs import frozen
from rich.console import Console
from rich.text import Text

from lanelog._text import CELL_MAX, NOTHING, shown
from lanelog.cli._crop import crop
from lanelog.cli._table import Table, Tone

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


Line = str | Text
"""A line for people. Text is prose: on a terminal it is coloured, and broken between words. str is left as it is."""
_HANGING = 4
"""Blanks before what goes on in the next line."""


@frozen(kw_only=True)
class Answer:
    """What a command found or did: the values for `--json`, a table or lines for people, and what is alarming."""

    data: object
    before: Sequence[Line] = ()
    summary: str = ""
    """One line above the table, on a terminal."""
    table: Table | None = None
    total: str = ""
    """One line below the table, on a terminal."""
    nothing: str = ""
    """What is said instead of a table without rows, and why there is none."""
    lines: Sequence[Line] = ()
    prose: Sequence[Line] = ()
    """What a terminal shows instead of the table, where its cells are sentences."""
    alarms: Sequence[str] = ()
    """One line each for standard error; the command then ends with exit status 1."""
    silent: bool = False
    """Whether it has been written already."""


def print_answer(answer: Answer, *, as_json: bool, wide: bool = False) -> None:
    """Print it once. `wide`: all columns, nothing cropped."""
    if answer.silent:
        return
    if as_json:
        click.echo(to_json(answer.data, indent=2))
        return
    if sys.stdout.isatty():
        console = Console(highlight=False)
        for each in on_screen(answer, None if wide else console.width):
            console.print(each, soft_wrap=True)
        return
    for line in map(_text, answer.before):
        click.echo(line.plain)
    if answer.table is not None:
        click.echo(answer.table.plain())
        if answer.nothing and not answer.table.rows:
            click.echo(answer.nothing, err=True)  # what reads the columns finds columns alone
    for line in map(_text, answer.lines):
        click.echo(line.plain)


def on_screen(answer: Answer, width: int | None) -> list[Text]:
    """The lines that a terminal of `width` cells shows; None: as wide as they need to be."""
    lines = _broken(answer.before, width)
    if answer.prose:
        lines += _broken(answer.prose, width)
    elif answer.table is not None and (answer.table.rows or not answer.nothing):
        screen = answer.table.screen(width)
        hidden = f"no room for {', '.join(screen.hidden)}: --wide shows all" if screen.hidden else ""
        if answer.summary:
            lines += [_note(answer.summary, width), Text()]
        lines += screen.lines
        if answer.total or hidden:
            lines.append(Text())
        lines += [_note(answer.total, width)] if answer.total else []
        lines += [_note(hidden, width, Tone.FAINT)] if hidden else []
    elif answer.nothing:
        lines += [_note(line, width) for line in textwrap.wrap(answer.nothing, width or len(answer.nothing))]
    return lines + _broken(answer.lines, width)


def _note(text: str, width: int | None, tone: Tone | None = None) -> Text:
    return Text(text if width is None else crop(text, width), style=tone or "")


def _broken(lines: Sequence[Line], width: int | None) -> list[Text]:
    """Prose in as many lines as it needs, those after the first a little further in."""
    found: list[Text] = []
    for line in lines:
        if isinstance(line, str) or width is None or line.cell_len <= width:
            found.append(_text(line))
            continue
        indent = max(_HANGING, len(line.plain) - len(line.plain.lstrip()))
        first, *others = line.wrap(Console(width=width), max(1, width - indent))
        found += [first, *(Text(" " * indent).append_text(other) for other in others)]
    return found


def _text(line: Line) -> Text:
    return Text(line) if isinstance(line, str) else line


# -- values as text ----------------------------------------------------------------------------------------------------


def block(head: str, text: str) -> list[str]:
    """A text of several lines, such as a traceback, below its head: every line whole, and on its own."""
    return [head, *(f"  {shown(line, len(line))}" if line else "" for line in text.splitlines())]


def payload(data: bytes, most: int = CELL_MAX) -> str:
    """A payload on one line: as text if it is UTF-8, else its bytes escaped."""
    try:
        return shown(data.decode(), most)
    except UnicodeDecodeError:
        return shown(repr(data)[2:-1], most)


def number(value: float | None) -> str:
    """A number with separators between thousands, or nothing."""
    return NOTHING if value is None else f"{value:,}"


def ago(value: datetime | None, now: datetime) -> str:
    """How long ago it was, or in how long it will be, in its largest unit: `5m ago`, `in 2h`."""
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


def name(value: str | None, most: int = 32) -> str:
    """Somebody else's name in a sentence: as `shown`, cropped in its middle to `most` cells."""
    return crop(shown(value), most)


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
