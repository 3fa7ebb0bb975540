"""Ten thousand messages that become due at once, and processes that die while they append them."""

from typing import Any

import pytest

from lanelog import Outgoing
from lanelog.publisher import Publisher
from support.processes import Fleet
from support.situations import NOW
from support.sql import one, rows
from support.waiting import eventually

MESSAGES, KEYS = 10_000, 100


@pytest.mark.thorough
def test_ten_thousand_due_at_once_are_each_appended_once(
    fleet: Fleet, publisher: Publisher, open_raw: Any, raw: Any
) -> None:
    """Two processes append them, one of them is killed in the middle: none is lost, doubled, or out of order.

    One lane is held until then, so that it is the middle whenever the test comes to look.
    """
    processes = [fleet.start(f"p{n}", "delaying.py", keys=[f"own{n}"], delay=7200.0) for n in range(2)]
    for process in processes:
        process.said("scheduled")
    for start in range(0, MESSAGES, 1000):
        publisher.publish_many(
            "t", [Outgoing(f"k{n % KEYS}", b"x" * 200, f"{n:05}", delay=3600) for n in range(start, start + 1000)]
        )
    mine = "partition_key LIKE 'k%%'"
    rows(raw, f"UPDATE queue_scheduled SET deliver_at = {NOW} + 2000 WHERE {mine}")
    holder = open_raw()
    rows(holder, "SELECT 1 FROM queue_partitions WHERE topic = 't' AND partition_key = 'k0' FOR UPDATE")
    eventually(lambda: one(raw, "SELECT COUNT(*) FROM queue_messages") > 500, within=30)
    processes[0].kill()
    assert one(raw, "SELECT COUNT(*) FROM queue_messages") < MESSAGES
    holder.rollback()
    eventually(lambda: one(raw, "SELECT COUNT(*) FROM queue_messages") == MESSAGES, within=30)
    assert one(raw, f"SELECT COUNT(*) FROM queue_scheduled WHERE {mine}") == 0
    transactions = one(raw, "SELECT COUNT(DISTINCT created_at) FROM queue_messages")
    for number in range(KEYS):
        found = rows(raw, "SELECT `offset`, id FROM queue_messages WHERE partition_key = %s ORDER BY 1", f"k{number}")
        assert found == [(place + 1, f"{number + place * KEYS:05}") for place in range(MESSAGES // KEYS)]
    assert transactions <= MESSAGES // 100  # pages of what is due together, not one by one
    assert fleet.heard("log") == []
