"""Collection that meets a failure, or a group that sleeps: nothing is left behind, and nothing is tried in vain."""

import logging
from typing import Any

import pytest

from lanelog import Client
from lanelog._database import Database
from lanelog._stores.offsets import Offsets
from support.sql import one, rows
from support.waiting import Record, accept, events, eventually

STORED = "SELECT COUNT(*) FROM queue_messages WHERE topic = 't'"
REFUSED = (
    "CREATE TRIGGER refuse BEFORE DELETE ON queue_messages FOR EACH ROW SIGNAL SQLSTATE '45000'"
    " SET MESSAGE_TEXT = 'not now'"
)


def test_a_deletion_that_failed_is_repeated(lanelog_client: Client, raw: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Messages behind a raised floor whose deletion was refused once go with a later pass, without new traffic."""
    caplog.set_level(logging.INFO, logger="lanelog")
    rows(raw, REFUSED)
    subscription = lanelog_client.subscribe("t", "g", accept, retention=0)
    lanelog_client.publish_many("t", [("a", b"x")] * 5)
    eventually(lambda: events(caplog, "membership.faulty"))
    floor = "SELECT offset_acked FROM queue_offsets WHERE consumer_group = '' AND partition_key = 'a'"
    eventually(lambda: one(raw, floor) == 5)  # the first refusal may have come between two of the five acks
    assert one(raw, STORED) == 5
    rows(raw, "DROP TRIGGER refuse")
    eventually(lambda: one(raw, STORED) == 0)
    assert subscription.state == "running"


def test_lanes_that_a_sleeping_group_holds_are_not_offered_for_purge(
    lanelog_client: Client, database: Database, raw: Any
) -> None:
    """A lane whose floor stands still because a group sleeps is no candidate; once all is collected, it is."""
    with lanelog_client.subscribe("t", "sleeper", accept, retention=0):
        pass
    lanelog_client.subscribe("t", "g", accept, retention=0)
    lanelog_client.publish_many("t", [("a", b"x"), ("a", b"x"), ("b", b"x")])
    floors = "SELECT partition_key, offset_acked FROM queue_offsets WHERE consumer_group = '' AND partition_key <> ''"
    acked = "SELECT SUM(offset_acked) FROM queue_offsets WHERE consumer_group = 'g'"
    eventually(lambda: one(raw, acked) == 3)
    assert set(rows(raw, floors)) == {("a", 0), ("b", 0)}
    session = database.session("test")
    try:
        assert Offsets().idle_floors(session, "t", "", -1.0, 100) == []
        seen = Record()
        lanelog_client.subscribe("t", "sleeper", seen, retention=0)
        seen.wait(3)
        eventually(lambda: Offsets().idle_floors(session, "t", "", -1.0, 100) == ["a", "b"])
    finally:
        session.close()
