"""Late marks: what only waits for a worker is not marked, and so not counted when its process dies."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

import pytest

from lanelog._engine.lane.flush_waiter import FlushWaiter
from lanelog._engine.lane.values import ACKED
from lanelog._engine.member import isolation
from lanelog._engine.member.attempts import Attempts
from lanelog._engine.member.isolation import Isolation
from lanelog._engine.member.rules import LONG_SECONDS, SubscriptionRules
from lanelog._engine.working.workers import Worker, Workers
from lanelog.config import AckPolicy, SubscriptionConfig
from support.lanes import World
from support.memberships import Clock, Engine
from support.waiting import eventually

if TYPE_CHECKING:
    from lanelog._engine.engine_context import EngineContext
    from lanelog._engine.lane.run import Run

ORDERS: list[dict[str, Any]] = [{"strict": True}, {"strict": False}, {"strict": False, "concurrency": 3}]


def lane(**rules: Any) -> World:
    return World(3, **{"run": 1, "late": True, **rules})


def taken(world: World, run: Run) -> FlushWaiter:
    """A worker has taken this run; its mark is due."""
    waiter = FlushWaiter()
    assert world.lane.dispatch.mark(run, waiter)
    return waiter


def after_a_crash(world: World) -> dict[int, int]:
    """What a new owner believes to have been tried, of what is not settled."""
    return {offset: wait.attempts for offset, wait in world.take_over().state.waiting.items()}


# -- the lane --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_a_process_that_dies_before_the_mark_has_tried_nothing(order: dict[str, Any]) -> None:
    """Planned and given to the workers, however many: nothing is written of it, and the next owner has attempt 1."""
    world = lane(**order)
    assert world.go()
    assert (world.rows.mark, world.rows.rows) == (0, {})
    assert not world.lane.progress.needs_write
    assert (after_a_crash(world), world.work()) == ({}, [(1, 1), (2, 1), (3, 1)])


@pytest.mark.parametrize("death", ["before the commit", "behind it", "in the handler"])
def test_a_process_that_dies_at_a_mark_has_tried_it_if_that_was_committed(death: str) -> None:
    """One attempt, of the one message that a worker had, is what it may cost, whether its handler has started."""
    world = lane()
    (run,) = world.go()
    if death == "in the handler":
        world.start(run)
    else:
        waiter = taken(world, run)
        write = world.writing()
        if death == "behind it":
            world.rows.commit(write, world.now)
        assert not waiter.wait(0)
    tried = death != "before the commit"
    assert after_a_crash(world) == ({1: 1} if tried else {})
    assert world.work() == [(1, 2 if tried else 1), (2, 1), (3, 1)]


@pytest.mark.parametrize("when", ["before the flush", "during the flush", "after the flush"])
def test_a_recall_between_mark_and_handler_undoes_the_mark(when: str) -> None:
    """A stop or a pause finds a run taken and not begun: it does not start, and its mark is written down again."""
    world = lane()
    (run,) = world.go()
    waiter = taken(world, run)
    write = None if when == "before the flush" else world.write()
    if write is not None and when == "after the flush":
        world.commit(write)
    world.lane.state.closing = True
    world.recall()
    if write is not None and when == "during the flush":
        world.commit(write)
    world.finish(run)
    world.flush()
    assert waiter.wait(0)
    assert run.start_next(world.now, 60.0) is None
    assert (world.rows.mark, world.rows.rows, world.lane.idle, after_a_crash(world)) == (0, {}, True, {})


def test_what_is_handed_back_lies_behind_what_is_still_out() -> None:
    """Workers that may not start give their runs back one by one; each message comes once, from wherever it waits."""
    world = lane(strict=False, concurrency=3)
    first, second, third = world.go()
    for run in (first, second, third):
        world.finish(run)
        ready = [row.offset for row in world.lane.state.ready]
        assert ready == sorted(ready)
    world.lane.state.drop_ready()
    assert sorted(world.work()) == [(1, 1), (2, 1), (3, 1)]


def test_what_was_taken_back_before_it_was_marked_is_not_marked() -> None:
    """The worker gets a refusal, and lets go."""
    world = lane()
    (run,) = world.go()
    world.lane.dispatch.recall()
    assert not world.lane.dispatch.mark(run, FlushWaiter())
    assert world.lane.progress.waiters == ()


def test_a_server_restart_between_mark_and_handler_takes_the_run_back() -> None:
    """The worker starts nothing; the message comes again in the reloaded lane, as the attempt that it is."""
    world = lane()
    (run,) = world.go()
    waiter = taken(world, run)
    world.flush()
    world.restart()
    assert run.start_next(world.now, 60.0) is None
    assert waiter.wait(0)
    assert world.work() == [(1, 1), (2, 1), (3, 1)]


def test_a_late_redelivery_counts_when_it_is_taken() -> None:
    """The row has the earlier attempts until a worker takes the message."""
    world = lane()
    world.go()
    world.handle(world.at_workers[0], "nack")
    world.now += 10
    (run,) = world.go()
    assert (world.rows.rows[1].retry_count, world.rows.rows[1].lease_epoch) == (1, 0)
    taken(world, run)
    world.flush()
    assert (world.rows.rows[1].retry_count, world.rows.rows[1].lease_epoch) == (2, world.epoch)


def test_a_late_redelivery_keeps_its_row_while_it_waits() -> None:
    """Written again because a flush failed, its row says what it said before: the error, and the attempt granted."""
    world = lane()
    world.start(world.go()[0])
    world.nack(next(iter(world.lane.state.running.values())), 0.0)
    world.finish(world.at_workers[0])
    write = world.writing()
    world.fetch()
    world.lane.state.waiting[1].released = True
    world.plan()
    world.lane.progress.unwritten(write)
    world.flush()
    found = world.rows.rows[1]
    assert (found.retry_count, found.lease_epoch, found.last_error, found.released) == (1, 0, "ValueError: no", True)
    world.start(world.at_workers[0])
    found = world.rows.rows[1]
    assert (found.retry_count, found.lease_epoch, found.last_error, found.released) == (2, world.epoch, None, False)


def test_a_second_crash_counts_only_what_really_ran() -> None:
    """Messages that one crash has counted are marked late for any handler, and the next does not count them."""
    world = World(3, run=3, late=False, strict=False, concurrency=3)
    world.go()
    assert after_a_crash(world) == {1: 1, 2: 1, 3: 1}  # one mark of a fast handler's run
    for death in range(2, 4):
        runs = world.go()
        assert len(runs) == 3
        world.start(next(run for run in runs if run.last_offset == 2))
        assert after_a_crash(world) == {1: 1, 2: death, 3: 1}


def test_in_concurrent_order_a_later_mark_covers_an_earlier_run_that_waits() -> None:
    """The run mark is one number. Given back, the earlier one gets a row that says that it was never tried."""
    world = lane(strict=False, concurrency=3)
    _, later, _ = world.go()
    world.start(later)
    assert [world.rows.counted(offset) for offset in (1, 2, 3)] == [1, 1, 0]
    world.lane.dispatch.recall()
    world.flush()
    assert after_a_crash(world) == {1: 0, 2: 1}


# -- whose runs are late ---------------------------------------------------------------------------------------------


def test_long_messages_are_marked_late() -> None:
    """Messages of unknown length are marked late, too; never those that are acked before their handler."""
    config = SubscriptionConfig(name="me")
    rules = SubscriptionRules("g", config, singly=False)
    assert rules.marks_late()
    rules.measured(1, LONG_SECONDS * 2)
    assert rules.marks_late()
    for _ in range(3):
        rules.measured(1000, 1.0)
    assert not rules.marks_late()
    assert not SubscriptionRules("g", SubscriptionConfig(name="me", ack_policy=AckPolicy.ACK_FIRST), False).marks_late()


@pytest.mark.parametrize(("seconds", "late"), [(0.001, False), (LONG_SECONDS * 2, True)])
def test_what_users_settle_by_hand_is_measured_too(monkeypatch: pytest.MonkeyPatch, seconds: float, late: bool) -> None:
    """A caller that settles at once has its next mark ride on the flush of its ack; a slow one has none waiting."""
    engine = Engine(Clock().drive(monkeypatch), singly=True)
    engine.open(head=2)
    engine.flush()
    mine = Taken(engine)
    engine.flush()
    assert mine.answer() is True
    attempt = engine.start(mine.run)
    assert engine.member.attempts.detach(attempt, lambda: None)
    engine.clock.now += seconds
    engine.member.attempts.settle(attempt, ACKED)
    (write,) = engine.collect()
    assert (write.watermark, write.mark) == (1, 1 if late else 2)


# -- who takes them --------------------------------------------------------------------------------------------------


class Taken:
    """A run that a thread has taken and is having marked."""

    def __init__(self, engine: Engine, until: float | None = None) -> None:
        self.answers: list[bool | None] = []
        _, self.run = engine.runs.get_nowait()
        self._thread = threading.Thread(target=self._mark, args=(engine, until), daemon=True)
        self._thread.start()
        eventually(lambda: self.run.waiter is not None or self.answers, what="the mark that is due")

    def _mark(self, engine: Engine, until: float | None) -> None:
        self.answers.append(engine.member.attempts.mark(self.run, until))

    def answer(self) -> bool | None:
        self._thread.join(20.0)
        (answer,) = self.answers
        return answer


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine with one lane and two messages of unknown length."""
    engine = Engine(Clock().drive(monkeypatch))
    engine.open(head=2)
    engine.flush()
    return engine


