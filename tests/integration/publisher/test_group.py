"""Group commit: many threads, few transactions, and nobody waits for a lane that is not his."""

import ctypes
import gc
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from attrs import evolve

from lanelog._database import Transaction
from lanelog._log.append.draft import Draft
from lanelog._log.append.writing import write
from lanelog.errors import DatabaseError, PayloadTooLarge
from lanelog.message import Outgoing, Receipt
from lanelog.publisher import Publisher, batch
from lanelog.publisher.topic_queue import Waiter
from support.publishing import REFUSED, ensure_lanes, hold, publisher_at
from support.sql import rows, tables_locked
from support.waiting import eventually

PATIENCE = 20.0


def commits(raw: Any) -> int:
    return int(rows(raw, "SHOW GLOBAL STATUS LIKE 'Com_commit'")[0][1])


def waiting(raw: Any) -> int:
    """How many connections wait for a head at the server."""
    others = "SELECT 1 FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
    waits = "SELECT partition_key, head_offset%FOR UPDATE"
    return len(rows(raw, f"{others} AND info LIKE %s AND info NOT LIKE %s", waits, "%SKIP LOCKED"))


@contextmanager
def holding(open_raw: Any, *keys: str) -> Iterator[Any]:
    """Hold the heads of lanes, as a slow transaction of somebody else does."""
    mine = open_raw()
    hold(mine, *keys)
    try:
        yield mine
    finally:
        mine.rollback()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(64) as executor:
        yield executor


def ready(publisher: Publisher) -> list[Waiter]:
    """Who waits in memory for a leader."""
    queue = publisher._group._queues.get("t")
    return [] if queue is None else list(queue.ready)


def queueing(publisher: Publisher, key: str) -> int:
    """How many wait in memory for a busy lane."""
    queue = publisher._group._queues.get("t")
    return 0 if queue is None else len(queue.busy.get(key, ()))


@contextmanager
def stopped_log(open_raw: Any, publisher: Publisher, threads: ThreadPoolExecutor) -> Iterator[Future[Receipt]]:
    """Stop all inserts, with one leader waiting in the middle of its transaction, until the end of the block."""
    with tables_locked(open_raw(autocommit=True), "LOCK TABLES queue_messages WRITE"):
        leader = threads.submit(publisher.publish, "t", Outgoing("leader", b"x"))
        eventually(lambda: publisher._group._queues and not ready(publisher), what="a leader's transaction")
        yield leader


def test_threads_share_transactions(publisher: Publisher, open_raw: Any, raw: Any, threads: ThreadPoolExecutor) -> None:
    """Forty threads that publish while another commits are one transaction, and each gets its own receipt."""
    ensure_lanes(publisher, "t", [f"k{number}" for number in range(10)] + ["leader"])
    before = commits(raw)
    with stopped_log(open_raw, publisher, threads) as leader:
        others = [
            threads.submit(publisher.publish, "t", Outgoing(f"k{number % 10}", str(number))) for number in range(40)
        ]
        eventually(lambda: len(ready(publisher)) == 40)
    assert leader.result().offset == 1
    offsets = [other.result().offset for other in others]
    assert sorted(offsets) == sorted(list(range(1, 5)) * 10)
    assert commits(raw) - before <= 3
    stored = rows(raw, "SELECT partition_key, `offset`, payload FROM queue_messages")
    for number, offset in enumerate(offsets):
        assert (f"k{number % 10}", offset, str(number).encode()) in stored


def test_a_bad_message_fails_alone(publisher: Publisher, open_raw: Any, raw: Any, threads: ThreadPoolExecutor) -> None:
    """Ten good messages share a transaction with one that the server refuses: they are stored, it raises."""
    ensure_lanes(publisher, "t", ["k", "leader"])
    rows(raw, REFUSED)
    with stopped_log(open_raw, publisher, threads):
        good = [threads.submit(publisher.publish, "t", Outgoing("k", b"x")) for _ in range(5)]
        bad = threads.submit(publisher.publish, "t", Outgoing("k", b"x", id="bad"))
        good += [threads.submit(publisher.publish, "t", Outgoing("k", b"x")) for _ in range(5)]
        eventually(lambda: len(ready(publisher)) == 11)
        with pytest.raises(PayloadTooLarge):  # what is checked beforehand does not even enter
            publisher.publish("t", Outgoing("k", bytes(2_000_000)))
    with pytest.raises(DatabaseError, match="refused") as caught:
        bad.result()
    assert not caught.value.retriable
    assert sorted(one.result().offset for one in good) == list(range(1, 11))
    assert rows(raw, "SELECT COUNT(*) FROM queue_messages WHERE partition_key = 'k'") == [(10,)]


