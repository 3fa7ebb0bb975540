"""What a lane hands out, in which order, and what becomes of it: the three orders, waiting, acks ahead, the budget."""

from __future__ import annotations

import pytest

from lanelog._engine.lane.run import State
from support.lanes import World, concurrent, serial


def offsets(world: World) -> list[list[int]]:
    """What is at the workers, run by run."""
    return [[attempt.offset for attempt in run.attempts] for run in world.at_workers]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("skipped", [0, 1])
def test_acks_in_order_at_once_have_the_effect_of_one_after_the_other(strict: bool, skipped: int) -> None:
    """On watermark, budget and the next write, also where an ack stands behind them. Acks out of order are refused."""

    def settled(*, together: bool) -> tuple[object, ...]:
        world = World(8, strict=strict, run=6)
        (run,) = world.go()
        attempts = [world.start(run) for _ in range(5)]
        world.ack(attempts[-1])
        world.flush()  # the ack ahead has a row now, which the watermark deletes when it passes
        world.ack(*attempts[:skipped])
        if together:
            assert not world.lane.dispatch.succeeded_in_order(attempts[skipped + 1 : 4])
            assert world.lane.dispatch.succeeded_in_order(attempts[skipped:4])
        else:
            world.ack(*attempts[skipped:4])
        state, writes = world.lane.state, world.lane.progress
        marks = (state.watermark, state.cursor, list(state.settled), list(state.running), writes.buffer, writes.dirty)
        return (*marks, world.budget.messages, world.budget.payload_bytes, [each.state for each in attempts])

    assert settled(together=True) == settled(together=False)


# -- strict ------------------------------------------------------------------------------------------------------------


def test_strict_hands_out_one_run_at_a_time() -> None:
    """In strict order the next run is planned when the last one is done, and not before."""
    world = World(5, run=2)
    (run,) = world.go()
    assert offsets(world) == [[1, 2]]
    for _ in range(2):
        world.ack(world.start(run))
    assert world.go() == [run]
    world.finish(run)
    world.go()
    assert offsets(world) == [[3, 4]]


@pytest.mark.parametrize("how", ["nack", "postpone"])
def test_strict_holds_its_key_back_while_a_message_waits(how: str) -> None:
    """Nothing behind a failed or postponed message starts before it is through."""
    world = World(4)
    world.handle(*world.go(), "ack", how)
    assert world.go() == []
    world.publish(3)
    world.now += 9.9
    assert world.go() == []
    world.now += 0.2
    again = 2 if how == "nack" else 1
    assert world.work() == [(2, again), *((offset, 1) for offset in range(3, 8))]


def test_strict_holds_its_key_back_while_a_message_is_buried() -> None:
    """A message on its way to the dead letters is not settled yet: what is behind it waits for that transaction.

    What is to be buried is the row, with the number of attempts and the error.
    """
    world = World(3)
    world.handle(*world.go(), "reject")
    assert (world.go(), world.lane.state.watermark, world.lane.idle) == ([], 0, False)
    (dead_letter,) = world.dead_letters
    assert (dead_letter.offset, dead_letter.failures, dead_letter.error, dead_letter.row) == (1, 1, "bad", world.log[1])
    world.bury()
    assert world.work() == [(2, 1), (3, 1)]
    assert world.lane.idle


def test_strict_does_not_fetch_what_it_cannot_hand_out() -> None:
    """A strict lane that waits drops what it has fetched and asks for nothing: others need the room."""
    world = World(5)
    world.handle(*world.go(), "nack")
    world.go()
    assert not world.lane.needs_fetch
    assert (world.budget.messages, len(world.lane.state.ready)) == (0, 0)


def test_strict_does_not_pass_a_message_that_waits_further_ahead() -> None:
    """A run ends before a message that waits, also when what is behind it was fetched (after a server lost commits)."""
    world = World(3)
    world.work("ack", "ack", "nack")
    world.rows.acked, world.rows.mark = 0, 0  # as if the watermark had been lost, but not the row of 3
    world.take_over()
    world.publish(2)
    world.go()
    assert offsets(world) == [[1, 2]]
    world.work()
    world.now += 60
    assert world.work() == [(3, 2), (4, 1), (5, 1)]


# -- serial ------------------------------------------------------------------------------------------------------------


def test_serial_steps_aside() -> None:
    """In serial order what is behind a failing message goes on, one at a time, and it comes again when it is due."""
    world = serial(4)
    assert (world.work("ack", "nack"), world.lane.state.watermark) == ([(1, 1), (2, 1), (3, 1), (4, 1)], 1)
    assert len(world.rows.rows) == 2  # 2 waits, 3..4 are acked ahead
    world.now += 10
    assert (world.work(), world.lane.state.watermark) == ([(2, 2)], 4)
    assert not world.rows.rows


