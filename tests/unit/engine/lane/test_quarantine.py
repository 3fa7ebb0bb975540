"""Quarantine: what a crash means for a message, and how long a message that runs alone has the process to itself."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast

import pytest

from lanelog._engine.lane.lane import Lane
from lanelog._engine.lane.quarantine import judge_again
from lanelog._engine.lane.values import ACKED, LaneSnapshot, Waiting
from lanelog._engine.member import isolation as module
from lanelog._engine.member.isolation import Isolation
from lanelog._engine.working.workers import Worker, Workers
from lanelog._stores.consumers.deliveries import DeliveryRow
from support.lanes import Rows, row
from support.memberships import Clock, Engine
from support.waiting import eventually

if TYPE_CHECKING:
    from lanelog._engine.engine_context import EngineContext
    from lanelog.message import Message


@pytest.fixture
def isolation(monkeypatch: pytest.MonkeyPatch) -> Isolation:
    """The process's isolation, of this test alone."""
    monkeypatch.setattr(module, "_process", [Isolation()])
    return module.process_isolation()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine with one lane, whose only message has met four deaths: one attempt is left."""
    engine = Engine(Clock().drive(monkeypatch))
    met = DeliveryRow(1, 1, False, 0.0, 4, 0, True, False, 0, 10.0, None)
    snapshot = LaneSnapshot(key="key", epoch=3, generation=1, head=1, floor=0, offset_acked=0, rows=(met,))
    m = engine.member
    lane = Lane.load(snapshot, m.rules, m.budget, engine.clock.now)
    engine.rows["key"] = Rows(acked=0)
    m.leasing.open_lane(lane)
    engine.flush()
    m.fetching.fetched(lane, 0, [row(1)])
    m.fetching.revived(lane, [row(1)], [])
    return engine


@pytest.mark.parametrize(
    ("died_alone", "no_attempts_left", "own_cap", "caused_crash"),
    [(True, True, None, True), (False, True, None, False), (True, False, None, False), (True, False, 3, True)],
    ids=["died alone", "a neighbour of a crash", "attempts left", "none left by its redrive"],
)
def test_only_a_message_that_crashed_alone_without_attempts_left_is_blamed(
    died_alone: bool, no_attempts_left: bool, own_cap: int | None, caused_crash: bool
) -> None:
    """A message that is a dead letter is never blamed: it is retried without limit, whatever its rows say."""
    wait = Waiting(3, 0.0, None, crashed=True, died_alone=died_alone, no_attempts_left=no_attempts_left)
    assert judge_again(wait, own_cap, endless=False, ack_first=False).caused_crash == caused_crash
    assert not judge_again(wait, own_cap, endless=True, ack_first=False).caused_crash


@pytest.mark.parametrize(
    ("crashed", "next_is_last", "own_cap", "alone"),
    [(True, True, None, True), (False, True, None, False), (True, False, None, False), (True, False, 4, True)],
    ids=["its last attempt", "never crashed", "not its last", "the last by its redrive"],
)
def test_the_last_attempt_after_a_crash_runs_alone(
    crashed: bool, next_is_last: bool, own_cap: int | None, alone: bool
) -> None:
    """A dead letter has no last attempt, and what is acked before its handler has no other one."""
    wait = Waiting(3, 0.0, None, crashed=crashed, next_is_last=next_is_last)
    for endless, first, expected in ((False, False, alone), (True, False, False), (False, True, False)):
        assert judge_again(wait, own_cap, endless=endless, ack_first=first).alone == expected


class Handler:
    """A handler that is in no hurry, in a worker's thread; it ends with the test."""

    def __init__(self, engine: Engine) -> None:
        m = engine.member
        _, run = engine.runs.get_nowait()
        assert run.alone
        self.started, self.may_end = threading.Event(), threading.Event()
        workers = Workers("builders", m.config, self.handle, engine.runs, cast("EngineContext", None))
        self.thread = threading.Thread(target=workers._work, args=(Worker(0), m, run), daemon=True)
        self.thread.start()
        eventually(lambda: engine.flush() or self.started.is_set(), what="its mark, and its start")

    def handle(self, message: Message) -> None:
        self.started.set()
        assert self.may_end.wait(20.0)


def test_others_go_on_when_the_outcome_of_a_quarantined_message_is_committed(
    engine: Engine, isolation: Isolation
) -> None:
    """One whose handler has returned has the process to itself until the flush of its ack has committed."""
    handler = Handler(engine)
    handler.may_end.set()
    writes = eventually(engine.collect, what="its ack")
    assert [write.watermark for write in writes] == [1]
    assert isolation._inside == 1, "others were let in before the ack was durable"
    engine.member.writing.committed(writes)
    eventually(lambda: engine.flush() or not isolation._inside, what="its leave")
    handler.thread.join(20.0)


def test_others_go_on_when_the_lane_of_a_quarantined_message_is_lost(engine: Engine, isolation: Isolation) -> None:
    """A quarantined message whose lane is lost keeps nobody waiting for a commit that will never be."""
    handler = Handler(engine)
    lane = engine.member.lanes["key"]
    handler.may_end.set()
    eventually(lambda: lane.progress.buffer, what="its ack in memory")
    engine.member.lose_lane(lane.term, "a test")
    eventually(lambda: not isolation._inside, what="its leave")
    handler.thread.join(20.0)


def test_others_go_on_when_a_quarantined_message_settled_by_hand_is_committed(
    engine: Engine, isolation: Isolation
) -> None:
    """A quarantined message in the user's hands has the process to itself until its settlement is committed."""
    m = engine.member
    _, run = engine.runs.get_nowait()
    assert isolation.enter_alone(lambda: True)
    marking = threading.Thread(target=m.attempts.mark, args=(run,), daemon=True)
    marking.start()
    eventually(lambda: engine.flush() or not marking.is_alive(), what="its mark")
    attempt = engine.start(run)
    assert m.attempts.detach(attempt, isolation.leave)
    m.attempts.settle(attempt, ACKED)
    assert isolation._inside == 1, "others were let in before the settlement was durable"
    engine.flush()
    assert isolation._inside == 0
