"""An owner that is stopped while it settles a message: by a return, a rejection, or in its own transaction.

Owns where that is before its fence and where behind it, and the table in which transactions leave their effects.
Interleavings of a settlement with whatever takes the lane away are driven from here.
"""

import json
from typing import Any

from lanelog import Message
from support.sql import delivery_rows, rows
from support.stage import Actor, Stage
from support.waiting import eventually

HANDLING = "in the handler"
BEFORE_THE_FENCE = {
    "return": "before leases.FENCE",
    "reject": "after partitions.TRY_LOCK_HEAD",
    "transaction": "before leases.FENCE following handler_transaction.SET_PATIENCE",
}
BEHIND_THE_FENCE = {
    "return": "before COMMIT following flushes.FLUSH",
    "reject": "before COMMIT following dead_letters.BURY",
    "transaction": "before COMMIT following deliveries.SETTLE_SAME",
}


def create_effects(raw: Any) -> None:
    """The table that transactions of handlers write to."""
    columns = "n INT AUTO_INCREMENT PRIMARY KEY, k VARCHAR(9), o INT, who VARCHAR(9), attempt INT"
    rows(raw, f"CREATE TABLE effects ({columns})")


def have_effect(connection: Any, message: Message) -> None:
    """What a handler writes in the transaction of its message."""
    insert = "INSERT INTO effects (k, o, attempt) VALUES (%s, %s, %s)"
    rows(connection, insert, message.key, message.offset, message.attempt)


def settling(stage: Stage, how: str, point: str, *others: str, name: str = "owner", **options: Any) -> Actor:
    """An owner of lane k (and others) who settled offset 1 of each, stopped at this point of settling offset 2 of k.

    So the dead letters' lane, if there is one, exists.
    """
    create_effects(stage.raw)
    owner = stage.member(name, **options)
    stage.client.publish_many("t", [("k", json.dumps({"how": how})), *((key, "{}") for key in others)])
    stage.until_acked(1, "k", *others)
    assert_nothing_left(stage)
    stage.client.publish("t", "k", json.dumps({"how": how, "wait": HANDLING}))
    owner.paused(HANDLING).pause(point, "k").go(HANDLING)
    return owner.paused(point)


def effects(raw: Any, columns: str = "o") -> list[tuple[Any, ...]]:
    """What transactions have left, in order."""
    return rows(raw, f"SELECT {columns} FROM effects ORDER BY n")


def assert_nothing_left(stage: Stage) -> None:
    """No delivery row of the group stays."""
    eventually(lambda: not delivery_rows(stage.raw, "g", "t"), what="the deletion of every delivery row")
