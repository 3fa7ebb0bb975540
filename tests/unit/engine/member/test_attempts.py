"""Explicit settlements, time-outs, claims and lost lanes: who may decide about a message, and who hears of it."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from lanelog._engine.lane import policy
from lanelog._engine.lane.flush_waiter import FlushWaiter
from lanelog._engine.lane.run import State
from lanelog._engine.lane.values import ACKED, Outcome, Verb
from lanelog._engine.working import workers
from lanelog.errors import AlreadySettled, ClosedError, LeaseLost
from support.lanes import row
from support.memberships import Clock, Engine, fast, running

if TYPE_CHECKING:
    from lanelog._engine.engine_context import EngineContext
    from lanelog._engine.lane.run import Attempt
    from lanelog.measures import Observer
    from lanelog.message import Message

RETRY = Outcome(Verb.RETRY, 10.0, "ValueError: no")
BURY = Outcome(Verb.BURY, 0.0, "bad")
POSTPONE = Outcome(Verb.POSTPONE, 60.0)


# -- explicit settlements ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [ACKED, RETRY, POSTPONE])
def test_an_explicit_settlement_is_answered_by_its_commit(clock: Clock, outcome: Outcome) -> None:
    """An explicit settlement is answered when its flush has committed, and not before."""
    engine, _, run = running(clock, 1)
    waiter = engine.member.attempts.settle(engine.start(run), outcome)
    assert repr(waiter) == "FlushWaiter(waiting)"
    assert not waiter.wait(0)
    writes = engine.collect()
    engine.member.writing.uncommitted(writes)
    assert not waiter.wait(0)
    engine.flush()
    assert waiter.wait(0)
    assert repr(waiter) == "FlushWaiter(ok)"


def test_a_rejection_is_answered_when_it_is_buried(clock: Clock) -> None:
    """A rejected message is settled by the dead letters' transaction: the flushes before do not answer for it."""
    engine, lane, run = running(clock, 1)
    waiter = engine.member.attempts.settle(engine.start(run), BURY)
    engine.flush()
    assert not waiter.wait(0)
    (dead_letter,) = engine.member.dead_letters
    assert engine.member.writing.buried(dead_letter, dead_letter.term)
    assert waiter.wait(0)
    assert (lane.state.watermark, engine.member.counters.dead_lettered) == (1, 1)