def test_a_worker_may_go_on_when_its_mark_is_committed(engine: Engine) -> None:
    """The worker starts only after the flush has committed its mark."""
    mine = Taken(engine)
    (write,) = engine.collect()
    assert (write.mark, mine.answers) == (1, [])
    engine.member.writing.committed([write])
    assert mine.answer() is True


def test_a_lease_that_is_lost_before_the_mark_counts_nothing(engine: Engine) -> None:
    """The flush is refused: the message must not start here, and its next owner knows of no attempt."""
    mine = Taken(engine)
    writes = engine.collect()
    engine.member.writing.uncommitted(writes)
    engine.member.lose_lane(writes[0].term, "its lease has another owner or epoch")
    assert mine.answer() is False
    engine.member.attempts.finish(mine.run)
    engine.flush()
    assert engine.rows["key"].mark == 0


@pytest.mark.parametrize("unanswered", [False, True])
def test_a_mark_whose_flush_fails_is_waited_for_until_it_commits(engine: Engine, unanswered: bool) -> None:
    """Whether that flush is known to have failed or of unknown outcome: nothing starts before it is written again."""
    mine = Taken(engine)
    writes = engine.collect()
    if unanswered:
        engine.rows["key"].commit(writes[0], engine.clock.now)
    engine.member.writing.uncommitted(writes)
    assert mine.answers == []
    engine.flush()
    assert mine.answer() is True
    assert (engine.start(mine.run).number, engine.rows["key"].mark) == (1, 1)


def test_a_mark_that_takes_too_long_is_asked_for_again(engine: Engine) -> None:
    """None by the caller's time; the mark stays due, and the second time the wait is for the same one."""
    mine = Taken(engine, until=engine.clock.now)
    assert mine.answer() is None
    waiter = mine.run.waiter
    engine.flush()
    assert engine.member.attempts.mark(mine.run) is True
    assert mine.run.waiter is waiter
    assert engine.start(mine.run).number == 1


def test_a_worker_whose_mark_is_not_written_holds_nobody_back(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the database is away a suspect of another client has its turn; the run goes back into the queue."""
    monkeypatch.setattr(isolation, "_process", [Isolation()])
    m, handled = engine.member, threading.Event()
    m.attempts = Attempts(m, hold_seconds=0.01)
    workers = Workers("builders", m.config, lambda _: handled.set(), engine.runs, cast("EngineContext", None))
    _, run = engine.runs.get_nowait()
    workers._work(Worker(0), m, run)
    assert (isolation.process_isolation()._inside, handled.is_set()) == (0, False)
    assert engine.runs.get_nowait() == (m, run)
    engine.flush()
    workers._work(Worker(0), m, run)
    assert (isolation.process_isolation()._inside, handled.is_set()) == (0, True)
