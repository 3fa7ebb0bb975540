"""The run mark: written before a handler may start, and lowered again when nobody started."""

from __future__ import annotations

import pytest

from support.lanes import World, concurrent


def lane(count: int = 10, **rules: object) -> World:
    return World(count, **{"run": 5, **rules})


def attempts_of_a_new_owner(world: World) -> dict[int, int]:
    """What whoever takes the lane over believes to have been tried, of what is not settled."""
    found = world.take_over()
    return {offset: wait.attempts for offset, wait in found.state.waiting.items()}


def test_a_run_goes_to_the_workers_after_its_mark_is_committed() -> None:
    """Planned is not handed out: the database knows of a run before a handler does, if need be by another flush."""
    world = lane()
    world.fetch()
    (run,) = world.plan()
    write = world.writing()
    assert (write.mark, write.runs) == (5, (run,))
    world.lane.progress.unwritten(write)
    write = world.writing()
    assert not world.at_workers
    world.commit(write)
    assert (list(world.at_workers), world.rows.mark, world.rows.mark_epoch) == ([run], 5, world.epoch)


def test_the_next_mark_rides_on_the_flush_of_the_last_outcomes() -> None:
    """One flush writes the watermark of one run and the mark of the next: a message costs a share of one statement."""
    world = lane()
    world.handle(*world.go(), *["ack"] * 5)
    world.plan()
    write = world.writing()
    assert (write.watermark, write.mark, write.upserts, write.deletes) == (5, 10, (), ())


@pytest.mark.parametrize("strict", [True, False])
def test_a_redelivery_is_marked_in_a_row_of_its_own(strict: bool) -> None:
    """The attempt is counted in its row, under the owner's epoch, before the handler runs; not so if it is recalled."""
    world = lane(strict=strict)
    world.work("nack")
    assert (world.rows.rows[1].retry_count, world.rows.rows[1].lease_epoch) == (1, 0)
    world.now += 10
    (run,) = world.go()
    assert (world.rows.rows[1].retry_count, world.rows.rows[1].lease_epoch) == (2, world.epoch)
    assert [attempt.number for attempt in run.attempts] == [2]
    world.lane.dispatch.recall()
    for run in list(world.at_workers):
        world.finish(run)
    world.lane.state.paused = True
    world.flush()
    assert (world.rows.rows[1].retry_count, world.rows.rows[1].lease_epoch) == (1, 0)
    world.lane.state.paused = False
    assert world.work()[0] == (1, 2)


@pytest.mark.parametrize("started", [0, 1, 3, 5])
@pytest.mark.parametrize("order", [{"strict": True}, {"strict": False}, {"strict": False, "concurrency": 3}])
def test_a_graceful_stop_leaves_no_mark_that_no_handler_has_seen(started: int, order: dict[str, object]) -> None:
    """After a stop, `marked_through` is at most the last offset that a handler has had, and nothing else was tried."""
    world = lane(**order)
    run = world.go()[0]
    for _ in range(started):
        world.ack(world.start(run))
    world.stop()
    assert (world.rows.acked, world.rows.mark) == (started, started)
    assert not world.rows.rows
    assert attempts_of_a_new_owner(world) == {}
    assert world.work() == [(offset, 1) for offset in range(started + 1, 11)]


@pytest.mark.parametrize("answered", [True, False])
def test_a_stop_while_the_mark_is_being_written_undoes_it(answered: bool) -> None:
    """A run that is recalled meanwhile does not go out, and the next flush lowers the mark, which may be there.

    Also after a flush that nobody answered.
    """
    world = lane()
    write = world.planned()
    if not answered:
        world.unanswered(write)
    world.lane.state.closing = True
    world.recall()
    if answered:
        world.commit(write)
    assert not world.at_workers
    assert (world.rows.mark, world.lane.idle) == (5, False)
    world.flush()
    assert (world.rows.mark, world.lane.idle, attempts_of_a_new_owner(world)) == (0, True, {})


def test_rolling_restarts_leave_every_attempt_at_one() -> None:
    """A message that was not started was not tried, however often its lane changes hands in good order."""
    world = World(6, strict=False, concurrency=3, run=2)
    for _ in range(20):
        world.go()
        world.stop()
        assert attempts_of_a_new_owner(world) == {}
    assert world.work() == [(offset, 1) for offset in range(1, 7)]


