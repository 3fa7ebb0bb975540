"""What the library costs the server, counted at the server: when idle, and per message under load."""

import threading
import time
from typing import Any

import pytest

from lanelog import Client
from support.sql import one, rows
from support.waiting import accept, eventually

LANES = 1000
IDLE = 30
"""Statements a second that an idle client may send."""
MEASURED = 6.0
"""Seconds over which an idle client is watched."""


def questions(raw: Any) -> int:
    """Statements that clients have sent to the server since it started."""
    ((_, value),) = rows(raw, "SHOW GLOBAL STATUS LIKE 'Questions'")
    return int(value)


def test_a_thousand_idle_lanes_cost_thirty_statements_a_second_at_most(lanelog_client: Client, raw: Any) -> None:
    """Everything handled, nothing published: what loops send does not grow with the lanes."""
    lanelog_client.publish_many("t", [(f"k{n:04}", b"x") for n in range(LANES)])
    subscription = lanelog_client.subscribe("t", "g", accept)
    eventually(lambda: subscription.stats().acked == LANES, within=30)
    through = "SELECT COUNT(*) FROM queue_offsets WHERE consumer_group = 'g' AND offset_acked = 1"
    eventually(lambda: one(raw, through) == LANES)
    threading.Event().wait(1.0)  # the looks back off to poll_interval
    before, since = questions(raw), time.monotonic()
    threading.Event().wait(MEASURED)
    sent = questions(raw) - before - 1
    seconds = time.monotonic() - since
    assert sent <= IDLE * seconds, f"{sent / seconds:.1f} statements a second"
    assert subscription.stats().lanes == LANES


@pytest.mark.thorough
@pytest.mark.parametrize(("lanes", "order"), [(1, "strict"), (100, "concurrent")])
def test_a_backlog_costs_less_than_a_tenth_of_a_statement_a_message(
    lanelog_client: Client, raw: Any, lanes: int, order: str
) -> None:
    """Marks, fetches and flushes are shared by many messages; what grows with the time alone is counted above.

    A hundred strict lanes are in test_statement_cost.
    """
    total = 20_000
    for _ in range(total // 2000):
        lanelog_client.publish_many("t", [(f"k{n % lanes}", b"x" * 100) for n in range(2000)])
    before, since = questions(raw), time.monotonic()
    subscription = lanelog_client.subscribe("t", "g", accept, order=order)
    eventually(lambda: subscription.stats().acked == total, within=60)
    sent = questions(raw) - before
    seconds = time.monotonic() - since
    assert sent < total / 10 + IDLE * seconds, f"{sent} statements, {sent / total:.3f} a message, in {seconds:.1f} s"
