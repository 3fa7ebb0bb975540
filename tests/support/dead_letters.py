"""Dead letters for tests: messages that a group has given up."""

from typing import Any

import lanelog
from lanelog import Client, Message, Reject
from support.sql import rows, stored
from support.waiting import eventually


def letters(raw: Any) -> int:
    """Dead letters of topic t in the log, settled or not."""
    return stored(raw, "t_dlq")


def fates(raw: Any) -> list[tuple[Any, ...]]:
    """Dead letters of topic t as they were written: group, offset of the message, failures, last error, expiry."""
    columns = "failed_group, original_offset, failure_count, last_error, expires_at"
    return rows(raw, f"SELECT {columns} FROM queue_messages WHERE topic = 't_dlq' ORDER BY failed_group, `offset`")


def refuse(message: Message) -> None:
    """A handler that gives everything up."""
    raise Reject(f"no {message.payload.decode()}\nmore")


def give_up(
    client: Client, raw: Any, items: list[tuple[str, str]], group: str = "a", topic: str = "t", **options: Any
) -> None:
    """Publish these and leave them as dead letters of a group that does not run any more."""
    before = stored(raw, f"{topic}_dlq")
    client.publish_many(topic, [lanelog.Outgoing(key, body, id=f"{key}-{body}") for key, body in items])
    with client.subscribe(topic, group, refuse, **options):
        eventually(lambda: stored(raw, f"{topic}_dlq") == before + len(items), within=30)