def test_without_dead_letters_a_rejection_is_an_error_event(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """With `dead_letter_suffix=None` an exhausted message is acked, and that is logged as an error."""
    engine, lane, run = running(clock, 1, dead_letter_suffix=None)
    waiter = engine.member.attempts.settle(engine.start(run), BURY)
    engine.flush()
    assert waiter.wait(0)
    assert (lane.state.watermark, list(engine.member.dead_letters)) == (1, [])
    engine.member.writing.announce_dropped()
    assert [(r.levelname, r.message.split()[0]) for r in caplog.records] == [("ERROR", "message.dropped")]


@pytest.mark.parametrize("first", [ACKED, RETRY, POSTPONE, BURY])
def test_settling_twice_is_refused(clock: Clock, first: Outcome) -> None:
    """The first settlement stands; every further one, and a claim, raises AlreadySettled."""
    engine, _, run = running(clock, 1)
    attempt = engine.start(run)
    engine.member.attempts.settle(attempt, first)
    for again in (
        lambda: engine.member.attempts.settle(attempt, ACKED),
        lambda: engine.member.attempts.check(attempt),
        lambda: engine.member.attempts.claim(attempt),
    ):
        with pytest.raises(AlreadySettled):
            again()
    engine.flush()
    assert engine.member.counters.handled == 1


def test_settling_and_then_returning_changes_nothing(clock: Clock) -> None:
    """The outcome of a handler's return is dropped when the handler settled explicitly."""
    engine, lane, run = running(clock, 2)
    attempt = engine.start(run)
    engine.member.attempts.settle(attempt, RETRY)
    run.record(attempt, ACKED)
    engine.member.attempts.finish(run)
    assert (lane.state.waiting[1].attempts, lane.state.watermark) == (1, 0)


def test_a_nack_in_the_middle_of_a_strict_run_takes_the_rest_back(clock: Clock) -> None:
    """An explicit nack settles what came before it, and lets nothing behind it start."""
    engine, lane, run = running(clock, 5)
    run.record(engine.start(run), ACKED)
    engine.member.attempts.settle(engine.start(run), RETRY)
    assert run.start_next(clock.now, 60.0) is None
    engine.flush()
    rows = engine.rows["key"]
    assert (rows.acked, rows.mark, set(rows.rows)) == (1, 2, {2})
    engine.member.attempts.finish(run)
    engine.flush()
    assert engine.runs.empty()
    assert engine.member.fetching.next_due() == clock.now + 10
    clock.now += 10
    assert engine.member.fetching.take_needing_payload(clock.now, 10, 100) == [(lane, [2])]
    engine.member.fetching.revived(lane, [row(2)], [])
    assert [(a.offset, a.number) for a in engine.run().attempts] == [(2, 2)]


def test_a_nack_in_the_middle_of_a_serial_run_lets_the_rest_go_on(clock: Clock) -> None:
    """In serial order the failed message steps aside, and the run goes on behind it."""
    engine, _, run = running(clock, 3, order="serial")
    engine.member.attempts.settle(engine.start(run), RETRY)
    run.record(engine.start(run), ACKED)
    run.record(engine.start(run), ACKED)
    engine.member.attempts.finish(run)
    engine.flush()
    rows = engine.rows["key"].rows
    assert {offset: (r.through, r.acked) for offset, r in rows.items()} == {1: (1, False), 2: (3, True)}


def test_acked_first_is_settled_before_the_handler(clock: Clock) -> None:
    """Under `ACK_FIRST` an explicit settlement comes too late, while extending still works."""
    engine = Engine(clock, ack_policy="ack_first")
    engine.open(head=1)
    run = engine.run()
    assert engine.rows["key"].acked == 1
    attempt = engine.start(run)
    with pytest.raises(AlreadySettled):
        engine.member.attempts.settle(attempt, RETRY)
    engine.member.attempts.check(attempt, settling=False)


# -- losing ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [RETRY, BURY])
def test_what_was_given_up_is_fenced(clock: Clock, outcome: Outcome) -> None:
    """After a time-out the old attempt can change nothing; what its run had done before is settled."""
    engine, lane, run = running(clock, 4, order="serial")
    run.record(engine.start(run), ACKED)
    zombie = engine.start(run)
    assert engine.member.attempts.give_up(zombie, outcome)
    assert lane.state.watermark == 1
    assert not engine.member.attempts.give_up(zombie, outcome)
    with pytest.raises(LeaseLost):
        engine.member.attempts.settle(zombie, ACKED)
    run.record(zombie, ACKED)
    engine.member.attempts.finish(run)
    assert (lane.state.watermark, engine.member.counters.refused) == (1, 2)
    assert engine.member.counters.timed_out == 1


def test_the_next_attempt_runs_beside_the_zombie(clock: Clock) -> None:
    """The message is delivered again when its wait is over, and the zombie cannot settle it in its stead."""
    engine, lane, run = running(clock, 1)
    zombie = engine.start(run)
    engine.member.attempts.give_up(zombie, RETRY)
    clock.now += 10
    engine.member.fetching.take_needing_payload(clock.now, 10, 100)
    engine.member.fetching.revived(lane, [row(1)], [])
    again = engine.start(engine.run())
    assert again.number == 2
    with pytest.raises(LeaseLost):
        engine.member.attempts.claim(zombie)
    engine.member.attempts.settle(again, ACKED)
    engine.flush()
    assert engine.rows["key"].acked == 1


def test_a_settled_attempt_cannot_be_given_up(clock: Clock) -> None:
    """The first one decides: a time-out just after the settlement has no effect."""
    engine, _, run = running(clock, 2)
    attempt = engine.start(run)
    engine.member.attempts.settle(attempt, ACKED)
    assert not engine.member.attempts.give_up(attempt, RETRY)
    claimed = engine.start(run)
    engine.member.attempts.claim(claimed)
    assert not engine.member.attempts.give_up(claimed, RETRY)


def test_a_lost_lane_refuses_everything(clock: Clock) -> None:
    """A waiter for a flush gets LeaseLost, running handlers cannot settle, and the memory is given back."""
    engine, lane, run = running(clock, 30)
    waiting = engine.member.attempts.settle(engine.start(run), ACKED)
    on_its_way = engine.collect()
    later = engine.member.attempts.settle(engine.start(run), BURY)
    engine.member.lose_lane(lane.term, "stolen")
    engine.member.lose_lane(lane.term, "stolen")
    for waiter in (waiting, later):
        with pytest.raises(LeaseLost, match="stolen"):
            waiter.wait(0)
    engine.member.writing.uncommitted(on_its_way)
    engine.member.attempts.finish(run)
    assert (engine.collect(), engine.member.lanes) == ([], {})
    budget = engine.member.budget
    assert (budget.messages, budget.payload_bytes) == (0, 0)


def test_a_running_handler_of_a_lost_lane_gets_lease_lost(clock: Clock) -> None:
    """A handler whose lane was lost gets LeaseLost from whatever it tries, and its return is refused."""
    engine, lane, run = running(clock, 3)
    attempt = engine.start(run)
    engine.member.lose_lane(lane.term, "stolen")
    for late in (
        lambda: engine.member.attempts.settle(attempt, ACKED),
        lambda: engine.member.attempts.claim(attempt),
        lambda: engine.member.attempts.check(attempt, settling=False),
    ):
        with pytest.raises(LeaseLost):
            late()
    assert run.start_next(clock.now, 60.0) is None
    run.record(attempt, ACKED)
    engine.member.attempts.finish(run)
    assert (engine.member.counters.acked, engine.member.budget.messages) == (0, 0)


def test_a_claim_that_commits_after_the_loss_keeps_the_budget(clock: Clock) -> None:
    """A transaction that committed just before its lane was lost is counted once and gives nothing back twice."""
    engine, lane, run = running(clock, 1)
    attempt = engine.start(run)
    engine.member.attempts.claim(attempt)
    engine.member.lose_lane(lane.term, "stolen")
    engine.member.attempts.claimed(attempt, attempt.term)
    engine.member.attempts.unclaim(attempt)
    assert engine.member.budget.messages == 0
    assert attempt.state is State.SUPERSEDED


def test_a_claim_is_the_handlers_until_it_is_decided(clock: Clock) -> None:
    """A claimed settlement is refused to others; given back it may be settled again, committed it is done."""
    engine, lane, run = running(clock, 1)
    attempt = engine.start(run)
    engine.member.attempts.claim(attempt)
    with pytest.raises(AlreadySettled):
        engine.member.attempts.settle(attempt, ACKED)
    engine.member.attempts.unclaim(attempt)
    engine.member.attempts.claim(attempt)
    engine.member.attempts.claimed(attempt, attempt.term)
    assert (lane.state.watermark, engine.member.counters.acked) == (1, 1)
    with pytest.raises(AlreadySettled):
        engine.member.attempts.check(attempt)


@pytest.mark.parametrize("committed", [True, False])
def test_an_ack_beside_a_recorded_outcome_is_decided_by_its_transaction(clock: Clock, committed: bool) -> None:
    """A helper's ack may be claimed just when the worker has recorded the outcome of the handler that returned."""
    engine, lane, run = running(clock, 1)
    attempts, attempt = engine.member.attempts, engine.start(run)
    attempts.claim(attempt)
    engine.member.caller_acks.note(attempt, 7)
    run.record(attempt, ACKED)
    attempts.finish(run)
    assert engine.member.caller_acks.open() == [attempt]
    if committed:
        assert attempts.claimed(attempt, attempt.term, ack=attempt.ack)
    else:
        assert not attempts.unclaim(attempt, ack=attempt.ack)
        attempts.resolve_left(attempt, RETRY)
    assert engine.member.caller_acks.open() == []
    assert lane.state.watermark == (1 if committed else 0)
    assert lane.state.waiting.keys() == (set() if committed else {1})


def test_an_answer_about_an_earlier_ack_decides_nothing(clock: Clock) -> None:
    """Who has rolled an ack back may have written another one when the answer about the first one is read."""
    engine, lane, run = running(clock, 1)
    attempts, attempt = engine.member.attempts, engine.start(run)
    attempts.claim(attempt)
    engine.member.caller_acks.note(attempt, 7)
    first = attempt.ack
    assert attempts.unclaim(attempt, ack=first)
    attempts.claim(attempt)
    assert attempts.unclaim(attempt, ack=first)
    assert attempt.state is State.CLAIMED
    engine.member.caller_acks.note(attempt, 7)
    assert not attempts.claimed(attempt, attempt.term, ack=first)
    assert attempts.claimed(attempt, attempt.term, ack=attempt.ack)
    assert lane.state.watermark == 1


def test_the_end_answers_everybody() -> None:
    """When the engine ends, nobody waits on: waiters of lanes, flushes and dead letters get the error."""
    engine = fast(Clock())
    engine.member.authority_until = float("inf")
    lane = engine.open(head=3)
    run = engine.run()
    first = engine.member.attempts.settle(engine.start(run), ACKED)
    engine.collect()
    second = engine.member.attempts.settle(engine.start(run), ACKED)
    third = engine.member.attempts.settle(engine.start(run), BURY)
    engine.member.resolve_all(ClosedError("the client was closed"))
    for waiter in (first, second, third):
        with pytest.raises(ClosedError):
            waiter.wait(0)
    assert lane.progress.writing is not None


def test_the_first_answer_to_a_waiter_stands() -> None:
    """A lane lost before the answer to its flush arrives: the waiting caller gets the error, and lets go once."""
    released: list[int] = []
    waiter = FlushWaiter(lambda: released.append(1))
    waiter.resolve(LeaseLost("lost"))
    waiter.resolve()
    assert (released, repr(waiter)) == ([1], "FlushWaiter(LeaseLost)")
    with pytest.raises(LeaseLost):
        waiter.wait(0)


class Broken(Exception):
    """What a handler raises; a weak reference to it can be had."""


# -- a run in a worker -------------------------------------------------------------------------------------------------


def test_outcomes_that_are_taken_while_others_are_recorded(clock: Clock) -> None:
    """A worker records without a lock while the keeper relieves its run: each outcome is taken once, in order."""
    _, _, run = running(clock, 1)
    (attempt,) = run.attempts
    taken: list[tuple[Attempt, Outcome]] = []
    recorded = [Outcome(Verb.RETRY, float(number)) for number in range(20_000)]
    ended = threading.Event()

    def record() -> None:
        for outcome in recorded:
            run.record(attempt, outcome)
        ended.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        worker = threading.Thread(target=record)
        worker.start()
        while not ended.is_set():
            taken += run.take_outcomes()
        worker.join()
    finally:
        sys.setswitchinterval(interval)
    taken += run.take_outcomes()
    assert [outcome.wait for _, outcome in taken] == [outcome.wait for outcome in recorded]


@pytest.mark.parametrize("slow", ["handler", "decision"])
def test_no_handler_starts_when_authority_ends_between_two(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    """No handler starts after a long handler or a long decision, which may be the user's own code."""
    engine, _, run = running(clock, 3, order="serial")
    monkeypatch.setattr(workers, "time", clock)
    handled: list[int] = []
    judge = policy.judge

    def handle(message: Message) -> None:
        handled.append(message.offset)
        clock.now += 20.0 if slow == "handler" else 0.0
        raise ValueError(message.offset)

    def decide(*arguments: object) -> Outcome | None:
        clock.now += 20.0 if slow == "decision" else 0.0
        return judge(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(policy, "judge", decide)
    engine.member.authority_until = clock.now + 15.0
    mine = workers.Workers("builders", engine.member.config, handle, engine.runs, cast("EngineContext", None))
    monkeypatch.setattr(workers, "RUN_LIMIT_SECONDS", 1000.0)  # so that nothing but the authority ends the run
    mine._work(workers.Worker(0), engine.member, run)
    assert handled == [1]


@pytest.mark.parametrize("measured", [False, True])
def test_what_a_handler_raised_is_freed_without_the_garbage_collector(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, *, measured: bool
) -> None:
    """The traceback has the worker's frame, which must not have it: the frames of the handler keep the message."""
    engine, _, run = running(clock, 1)
    monkeypatch.setattr(policy, "report", lambda *_: None)  # what captures a log keeps its errors
    if measured:
        engine.member.signals.meter.observe(cast("Observer", SimpleNamespace(handled=lambda *_: None)))
    raised: list[weakref.ref[BaseException]] = []

    def handle(message: Message) -> None:
        error = Broken(message.offset)
        raised.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    mine = workers.Workers("builders", engine.member.config, handle, engine.runs, cast("EngineContext", None))
    gc.disable()
    try:
        mine._work(workers.Worker(0), engine.member, run)
        assert [error() for error in raised] == [None]
    finally:
        gc.enable()


def test_a_burial_after_a_time_out_keeps_the_row_until_it_is_committed(clock: Clock) -> None:
    """The worker lets its run go meanwhile. A reload marks the row as dirty, and it must not be deleted: it counts."""
    engine, lane, run = running(clock, 1)
    run.record(engine.start(run), Outcome(Verb.RETRY, 0.0, "no"))
    engine.member.attempts.finish(run)
    engine.flush()
    engine.member.fetching.revived(lane, [row(1)], [])
    again = engine.run()
    late = engine.start(again)
    assert engine.member.attempts.give_up(late, Outcome(Verb.BURY, error="too late"))
    engine.member.attempts.finish(again)
    lane.progress.dirty[1] = None
    write = lane.progress.write(clock.now)
    assert write is not None
    assert ([(each.offset, each.retry_count) for each in write.upserts], write.deletes) == ([(1, 2)], ())
