"""A member without a database: runs go out and come in, lanes take turns, and come and go."""

from __future__ import annotations

import gc
import signal
import weakref

import pytest

from lanelog._engine.lane.flush_waiter import FlushWaiter
from lanelog._engine.lane.run import State
from lanelog._engine.lane.values import ACKED
from lanelog._engine.member import state
from lanelog._engine.member.effects import Effects
from lanelog.errors import LeaseLost
from support.lanes import row
from support.memberships import Clock, Engine, fast, running

# -- runs --------------------------------------------------------------------------------------------------------------


def test_finish_takes_outcomes_over_and_sends_the_next_run_out(clock: Clock) -> None:
    """A worker's outcomes count when it lets go of its run; the next run's mark rides on that flush."""
    engine, lane, run = running(clock, 25)
    assert [attempt.offset for attempt in run.attempts] == list(range(1, 21))
    for _ in range(20):
        run.record(engine.start(run), ACKED)
    assert lane.state.watermark == 0
    engine.member.attempts.finish(run, seconds=0.02)
    assert lane.state.watermark == 20
    (write,) = engine.collect()
    assert (write.watermark, write.mark) == (20, 25)
    assert (engine.member.counters.handled, engine.member.counters.acked) == (20, 20)


def test_what_a_worker_did_not_start_goes_back(clock: Clock) -> None:
    """A run that is let go of early returns its rest, which comes again as attempt 1."""
    engine, _, run = running(clock, 20)
    run.record(engine.start(run), ACKED)
    engine.member.attempts.finish(run)
    again = engine.run()
    assert [attempt.offset for attempt in again.attempts] == list(range(2, 21))
    assert {attempt.number for attempt in again.attempts} == {1}


@pytest.mark.parametrize("pulled", [False, True])
def test_a_settled_message_is_freed_without_the_garbage_collector(clock: Clock, *, pulled: bool) -> None:
    """No circle is left: ten thousand lanes make a collection long, and each message would bring it nearer."""
    engine, _, run = running(clock, 1)
    attempt = engine.start(run)
    freed = weakref.ref(attempt)
    if pulled:
        assert engine.member.attempts.detach(attempt, lambda: None)
        engine.member.attempts.settle(attempt, ACKED)
    else:
        run.record(attempt, ACKED)
        engine.member.attempts.finish(run)
    engine.flush()
    gc.disable()
    try:
        del attempt, run
        assert freed() is None
    finally:
        gc.enable()


def test_a_new_handler_is_measured_before_its_runs_grow(clock: Clock) -> None:
    """The first run is one message; then runs are about twenty milliseconds of work, and a slow one shrinks them."""
    engine = Engine(clock)
    engine.open(head=400)
    sizes = []
    for seconds_each in (0.001, 0.001, 1.0, 0.001):
        run = engine.run()
        sizes.append(len(run.attempts))
        while (attempt := run.start_next(clock.now, 60.0)) is not None:
            run.record(attempt, ACKED)
        engine.member.attempts.finish(run, seconds=seconds_each * sizes[-1])
    assert sizes == [1, 20, 20, 1]


def test_without_authority_nothing_is_planned(clock: Clock) -> None:
    """A read-back that is too old stops handing out; a new one lets everything go on."""
    engine = fast(clock)
    lane = engine.open()
    engine.member.authority_until = clock.now - 0.1  # the machine's sleep is read from real clocks, by turns
    lane.state.head = 3
    engine.fetch(lane)
    engine.flush()
    assert engine.runs.empty()
    assert not engine.member.attempts.may_start(lane.term, clock.now)
    engine.member.authority_until = clock.now + 30
    engine.member.leasing.pump()
    assert engine.offsets() == [1, 2, 3]
    assert [engine.member.attempts.may_start(lane.term, clock.now + later) for later in (29.9, 30.1)] == [True, False]


