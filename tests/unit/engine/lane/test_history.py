"""What a lane has to write about messages that left: with the flush that settles them, and not a row else."""

from __future__ import annotations

from lanelog._engine.lane.writes import LaneWrite
from lanelog._stores.consumers.history import Ended
from support.lanes import World, concurrent


def written(write: LaneWrite | None) -> list[tuple[int, str, int, str | None]]:
    """(offset, outcome, attempts, error) of the rows that a flush carries."""
    assert write is not None
    return [(row.offset, row.outcome.value, row.attempts, row.error) for row in write.left]


def late(world: World, *offsets: int) -> None:
    """These messages expire ten seconds from now."""
    for offset in offsets:
        world.log[offset] = world.log[offset]._replace(start_by=world.now + 10.0)


def test_a_row_rides_on_the_flush_that_settles_its_message() -> None:
    """Outcome, attempts, and when it was first started and settled; nothing once it is written."""
    world = World(2, history=True)
    (run,) = world.go()
    first = world.start(run)
    world.now += 3.0
    world.ack(first)
    write = world.write()
    assert written(write) == [(1, "success", 1, None)]
    (row,) = write.left
    assert (row.first, row.finished, row.id) == (1000.0, 1003.0, "m1")
    world.commit(write)
    world.ack(world.start(run))
    assert written(world.write()) == [(2, "success", 1, None)]


def test_a_flush_that_did_not_happen_is_written_with_its_rows() -> None:
    """Together with those of what was settled meanwhile, in order."""
    world = World(2, history=True)
    (run,) = world.go()
    world.ack(world.start(run))
    write = world.writing()
    world.ack(world.start(run))
    world.lane.progress.unwritten(write)
    assert written(world.write()) == [(1, "success", 1, None), (2, "success", 1, None)]


def test_after_a_server_restart_rows_are_kept_for_messages_that_are_the_same() -> None:
    """An offset that another message has by now says nothing of the one that was there."""
    world = World(3, history=True)
    (run,) = world.go()
    for _ in range(3):
        world.ack(world.start(run))
    world.write()  # nobody will know whether it was committed
    world.restart(changed=[2])
    assert [row.offset for row in world.lane.progress.left] == [1, 3]


def test_what_another_transaction_has_settled_is_not_written_again() -> None:
    """The dead letters and `message.transaction()` write their own; a group that keeps none writes none of any."""
    world = World(2, history=True)
    assert (world.work("reject", "commit_with_handler"), world.lane.progress.left) == ([(1, 1), (2, 1)], ())
    world = World(3)
    assert world.work("nack", "ack", "reject")
    assert world.lane.progress.left == ()


def test_the_history_row_of_a_success_has_the_error_before() -> None:
    """The row has the error of the failed attempt, if one process ran both attempts."""
    world = World(1, history=True)
    world.handle(*world.go(), "nack")
    world.now += 20.0
    (again,) = world.go()
    world.ack(world.start(again))
    assert written(world.write()) == [(1, "success", 2, "ValueError: no")]


# -- expiry ------------------------------------------------------------------------------------------------------------


def test_what_is_late_when_it_would_go_out_is_buried_without_a_mark() -> None:
    """Earlier messages in time go out first; a strict lane waits for the dead letter."""
    world = World(3)
    late(world, 2)
    world.fetch()
    world.now += 10.0
    (run,) = world.plan()
    assert [attempt.offset for attempt in run.attempts] == [1]
    world.flush()
    world.handle(run, "ack")
    assert world.plan() == []
    (buried,) = world.dead_letters
    assert (buried.offset, buried.failures, buried.error, buried.ended) == (2, 0, "expired", Ended.EXPIRED)
    world.flush()
    assert world.rows.counted(2) == 0
    world.bury()
    (run,) = world.plan()
    assert [attempt.offset for attempt in run.attempts] == [3]


def test_what_is_late_when_it_would_start_is_no_start() -> None:
    """The message was marked in time; the run goes on as its caller decides, and does not count it as handled."""
    world = World(2)
    late(world, 2)
    (run,) = world.go()
    assert not world.start(run).expired
    world.now += 10.0
    second = world.start(run)
    assert (second.expired, second.first_started, run.started) == (True, None, 1)


def test_what_came_back_unstarted_expires() -> None:
    """The message was handed out and taken back, below a mark that stays: no handler has had it."""
    world = concurrent(3)
    late(world, 2)
    runs = world.go()
    world.start(runs[2])
    world.finish(runs[1])
    assert 2 in world.lane.state.waiting
    world.now += 10.0
    assert world.plan() == []
    assert [(dead_letter.offset, dead_letter.failures) for dead_letter in world.dead_letters] == [(2, 0)]


def test_what_was_started_once_never_expires() -> None:
    """Failed, postponed, or counted by a new owner after a crash: it goes out again."""
    for end in ("nack", "postpone", None):
        world = World(1)
        late(world, 1)
        (run,) = world.go()
        attempt = world.start(run)
        if end is None:
            world.take_over()
            world.flush()
        else:
            getattr(world, end)(attempt)
            world.finish(run)
        world.now += 100.0
        (again,) = world.go()
        assert not world.start(again).expired
        assert not world.dead_letters


def test_what_is_acked_first_was_in_time_when_it_was_acked() -> None:
    """The message runs, however long it waits for a worker: otherwise it would be lost."""
    world = World(1, ack_first=True)
    late(world, 1)
    (run,) = world.go()
    world.now += 100.0
    assert not world.start(run).expired
