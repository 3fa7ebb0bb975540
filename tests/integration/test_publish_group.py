"""Group commit: many threads, few transactions, and nobody waits for a lane that is not his."""

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from lanelog._database import Database
from lanelog.config import ConnectConfig
from lanelog.errors import DatabaseError, PayloadTooLarge
from lanelog.message import Outgoing, Receipt
from lanelog.publisher import Publisher

PATIENCE = 20.0


def run(raw: Any, sql: str, *args: object) -> list[tuple[Any, ...]]:
    with raw.cursor() as cursor:
        cursor.execute(sql, args or None)
        return list(cursor.fetchall())


def until(condition: Callable[[], bool]) -> None:
    """Wait until something that others do has happened."""
    deadline = time.monotonic() + PATIENCE
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        pause.wait(0.01)


def commits(raw: Any) -> int:
    return int(run(raw, "SHOW GLOBAL STATUS LIKE 'Com_commit'")[0][1])


def waiting(raw: Any) -> int:
    """How many connections wait for a head at the server."""
    return len(
        run(
            raw,
            "SELECT 1 FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE %s AND info NOT LIKE %s "
            "AND id <> CONNECTION_ID()",
            "SELECT partition_key, head_offset%FOR UPDATE",
            "%SKIP LOCKED",
        )
    )


@contextmanager
def holding(open_raw: Any, *keys: str) -> Iterator[Any]:
    """Hold the heads of lanes, as a slow transaction of somebody else does."""
    mine = open_raw()
    for key in keys:
        rows = run(mine, "SELECT 1 FROM queue_partitions WHERE topic = 't' AND partition_key = %s FOR UPDATE", key)
        assert rows
    try:
        yield mine
    finally:
        mine.rollback()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(64) as executor:
        yield executor


def members(publisher: Publisher) -> int:
    """How many threads queue in memory."""
    line = publisher._group._lines.get("t")
    return 0 if line is None else len(line.ready) + sum(len(queue) for queue in line.busy.values())


@contextmanager
def stopped_log(raw: Any, publisher: Publisher, threads: ThreadPoolExecutor) -> Iterator[Future[Receipt]]:
    """Stop all inserts, with one leader waiting in the middle of its transaction, until the end of the block."""
    run(raw, "LOCK TABLES queue_messages WRITE")
    try:
        leader = threads.submit(publisher.publish, "t", "leader", b"x")
        until(lambda: bool(publisher._group._lines) and members(publisher) == 0)
        yield leader
    finally:
        run(raw, "UNLOCK TABLES")


def test_threads_share_transactions(publisher: Publisher, open_raw: Any, threads: ThreadPoolExecutor) -> None:
    """Forty threads that publish while another commits are one transaction, and each gets its own receipt."""
    publisher.ensure_lanes("t", [f"k{number}" for number in range(10)] + ["leader"])
    locker, raw = open_raw(autocommit=True), open_raw(autocommit=True)
    before = commits(raw)
    with stopped_log(locker, publisher, threads) as leader:
        others = [threads.submit(publisher.publish, "t", f"k{number % 10}", str(number)) for number in range(40)]
        until(lambda: members(publisher) == 40)
    assert leader.result().offset == 1
    offsets = [other.result().offset for other in others]
    assert sorted(offsets) == sorted(list(range(1, 5)) * 10)
    assert commits(raw) - before <= 3
    rows = run(raw, "SELECT partition_key, `offset`, payload FROM queue_messages")
    for number, offset in enumerate(offsets):
        assert (f"k{number % 10}", offset, str(number).encode()) in rows


def test_a_bad_message_fails_alone(publisher: Publisher, open_raw: Any, threads: ThreadPoolExecutor) -> None:
    """Ten good messages share a transaction with one that the server refuses: they are stored, it raises."""
    publisher.ensure_lanes("t", ["k", "leader"])
    raw, locker = open_raw(autocommit=True), open_raw(autocommit=True)
    run(
        raw,
        "CREATE TRIGGER refuse BEFORE INSERT ON queue_messages FOR EACH ROW BEGIN "
        "IF NEW.id = 'bad' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused'; END IF; END",
    )
    with stopped_log(locker, publisher, threads):
        good = [threads.submit(publisher.publish, "t", "k", b"x") for _ in range(5)]
        bad = threads.submit(publisher.publish, "t", "k", b"x", id="bad")
        good += [threads.submit(publisher.publish, "t", "k", b"x") for _ in range(5)]
        until(lambda: members(publisher) == 11)
        with pytest.raises(PayloadTooLarge):  # what is checked beforehand does not even enter
            publisher.publish("t", "k", bytes(2_000_000))
    with pytest.raises(DatabaseError, match="refused") as caught:
        bad.result()
    assert not caught.value.retriable
    assert sorted(one.result().offset for one in good) == list(range(1, 11))
    assert run(raw, "SELECT COUNT(*) FROM queue_messages WHERE partition_key = 'k'") == [(10,)]


