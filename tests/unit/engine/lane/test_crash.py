"""Taking a lane over: what a dead process had in flight, what it left waiting, and when a crash is the last one."""

from __future__ import annotations

import pytest

from lanelog._engine.lane.lane import Lane
from lanelog._engine.lane.values import CRASHED, LaneSnapshot
from support.lanes import World, concurrent


def world_of(count: int = 3, **rules: object) -> World:
    return World(count, **{"run": 3, **rules})


def waiting(world: World) -> dict[int, tuple[int, bool]]:
    """Attempts, and whether it is due, by offset."""
    return {offset: (wait.attempts, wait.due <= world.now) for offset, wait in world.lane.state.waiting.items()}


def test_what_a_dead_owner_had_marked_counts_one_attempt_and_is_due_at_once() -> None:
    """Offsets under a foreign run mark that no row covers were perhaps tried: once, for all anybody knows."""
    world = world_of()
    world.go()
    world.now += 7
    world.take_over()
    assert waiting(world) == {1: (1, True), 2: (1, True), 3: (1, True)}
    assert {wait.last_error for wait in world.lane.state.waiting.values()} == {CRASHED}
    assert {wait.first_started for wait in world.lane.state.waiting.values()} == {world.now - 7}
    assert world.work() == [(1, 2), (2, 2), (3, 2)]


def test_nothing_is_handed_out_before_the_crash_is_written_down() -> None:
    """While it adopts, a lane neither fetches nor plans; the rows are committed first."""
    world = world_of(6)
    world.go()
    lane = world.take_over()
    assert (lane.state.adopting, lane.needs_fetch, lane.progress.needs_write) == (True, False, True)
    assert (lane.due(world.now, 10), world.plan()) == ([], [])
    write = world.writing()
    assert [(r.offset, r.retry_count, r.lease_epoch, r.crashed) for r in write.upserts] == [
        (offset, 1, 0, True) for offset in (1, 2, 3)
    ]
    assert write.mark == 0
    lane.progress.unwritten(write)
    assert lane.state.adopting
    world.flush()
    assert (lane.state.adopting, lane.needs_fetch) == (False, True)


def test_a_crash_while_adopting_counts_nothing_twice() -> None:
    """Whether or not the rows of the first crash were committed, a second take-over finds the same."""
    world = world_of()
    world.go()
    world.take_over()
    first = waiting(world)
    world.take_over()
    assert waiting(world) == first
    world.flush()
    world.take_over()
    assert waiting(world) == first
    assert not world.lane.state.adopting


@pytest.mark.parametrize("visible_in", [0, 3600])
def test_a_row_in_flight_of_a_dead_owner_is_due_at_once(visible_in: int) -> None:
    """A redelivery that was running has counted itself already, and does not wait, whatever its row says of that."""
    world = world_of(1, strict=False)
    world.work("nack")
    world.now += 10
    world.start(world.go()[0])
    world.rows.rows[1].due = world.now + visible_in
    world.take_over()
    assert waiting(world) == {1: (2, True)}
    assert world.lane.state.waiting[1].crashed
    assert world.work() == [(1, 3)]


def test_nacked_rows_keep_their_wait() -> None:
    """A failed message waits for its whole back-off, whoever owns its lane, and its crash is not its own."""
    world = world_of(2, strict=False)
    world.work("nack")
    world.now += 4
    world.take_over()
    wait = world.lane.state.waiting[1]
    assert (waiting(world), wait.due) == ({1: (1, False)}, world.now + 6)
    assert (wait.last_error, wait.crashed, world.work()) == ("ValueError: no", False, [])
    world.now += 6
    assert world.work() == [(1, 2)]


def test_a_postponed_message_starts_again_as_attempt_one() -> None:
    """Postponing is no failure: the count begins anew, also for who takes the lane over meanwhile."""
    world = world_of(1, attempts=2, max_deliveries=2)
    for _ in range(5):
        assert world.work("postpone") == [(1, 1)]
        world.take_over()
        world.now += 10
    assert (world.rows.rows[1].postponed, world.work()) == (5, [(1, 1)])


def test_acked_runs_are_loaded_as_settled() -> None:
    """Messages acked ahead are not handed out again, and their rows go when the watermark reaches them."""
    world = concurrent(5, 5)
    runs = world.go()
    for run in (runs[1], runs[2], runs[4]):
        world.ack(world.start(run))
    world.flush()
    assert set(world.rows.rows) == {2, 5}
    world.take_over()
    assert (waiting(world), world.work()) == ({1: (1, True), 4: (1, True)}, [(1, 2), (4, 2)])
    assert (world.rows.acked, world.rows.rows) == (5, {})


def test_rows_of_their_own_are_merged_at_the_load() -> None:
    """Neighbours that were settled one by one, by transactions or as dead letters, become one row and leave none."""
    world = concurrent(4, 5)
    runs = {run.attempts[0].offset: run for run in world.go()}
    for offset in (2, 3, 4):
        world.start(runs[offset])
        world.rows.settle(offset)
    world.take_over()
    world.flush()
    assert [(offset, r.through) for offset, r in world.rows.rows.items() if r.acked] == [(2, 4)]
    assert (set(world.rows.rows), world.work()) == ({1, 2}, [(1, 2)])
    assert (world.rows.acked, world.rows.rows) == (4, {})


def test_rows_behind_the_floor_are_deleted() -> None:
    """A lane whose floor is beyond its watermark (after a purge by an operator) starts there, and cleans up."""
    world = world_of(6, strict=False)
    world.work("nack", "ack", "nack", "ack", "nack")
    snapshot = world.snapshot()
    assert len(snapshot.rows) > 3
    lane = Lane.load(
        LaneSnapshot(key="key", epoch=9, generation=99, head=6, floor=4, offset_acked=0, rows=snapshot.rows),
        world.rules,
        world.budget,
        world.now,
    )
    assert lane.state.watermark == 4
    write = lane.progress.write(world.now)
    assert write is not None
    assert (write.watermark, write.deletes, set(lane.state.waiting)) == (4, (1, 2, 3, 4), {5})


