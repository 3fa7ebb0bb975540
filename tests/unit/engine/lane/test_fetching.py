"""What a lane reads, what it passes over, and when it asks for more."""

from __future__ import annotations

import pytest

from support.lanes import World, row, serial


def test_messages_of_another_group_are_passed() -> None:
    """A redriven message of another group is settled without a handler, wherever it stands."""
    world = World()
    for target in ("other", "", "other", "other", "builders", "other"):
        world.publish(target=target)
    assert (world.work(), world.rows.acked, world.rows.rows) == ([(2, 1), (5, 1)], 6, {})


def test_a_message_for_another_group_below_a_crashed_mark_is_settled() -> None:
    """A message below a crashed run mark that is meant for another group is settled, not tried."""
    world = World()
    for target in ("", "other", ""):
        world.publish(target=target)
    world.rows.acked, world.rows.mark, world.rows.mark_epoch = 0, 3, world.epoch
    world.take_over()
    assert (world.work(), world.rows.acked, world.rows.rows) == ([(1, 2), (3, 2)], 3, {})


def test_a_hole_counts_as_settled() -> None:
    """An offset that the log does not hold is passed, also when a crash had it marked."""
    world = World(1)
    world.publish(2, hole=True)
    world.publish(1)
    world.rows.acked, world.rows.mark, world.rows.mark_epoch = 0, 2, world.epoch
    world.take_over()
    assert (world.work(), world.rows.acked, world.rows.rows) == ([(1, 2), (4, 1)], 4, {})


def test_fetching_again_skips_what_is_known() -> None:
    """After its prefetch was dropped, a lane reads over what is settled, waiting or running."""
    world = World(5, strict=False, concurrency=2, run=1)
    one, two = world.go()
    world.handle(one, "nack")
    world.handle(two, "ack")
    world.go()
    assert [run.attempts[0].offset for run in world.at_workers] == [3, 4]
    world.lane.state.drop_ready()
    world.lane.state.cursor = 0
    world.fetch()
    assert [r.offset for r in world.lane.state.ready] == [5]
    assert world.lane.state.cursor == 5


def test_what_is_due_and_was_dropped_is_read_again() -> None:
    """A waiting message gives its payload up and asks for it when it is due."""
    world = serial(1)
    world.work("nack")
    assert (world.budget.messages, world.lane.due(world.now, 10)) == (0, [])
    world.now += 10
    assert world.plan() == []
    assert world.lane.state.needs_payload
    assert world.lane.due(world.now, 10) == [1]
    assert not world.lane.state.needs_payload
    world.lane.revived(row(1))
    world.lane.revived(row(1))
    assert world.budget.messages == 1
    assert world.work() == [(1, 2)]
    assert world.budget.messages == 0


def test_a_message_that_vanished_while_it_waited_is_settled() -> None:
    """A purged message is no obstacle: the lane goes on behind it, and its row is deleted."""
    world = World(2)
    world.work("nack")
    del world.log[1]
    world.now += 10
    assert (world.work(), world.rows.acked, world.rows.rows) == ([(2, 1)], 2, {})


def test_a_message_that_vanished_while_its_row_was_written_leaves_no_row() -> None:
    """A row that was on its way when its message turned out to be gone is deleted with the next flush."""
    world = serial(1)
    (run,) = world.go()
    world.nack(world.start(run), 0.0)
    world.finish(run)
    write = world.writing()
    world.lane.skip(1)
    world.commit(write)
    world.flush()
    assert (world.rows.acked, world.rows.rows) == (1, {})


@pytest.mark.parametrize("new_owner", [False, True])
def test_a_lane_with_too_many_waiting_fetches_no_new_ones(new_owner: bool) -> None:
    """New messages stay in the database until some waiting ones are done.

    A new owner reads up to the last waiting message, however many wait: at the limit it must not stop before the first
    one.
    """
    world = World(20, strict=False, batch_size=20, max_waiting=20)
    world.work(*["nack"] * 20)
    assert len(world.lane.state.waiting) == 20
    world.publish(5)
    if new_owner:
        world.take_over()
    assert world.work() == []
    world.now += 60
    assert (len(world.work()), world.rows.acked) == (25, 25)
