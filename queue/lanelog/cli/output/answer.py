"""What the commands print: tables for people, plain columns for pipes, JSON for programs.

Owns the form; `_views` has the columns, `table` their widths. Lets no control character of a key, an error or a
payload reach a terminal.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum

import attrs
import click
from attrs import evolve, frozen
from rich.console import Console
from rich.text import Text

from lanelog._base.text import shown
from lanelog._views.column import Tone
from lanelog.cli.output.crop import crop
from lanelog.cli.output.table import Table

Line = str | Text
"""A line for people. Text is prose: a terminal colours it and breaks it between words. A str is left as it is."""
_HANGING = 4
"""Blanks before the second and later lines of broken prose."""
_ROWS = 3
"""Rows of a table that are shown however low the terminal is."""


@frozen(kw_only=True)
class Answer:
    """The answer of a command: values for `--json`, a table or lines for people, and alarms."""

    data: object
    before: Sequence[Line] = ()
    entries: Sequence[Sequence[Line]] = ()
    """The worst first. A terminal shows so many as fit, and says how many more there are."""
    summary: str = ""
    """One line above the table, on a terminal."""
    table: Table | None = None
    total: str = ""
    """One line below the table, on a terminal."""
    nothing: str = ""
    """Printed instead of a table without rows: why there are none."""
    lines: Sequence[Line] = ()
    prose: Sequence[Line] = ()
    """Shown by a terminal instead of the table, if its cells are sentences."""
    alarms: Sequence[str] = ()
    """One line each for standard error. With any, the command ends with exit status 1."""
    left_out: str = ""
    """What was not read, in one line: for standard error, or below the table."""
    silent: bool = False
    """Whether the answer is already written."""
    database: str = ""
    """Which database answered, on which host: the first line on a terminal."""


def print_answer(answer: Answer, *, as_json: bool, wide: bool = False, whole: bool = True) -> None:
    """Print an answer. `whole`: all rows and entries. `wide`: also all columns, and nothing cropped."""
    if answer.silent:
        return
    if answer.left_out and (as_json or not sys.stdout.isatty()):
        click.echo(answer.left_out, err=True)
    if as_json:
        click.echo(to_json(answer.data, indent=2))
        return
    if sys.stdout.isatty():
        console = Console(highlight=False)
        width, height = (None, None) if wide else console.size
        for each in on_screen(answer, width, None if whole else height):
            console.print(each, soft_wrap=True)
        return
    for line in map(_text, [*answer.before, *_separated(answer)]):
        click.echo(line.plain)
    if answer.table is not None:
        click.echo(answer.table.plain())
        if answer.nothing and not answer.table.rows:
            click.echo(answer.nothing, err=True)  # a program that reads standard output gets columns only
    for line in map(_text, answer.lines):
        click.echo(line.plain)


def on_screen(answer: Answer, width: int | None, height: int | None = None) -> list[Text]:
    """Return the lines that a terminal of `width` cells and `height` lines shows.

    Args:
        answer: What to show.
        width: None: as wide as the lines need to be.
        height: Entries are left out, and the table with them, if all together has no room. Without entries, rows of
            the table are left out. A line says how many; no line below the table is cropped. None: all are shown.
    """
    head = _note(answer.database, width, Tone.FAINT) if answer.database else []
    head += _broken(answer.before, width)
    foot = [Text(), *_note(answer.left_out, width, Tone.WARN)] if answer.left_out else []
    foot += _broken(answer.lines, width)
    all_entries = _broken(_separated(answer), width)
    body = _body(answer, width)
    if height is None or width is None:
        return [*head, *all_entries, *body, *foot]
    room = height - 1 - _rows([*head, *foot], width)
    over = _rows([*all_entries, *body], width) - room
    if over <= 0:
        return [*head, *all_entries, *body, *foot]
    if answer.entries:
        return [*head, *_fitting(answer.entries, width, room), *foot]
    if answer.table is None or len(answer.table.rows) <= _ROWS:
        return [*head, *body, *foot]
    # The line about the rows that are left out takes one more.
    return [*head, *_body(answer, width, max(_ROWS, len(answer.table.rows) - over - 1)), *foot]


def _body(answer: Answer, width: int | None, most: int | None = None) -> list[Text]:
    """Return the table with the lines above and below it, or what stands instead of it.

    `most`: so many rows of the table, the first. None: all.
    """
    lines: list[Text] = []
    if answer.prose:
        lines += _broken(answer.prose, width)
    elif answer.table is not None and (answer.table.rows or not answer.nothing):
        table = answer.table if most is None else evolve(answer.table, rows=answer.table.rows[:most])
        screen = table.screen(width)
        hidden = f"no room for {', '.join(screen.hidden)}: --wide shows all" if screen.hidden else ""
        if answer.summary:
            lines += [*_note(answer.summary, width), Text()]
        lines += screen.lines
        if left := len(answer.table.rows) - len(table.rows):
            lines.append(Text(f"… {left:,} more: --all", style=Tone.FAINT))
        if answer.total or hidden:
            lines.append(Text())
        lines += _note(answer.total, width) if answer.total else []
        lines += _note(hidden, width, Tone.FAINT) if hidden else []
    elif answer.nothing:
        lines += _note(answer.nothing, width)
    return lines


def _separated(answer: Answer) -> list[Line]:
    """Return all entries, with an empty line after each that something follows."""
    lines = [line for entry in answer.entries for line in (*entry, "")]
    return lines if answer.table is not None else lines[:-1]


def _fitting(entries: Sequence[Sequence[Line]], width: int, room: int) -> list[Text]:
    """Return the first entries, one at least, and a line about the others."""
    lines: list[Text] = []
    for count, entry in enumerate(entries):
        broken = _broken([*entry, ""], width)
        if count and _rows([*lines, *broken], width) + 1 > room:
            more = f"… {len(entries) - count} more: --all, or --watch scrolls"
            return [*lines, *_note(more, width, Tone.FAINT)]
        lines += broken
    return [*lines, *_note("… the table: --all shows it", width, Tone.FAINT)]


def _rows(lines: Sequence[Text], width: int) -> int:
    """Return the rows of a terminal that the lines take: a command is left as long as it is."""
    return sum(max(1, -(-line.cell_len // width)) for line in lines)


def _note(text: str, width: int | None, tone: Tone | None = None) -> list[Text]:
    """Break a line above or below a table between its words: none of them is lost."""
    line = Text(text, style=tone or "")
    lines = [line] if width is None else list(line.wrap(Console(width=width), width))
    for each in lines:
        each.rstrip()
    return lines


def _broken(lines: Sequence[Line], width: int | None) -> list[Text]:
    """Break prose into lines of at most `width` cells. Lines after the first are indented."""
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
    """Return a text of several lines, such as a traceback, below its head; no line is cropped."""
    return [head, *(f"  {shown(line, len(line))}" if line else "" for line in text.splitlines())]


def name(value: str | None, most: int = 32) -> str:
    """Return a name for use in a sentence: as `shown`, cropped in its middle to `most` cells."""
    return crop(shown(value), most)


# -- JSON --------------------------------------------------------------------------------------------------------------


def to_json(value: object, *, indent: int | None = None) -> str:
    """Return values of attrs, lists and dicts as JSON: times in UTC as ISO 8601, bytes as text or as `{"base64": …}`.

    The JSON is printable ASCII, so that no control character or bidirectional mark of a key or an error reaches a
    terminal.
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
    kind = type(value)
    if attrs.has(kind):
        return {each.name: _plain(getattr(value, each.name)) for each in attrs.fields(kind)}
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    return value