def test_serial_hands_out_one_at_a_time() -> None:
    """While a message is handled, or on its way to the dead letters, no other one of its key starts."""
    world = serial(3)
    world.work("nack")
    world.publish(2)
    (run,) = world.go()
    world.now += 60
    world.handle(run, "reject")
    assert world.go() == []
    world.bury()
    assert world.work() == [(1, 2), (5, 1)]


def test_serial_redelivers_the_lowest_first() -> None:
    """Among messages that are due, and before new ones, the lowest offset goes first."""
    world = serial(3)
    assert world.work("nack", "nack", "nack") == [(1, 1), (2, 1), (3, 1)]
    world.publish(1)
    world.now += 60
    assert world.work() == [(1, 2), (2, 2), (3, 2), (4, 1)]


# -- concurrent --------------------------------------------------------------------------------------------------------


def test_concurrent_starts_up_to_its_concurrency_in_offset_order() -> None:
    """Up to `lane_concurrency` messages of a key are out, the lowest first; a settled one makes room for the next."""
    world = concurrent(5)
    first, second, third = world.go()
    assert offsets(world) == [[1], [2], [3]]
    world.handle(second, "ack")
    world.go()
    assert (offsets(world), world.lane.state.watermark) == ([[1], [3], [4]], 0)
    assert {first, third} < set(world.at_workers)


def test_the_concurrency_counts_what_is_being_marked() -> None:
    """A run whose mark is on its way to the database takes its place already."""
    world = concurrent(6)
    world.fetch()
    assert len(world.plan()) == 3
    write = world.writing()
    assert world.plan() == []
    world.commit(write)
    assert (world.plan(), len(world.at_workers)) == ([], 3)


@pytest.mark.parametrize("order", [[2, 3, 4, 5], [5, 4, 3, 2], [2, 4, 3, 5], [5, 2, 4, 3]])
@pytest.mark.parametrize("each", [True, False])
def test_acks_ahead_are_one_row_for_a_run(order: list[int], each: bool) -> None:
    """Four messages acked ahead of a slow one cost one row, whatever their order and however often it is flushed."""
    world = World(5, strict=False, concurrency=5, run=1)
    attempts = {run.attempts[0].offset: world.start(run) for run in world.go()}
    for offset in order:
        world.ack(attempts[offset])
        if each:
            world.flush()
    world.flush()
    assert [(offset, r.through, r.acked) for offset, r in world.rows.rows.items()] == [(2, 5, True)]
    world.ack(attempts[1])
    world.flush()
    assert (world.rows.acked, world.rows.rows) == (5, {})


def test_a_transaction_of_the_handler_leaves_no_row_behind() -> None:
    """The acked row that `message.transaction()` wrote is deleted when the watermark passes, or merged into a run."""
    world = concurrent(3)
    one, two, three = (world.start(run) for run in world.go())
    world.commit_with_handler(three)
    world.commit_with_handler(two)
    world.flush()
    assert [(offset, r.through, r.acked) for offset, r in world.rows.rows.items()] == [(2, 3, True)]
    world.commit_with_handler(one)
    world.flush()
    assert (world.rows.acked, world.rows.rows) == (3, {})


def test_a_claimed_message_is_left_alone_by_the_flush() -> None:
    """While a transaction of the handler, or the dead letters, decide about a message, its row is not written."""
    world = serial(1)
    world.work("nack")
    world.now += 10
    (run,) = world.go()
    attempt = world.start(run)
    attempt.move(State.CLAIMED)
    world.lane.progress.dirty[1] = None
    write = world.write()
    assert write is None or not write.upserts
    if write is not None:
        world.commit(write)
    attempt.move(State.RUNNING)
    world.nack(attempt)
    world.flush()
    assert world.rows.rows[1].retry_count == 2


# -- the budget --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stop", "drop", "work"])
def test_the_budget_comes_back_exactly(how: str) -> None:
    """Fetched rows count in messages and bytes, and are given back when they are dropped, recalled or settled."""
    world = concurrent(20)
    world.fetch(12)
    assert (world.budget.messages, world.budget.payload_bytes) == (12, sum(offset % 7 for offset in range(1, 13)))
    world.plan()
    world.flush()
    if how == "work":
        world.work("nack", "reject", "ack", "commit_with_handler")
        world.now += 60
        world.work()
    elif how == "stop":
        world.handle(world.at_workers[0], "nack")
        world.stop()
    else:
        world.recall()
        world.lane.state.drop_ready()
    held = [wait.body for wait in world.lane.state.waiting.values() if wait.body is not None]
    assert world.budget.messages == len(held)
    assert world.budget.payload_bytes == sum(r.payload_bytes for r in held)
