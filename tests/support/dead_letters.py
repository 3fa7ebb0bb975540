"""Dead letters for tests: messages that a group has given up."""

from typing import Any

import lanelog
from lanelog import Client, Message, Reject
from support.sql import one
from support.waiting import eventually


def letters(raw: Any, topic: str = "t_dlq") -> int:
    """Dead letters in the log, settled or not."""
    return int(one(raw, "SELECT COUNT(*) FROM queue_messages WHERE topic = %s", topic))


def refuse(message: Message) -> None:
    """A handler that gives everything up."""
    raise Reject(f"no {message.payload.decode()}\nmore")


def give_up(client: Client, raw: Any, items: list[tuple[str, str]], group: str = "a", topic: str = "t") -> None:
    """Publish these and leave them as dead letters of a group that does not run any more."""
    before = letters(raw, f"{topic}_dlq")

    client.publish_many(topic, [lanelog.Outgoing(key, body, id=f"{key}-{body}") for key, body in items])
    with client.subscribe(topic, group, refuse):
        eventually(lambda: letters(raw, f"{topic}_dlq") == before + len(items), within=30)
