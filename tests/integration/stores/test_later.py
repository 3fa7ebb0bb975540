"""Stores of what is published later, by the bare executor: rows in, rows out."""

from typing import Any

from lanelog._database import Executor
from lanelog._stores.later import scheduled
from lanelog._stores.later.scheduled import NewScheduled
from support.sql import rows

HOUR = 3_600_000
PACKET = 1_000_000


def message(key: str, name: str, *, due_ms: int = 0, place: int = 0) -> NewScheduled:
    return NewScheduled(
        key=key, id=name, payload=b"x", metadata=None, due_ms=due_ms, relative=True, ttl_ms=0, seq=place
    )


def test_due_messages_are_found_locked_in_order_and_deleted(cx: Executor, open_raw: Any) -> None:
    """The earliest first, those of one time by their place; not those of busy lanes, nor what another has locked."""
    waiting = [message("k", "z"), message("k", "b", place=2), message("k", "a", place=1), message("l", "x", place=3)]
    scheduled.insert(cx, "t", [*waiting, message("k", "far", due_ms=HOUR)], PACKET)
    cx.execute("UPDATE queue_scheduled SET deliver_at = deliver_at - 9000 WHERE id IN ('a', 'b')")
    found = scheduled.due(cx, [], 10, everything=True)
    assert [name for _, _, name in found] == ["a", "b", "z", "x"]
    assert scheduled.due(cx, [("t", "k")], 10, everything=False) == [("t", "l", "x")]
    assert scheduled.due(cx, [], 1, everything=False, topics=["t", "u"]) == [("t", "k", "a")]
    holder = open_raw()
    rows(holder, "SELECT 1 FROM queue_scheduled WHERE topic = 't' AND partition_key = 'k' AND id = 'z' FOR UPDATE")
    mine = scheduled.lock(cx, "t", [("k", "z"), ("k", "b"), ("k", "a"), ("k", "far")])
    assert [row.id for row in sorted(mine)] == ["a", "b"]
    holder.rollback()
    assert scheduled.find_shared(cx, "t", [("k", "z"), ("l", "z")]) == {("k", "z")}
    assert [scheduled.cancel(cx, "t", "k", "z") for _ in range(2)] == [True, False]
    assert scheduled.delete(cx, "t", [("k", "a"), ("k", "none")]) == 1
    assert (scheduled.exists(cx, "t", "k", "a"), scheduled.exists(cx, "t", "k", "b")) == (False, True)
    assert (scheduled.count(cx, "t"), scheduled.counts(cx), scheduled.of_topic(cx, "u", 9)) == (3, {"t": 3}, [])