def test_a_lane_that_is_held_delays_no_other(
    publisher: Publisher, open_raw: Any, raw: Any, threads: ThreadPoolExecutor
) -> None:
    """A slow transaction holds one key: its publishers queue in memory behind one connection, all others go on."""
    publisher.ensure_lanes("t", ["slow", "fast"])
    with holding(open_raw, "slow"):
        stuck = [threads.submit(publisher.publish, "t", "slow", b"x") for _ in range(20)]
        until(lambda: waiting(raw) == 1 and members(publisher) == 20)
        started = time.monotonic()
        for offset in range(1, 51):
            assert publisher.publish("t", "fast", b"x").offset == offset
            assert publisher.publish_many("t", [("new", b"x")])[0].offset == offset
        assert time.monotonic() - started < PATIENCE
        assert waiting(raw) <= 1
        until(lambda: waiting(raw) == 1)  # at times nobody waits: the server gave up, and is asked again
        assert not any(one.done() for one in stuck)
        before = commits(raw)
    assert sorted(one.result().offset for one in stuck) == list(range(1, 21))
    assert commits(raw) - before <= 3


def test_many_held_lanes_leave_half_of_the_pool(
    publisher: Publisher, open_raw: Any, raw: Any, threads: ThreadPoolExecutor
) -> None:
    """More lanes are held than may be waited for: the rest is tried without waiting, and each resumes by itself."""
    keys = [f"k{number}" for number in range(8)]
    publisher.ensure_lanes("t", keys)
    with holding(open_raw, *keys[:7]):
        with holding(open_raw, keys[7]):
            stuck = {key: threads.submit(publisher.publish, "t", key, b"x") for key in keys}
            many = [threads.submit(publisher.publish_many, "t", [(key, b"y"), ("free", b"y")]) for key in keys[:7]]
            until(lambda: waiting(raw) == 4)
            for offset in range(1, 21):
                assert publisher.publish("t", "other", b"x").offset == offset
            assert waiting(raw) <= 4
        assert stuck[keys[7]].result(PATIENCE).offset == 1
        assert waiting(raw) <= 4
        assert not any(stuck[key].done() for key in keys[:7])
    for key in keys[:7]:
        assert stuck[key].result(PATIENCE).offset in {1, 2}
    assert sorted(receipts.result(PATIENCE)[1].offset for receipts in many) == list(range(1, 8))


def test_publish_many_holds_nothing_while_it_waits(
    publisher: Publisher, open_raw: Any, raw: Any, threads: ThreadPoolExecutor
) -> None:
    """A batch over a held lane and a free one does not lock the free one for others meanwhile."""
    publisher.ensure_lanes("t", ["a-free", "held", "z-free"])
    with holding(open_raw, "held"):
        batch = threads.submit(publisher.publish_many, "t", [("a-free", b"1"), ("held", b"2"), ("z-free", b"3")])
        until(lambda: waiting(raw) == 1)
        for offset in range(1, 11):
            assert publisher.publish("t", "a-free", b"x").offset == offset
            assert publisher.publish("t", "z-free", b"x").offset == offset
        assert not batch.done()
    assert [receipt.offset for receipt in batch.result(PATIENCE)] == [11, 1, 11]


def test_a_lane_held_for_too_long_is_a_retriable_error(
    lanelog_url: str, publisher: Publisher, open_raw: Any, raw: Any, threads: ThreadPoolExecutor
) -> None:
    """After publish_timeout every publisher of that lane knows that its message is not stored, and none is later."""
    publisher.ensure_lanes("t", ["held", "free"])
    database = Database(ConnectConfig.from_url(lanelog_url, publish_timeout=1.0))
    publisher = Publisher(database, lambda _: None)
    with holding(open_raw, "held"):
        calls: list[Future[Any]] = [threads.submit(publisher.publish, "t", "held", b"x") for _ in range(5)]
        for call in calls:
            with pytest.raises(DatabaseError) as caught:
                call.result(PATIENCE)
            assert caught.value.retriable
            assert not caught.value.outcome_unknown
        assert publisher.publish("t", "free", b"x").offset == 1
    until(lambda: not publisher._group._lines)
    assert publisher.publish("t", "held", b"x").offset == 1
    assert run(raw, "SELECT COUNT(*) FROM queue_messages WHERE partition_key = 'held'") == [(1,)]
    publisher.close()
    database.close()


