"""After the server restarted: which deliveries go on, and which are superseded. And messages that are acked first."""

from __future__ import annotations

import pytest

from lanelog._engine.lane.flush_waiter import FlushWaiter
from lanelog._engine.lane.run import Attempt, Run, State
from support import lanes
from support.lanes import Row, World


def concurrent(count: int = 4) -> World:
    return lanes.concurrent(count, count)


def started(world: World) -> tuple[list[Run], list[Attempt]]:
    runs = world.go()
    return runs, [world.start(run) for run in runs]


def all_is_settled(world: World, runs: list[Run], count: int) -> None:
    """The workers let go of their runs: nothing comes again, so many are acked, and nothing is left over."""
    for run in runs:
        world.finish(run)
    assert (world.work(), world.rows.acked, world.rows.rows) == ([], count, {})
    assert (world.budget.messages, world.lane.idle) == (0, True)


def test_running_attempts_go_on_where_the_message_is_the_same() -> None:
    """A handler that runs while the server restarts settles its attempt as if nothing had happened."""
    world = concurrent()
    runs, attempts = started(world)
    lane = world.restart()
    assert set(lane.state.running) == {1, 2, 3, 4}
    assert all(attempt.term == lane.term and attempt.state is State.RUNNING for attempt in attempts)
    assert world.budget.messages == 4
    world.ack(*attempts)
    all_is_settled(world, runs, 4)


def test_a_reload_rewrites_the_row_of_a_message_that_ran_alone() -> None:
    """The next owner would otherwise dead-letter a message that crashed nothing."""
    world = World(1, attempts=3)
    (run,) = world.go()
    world.start(run)
    world.rows.rows[1] = Row(through=1, acked=False, retry_count=2, crashed=True, alone=True, lease_epoch=world.epoch)
    world.restart(changed=(1,))
    world.flush()
    assert (world.rows.rows[1].lease_epoch, world.rows.rows[1].alone) == (0, False)
    world.take_over()
    assert not world.lane.state.waiting[1].died_alone


def test_a_failure_is_counted_whose_flush_was_on_its_way() -> None:
    """The lane is loaded again before the server has received a failure: the next attempt is the second one."""
    world = lanes.serial(1)
    world.handle(*world.go(), "nack")
    world.writing()
    lane = world.restart()
    assert (lane.state.waiting[1].attempts, world.go()) == (1, [])
    world.now += 10.0
    assert world.work() == [(1, 2)]


def test_a_mark_is_undone_that_came_in_behind_the_reload() -> None:
    """The flush of a mark commits after the lane was loaded again: a stop takes back what no handler has seen."""
    world = World(1)
    write = world.planned()
    world.restart()
    world.rows.commit(write, world.now)
    assert world.rows.mark == 1
    world.stop()
    assert (world.rows.acked, world.rows.mark) == (0, 0)


def test_attempts_at_another_message_are_superseded() -> None:
    """If the crashed server gave the offset to another message, the old attempt is fenced and the new one comes."""
    world = concurrent()
    runs, attempts = started(world)
    lane = world.restart(changed=(2,))
    assert attempts[1].state is State.SUPERSEDED
    assert set(lane.state.running) == {1, 3, 4}
    world.ack(attempts[0], attempts[2], attempts[3])
    for run in runs:
        world.finish(run)
    (run,) = world.go()
    attempt = world.start(run)
    assert (attempt.offset, attempt.number, attempt.row.id) == (2, 1, "another one")
    world.ack(attempt)
    all_is_settled(world, [run], 4)


def test_what_had_not_started_is_fetched_again() -> None:
    """A run that no handler has seen is dropped with the prefetch, and delivered as attempt 1."""
    world = World(5, run=5)
    (run,) = world.go()
    first = world.start(run)
    world.restart()
    assert run.start_next(world.now, 60.0) is None
    world.ack(first)
    world.finish(run)
    assert world.work() == [(offset, 1) for offset in range(2, 6)]
    assert world.budget.messages == 0


@pytest.mark.parametrize("flush", ["none", "rolled back", "committed without an answer", "committed"])
def test_what_was_settled_and_not_yet_durable_is_settled_again(flush: str) -> None:
    """Acks whose flush the server may have forgotten are written anew, whatever became of it; nothing runs twice."""
    world = concurrent(5)
    runs, attempts = started(world)
    world.ack(attempts[1], attempts[2], attempts[4])
    if flush != "none":
        write = world.writing()
        if flush != "rolled back":
            world.rows.commit(write, world.now)
        if flush == "committed":
            world.lane.progress.written(write)
    world.restart()
    assert list(world.lane.state.settled) == [(2, 3), (5, 5)]
    world.ack(attempts[0], attempts[3])
    all_is_settled(world, runs, 5)


@pytest.mark.parametrize("last_first", [True, False])
def test_acks_that_the_rows_know_already_are_not_settled_twice(last_first: bool) -> None:
    """Transactions of handlers committed side by side: loaded as one run, and known to memory one by one."""
    world = concurrent(5)
    runs, attempts = started(world)
    done = [attempts[1], attempts[2], attempts[3]]
    for attempt in reversed(done) if last_first else (done[1], done[0], done[2]):
        world.commit_with_handler(attempt)
    world.restart()
    assert list(world.lane.state.settled) == [(2, 4)]
    world.ack(attempts[0], attempts[4])
    all_is_settled(world, runs, 5)
    assert (world.lane.state.watermark, list(world.lane.state.settled)) == (5, [])


