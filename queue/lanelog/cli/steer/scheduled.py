"""The commands for messages that are not due yet: scheduled list, cancel.

Owns how they are shown. Administration changes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from lanelog._base.text import shown
from lanelog._views import message_columns
from lanelog._views.sentences import would
from lanelog.cli.command import options
from lanelog.cli.command.verbs import Verbs, changing, reading
from lanelog.cli.output import totals
from lanelog.cli.output.answer import Answer
from lanelog.cli.output.table import Table
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from lanelog.admin import Admin


@click.group(cls=Verbs)
def scheduled() -> None:
    """List messages that are not due yet, or take one back."""


@options.command(
    "scheduled list orders", "scheduled list orders --key ann", name="list", of=scheduled, short="List them by key."
)
@click.argument("topic")
@click.option("--key", metavar="KEY", help="Only of this lane.")
@options.limit
@reading
def list_(admin: Admin, *, topic: str, key: str | None, limit: int) -> Answer:
    """List the messages of TOPIC that are not due yet, by key and id."""
    found = admin.scheduled(topic, key, limit)
    where = totals.where(topic, None, key)
    return Answer(
        data=found,
        summary=f"{where}: messages that are not due yet, by key",
        table=Table(message_columns.SCHEDULED, found, admin.now()),
        total=totals.listed(found, "message", limit),
        nothing=f"{where}: no message waits for its time; those that were due are in the log",
    )


@options.command(
    "scheduled cancel orders ann reminder-7 --execute", of=scheduled, short="Take one back before it is due."
)
@options.arguments("topic", "key", "id")
@changing
def cancel(admin: Admin, *, topic: str, key: str, id: str, dry_run: bool) -> Answer:  # noqa: A002 - the argument's name
    """Take back the message ID of lane KEY, which is not due yet: it will not be delivered."""
    if not admin.cancel_scheduled(topic, key, id, dry_run=dry_run):
        raise ConfigurationError(
            f"no message {id!r} is scheduled for lane {key!r} of topic {topic!r}, or not any more: "
            f"`lanelog scheduled list {topic}` lists those that are"
        )
    text = f"{would('cancel', 'cancelled', dry_run=dry_run)} {shown(id)} of {shown(topic)}, lane {shown(key)}"
    return Answer(data={"topic": topic, "key": key, "id": id, "dry_run": dry_run}, lines=[text])
