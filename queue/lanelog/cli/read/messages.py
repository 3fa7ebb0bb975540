"""The commands that show messages: show, tail, history.

Owns how a message is printed. Never settles, locks or registers anything.
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from lanelog._base.text import ago, moment, payload, plural, shown
from lanelog._views import message_columns
from lanelog.admin.read.history import OUTCOMES
from lanelog.cli.command import options
from lanelog.cli.command.times import FORMS, time_text
from lanelog.cli.command.verbs import announce, reading, refuse_typed
from lanelog.cli.output import totals
from lanelog.cli.output.answer import Answer, block, to_json
from lanelog.cli.output.table import Table
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from lanelog.admin import Admin, HistoryInfo, MessageInfo

_PAYLOAD_MAX = 10_000
_LANES = 10_000
"""Lanes that `show --id` and `tail` read without a key."""
_NAMED = 5
"""Lanes that an error names."""
_NO_HISTORY = "no history; a group keeps one only if it subscribes with history=True"
_NONE_SUCH = "no message that left like this; without options all are listed that the history has"


@options.command("show orders ann", "show orders ann 17", "show orders --id 01J9ZK --raw")
@options.arguments("topic", "[key]")
@click.argument("offset", type=int, required=False)
@click.option("--id", "message_id", metavar="ID", help="The message of this id, instead of an offset; needs no KEY.")
@click.option("--from", "from_offset", type=int, metavar="OFFSET", help="List from here; default: the oldest.")
@click.option("--raw", is_flag=True, help="Write the payload of one message, and nothing else.")
@options.limit
@reading
def show(
    admin: Admin,
    *,
    topic: str,
    key: str | None,
    offset: int | None,
    message_id: str | None,
    from_offset: int | None,
    raw: bool,
    limit: int,
) -> Answer:
    """Show the messages of lane KEY, or one of them, by OFFSET or --id, with its state for every group.

    Without KEY, --id searches the first 10000 lanes of TOPIC.
    """
    if key is None:
        if message_id is None:
            raise ConfigurationError("give the KEY of a lane, or --id")
        key = _key_of(admin, topic, message_id)
    one = offset is not None or message_id is not None
    if raw and not one:
        raise ConfigurationError("--raw is for one message: give its OFFSET or --id")
    if one and from_offset is not None:
        raise ConfigurationError("--from is for a list of messages: leave out OFFSET and --id")
    if raw:
        refuse_typed("--json", "or --raw, not both")
    if not one:
        found = admin.messages(topic, key, from_offset=from_offset, limit=limit)
        where = totals.where(topic, None, key)
        return Answer(
            data=found,
            summary=f"{where}: {_between(found)}",
            table=Table(message_columns.MESSAGES, found, admin.now()),
            total=f"{totals.listed(found, 'message', limit)}; `show` with an OFFSET shows all of one",
            nothing=f"{where}: no message; all that was published is collected, or --from is beyond the last one",
        )
    message = admin.message(topic, key, id=message_id, offset=offset)
    if message is None:
        which = f"offset {offset}" if message_id is None else f"id {message_id!r}"
        raise ConfigurationError(
            f"no message with {which} in lane {key!r} of topic {topic!r}: never there, or collected"
        )
    if raw:
        sys.stdout.flush()
        sys.stdout.buffer.write(message.payload)
        return Answer(data=None, silent=True)
    return _described(message, admin.now())


def _key_of(admin: Admin, topic: str, message_id: str) -> str:
    """Return the key of the one lane that holds the message. Raises ConfigurationError with how far it searched."""
    keys = admin.keys_of(topic, message_id, limit=_LANES)
    if len(keys) == 1:
        return keys[0]
    if keys:
        more = ", …" if len(keys) > _NAMED else ""
        there = ", ".join(map(repr, keys[:_NAMED])) + more
        many = f"{len(keys)} lanes of topic {topic!r} have a message {message_id!r}"
        raise ConfigurationError(f"{many}: name one, {there}")
    lanes = admin.topic(topic).lanes
    where = f"the first {_LANES:,} of {lanes:,} lanes" if lanes > _LANES else f"the {plural(lanes, 'lane')}"
    then = "give its KEY" if lanes > _LANES else "never there, or collected"
    raise ConfigurationError(f"no message with id {message_id!r} in {where} of topic {topic!r}: {then}")


def _between(found: Sequence[MessageInfo]) -> str:
    return f"offsets {found[0].offset:,} to {found[-1].offset:,}" if found else "nothing"


def _line(message: MessageInfo) -> str:
    """Return one line of `tail`. Lines come one by one, so there are no columns, and nothing is cropped."""
    parts = (shown(message.key), str(message.offset), moment(message.published_at), shown(message.id))
    return "  ".join((*parts, str(message.payload_bytes), payload(message.payload, _PAYLOAD_MAX)))


def _described(message: MessageInfo, now: datetime) -> Answer:
    about = [
        ("message", f"offset {message.offset} of {shown(message.topic)}, lane {shown(message.key)}"),
        ("id", shown(message.id)),
        ("published", f"{moment(message.published_at)}, {ago(message.published_at, now)}"),
        *([("expires", moment(message.expires_at))] if message.expires_at else []),
        *([("only for", shown(message.target_group))] if message.target_group else []),
        *((f"metadata {shown(name)}", shown(value)) for name, value in message.metadata.items()),
        (f"payload ({message.payload_bytes} bytes)", payload(message.payload, _PAYLOAD_MAX)),
    ]
    width = max(len(name) for name, _ in about) + 2
    return Answer(
        data=message,
        before=[*(f"{name:<{width}}{value}" for name, value in about), ""],
        table=Table(message_columns.STATES, message.states, now),
        nothing="no group is registered for this topic: nobody waits for this message",
        lines=[line for each in message.states if each.last_error for line in _error(each.group, each.last_error)],
    )


def _error(group: str, text: str) -> list[str]:
    return ["", *block(f"last error of group {shown(group)}", text)]


# -- tail --------------------------------------------------------------------------------------------------------------


@options.command("tail orders -n 20", "tail orders ann -n 20", "tail orders --follow")
@options.arguments("topic", "[key]")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is published from now on, until Ctrl-C.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0, 10_000),
    metavar="N",
    help="Begin with the last N; default: 10, or 0 without KEY and with --follow.",
)
@options.seconds("--interval", "Seconds between polls of --follow.", default=0.5, within=(0.1, 3600))
@options.as_json
@options.url
def tail(
    *, topic: str, key: str | None, follow: bool, lines: int | None, interval: float, as_json: bool, url: str | None
) -> None:
    """Print the last messages of lane KEY, or without KEY the newest of TOPIC; with --follow also new ones.

    With --json, one message a line. Of a topic, the first 10000 lanes by key are read; if it has more, standard
    error says so. New messages come each lane in its own order.
    """
    import lanelog

    if not follow:
        refuse_typed("--interval", "is for --follow")
    with lanelog.connect(url) as client:
        found = client.admin.tail(topic, key, lines=lines, follow=follow, interval=interval)
        lanes = client.admin.topic(topic).lanes if key is None else 0
        if lanes > _LANES:
            click.echo(f"only the first {_LANES:,} of {lanes:,} lanes by key are read: name a KEY", err=True)
        if not as_json:
            announce(client.config)
        with suppress(KeyboardInterrupt):  # the way to end it
            for message in found:
                click.echo(to_json(message) if as_json else _line(message))


@options.command("history orders billing --outcome failed", "history orders billing --key ann --since -1h")
@options.arguments("topic", "group")
@click.option("--key", help="Only this lane, from its end.")
@click.option("--id", "message_id", metavar="ID", help="Only the message with this id.")
@click.option("--outcome", type=click.Choice(OUTCOMES), help="Only those that left like this.")
@options.time("--since", f"Only those that left then or later: {FORMS}.")
@options.time("--until", "Only those that left before.")
@options.limit
@reading
def history(
    admin: Admin, *, topic: str, group: str, key: str | None, message_id: str | None, limit: int, **given: Any
) -> Answer:
    """List how messages of TOPIC left GROUP, the last first. The group must subscribe with history=True."""
    found = admin.history(topic, group, key=key, id=message_id, limit=limit, **given)
    chosen = message_id is not None or any(each is not None for each in given.values())
    where = totals.where(topic, group, key)
    return Answer(
        data=found,
        summary=f"{where}{_within(given['since'], given['until'])}: {_outcomes(found)}",
        table=Table(message_columns.HISTORY, found, admin.now()),
        total=totals.listed(found, "message", limit) + ", the last first",
        nothing=f"{where}: {_NONE_SUCH if chosen else _NO_HISTORY}",
    )


def _within(first: datetime | None, end: datetime | None) -> str:
    since = "" if first is None else f", since {time_text(first)}"
    return since if end is None else f"{since}, before {time_text(end)}"


def _outcomes(found: Sequence[HistoryInfo]) -> str:
    counted = Counter(each.outcome for each in found)
    return ", ".join(f"{count:,} {outcome}" for outcome, count in counted.most_common())
