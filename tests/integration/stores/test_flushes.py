"""The flush of one lane in one statement: when it writes, what it locks, and what it changes when it arrives late.

What an owner loses meanwhile, step by step, is in the `test_interleavings_*` of settlements.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import lanelog
from lanelog import Client
from lanelog._base.places import GroupTopic
from lanelog._database import Session
from lanelog._stores.consumers import flushes
from lanelog._stores.consumers._offset_rows import OffsetsWrite, WrittenOffsets
from lanelog.errors import DatabaseError
from support.proxy import proxy_to
from support.sql import one, rows
from support.stage import wait_until_blocked
from support.waiting import Record, eventually

AT = GroupTopic(topic="t", group="g")
LEASE = "queue_partition_leases WHERE consumer_group = 'g' AND topic = 't' AND partition_key = 'k'"


@pytest.fixture
def session(lanelog_client: Client, raw: Any) -> Iterator[Session]:
    """The settler's, on a database with a lease of lane k under epoch 5, and the row (2, 3) of an older one."""
    rows(raw, "INSERT INTO queue_partition_leases VALUES ('g', 't', 'k', 'me', 5, 1), ('g', 't', 'free', '', 5, 1)")
    rows(
        raw,
        "INSERT INTO queue_offsets (consumer_group, topic, partition_key, offset_acked, marked_through, marked_epoch,"
        " marked_at, paused_at) VALUES ('g', 't', 'k', 2, 3, 4, 1, 7), ('g', 't', 'free', 2, 3, 4, 1, 0)",
    )
    session = lanelog_client._database.session("settler")
    session.ensure()
    yield session
    session.close()


def flush(
    session: Session,
    watermark: int,
    mark: int,
    before: tuple[int, int] = (2, 3),
    *,
    key: str = "k",
    epoch: int = 5,
    owner: str = "me",
    server: int = 0,
) -> bool:
    row = OffsetsWrite(key, watermark, mark, epoch)
    server += session.incarnation.mark
    return flushes.flush_fenced(session, AT, owner, row, before=WrittenOffsets(*before), server=server)


def row_of(raw: Any, key: str = "k") -> tuple[Any, ...]:
    """Watermark, mark, its epoch, whether it has a time, and the pause."""
    columns = "offset_acked, marked_through, marked_epoch, marked_at > 1, paused_at"
    [row] = rows(raw, f"SELECT {columns} FROM queue_offsets WHERE consumer_group = 'g' AND partition_key = %s", key)
    return row


def test_it_writes_for_the_owner_under_its_epoch_on_its_server(session: Session, raw: Any) -> None:
    """For another owner, epoch, lane or server it writes nothing."""
    others: list[dict[str, Any]] = [{"epoch": 4}, {"epoch": 6}, {"owner": "you"}, {"server": 1}]
    others += [{"key": "free"}, {"key": "none"}]
    assert [other for other in others if flush(session, 3, 4, **other)] == []
    assert row_of(raw) == (2, 3, 4, 0, 7)
    assert one(raw, "SELECT COUNT(*) FROM queue_offsets") == 2
    assert flush(session, 3, 4)
    assert row_of(raw) == (3, 4, 5, 1, 7)


def test_it_changes_the_row_that_memory_knows_and_no_other(session: Session, raw: Any) -> None:
    """One that was overtaken by a newer flush sets neither mark nor watermark back, nor a newer mark forward."""
    assert flush(session, 2, 4)
    assert row_of(raw) == (2, 4, 5, 1, 7)
    for watermark, mark in ((2, 3), (2, 5), (3, 3), (1, 2)):
        assert not flush(session, watermark, mark, before=(1, 3)), (watermark, mark)
        assert not flush(session, watermark, mark, before=(2, 3)), (watermark, mark)
        assert row_of(raw) == (2, 4, 5, 1, 7)
    assert flush(session, 4, 4, before=(2, 4))
    assert row_of(raw) == (4, 4, 5, 1, 7)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_it_waits_for_whoever_takes_the_lane(
    session: Session, raw: Any, open_raw: Callable[..., Any], end: str
) -> None:
    """The flush sees the lease as it is after that, and writes nothing if the lane was taken."""
    thief = open_raw()
    rows(thief, f"UPDATE {LEASE.replace(' WHERE', ' SET lease_epoch = 6, leased_by = %s WHERE')}", "you")
    with ThreadPoolExecutor(1) as threads:
        flushing = threads.submit(flush, session, 3, 4)
        wait_until_blocked(raw)
        getattr(thief, end)()
        assert flushing.result(20) is (end == "rollback")
    assert row_of(raw)[:2] == ((3, 4) if end == "rollback" else (2, 3))


