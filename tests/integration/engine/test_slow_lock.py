"""Somebody holds one row of one lane for long: an operator's transaction, a backup, a debugger."""

import re
from typing import Any

import pytest

from lanelog import Client
from lanelog._database.connection.wire import Wire
from lanelog.errors import DatabaseError
from support.publishing import give_up_soon
from support.sql import owners, rows, running, watermark
from support.waiting import Record, eventually

KEYS = [f"k{number}" for number in range(6)]
ROUNDS = 30
LOCK_TIMEOUT = 1205


@pytest.fixture(autouse=True)
def _soon(lanelog_client: Client) -> None:
    give_up_soon(lanelog_client._database)


@pytest.fixture
def timed_out(monkeypatch: pytest.MonkeyPatch) -> Record:
    """The statements of this process that have waited for a lock until the server gave up."""
    record, run = Record(), Wire._run

    def recorded(wire: Wire, sql: str, args: Any) -> Any:
        try:
            return run(wire, sql, args)
        except DatabaseError as error:
            if error.code == LOCK_TIMEOUT:
                record(sql)
            raise

    monkeypatch.setattr(Wire, "_run", recorded)
    return record


@pytest.mark.thorough
def test_a_lock_on_one_lane_stalls_that_lane_alone(
    lanelog_client: Client, open_raw: Any, raw: Any, timed_out: Record
) -> None:
    """While one offsets row is held, only the first flush waits, once; then the other lanes go on as usual."""
    seen = Record()
    lanelog_client.subscribe("t", "g", lambda message: seen((message.key, message.offset, message.attempt)))
    lanelog_client.publish_many("t", [(key, b"x") for key in KEYS])
    eventually(lambda: all(watermark(raw, "g", "t", key) == 1 for key in KEYS))
    holder = open_raw()
    lane = "consumer_group = 'g' AND topic = 't' AND partition_key = 'k0'"
    rows(holder, f"SELECT * FROM queue_offsets WHERE {lane} FOR UPDATE")
    lanelog_client.publish_many("t", [(key, b"x") for key in KEYS])
    timed_out.wait(1)
    for rounds in range(3, ROUNDS + 1):
        lanelog_client.publish_many("t", [(key, b"x") for key in KEYS])
        # The others are handled, and their watermarks move in the database, while the lock is still held.
        eventually(
            lambda rounds=rounds: all(watermark(raw, "g", "t", key) == rounds for key in KEYS[1:]),
            what=f"round {rounds} of the other lanes",
        )
    assert watermark(raw, "g", "t", "k0") == 1
    assert ["INSERT INTO queue_offsets" in sql for sql in timed_out.items].count(True) == 1
    holder.rollback()
    eventually(lambda: watermark(raw, "g", "t", "k0") == ROUNDS)
    for key in KEYS:
        assert [item[1:] for item in seen.items if item[0] == key] == [(n, 1) for n in range(1, ROUNDS + 1)]


@pytest.mark.thorough
def test_one_topic_that_somebody_has_locked_starves_no_other(lanelog_client: Client, open_raw: Any, raw: Any) -> None:
    """While a topic's own row is locked and a lane there waits for its lease, another topic gets lanes and handles."""
    first, second = Record(), Record()
    lanelog_client.subscribe("t1", "g", first)
    lanelog_client.publish("t1", "a", b"1")
    first.wait(1)
    holder = open_raw()
    rows(holder, "SELECT * FROM queue_partitions WHERE topic = 't1' AND partition_key = '' FOR UPDATE")
    rows(raw, "DELETE FROM queue_partition_leases WHERE topic = 't1'")  # to be born again, under a share lock of that
    waiting = re.compile("SELECT max_epoch.*FROM queue_partitions.*SHARE MODE", re.DOTALL)
    eventually(lambda: any(waiting.match(each.sql) for each in running(raw)), what="the keeper's wait")
    lanelog_client.subscribe("t2", "g", second)
    lanelog_client.publish_many("t2", [("a", b"1"), ("b", b"1")])
    second.wait(2)
    assert owners(raw, "g", "t1") == {}  # it was locked all the time
    holder.rollback()
    eventually(lambda: owners(raw, "g", "t1").keys() == {"a"})
