"""Processes that died long ago, with nobody there to take over: their heartbeats are the proof, or their want."""

from typing import Any

import pytest

import lanelog
from lanelog import Client
from lanelog._log.members import KEPT_SECONDS
from support.sql import owners, rows, take_lanes
from support.waiting import Record, eventually

DIED = (
    "INSERT INTO queue_subscriber_heartbeats (consumer_group, topic, subscriber_name, heartbeat_at, expires_at,"
    " deregistered_at, liveness_lock, server_started_at)"
    " SELECT 'g', 't', %s, now.ms - %s - 30000, now.ms - %s, 0, %s, server.started_at FROM"
    " (SELECT TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6)) DIV 1000 AS ms) AS now,"
    " (SELECT MAX(server_started_at) AS started_at FROM queue_subscriber_heartbeats) AS server"
)
"""On the server that the living are on: a row of them must be there."""
LONG_AGO = int(KEPT_SECONDS * 1000) + 60_000
NAMES = "SELECT subscriber_name FROM queue_subscriber_heartbeats WHERE consumer_group = 'g'"


@pytest.fixture
def seen(lanelog_url: str) -> Record:
    """What the group handles: by now a message of each of two lanes, whose owner has left."""
    seen = Record()
    with lanelog.connect(lanelog_url) as before:
        before.subscribe("t", "g", seen)
        before.publish_many("t", [("a", b"1"), ("b", b"1")])
        seen.wait(2)
    return seen


@pytest.mark.thorough
def test_lanes_of_one_that_died_long_ago_are_taken_over_in_seconds(
    lanelog_client: Client, seen: Record, raw: Any
) -> None:
    """A row old enough to be purged stays while its owner holds leases, so that a free lock moves them at once.

    The program is told, and they are counted.
    """
    told = Record()
    lanelog_client.on("lanes_taken_over", told)
    for name in ("gone:1", "idle:1"):
        rows(raw, DIED, name, LONG_AGO, LONG_AGO, f"free-{name}")
    take_lanes(raw, "gone:1")
    lanelog_client.publish_many("t", [("a", b"2"), ("b", b"2")])
    subscription = lanelog_client.subscribe("t", "g", seen)
    eventually(lambda: set(owners(raw, "g", "t").values()) == {subscription.owner})
    seen.wait(4)
    assert [(notice.topic, notice.group) for notice in told.wait(1)] == [("t", "g")]
    assert lanelog_client.measures().groups[0].counters.taken_over == 2
    eventually(lambda: "idle:1" not in {name for (name,) in rows(raw, NAMES)})


@pytest.mark.thorough
@pytest.mark.parametrize("row", ["says that it left", "is gone"])
def test_an_owner_that_nobody_knows_is_no_owner(lanelog_client: Client, seen: Record, raw: Any, row: str) -> None:
    """One whose row says that it left is forgotten; leases without a row, as after a long outage, are taken over."""
    if row == "is gone":
        rows(raw, "DELETE FROM queue_subscriber_heartbeats")
    else:
        rows(raw, DIED, "left:1", LONG_AGO, LONG_AGO, "")
        sql = "UPDATE queue_subscriber_heartbeats SET deregistered_at = expires_at WHERE subscriber_name = 'left:1'"
        rows(raw, sql)
    take_lanes(raw, "left:1")
    lanelog_client.publish_many("t", [("a", b"2"), ("b", b"2")])
    subscription = lanelog_client.subscribe("t", "g", seen, lease_duration=1.0, lease_renewal=0.3)
    seen.wait(4)
    assert set(owners(raw, "g", "t").values()) == {subscription.owner}
    eventually(lambda: "left:1" not in {name for (name,) in rows(raw, NAMES)})
