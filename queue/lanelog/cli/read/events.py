"""The command `events`, which shows the events that lanelog logs.

Owns the forms of that list; docs/reference/events.md is one of them. Needs no database.
"""

from __future__ import annotations

from itertools import groupby

import click

from lanelog._base.text import plural
from lanelog._facts.fact import Fact
from lanelog._facts.listing import EVENTS
from lanelog._views.message_columns import EVENTS_LISTED
from lanelog.cli.command import options
from lanelog.cli.command.verbs import finish
from lanelog.cli.output.answer import Answer
from lanelog.cli.output.table import Table
from lanelog.errors import ConfigurationError

_ABOUT = """# Events

These are the events that lanelog logs; `lanelog events --markdown` prints this page. Each heading names a logger of the
standard library. The message of an event is its name and its fields, without a newline. The fields are also
attributes of the record (`extra`), so that a JSON formatter indexes topic, key, group, offset and attempt. The name is
the attribute `event`. A field whose name the record has already gets the prefix `lanelog_`: `name` is `lanelog_name`.

lanelog configures no logging. Without a configuration, Python prints warnings and errors to standard error, with their
tracebacks; `logging.basicConfig(level="INFO")` shows the life of subscriptions as well. An event with the field
`exc_info` has the traceback of its exception, if there is one. No event has a payload or a password of its own; an
exception's text is the application's.
"""


@options.command("events", "events handler.slow")
@click.argument("name", required=False)
@click.option("--markdown", is_flag=True, help="Print the documentation's page of them.")
@options.wide
@options.all_rows
@options.as_json
def events(*, name: str | None, markdown: bool, whole: bool, wide: bool, as_json: bool) -> None:
    """List every event that lanelog logs, or describe the one with this NAME."""
    if markdown:
        click.echo(page(), nl=False)
        return
    found = [event for event in EVENTS if name is None or event.name == name]
    if not found:
        raise ConfigurationError(f"no event is named {name!r}: `lanelog events` lists them")
    data = [
        {"name": each.name, "level": each.level, "logger": each.logger, "says": each.says, "fields": each.fields}
        for each in found
    ]
    if name is None:
        answer = Answer(
            data=data,
            table=Table(EVENTS_LISTED, found),
            total=f"{plural(len(found), 'event')}; `events` with a name describes one",
        )
    else:
        answer = Answer(data=data, lines=[line for each in found for line in _described(each)])
    finish(answer, as_json=as_json, wide=wide, whole=whole)


def _described(event: Fact[...]) -> list[str]:
    return [
        f"{event.name}  {event.level}  {event.logger}",
        f"  {event.says}",
        f"  fields: {' '.join(event.fields) or 'none'}",
    ]


def page() -> str:
    """Return the whole of docs/reference/events.md."""
    parts = [_ABOUT]
    for logger, members in groupby(EVENTS, key=lambda event: event.logger):
        lines = [f"## {logger}", "", "| event | level | what it says | fields |", "|---|---|---|---|"]
        for event in members:
            fields = " ".join(f"`{name}`" for name in event.fields)
            lines.append(f"| `{event.name}` | {event.level} | {event.says} | {fields} |")
        parts.append("\n".join([*lines, ""]))
    return "\n".join(parts)