def test_a_transaction_that_committed_before_the_reload_is_known_from_its_row() -> None:
    """The reload finds the acked row of a handler whose thread does not know of its commit: it is settled once."""
    world = concurrent(3)
    runs, (one, two, three) = started(world)
    two.move(State.CLAIMED)
    world.rows.settle(2)
    old = world.lane
    world.restart()
    assert list(world.lane.state.settled) == [(2, 2)]
    assert 2 not in world.lane.state.running
    world.lane.dispatch.succeeded(two, world.now, stored=True)
    old.dispatch.succeeded(two, world.now, stored=True)
    world.ack(one, three)
    all_is_settled(world, runs, 3)


def test_a_redelivery_that_had_not_started_keeps_its_attempts() -> None:
    """A marked redelivery that the restart takes back has not used an attempt, be it the last one or alone."""
    world = World(1, run=1, attempts=2)
    world.start(world.go()[0])
    world.take_over()
    (run,) = world.go()
    assert run.alone
    assert world.lane.dispatch.mark(run, FlushWaiter())
    world.flush()
    assert world.rows.rows[1].alone
    world.restart()
    world.flush()
    assert (world.rows.rows[1].retry_count, world.rows.rows[1].alone, world.rows.rows[1].lease_epoch) == (1, False, 0)
    world.stop()
    world.take_over()
    assert world.work() == [(1, 2)]


def test_outcomes_that_the_server_lost_are_written_or_delivered_again() -> None:
    """A lost watermark is behind memory: what is not vouched for is delivered again, what runs goes on."""
    world = World(6, run=3)
    forgotten = world.rows.copy()
    world.handle(*world.go(), "ack", "ack", "ack")
    (run,) = world.go()
    four = world.start(run)
    world.rows = forgotten
    lane = world.restart()
    assert (lane.state.watermark, set(lane.state.running)) == (0, {4})
    world.ack(four)
    world.finish(run)
    assert world.work() == [(1, 1), (2, 1), (3, 1), (5, 1), (6, 1)]
    assert (world.rows.acked, world.rows.rows) == (6, {})


def test_a_burial_goes_on() -> None:
    """A message on its way to the dead letters stays out after the restart, and is settled when it is buried.

    There is nothing to write for it meanwhile, also when a reload wants its row.
    """
    world = World(1, run=1, attempts=2)
    world.work("nack")
    world.now += 10
    world.handle(*world.go(), "reject")
    lane = world.restart()
    (dead_letter,) = world.dead_letters
    assert (dead_letter.term, lane.state.dead_letters) == (lane.term, {1: dead_letter})
    world.flush()
    assert (lane.progress.needs_write, lane.idle) == (False, False)
    world.bury()
    world.flush()
    assert (world.rows.acked, world.rows.rows, lane.idle) == (1, {}, True)


def test_waiters_and_closing_move_over() -> None:
    """A waiter for a flush waits for the new lane's; a lane that was on its way out stays so."""
    world = concurrent(2)
    runs, (one, _) = started(world)
    world.ack(one)
    waiter = object()
    world.lane.progress.waiters += (waiter,)  # type: ignore[arg-type]
    assert world.write() is not None
    world.lane.state.closing = True
    lane = world.restart()
    assert lane.progress.waiters == (waiter,)
    assert lane.state.closing
    assert all(run.term == lane.term for run in runs)


def test_the_budget_survives_a_restart_exactly() -> None:
    """Prefetch, waiting bodies and lost deliveries are given back, what runs is held by the new lane, once."""
    world = World(30, strict=False, concurrency=2, run=2)
    runs = world.go()
    world.nack(world.start(runs[0]), 0.0)
    world.start(runs[1])
    world.fetch()
    lane = world.restart(changed=(4,))
    assert world.budget.messages == len(lane.state.running) + len(lane.state.ready)
    assert world.budget.payload_bytes == sum(attempt.row.payload_bytes for attempt in lane.state.running.values())


# -- ack first ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [{"strict": True}, {"strict": False}, {"strict": False, "concurrency": 3}])
def test_ack_first_commits_before_the_handler(order: dict[str, object]) -> None:
    """With `ACK_FIRST` a run goes out with the commit of its ack, and no more at once than the order allows."""
    world = World(7, **{"ack_first": True, "run": 1, **order})
    limit = world.rules.concurrency
    seen = []
    for _ in range(7):
        world.fetch()
        world.plan()
        while (write := world.write()) is not None:
            world.plan()
            world.commit(write)
            world.plan()
        assert len(world.at_workers) <= limit
        run = world.at_workers[0]
        offset = world.start(run).offset
        assert offset in world.rows.settled()
        seen.append(offset)
        world.finish(run)
    assert seen == [1, 2, 3, 4, 5, 6, 7]
    world.go()
    assert world.lane.idle
    assert (world.rows.rows, world.budget.messages) == ({}, 0)


def test_what_was_acked_first_is_not_recalled() -> None:
    """A stop lets run what is acked already: it would be lost otherwise."""
    world = World(2, ack_first=True, run=1)
    write = world.planned()
    world.lane.state.closing = True
    world.recall()
    world.commit(write)
    (run,) = world.at_workers
    assert not world.lane.idle
    assert world.start(run).offset == 1
    world.finish(run)
    world.flush()
    assert world.lane.idle
    assert world.rows.acked == 1


@pytest.mark.parametrize("flush", ["none", "rolled back", "committed without an answer"])
def test_what_was_acked_first_runs_after_a_restart(flush: str) -> None:
    """A message that memory holds as acked, and whose handler has not started, is handed out after the reload."""
    world = World(2, ack_first=True, run=1)
    world.fetch()
    world.plan()
    if flush != "none":
        write = world.writing()
        if flush != "rolled back":
            world.rows.commit(write, world.now)
    world.restart()
    seen = []
    while world.go():
        run = world.at_workers[0]
        seen.append(world.start(run).offset)
        world.finish(run)
    assert (seen, world.rows.acked) == ([1, 2], 2)