def test_a_deadlock_is_repeated(publisher: Publisher, open_raw: Any, raw: Any, threads: ThreadPoolExecutor) -> None:
    """Somebody who locks lanes in another order costs a repetition, not an error."""
    publisher.ensure_lanes("t", ["a", "b"])
    run(raw, "CREATE TABLE weight (id INT PRIMARY KEY) ENGINE=InnoDB")
    with holding(open_raw, "b") as heavy:
        for number in range(100):  # the server rolls back whoever wrote less
            run(heavy, "INSERT INTO weight VALUES (%s)", number)
        with holding(open_raw, "a"):
            batch = threads.submit(publisher.publish_many, "t", [("a", b"1"), ("b", b"2")])
            until(lambda: waiting(raw) == 1)
        until(lambda: locked(raw, "a"))
        run(heavy, "SELECT 1 FROM queue_partitions WHERE topic = 't' AND partition_key = 'a' FOR UPDATE")
    assert [receipt.offset for receipt in batch.result(PATIENCE)] == [1, 1]


def locked(raw: Any, key: str) -> bool:
    """Whether somebody has the head of a lane."""
    rows = run(
        raw, "SELECT 1 FROM queue_partitions WHERE topic = 't' AND partition_key = %s FOR UPDATE SKIP LOCKED", key
    )
    return not rows


def test_a_gap_locked_by_a_caller_delays_other_lanes_at_most_once(
    publisher: Publisher, open_raw: Any, threads: ThreadPoolExecutor
) -> None:
    """A SERIALIZABLE reader blocks inserts, not heads: only the lanes it concerns wait until it ends."""
    publisher.publish_many("t", [("m", b"x"), ("z", b"x")])
    reader = open_raw()
    run(reader, "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE")
    run(reader, "SELECT * FROM queue_messages WHERE topic = 't' AND partition_key = 'm' AND `offset` > 0")
    stuck = [threads.submit(publisher.publish, "t", "m", b"y") for _ in range(3)]
    until(lambda: (line := publisher._group._lines.get("t")) is not None and line.busy.keys() == {"m"})
    for offset in range(2, 12):
        assert publisher.publish("t", "z", b"y").offset == offset
    assert not any(one.done() for one in stuck)
    reader.rollback()
    assert sorted(one.result(PATIENCE).offset for one in stuck) == [2, 3, 4]


def test_an_interrupted_leader_leaves_nobody_behind(
    publisher: Publisher, open_raw: Any, threads: ThreadPoolExecutor
) -> None:
    """Ctrl-C in the thread that commits for others is its own: theirs are committed by the next."""
    publisher.ensure_lanes("t", ["k", "leader"])
    leading: list[int] = []

    def lead() -> None:
        leading.append(threading.get_ident())
        publisher.publish("t", "leader", b"x")

    locker = open_raw(autocommit=True)
    run(locker, "LOCK TABLES queue_messages WRITE")
    leader = threads.submit(lead)
    until(lambda: bool(publisher._group._lines) and members(publisher) == 0)
    others = [threads.submit(publisher.publish, "t", "k", b"x") for _ in range(10)]
    until(lambda: members(publisher) == 10)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(leading[0]), ctypes.py_object(KeyboardInterrupt))
    run(locker, "UNLOCK TABLES")
    with pytest.raises(KeyboardInterrupt):
        leader.result(PATIENCE)
    assert sorted(one.result(PATIENCE).offset for one in others) == list(range(1, 11))
    assert publisher.publish("t", "leader", b"x").offset <= 2


def test_ids_in_a_shared_transaction(publisher: Publisher, open_raw: Any, threads: ThreadPoolExecutor) -> None:
    """Members of one batch that have the same id are one message; one that is stored already takes no offset."""
    publisher.publish_many("t", [Outgoing("k", b"old", id="old"), ("leader", b"x")])
    with stopped_log(open_raw(autocommit=True), publisher, threads):
        same = [threads.submit(publisher.publish, "t", "k", b"x", id="same") for _ in range(6)]
        old = threads.submit(publisher.publish, "t", "k", b"x", id="old")
        until(lambda: members(publisher) == 7)
    assert sorted((one.result().offset, one.result().duplicate) for one in same) == [(2, False)] + [(2, True)] * 5
    assert old.result() == Receipt(1, "old", duplicate=True)