def test_a_lane_that_is_held_delays_no_other(
    publisher: Publisher, open_raw: Any, raw: Any, threads: ThreadPoolExecutor
) -> None:
    """A slow transaction holds one key: its publishers queue in memory behind one connection, all others go on."""
    ensure_lanes(publisher, "t", ["slow", "fast"])
    with holding(open_raw, "slow"):
        stuck = [threads.submit(publisher.publish, "t", Outgoing("slow", b"x")) for _ in range(20)]
        eventually(lambda: waiting(raw) == 1 and queueing(publisher, "slow") == 20)
        for offset in range(1, 51):
            assert publisher.publish("t", Outgoing("fast", b"x")).offset == offset
            assert publisher.publish_many("t", [("new", b"x")])[0].offset == offset
        assert waiting(raw) <= 1
        eventually(lambda: waiting(raw) == 1)  # at times nobody waits: the server gave up, and is asked again
        assert not any(one.done() for one in stuck)
        before = commits(raw)
    assert sorted(one.result(PATIENCE).offset for one in stuck) == list(range(1, 21))
    assert commits(raw) - before <= 3


def test_publish_many_holds_nothing_while_it_waits(
    publisher: Publisher, open_raw: Any, raw: Any, threads: ThreadPoolExecutor
) -> None:
    """A batch over a held lane and a free one does not lock the free one for others meanwhile."""
    ensure_lanes(publisher, "t", ["a-free", "held", "z-free"])
    with holding(open_raw, "held"):
        many = threads.submit(publisher.publish_many, "t", [("a-free", b"1"), ("held", b"2"), ("z-free", b"3")])
        eventually(lambda: waiting(raw) == 1)
        free = "SELECT partition_key FROM queue_partitions WHERE partition_key LIKE '%-free' FOR UPDATE SKIP LOCKED"
        assert rows(raw, free) == [("a-free",), ("z-free",)]
        for offset in range(1, 11):
            assert publisher.publish("t", Outgoing("a-free", b"x")).offset == offset
            assert publisher.publish("t", Outgoing("z-free", b"x")).offset == offset
        assert not many.done()
    assert [receipt.offset for receipt in many.result(PATIENCE)] == [11, 1, 11]


@pytest.mark.thorough
def test_many_held_lanes_leave_half_of_the_pool(
    publisher: Publisher, open_raw: Any, raw: Any, threads: ThreadPoolExecutor
) -> None:
    """More lanes are held than may be waited for: the rest is tried without waiting, and each resumes by itself."""
    keys = [f"k{number}" for number in range(8)]
    ensure_lanes(publisher, "t", keys)
    with holding(open_raw, *keys[:7]):
        with holding(open_raw, keys[7]):
            stuck = {key: threads.submit(publisher.publish, "t", Outgoing(key, b"x")) for key in keys}
            many = [threads.submit(publisher.publish_many, "t", [(key, b"y"), ("free", b"y")]) for key in keys[:7]]
            eventually(lambda: waiting(raw) == 4)
            for offset in range(1, 21):
                assert publisher.publish("t", Outgoing("other", b"x")).offset == offset
            assert waiting(raw) <= 4
        assert stuck[keys[7]].result(PATIENCE).offset == 1
        assert waiting(raw) <= 4
        assert not any(stuck[key].done() for key in keys[:7])
    for key in keys[:7]:
        assert stuck[key].result(PATIENCE).offset in {1, 2}
    assert sorted(receipts.result(PATIENCE)[1].offset for receipts in many) == list(range(1, 8))


