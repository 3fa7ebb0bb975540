"""The verbs for messages that are not due yet: scheduled list, cancel.

Owns how they are shown; what happens to them is administration's. Registered by `_main`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from lanelog.cli._output import Answer, Table, age, moment, shown
from lanelog.cli._verbs import Verbs, changing, limit_option, reading
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from lanelog.admin import Admin


@click.group(cls=Verbs)
def scheduled() -> None:
    """Look at messages that are not due yet, or take one back."""


@scheduled.command("list")
@click.argument("topic")
@click.option("--key", metavar="KEY", help="Only of this lane.")
@limit_option
@reading
def list_(admin: Admin, *, topic: str, key: str | None, limit: int) -> Answer:
    """List the messages of TOPIC that are not due yet, by key and id."""
    found = admin.scheduled(topic, key, limit)
    heads = ("KEY", "ID", "DUE", "IN", "TTL", "PUBLISHED", "BYTES")
    rows = [
        [
            shown(each.key),
            shown(each.id),
            moment(each.deliver_at),
            age(each.due_in),
            age(each.ttl),
            moment(each.published_at),
            str(each.payload_bytes),
        ]
        for each in found
    ]
    return Answer(data=found, table=Table(heads, rows, ("IN", "TTL", "BYTES")))


@scheduled.command()
@click.argument("topic")
@click.argument("key")
@click.argument("id")
@changing
def cancel(admin: Admin, *, topic: str, key: str, id: str, dry_run: bool) -> Answer:  # noqa: A002 - the argument's name
    """Take back the message ID of lane KEY, which is not due yet: it will not be delivered."""
    if not admin.cancel_scheduled(topic, key, id, dry_run=dry_run):
        raise ConfigurationError(
            f"no message {id!r} is scheduled for lane {key!r} of topic {topic!r}, or not any more: "
            f"`lanelog scheduled list {topic}` lists those that are"
        )
    text = f"{'would cancel' if dry_run else 'cancelled'} {shown(id)} of {shown(topic)}, lane {shown(key)}"
    return Answer(data={"topic": topic, "key": key, "id": id, "dry_run": dry_run}, lines=[text])


VERBS = (scheduled,)
