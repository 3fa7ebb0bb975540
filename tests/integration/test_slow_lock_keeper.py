"""A lock that one subscription's keeper cannot get keeps none of the client's other subscriptions waiting."""

from typing import Any

from lanelog import Client
from support.sql import owners, rows
from support.waiting import Record, eventually

WITHIN = 25.0


def test_one_topic_that_somebody_has_locked_starves_no_other(lanelog_client: Client, open_raw: Any, raw: Any) -> None:
    """While a topic's own row is locked and a lane there waits for its lease, another topic gets lanes and handles."""
    first, second = Record(), Record()
    lanelog_client.subscribe("t1", "g", first)
    lanelog_client.publish("t1", "a", b"1")
    first.wait(1)
    holder = open_raw()
    rows(holder, "SELECT * FROM queue_partitions WHERE topic = 't1' AND partition_key = '' FOR UPDATE")
    rows(raw, "DELETE FROM queue_partition_leases WHERE topic = 't1'")  # to be born again, under a share lock of that
    waiting = (
        "SELECT COUNT(*) FROM information_schema.processlist"
        " WHERE info LIKE 'SELECT head_offset%FROM queue_partitions%SHARE MODE%'"
    )
    eventually(lambda: rows(raw, waiting)[0][0], within=WITHIN, what="the keeper's wait")
    lanelog_client.subscribe("t2", "g", second)
    lanelog_client.publish_many("t2", [("a", b"1"), ("b", b"1")])
    second.wait(2, within=WITHIN)
    assert owners(raw, "g", "t1") == {}  # it was locked all the time
    holder.rollback()
    eventually(lambda: owners(raw, "g", "t1").keys() == {"a"}, within=WITHIN)