@pytest.mark.thorough
def test_a_lane_held_for_too_long_is_a_retriable_error(
    lanelog_url: str, open_raw: Any, raw: Any, threads: ThreadPoolExecutor
) -> None:
    """After publish_timeout whoever waits for that lane, or queues behind, knows that its message is not stored."""
    with publisher_at(lanelog_url, impatient=True, publish_timeout=1.0) as publisher:
        database = publisher._database
        ensure_lanes(publisher, "t", ["held", "free"])
        impatient, patient = database.config, evolve(database.config, publish_timeout=PATIENCE)
        with holding(open_raw, "held"):
            not_stored([threads.submit(publisher.publish, "t", Outgoing("held", b"x"))])
            database.config = patient
            holder = threads.submit(publisher.publish, "t", Outgoing("held", b"x"))
            eventually(lambda: (queue := publisher._group._queues.get("t")) and queue.busy.keys() == {"held"})
            database.config = impatient
            not_stored([threads.submit(publisher.publish, "t", Outgoing("held", b"x")) for _ in range(4)])
            database.config = patient
            assert publisher.publish("t", Outgoing("free", b"x")).offset == 1
        assert holder.result(PATIENCE).offset == 1
        eventually(lambda: not publisher._group._queues)
    assert rows(raw, "SELECT COUNT(*) FROM queue_messages WHERE partition_key = 'held'") == [(1,)]


def not_stored(calls: list[Future[Receipt]]) -> None:
    """Each ends with an error that says so, and that it may be tried again."""
    for call in calls:
        with pytest.raises(DatabaseError) as caught:
            call.result(PATIENCE)
        assert caught.value.retriable
        assert not caught.value.outcome_unknown


def test_a_deadlock_is_repeated(publisher: Publisher, open_raw: Any, raw: Any, threads: ThreadPoolExecutor) -> None:
    """Somebody who locks lanes in another order costs a repetition, not an error."""
    ensure_lanes(publisher, "t", ["a", "b"])
    locked = "SELECT 1 FROM queue_partitions WHERE topic = 't' AND partition_key = 'a' FOR UPDATE SKIP LOCKED"
    rows(raw, "CREATE TABLE weight (id INT PRIMARY KEY) ENGINE=InnoDB")
    with holding(open_raw, "b") as heavy:
        for number in range(50):  # whoever has changed less is the victim
            rows(heavy, "INSERT INTO weight VALUES (%s)", number)
        with holding(open_raw, "a"):
            batch = threads.submit(publisher.publish_many, "t", [("a", b"1"), ("b", b"2")])
            eventually(lambda: waiting(raw) == 1)
        eventually(lambda: not rows(raw, locked), what="the head of a in the batch's hands")
        hold(heavy, "a")
    assert [receipt.offset for receipt in batch.result(PATIENCE)] == [1, 1]