@pytest.mark.thorough
def test_it_holds_the_lease_until_it_is_committed(session: Session, open_raw: Callable[..., Any]) -> None:
    """Nobody takes the lane between the read of its lease and the COMMIT; SKIP LOCKED skips this lease."""
    thief = open_raw()
    rows(thief, "SET SESSION innodb_lock_wait_timeout = 1")
    with session.transaction():
        assert flush(session, 3, 4)
        assert rows(thief, f"SELECT 1 FROM {LEASE} FOR UPDATE SKIP LOCKED") == []
        assert rows(thief, f"SELECT 1 FROM {LEASE} LOCK IN SHARE MODE") == [(1,)]
        thief.rollback()
        with pytest.raises(Exception, match="1205"):
            rows(thief, f"SELECT 1 FROM {LEASE} FOR UPDATE")
        thief.rollback()
    assert rows(thief, f"SELECT 1 FROM {LEASE} FOR UPDATE SKIP LOCKED") == [(1,)]


@pytest.mark.thorough
def test_one_that_meets_a_lock_fails_alone(session: Session, raw: Any, open_raw: Callable[..., Any]) -> None:
    """The flush's error may pass, nothing is written, and the lease is free."""
    holder = open_raw()
    session.execute("SET SESSION innodb_lock_wait_timeout = 1")
    rows(holder, "SELECT 1 FROM queue_offsets WHERE consumer_group = 'g' AND partition_key = 'k' FOR UPDATE")
    with pytest.raises(DatabaseError) as caught:
        flush(session, 3, 4)
    assert (caught.value.code, caught.value.retriable) == (1205, True)
    assert rows(raw, f"SELECT 1 FROM {LEASE} FOR UPDATE SKIP LOCKED") == [(1,)]
    holder.rollback()
    assert row_of(raw) == (2, 3, 4, 0, 7)
    assert flush(session, 3, 4)


@pytest.mark.thorough
def test_a_mark_that_the_network_kept_hides_no_message_from_the_next_owner(lanelog_url: str, raw: Any) -> None:
    """The delayed mark arrives when a later message is marked and has a handler: the row keeps the later mark."""
    running, go = Record(), threading.Event()

    def handle(message: lanelog.Message) -> None:
        running(message.offset)
        if message.offset == 3:
            go.wait(20)

    def place() -> tuple[Any, ...]:
        columns = "offset_acked, marked_through"
        return next(iter(rows(raw, f"SELECT {columns} FROM queue_offsets WHERE consumer_group = 'g'")), ())

    with proxy_to(lanelog_url) as proxy, lanelog.connect(proxy.url) as client, lanelog.connect(lanelog_url) as other:
        client.subscribe("t", "g", handle, workers=1)
        other.publish("t", "k", b"1")
        eventually(lambda: place() == (1, 1))
        proxy.cut_at, proxy.keep = b"offset_acked)\n", True
        other.publish("t", "k", b"2")
        eventually(lambda: place() == (2, 2), within=20)
        assert proxy.cuts == 1
        other.publish("t", "k", b"3")
        running.wait(3)
        assert place() == (2, 3)
        proxy.arrive()
        assert place() == (2, 3)
        go.set()
        eventually(lambda: place() == (3, 3))