def test_authority_ages_while_the_machine_sleeps(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The monotonic clock stands still meanwhile, and the lease does not."""
    engine = fast(clock)
    lane = engine.open()
    engine.member.authority_until = clock.now + 15
    assert engine.member.attempts.may_start(lane.term, clock.now)
    slept = engine.member.slept
    monkeypatch.setattr(state, "suspended", lambda: slept + 14.0)
    assert engine.member.attempts.may_start(lane.term, clock.now)
    monkeypatch.setattr(state, "suspended", lambda: slept + 3600.0)
    assert not engine.member.attempts.may_start(lane.term, clock.now)


def test_relieve_settles_what_a_slow_run_has_done_and_returns_its_rest(clock: Clock) -> None:
    """While one message of a run takes long, those before it become durable and those behind it are not marked."""
    for order in ("strict", "serial"):
        engine, lane, run = running(clock, 5, order=order)
        run.record(engine.start(run), ACKED)
        slow = engine.start(run)
        engine.member.attempts.relieve(run)
        engine.flush()
        rows = engine.rows["key"]
        assert (rows.acked, rows.mark, rows.rows) == (1, 2, {})
        assert engine.runs.empty()
        run.record(slow, ACKED)
        engine.member.attempts.finish(run)
        assert (lane.state.watermark, engine.offsets()) == (2, [3, 4, 5])


def test_relieve_lets_others_have_the_rest_in_concurrent_order(clock: Clock) -> None:
    """In concurrent order what a slow message keeps waiting goes to another worker at once."""
    engine, _, run = running(clock, 5, order="concurrent", lane_concurrency=2)
    engine.start(run)
    engine.member.attempts.relieve(run)
    engine.member.attempts.relieve(run)
    assert engine.offsets() == [2, 3, 4, 5]


# -- whose turn it is --------------------------------------------------------------------------------------------------


def test_the_least_recently_fetched_lane_is_served_first(clock: Clock) -> None:
    """Lanes take turns at the fetcher: one with a large backlog comes again after all others."""
    engine = Engine(clock, batch_size=1)
    lanes = [engine.open(key) for key in "abcd"]
    engine.member.fetching.heads([(lane.key, 100) for lane in lanes])
    served = []
    for _ in range(8):
        (lane,) = engine.member.fetching.take_needing_fetch(1, 1000)
        served.append(lane.key)
        engine.member.fetching.fetched(lane, lane.state.cursor, [row(lane.state.cursor + 1)])
        lane.state.drop_ready()
        engine.member.fetching.heads([(lane.key, 100) for lane in lanes])
    assert served == list("abcdabcd")


def test_a_lane_that_could_not_be_served_stays_hungry(clock: Clock) -> None:
    """A lane that was taken and not fetched is offered again, one that wants nothing any more is not."""
    engine = fast(clock)
    lane = engine.open()
    assert engine.member.fetching.heads([("key", 5), ("unknown", 9)])
    assert not engine.member.fetching.heads([("key", 5)])
    assert [engine.member.fetching.take_needing_fetch(10, 1000) for _ in range(2)] == [[lane], []]
    engine.member.fetching.still_needs_fetch(lane)
    assert engine.member.needs_fetch
    engine.fetch(lane)
    engine.member.fetching.still_needs_fetch(lane)
    assert engine.member.fetching.take_needing_fetch(10, 1000) == []


def test_rows_read_behind_an_old_cursor_are_dropped(clock: Clock) -> None:
    """Rows for a lane that has moved on meanwhile, or was lost, are forgotten."""
    engine = fast(clock)
    lane = engine.open()
    lane.state.head = 3
    engine.member.fetching.fetched(lane, 1, [row(2)])
    assert lane.state.cursor == 0
    engine.member.lose_lane(lane.term, "stolen")
    engine.member.fetching.fetched(lane, 0, [row(1)])
    assert engine.member.budget.messages == 0


def test_eviction_makes_room_for_others(clock: Clock) -> None:
    """Lanes with a running handler give up what they have prefetched, idle ones keep it; it is fetched again later."""
    engine = Engine(clock)
    busy, other = engine.open("busy", head=5), engine.open("other")
    engine.start(engine.run())
    other.state.head = 2
    engine.member.authority_until = 0.0
    engine.fetch(other)
    engine.member.fetching.evict()
    assert (len(busy.state.ready), len(other.state.ready), engine.member.budget.messages) == (0, 2, 3)
    assert busy in engine.member.fetching.take_needing_fetch(10, 1000)


def test_polling_is_needless_while_every_lane_has_unread_work(clock: Clock) -> None:
    """Memory that holds unread work for every lane makes the poll superfluous; a lane without any asks for it."""
    engine = fast(clock)
    assert not engine.member.fetching.all_fed()
    engine.open("a").state.head = 5
    assert engine.member.fetching.all_fed()
    engine.open("b")
    assert not engine.member.fetching.all_fed()


def test_a_publish_asks_for_one_poll(clock: Clock) -> None:
    """A message was published: the next turn of the fetcher polls, once."""
    engine = fast(clock)
    engine.member.fetching.take_poll_request()
    engine.member.fetching.poll_soon()
    assert engine.woken["fetcher"] > 0
    assert [engine.member.fetching.take_poll_request() for _ in range(2)] == [True, False]


# -- lanes come and go -------------------------------------------------------------------------------------------------


def test_a_lane_is_released_after_its_last_flush(clock: Clock) -> None:
    """A closed lane takes back what has not started, lets the running handler settle, and is idle after the flush."""
    engine, lane, run = running(clock, 5)
    attempt = engine.start(run)
    engine.member.leasing.close_lane(lane)
    engine.flush()
    assert (engine.rows["key"].mark, lane.idle) == (1, False)
    run.record(attempt, ACKED)
    engine.member.attempts.finish(run)
    assert not lane.idle
    engine.flush()
    assert lane.idle
    assert engine.woken["keeper"] > 0
    engine.member.leasing.forget_lane(lane)
    assert (engine.member.lanes, engine.member.budget.messages) == ({}, 0)


def test_a_paused_lane_goes_on_where_it_was(clock: Clock) -> None:
    """A pause takes back what has not started; resuming hands it out again, as attempt 1."""
    engine = fast(clock)
    lane = engine.open(head=3)
    engine.flush()
    engine.member.leasing.set_paused(lane, paused=True)
    engine.flush()
    assert engine.rows["key"].mark == 0
    assert engine.run().attempts == []  # what stood in the queue is empty now
    engine.member.leasing.set_paused(lane, paused=False)
    assert engine.member.fetching.take_needing_fetch(1, 1000) == [lane]
    engine.fetch(lane)
    assert [(attempt.offset, attempt.number) for attempt in engine.run().attempts] == [(1, 1), (2, 1), (3, 1)]


def test_a_process_that_ends_keeps_the_mark_of_what_hangs_alone(clock: Clock) -> None:
    """The last flush says of all others in the lane that no attempt was made, although the run mark covers them."""
    engine = Engine(clock, order="concurrent", lane_concurrency=3)
    lane = engine.open(head=3)
    runs = [engine.run() for _ in range(3)]
    assert all(lane.dispatch.mark(run, FlushWaiter()) for run in runs)
    first, hung, _ = (engine.start(run) for run in runs)
    engine.member.leasing.stop()
    cut = engine.member.handing_back.cut_off({hung: "it hung"})
    assert [attempt.offset for attempt in cut] == [1, 3]
    assert not engine.member.handing_back.holds_only([hung])  # that is not written yet
    engine.flush()
    assert (engine.member.handing_back.holds_only([hung]), lane.idle) == (True, False)
    left = engine.rows["key"].rows
    assert {offset: (each.retry_count, each.lease_epoch, each.last_error) for offset, each in left.items()} == {
        1: (0, 0, None),
        2: (1, lane.epoch, "it hung"),
        3: (0, 0, None),
    }
    assert engine.rows["key"].mark == 3
    with pytest.raises(LeaseLost):
        engine.member.attempts.settle(first, ACKED)
    engine.member.attempts.settle(hung, ACKED)  # it ends after all
    engine.flush()
    assert left[2].acked


def test_acked_first_its_lane_stays_until_the_end(clock: Clock) -> None:
    """Nothing of it is left to settle, but the next message of the lane must not begin elsewhere beside it."""
    engine = Engine(clock, ack_policy="ACK_FIRST")
    lane = engine.open(head=1)
    hung = engine.start(engine.run())
    engine.member.leasing.stop()
    assert engine.member.handing_back.cut_off({hung: "it hung"}) == []
    engine.flush()
    assert (lane.state.watermark, lane.idle, engine.member.handing_back.holds_only([hung])) == (1, False, True)


def test_what_ends_at_the_last_moment_is_settled(clock: Clock) -> None:
    """A handler that was to end the process has returned: its outcome counts, whether or not it was taken over yet."""
    engine = Engine(clock)
    lane = engine.open(head=1)
    run = engine.run()
    hung = engine.start(run)
    run.record(hung, ACKED)
    engine.member.leasing.stop()
    assert engine.member.handing_back.cut_off({hung: "it hung"}) == []
    engine.member.attempts.finish(run)
    engine.flush()
    assert (lane.state.watermark, engine.rows["key"].acked, lane.idle) == (1, 1, True)


def test_what_the_user_has_not_settled_goes_back_untried(clock: Clock) -> None:
    """A pulled message that is handed back was not tried; it holds no suspect back, and its handle is fenced."""
    engine = Engine(clock, singly=True)
    lane = engine.open(head=2)
    run = engine.run()
    attempt = engine.start(run)
    released: list[str] = []
    assert engine.member.attempts.detach(attempt, lambda: released.append("place"))
    assert not lane.idle
    engine.member.handing_back.hand_back()
    assert released == ["place"]
    with pytest.raises(LeaseLost):
        engine.member.attempts.settle(attempt, ACKED)
    engine.member.fetching.take_needing_payload(clock.now, 10, 100)
    engine.member.fetching.revived(lane, [row(1)], [])
    (again,) = engine.run().attempts
    assert (again.offset, again.number) == (1, 1)


def test_a_settled_message_ends_its_run_and_frees_its_slot(clock: Clock) -> None:
    """A pulled message keeps its slot until it is settled. Detaching a settled message is refused."""
    engine = Engine(clock, singly=True)
    engine.open(head=2)
    run = engine.run()
    attempt = engine.start(run)
    released: list[str] = []
    engine.member.attempts.detach(attempt, lambda: released.append("place"))
    engine.flush()
    assert engine.runs.empty()
    engine.member.attempts.settle(attempt, ACKED)
    assert (released, engine.offsets()) == (["place"], [2])
    assert not engine.member.attempts.detach(attempt, lambda: released.append("never"))


def test_a_flush_of_a_lane_that_was_replaced_is_ignored(clock: Clock) -> None:
    """After a reload the answer to an old lane's flush changes nothing: the new lane knows from the rows."""
    engine = fast(clock)
    old = engine.open(head=3)
    (write,) = engine.collect()
    fresh = engine.reload(old)
    engine.member.writing.committed([write])
    assert engine.runs.empty()
    assert engine.member.lanes == {"key": fresh}
    engine.fetch(fresh)
    assert (engine.offsets(), engine.member.budget.messages) == ([1, 2, 3], 3)


def test_what_was_acked_first_is_handed_out_once_after_a_reload(clock: Clock) -> None:
    """A run on its way when its lane was replaced goes out with the new lane's flush, not with the old one's."""
    engine = Engine(clock, ack_policy="ack_first")
    old = engine.open(head=1)
    (write,) = engine.collect()
    engine.reload(old)
    engine.member.writing.committed([write])
    assert engine.runs.empty()
    assert engine.offsets() == [1]
    assert engine.runs.empty()


@pytest.mark.parametrize(("acked", "lacks", "left"), [(1, 0, [2]), (0, 1, [1, 2])], ids=["settled", "another"])
def test_a_lane_does_not_wait_for_an_orphan_in_the_users_hands(
    clock: Clock, acked: int, lacks: int, left: list[int]
) -> None:
    """A message in a user's hands is settled on the server, or another one is there: its run ends with the reload."""
    engine = Engine(clock, singly=True)
    old = engine.open(head=2)
    attempt = engine.start(engine.run())
    released: list[str] = []
    engine.member.attempts.detach(attempt, lambda: released.append("slot"))
    fresh = engine.reload(old, acked=acked, lacks=lacks)
    assert (attempt.state, released) == (State.SUPERSEDED, ["slot"])
    engine.fetch(fresh)
    for offset in left:
        run = engine.run()
        assert engine.start(run).offset == offset
        run.record(run.attempts[0], ACKED)
        engine.member.attempts.finish(run)
    assert fresh.state.watermark == 2


def test_a_member_reports_its_first_failure_only(clock: Clock) -> None:
    """A member that cannot go on gives its subscription the first error, and no later one."""
    engine = fast(clock)
    first, second = ValueError("first"), ValueError("second")
    engine.member.fail(first)
    engine.member.fail(second)
    assert [*engine.failures, engine.member.failure] == [first, first]


def test_an_interrupt_loses_no_run_and_no_waiter(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C between a step and its effects, the next step of any thread carries them out."""
    engine, _, run = running(clock, 25)
    waiter = engine.member.attempts.settle(engine.start(run), ACKED)
    engine.member.attempts.finish(run)
    writes = engine.collect()
    with monkeypatch.context() as interrupted:
        interrupted.setattr(Effects, "carry_out", lambda _: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            engine.member.writing.committed(writes)
    assert engine.runs.empty()
    engine.woken.clear()
    assert engine.member.leasing.take_idle(set(), clock.now, failed=False) == []
    assert engine.offsets() == list(range(2, 22))
    assert waiter.wait(0)
