"""Group commit when a thread leaves while its message is in somebody's transaction, and when a batch loses its lane."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lanelog._database import Transaction
from lanelog.errors import DatabaseError
from lanelog.message import Receipt
from lanelog.publisher import Publisher, batch
from lanelog.publisher.draft import Draft
from lanelog.publisher.line import Member
from lanelog.publisher.placing import write
from support.sql import rows
from support.waiting import eventually

PATIENCE = 20.0


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


def hold(connection: Any, key: str) -> None:
    """Lock the head of a lane, as a caller's transaction does; waits for whoever has it."""
    sql = "SELECT 1 FROM queue_partitions WHERE topic = 't' AND partition_key = %s FOR UPDATE"
    assert rows(connection, sql, key)


def ready(publisher: Publisher) -> list[Member]:
    """Who waits in memory for a leader."""
    line = publisher._group._lines.get("t")
    return [] if line is None else list(line.ready)


def queueing(publisher: Publisher, key: str) -> int:
    """How many wait in memory for a busy lane."""
    line = publisher._group._lines.get("t")
    return 0 if line is None else len(line.busy.get(key, ()))


def test_a_lane_whose_publisher_gave_up_in_a_batch_is_held_by_nobody(
    publisher: Publisher, open_raw: Any, raw: Any, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is up while a leader's transaction has it, and its lane turns out to be busy: others publish to it."""
    publisher.ensure_lanes("t", ["first", "second", "taken"])
    stopped = {"first": threading.Event(), "second": threading.Event()}

    def stop(cx: Transaction, topic: str, drafts: Sequence[Draft], heads: Any) -> list[Receipt]:
        if drafts[0].payload == b"stops":
            assert stopped[drafts[0].key].wait(PATIENCE)
        return write(cx, topic, drafts, heads)

    monkeypatch.setattr(batch, "write", stop)
    caller = open_raw()
    hold(caller, "taken")
    first = threads.submit(publisher.publish, "t", "first", b"stops")
    eventually(lambda: publisher._group._lines and not ready(publisher), what="the first batch")
    second = threads.submit(publisher.publish, "t", "second", b"stops")
    eventually(lambda: len(ready(publisher)) == 1)
    late = threads.submit(publisher.publish, "t", "taken", b"late")
    eventually(lambda: len(ready(publisher)) == 2)
    member = ready(publisher)[1]
    stopped["first"].set()
    assert first.result(PATIENCE).offset == 1
    eventually(lambda: member.claimed, what="the second batch")
    member.deadline = 0.0
    member.signal.set()
    with pytest.raises(DatabaseError, match="another thread was about to") as caught:
        late.result(PATIENCE)
    assert caught.value.outcome_unknown
    stopped["second"].set()
    assert second.result(PATIENCE).offset == 1
    caller.rollback()
    eventually(lambda: not publisher._group._lines, what="a line without members")
    for offset in (1, 2):
        assert publisher.publish("t", "taken", b"x").offset == offset
    assert publisher.publish("t", "second", b"x").offset == 2
    assert rows(raw, "SELECT COUNT(*) FROM queue_messages WHERE payload = 'late'") == [(0,)]


def test_a_batch_whose_lane_is_taken_before_its_repetition_waits_and_is_committed_once(
    publisher: Publisher, open_raw: Any, raw: Any, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection breaks in the transaction that has claimed it, and somebody else has the head when it is repeated.

    Its holder has no place in the gate, so it asks with SKIP LOCKED; nobody is forgotten, neither then nor later.
    """
    publisher.ensure_lanes("t", ["k"])
    publisher._group._gate.places = 0
    caller, faster = open_raw(), open_raw()
    broken: list[int] = []
    transact = batch.BatchWriter._transact

    def break_once(cx: Transaction, topic: str, drafts: Sequence[Draft], heads: Any) -> list[Receipt]:
        if not broken:
            broken.append(len(drafts))
            rows(raw, f"KILL {cx.raw.thread_id()}")
        return write(cx, topic, drafts, heads)

    def be_slower(self: Any, *args: Any, **options: Any) -> Any:
        if broken:
            hold(faster, "k")
            monkeypatch.setattr(batch.BatchWriter, "_transact", transact)
        return transact(self, *args, **options)

    monkeypatch.setattr(batch, "write", break_once)
    monkeypatch.setattr(batch.BatchWriter, "_transact", be_slower)
    hold(caller, "k")
    calls = [threads.submit(publisher.publish, "t", "k", b"x") for _ in range(5)]
    eventually(lambda: queueing(publisher, "k") == 5, what="all of them queueing")
    caller.rollback()
    eventually(lambda: batch.BatchWriter._transact is transact, what="the repetition")
    eventually(lambda: queueing(publisher, "k") == 5, what="all of them queueing again")
    assert not any(call.done() for call in calls)
    faster.rollback()
    assert sorted(call.result(PATIENCE).offset for call in calls) == [1, 2, 3, 4, 5]
    assert broken == [5]
    assert rows(raw, "SELECT COUNT(*), MAX(`offset`) FROM queue_messages") == [(5, 5)]
    assert publisher._group._lines == {}