@pytest.mark.thorough
def test_a_gap_locked_by_a_caller_delays_other_lanes_at_most_once(
    lanelog_url: str, open_raw: Any, threads: ThreadPoolExecutor
) -> None:
    """A SERIALIZABLE reader blocks inserts, not heads: only the lanes it concerns wait until it ends."""
    with publisher_at(lanelog_url, impatient=True) as publisher:
        publisher.publish_many("t", [("m", b"x"), ("z", b"x")])
        reader = open_raw()
        rows(reader, "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        rows(reader, "SELECT * FROM queue_messages WHERE topic = 't' AND partition_key = 'm' AND `offset` > 0")
        stuck = [threads.submit(publisher.publish, "t", Outgoing("m", b"y")) for _ in range(3)]
        eventually(lambda: (queue := publisher._group._queues.get("t")) and queue.busy.keys() == {"m"})
        for offset in range(2, 12):
            assert publisher.publish("t", Outgoing("z", b"y")).offset == offset
        assert not any(one.done() for one in stuck)
        reader.rollback()
        assert sorted(one.result(PATIENCE).offset for one in stuck) == [2, 3, 4]


def test_an_interrupted_leader_leaves_nobody_behind(
    publisher: Publisher, open_raw: Any, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the thread that commits for others is its own: theirs are committed by the next."""
    ensure_lanes(publisher, "t", ["k", "leader"])
    leading: list[int] = []

    def notice(*args: Any) -> None:
        leading.append(threading.get_ident())
        write(*args)

    monkeypatch.setattr(batch, "write", notice)
    with stopped_log(open_raw, publisher, threads) as leader:
        eventually(lambda: leading)
        others = [threads.submit(publisher.publish, "t", Outgoing("k", b"x")) for _ in range(10)]
        eventually(lambda: len(ready(publisher)) == 10)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(leading[0]), ctypes.py_object(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        leader.result(PATIENCE)
    assert sorted(one.result(PATIENCE).offset for one in others) == list(range(1, 11))
    assert publisher.publish("t", Outgoing("leader", b"x")).offset <= 2


class Struck(Exception):
    """It is nobody's error but that of the thread in which it was raised."""


class Strike:
    """Raises Struck in a thread that leads two others, at the n-th point of group commit.

    A signal handler runs when a function of Python is entered, or after a call of one in C: at what a profiler is told.
    """

    def __init__(self, publisher: Publisher, threads: ThreadPoolExecutor, point: int) -> None:
        self.publisher, self.threads, self.point = publisher, threads, point
        self.passed = 0
        self.others: list[Future[Receipt]] = []

    def publish(self) -> Receipt | None:
        """Publish. None: it struck."""
        sys.setprofile(self._profile)
        try:
            return self.publisher.publish("t", Outgoing("mine", b"x"))
        except Struck:
            return None
        finally:
            sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, _arg: object) -> None:
        code = frame.f_code
        if not code.co_filename.endswith(("publisher/group.py", "publisher/topic_queue.py", "publisher/batch.py")):
            return
        if event == "call" and code.co_name == "_lead":
            self.others += [self.threads.submit(self.publisher.publish, "t", Outgoing(key, b"x")) for key in ("a", "b")]
            eventually(lambda: len(ready(self.publisher)) == 3)
        if event in {"call", "c_return"}:
            self.passed += 1
            if self.passed == self.point:
                raise Struck


@pytest.mark.thorough
def test_an_exception_at_any_point_strikes_one_publisher_only(
    publisher: Publisher, raw: Any, threads: ThreadPoolExecutor
) -> None:
    """A signal handler raises in the thread that commits for others, at any point: the others get receipts.

    At worst they wait for the second after which they check for a thread that has left. None gets an error or a
    duplicate, and each message is stored once, at the offset of its receipt.
    """
    ensure_lanes(publisher, "t", ["mine", "a", "b"])
    place = "SELECT partition_key, `offset` FROM queue_messages WHERE id = %s"
    for point in range(1, 1000):
        strike = Strike(publisher, threads, point)
        own = threads.submit(strike.publish).result(PATIENCE)
        for receipt in [other.result(PATIENCE) for other in strike.others]:
            assert rows(raw, place, receipt.id) == [(receipt.key, receipt.offset)]
            assert not receipt.duplicate
        if own is not None:
            break
    assert 50 < point < 999
    assert publisher._group._queues == {}


def test_a_published_message_is_freed_at_once(publisher: Publisher) -> None:
    """Nothing refers to itself: a process without garbage collection keeps no payload, and one with it has no work."""
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            publisher.publish("t", Outgoing("k", b"x"))
        left = [one for one in gc.get_objects() if type(one) is Waiter]  # others may make up their class
    finally:
        gc.enable()
    assert left == []


def test_ids_in_a_shared_transaction(publisher: Publisher, open_raw: Any, threads: ThreadPoolExecutor) -> None:
    """Waiters of one batch that have the same id are one message; one that is stored already takes no offset."""
    publisher.publish_many("t", [Outgoing("k", b"old", id="old"), ("leader", b"x")])
    with stopped_log(open_raw, publisher, threads):
        same = [threads.submit(publisher.publish, "t", Outgoing("k", b"x", id="same")) for _ in range(6)]
        old = threads.submit(publisher.publish, "t", Outgoing("k", b"x", id="old"))
        eventually(lambda: len(ready(publisher)) == 7)
    assert sorted((one.result().offset, one.result().duplicate) for one in same) == [(2, False)] + [(2, True)] * 5
    assert old.result() == Receipt(1, "old", duplicate=True)


def test_a_lane_whose_publisher_gave_up_in_a_batch_is_held_by_nobody(
    publisher: Publisher, open_raw: Any, raw: Any, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is up while a leader's transaction has the message, and the lane is busy: others publish to it."""
    ensure_lanes(publisher, "t", ["first", "second", "taken"])
    stopped = {"first": threading.Event(), "second": threading.Event()}

    def stop(cx: Transaction, topic: str, drafts: Sequence[Draft], heads: Any, receipts: list[Receipt]) -> None:
        if drafts[0].payload == b"stops":
            assert stopped[drafts[0].key].wait(PATIENCE)
        write(cx, topic, drafts, heads, receipts)

    monkeypatch.setattr(batch, "write", stop)
    caller = open_raw()
    hold(caller, "taken")
    first = threads.submit(publisher.publish, "t", Outgoing("first", b"stops"))
    eventually(lambda: publisher._group._queues and not ready(publisher), what="the first batch")
    second = threads.submit(publisher.publish, "t", Outgoing("second", b"stops"))
    eventually(lambda: len(ready(publisher)) == 1)
    late = threads.submit(publisher.publish, "t", Outgoing("taken", b"late"))
    eventually(lambda: len(ready(publisher)) == 2)
    waiter = ready(publisher)[1]
    stopped["first"].set()
    assert first.result(PATIENCE).offset == 1
    eventually(lambda: waiter.claimed, what="the second batch")
    waiter.deadline = 0.0
    waiter.signal.set()
    with pytest.raises(DatabaseError, match="another thread was about to") as caught:
        late.result(PATIENCE)
    assert caught.value.outcome_unknown
    stopped["second"].set()
    assert second.result(PATIENCE).offset == 1
    caller.rollback()
    eventually(lambda: not publisher._group._queues, what="a queue without waiters")
    for offset in (1, 2):
        assert publisher.publish("t", Outgoing("taken", b"x")).offset == offset
    assert publisher.publish("t", Outgoing("second", b"x")).offset == 2
    assert rows(raw, "SELECT COUNT(*) FROM queue_messages WHERE payload = 'late'") == [(0,)]


def test_a_batch_whose_lane_is_taken_before_its_repetition_waits_and_is_committed_once(
    publisher: Publisher, open_raw: Any, raw: Any, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection of the first transaction breaks, and another process has the head at the repetition.

    No slot is left for it among the waiters, so it asks with SKIP LOCKED; nobody is forgotten, then or later.
    """
    ensure_lanes(publisher, "t", ["k"])
    publisher._group._gate.slots = 0
    caller, faster = open_raw(), open_raw()
    broken: list[int] = []
    transact = batch.BatchWriter._transact

    def break_once(cx: Transaction, topic: str, drafts: Sequence[Draft], heads: Any, receipts: list[Receipt]) -> None:
        if not broken:
            broken.append(len(drafts))
            rows(raw, f"KILL {cx.raw.thread_id()}")
        write(cx, topic, drafts, heads, receipts)

    def be_slower(self: Any, *args: Any, **options: Any) -> Any:
        if broken:
            hold(faster, "k")
            monkeypatch.setattr(batch.BatchWriter, "_transact", transact)
        return transact(self, *args, **options)

    monkeypatch.setattr(batch, "write", break_once)
    monkeypatch.setattr(batch.BatchWriter, "_transact", be_slower)
    hold(caller, "k")
    calls = [threads.submit(publisher.publish, "t", Outgoing("k", b"x")) for _ in range(5)]
    eventually(lambda: queueing(publisher, "k") == 5, what="all of them queueing")
    caller.rollback()
    eventually(lambda: batch.BatchWriter._transact is transact, what="the repetition")
    eventually(lambda: queueing(publisher, "k") == 5, what="all of them queueing again")
    assert not any(call.done() for call in calls)
    faster.rollback()
    assert sorted(call.result(PATIENCE).offset for call in calls) == [1, 2, 3, 4, 5]
    assert broken == [5]
    assert rows(raw, "SELECT COUNT(*), MAX(`offset`) FROM queue_messages") == [(5, 5)]
    assert publisher._group._queues == {}