def test_a_pause_takes_back_what_has_not_started_and_goes_on_later() -> None:
    """A pause undoes the marks of what no handler has seen; the running one settles; a resume hands out the rest."""
    world = lane()
    (run,) = world.go()
    attempt = world.start(run)
    world.lane.state.paused = True
    world.recall()
    world.flush()
    assert world.rows.mark == 1
    assert not world.lane.needs_fetch
    world.ack(attempt)
    world.finish(run)
    world.flush()
    assert (world.go(), world.rows.acked) == ([], 1)
    world.lane.state.paused = False
    assert world.work() == [(offset, 1) for offset in range(2, 11)]


def test_a_nack_in_strict_order_lowers_the_mark() -> None:
    """Messages behind a failed one are not marked any more: a crash meanwhile does not count against them."""
    world = lane()
    world.handle(*world.go(), "ack", "nack")
    world.go()
    assert (world.rows.acked, world.rows.mark, attempts_of_a_new_owner(world)) == (1, 2, {2: 1})
    world.now += 10
    assert world.work() == [(2, 2), *((offset, 1) for offset in range(3, 11))]


@pytest.mark.parametrize("crash", [True, False])
def test_what_is_recalled_below_a_mark_that_must_stay_gets_a_row(crash: bool) -> None:
    """A run whose rest is taken back while a later one runs: the mark cannot be lowered, so rows say "never tried".

    They are delivered as attempt 1, and leave no rows.
    """
    world = World(6, strict=False, concurrency=2, run=3)
    first, second = world.go()
    one, four = world.start(first), world.start(second)
    world.lane.dispatch.take_back([first])
    world.flush()
    assert world.rows.mark == 6
    assert {offset: r.retry_count for offset, r in world.rows.rows.items()} == {2: 0, 3: 0}
    if crash:
        assert attempts_of_a_new_owner(world) == {1: 1, 2: 0, 3: 0, 4: 1, 5: 1, 6: 1}
        return
    world.ack(one)
    world.finish(first)
    world.ack(four)
    world.handle(second, "ack", "ack")
    assert (world.work(), world.rows.acked, world.rows.rows) == ([(2, 1), (3, 1)], 6, {})


def test_a_started_message_is_never_taken_back() -> None:
    """Starting and recalling exclude each other, message by message; recalling twice changes nothing."""
    world = lane()
    (run,) = world.go()
    attempt = world.start(run)
    assert [rest.offset for rest in run.recall()] == [2, 3, 4, 5]
    assert run.recall() == []
    assert run.start_next(world.now, 60.0) is None
    assert (run.attempts, run.last_offset) == ([attempt], 1)


@pytest.mark.parametrize("failure", ["rolled back", "unknown"])
def test_a_flush_that_is_repeated_changes_nothing(failure: str) -> None:
    """Every value of a flush is absolute: written twice, or once more after an unknown outcome, it is the same."""
    world = concurrent(6)
    one, two, three = world.go()
    world.handle(three, "ack")
    world.handle(two, "nack")
    write = world.planned()
    if failure == "unknown":
        world.rows.commit(write, world.now)
    world.lane.progress.unwritten(write)
    world.handle(one, "ack")
    world.now += 10
    world.work()
    assert (world.rows.acked, world.rows.rows) == (6, {})
    assert world.lane.idle


def test_a_row_that_perhaps_was_written_is_deleted_when_it_is_passed() -> None:
    """A run acked ahead, in a flush that nobody answered: when the watermark passes it before the next one, it goes."""
    world = concurrent(3)
    runs = world.go()
    one, two, three = (world.start(run) for run in runs)
    world.ack(three)
    write = world.writing()
    world.unanswered(write)
    world.ack(one, two)
    world.flush()
    assert (world.rows.acked, world.rows.rows) == (3, {})


def test_waiters_ride_on_the_flush_that_carries_their_outcome() -> None:
    """A waiter belongs to the first write after it was given, and to the next one when that fails."""
    world = lane()
    waiter = object()
    world.lane.progress.waiters += (waiter,)  # type: ignore[arg-type]
    write = world.writing()
    assert (write.waiters, world.lane.progress.waiters) == ((waiter,), ())
    assert world.write() is None  # one at a time
    world.lane.progress.unwritten(write)
    assert world.lane.progress.waiters == (waiter,)
    again = world.write()
    assert again is not None
    assert again.waiters == (waiter,)
