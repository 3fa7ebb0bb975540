"""A message that an operator took away from its worker: one more delivery is granted, and no crash is counted."""

from __future__ import annotations

from support.lanes import Row, World


def released(attempts: int, **rules: object) -> World:
    """A lane of one message whose last attempt an operator ended."""
    world = World(1, **rules)
    world.rows.rows[1] = Row(1, acked=False, due=world.now, retry_count=attempts, released=True)
    world.take_over()
    return world


def test_it_is_delivered_again_beyond_the_cap() -> None:
    """With all its deliveries used up the message goes to a handler, not to the dead letters, and runs in company."""
    world = released(2, max_deliveries=2)
    runs = world.go()
    assert [(attempt.offset, attempt.number) for run in runs for attempt in run.attempts] == [(1, 3)]
    assert not runs[0].alone
    row = world.rows.rows[1]
    assert (row.retry_count, row.released, row.crashed, row.lease_epoch) == (3, False, False, world.epoch)


def test_the_grant_outlasts_a_worker_that_leaves_before_it_begins() -> None:
    """Handed back unstarted, it is written down as it was, and the next owner delivers it."""
    world = released(1, max_deliveries=1)
    world.go()
    world.lane.dispatch.recall()
    world.flush()
    row = world.rows.rows[1]
    assert (row.retry_count, row.released, row.lease_epoch) == (1, True, 0)
    world.take_over()
    assert [attempt.number for run in world.go() for attempt in run.attempts] == [2]


def test_the_grant_is_for_one_delivery() -> None:
    """If the process dies with it, that is a crash like any other: it runs alone next, and then that is the end."""
    world = released(1, max_deliveries=1)
    world.go()
    world.take_over()
    assert world.lane.state.waiting[1].crashed
    runs = world.go()
    assert [run.alone for run in runs] == [True]