def test_a_mark_above_the_head_counts_only_existing_messages() -> None:
    """A run mark above the head, after a server forgot commits, counts only the messages that exist."""
    world = world_of(4)
    world.rows.acked, world.rows.mark, world.rows.mark_epoch = 0, 1000, world.epoch
    world.take_over()
    assert set(world.lane.state.waiting) == {1, 2, 3, 4}


@pytest.mark.parametrize("head", [0, 3])
def test_a_lane_without_an_offsets_row_gets_it_with_its_first_mark(head: int) -> None:
    """No handler starts before that commit, so a crash counts what ran. A lane with nothing to read gets it at once."""
    world = World(behind=head)
    assert world.rows.acked == (None if head else 0)
    world.publish(3 - head)
    (run,) = world.go()
    assert (world.rows.acked, world.rows.mark) == (0, 3)
    world.start(run)
    world.take_over()
    assert [wait.attempts for wait in world.lane.state.waiting.values()] == [1, 1, 1]


# -- who is to blame ---------------------------------------------------------------------------------------------------


def die(world: World, offset: int) -> None:
    """The message starts, and the process dies."""
    world.start(next(run for run in world.go() if run.attempts and run.attempts[0].offset == offset))
    world.take_over()


def test_a_message_that_kills_its_process_ends_in_the_dead_letters() -> None:
    """With three attempts allowed, the third runs alone and is the last; later messages go on."""
    world = world_of(2, attempts=3, run=1)
    die(world, 1)
    die(world, 1)
    (run,) = world.go()
    assert run.alone
    world.start(run)
    assert world.rows.rows[1].alone
    world.take_over()
    assert world.go() == []
    (dead_letter,) = world.dead_letters
    assert (dead_letter.offset, dead_letter.failures, dead_letter.error) == (1, 3, CRASHED)
    world.bury()
    assert world.work() == [(2, 1)]


def test_a_quarantined_message_is_marked_when_it_is_alone_and_not_before() -> None:
    """A quarantined message that waits for its turn is not counted: another message crashes the process meanwhile."""
    world = world_of(1, attempts=2, run=1)
    die(world, 1)
    for _ in range(3):
        (run,) = world.go()
        assert run.alone
        world.take_over()
        assert waiting(world) == {1: (1, True)}
    assert world.work() == [(1, 2)]


def test_a_quarantined_message_whose_row_is_written_before_its_turn_is_not_counted() -> None:
    """A quarantined message that was recalled and planned again waits with its earlier attempts, not as one alone."""
    world = world_of(1, attempts=2, run=1)
    die(world, 1)
    world.go()
    world.lane.dispatch.recall()
    world.plan()
    world.flush()
    assert (world.rows.rows[1].retry_count, world.rows.rows[1].alone, world.rows.rows[1].lease_epoch) == (1, False, 0)


def test_a_crash_in_company_is_never_the_last() -> None:
    """A message that used up its attempts, but died in company the last time, gets another attempt alone."""
    world = world_of(1, attempts=9, run=1)  # so that nobody suspects it yet
    die(world, 1)
    die(world, 1)
    world.rules.attempts = 2
    world.take_over()
    assert waiting(world) == {1: (2, True)}
    (run,) = world.go()
    assert (run.alone, run.attempts[0].number) == (True, 3)
    world.handle(run, "ack")
    world.flush()
    assert world.rows.acked == 1


def test_only_the_last_attempt_after_a_crash_runs_alone() -> None:
    """Earlier attempts run with others, and the last attempt of a message that merely failed does, too."""
    world = world_of(1, strict=False, attempts=3)
    die(world, 1)
    (run,) = world.go()
    assert not run.alone
    other = world_of(1, strict=False, attempts=2)
    other.work("nack")
    other.now += 10
    (last,) = other.go()
    assert not last.alone


def test_a_policy_of_one_attempt_buries_at_the_crash() -> None:
    """The documented exception: where no attempt may follow the first, the crash was that attempt."""
    world = world_of(2, attempts=1, run=1)
    die(world, 1)
    assert world.go() == []
    assert [(dead_letter.offset, dead_letter.failures) for dead_letter in world.dead_letters] == [(1, 1)]
    world.bury()
    assert world.work() == [(2, 1)]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_max_deliveries_is_checked_before_the_handler(limit: int) -> None:
    """No handler gets a message more often, whatever the policy answered; the error of the last attempt is kept."""
    world = world_of(1, strict=False, attempts=99, max_deliveries=limit)
    for number in range(1, limit + 1):
        assert world.work("nack") == [(1, number)]
        world.now += 10
    assert world.go() == []
    assert [(dead_letter.failures, dead_letter.error) for dead_letter in world.dead_letters] == [
        (limit, "ValueError: no")
    ]
    assert (world.work(), world.rows.acked) == ([], 1)


def test_dead_letters_are_retried_without_limit() -> None:
    """A message that is a dead letter itself is never buried, neither for failing nor for killing."""
    world = World(run=1, attempts=1, max_deliveries=1)
    world.publish(original="merge")
    for number in range(1, 30):
        if number % 3:
            assert world.work("nack") == [(1, number)]
            world.now += 10
        else:
            (run,) = world.go()
            assert not run.alone
            assert world.start(run).number == number
            world.take_over()
    assert not world.dead_letters
    assert world.work() == [(1, 30)]
