"""A process that died long ago, with nobody there to take over: its heartbeat is the proof that it is dead."""

from typing import Any

import lanelog
from lanelog import Client
from lanelog._engine.collection import HEARTBEATS_KEPT
from support.sql import owners, rows
from support.waiting import Record, accept, eventually

DIED = (
    "INSERT INTO queue_subscriber_heartbeats (consumer_group, topic, subscriber_name, heartbeat_at, expires_at,"
    " deregistered_at, liveness_lock, server_started_at)"
    " SELECT 'g', 't', %s, now.ms - %s - 30000, now.ms - %s, 0, %s, server.started_at FROM"
    " (SELECT TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6)) DIV 1000 AS ms) AS now,"
    " (SELECT MAX(server_started_at) AS started_at FROM queue_subscriber_heartbeats) AS server"
)
"""On the server that the living are on: a row of them must be there."""
LONG_AGO = int(HEARTBEATS_KEPT * 1000) + 60_000
NAMES = "SELECT subscriber_name FROM queue_subscriber_heartbeats WHERE consumer_group = 'g'"


def test_lanes_of_one_that_died_long_ago_are_taken_over_in_seconds(
    lanelog_client: Client, lanelog_url: str, raw: Any
) -> None:
    """A row old enough to be purged stays while its owner holds leases, so that a free lock moves them at once."""
    seen = Record()
    with lanelog.connect(lanelog_url) as before:
        before.subscribe("t", "g", seen)
        before.publish_many("t", [("a", b"1"), ("b", b"1")])
        seen.wait(2)
    for name in ("gone:1", "idle:1"):
        rows(raw, DIED, name, LONG_AGO, LONG_AGO, f"free-{name}")
    rows(raw, "UPDATE queue_partition_leases SET leased_by = 'gone:1', lease_epoch = lease_epoch + 1")
    lanelog_client.publish_many("t", [("a", b"2"), ("b", b"2")])
    subscription = lanelog_client.subscribe("t", "g", seen)
    eventually(lambda: set(owners(raw, "g", "t").values()) == {subscription.owner}, within=12)
    seen.wait(4)
    eventually(lambda: "idle:1" not in {name for (name,) in rows(raw, NAMES)})


def test_an_owner_that_left_is_forgotten_whatever_it_holds(lanelog_client: Client, lanelog_url: str, raw: Any) -> None:
    """A row that says so is no proof of a death: it goes, and what it left is taken as the leases of nobody known."""
    with lanelog.connect(lanelog_url) as before:
        before.subscribe("t", "g", accept)
        before.publish("t", "a", b"1")
        eventually(lambda: owners(raw, "g", "t"))
    rows(raw, DIED, "left:1", LONG_AGO, LONG_AGO, "")
    rows(raw, "UPDATE queue_subscriber_heartbeats SET deregistered_at = expires_at WHERE subscriber_name = 'left:1'")
    rows(raw, "UPDATE queue_partition_leases SET leased_by = 'left:1', lease_epoch = lease_epoch + 1")
    subscription = lanelog_client.subscribe("t", "g", accept, lease_duration=1.5, lease_renewal=0.5)
    eventually(lambda: "left:1" not in {name for (name,) in rows(raw, NAMES)})
    eventually(lambda: set(owners(raw, "g", "t").values()) == {subscription.owner}, within=12)
