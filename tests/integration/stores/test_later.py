"""Stores of what is published later, by the bare executor: rows in, rows out."""

from typing import Any

import pytest
from attrs import evolve

from lanelog._database import Executor
from lanelog._stores.later import scheduled, schedules
from lanelog._stores.later.scheduled import NewScheduled
from lanelog._stores.later.schedules import VERSION_WITH_WALL_CLOCK, Due, ScheduleRow, Wall
from lanelog.migrations import VERSION
from support.sql import rows

HOUR = 3_600_000
PACKET = 1_000_000
FAR = 2**42
MESSAGE = {"topic": "t", "key": "k", "payload": b"xy", "metadata": None, "ttl_ms": 0}
SCHEDULE = ScheduleRow(
    name="s", expression="0 3 * * *", timezone="UTC", **MESSAGE, catch_up="all", next_fire_at=FAR, expression_at=5
)
each_version = pytest.mark.parametrize("tables", [VERSION_WITH_WALL_CLOCK - 1, VERSION])


def message(key: str, name: str, *, due_ms: int = 0, place: int = 0) -> NewScheduled:
    return NewScheduled(
        key=key, id=name, payload=b"x", metadata=None, due_ms=due_ms, relative=True, ttl_ms=0, seq=place
    )


def test_due_messages_are_found_locked_in_order_and_deleted(cx: Executor, open_raw: Any) -> None:
    """The earliest first, those of one time by their place; not those of busy lanes, nor what another has locked."""
    waiting = [message("k", "z"), message("k", "b", place=2), message("k", "a", place=1), message("l", "x", place=3)]
    scheduled.insert(cx, "t", [*waiting, message("k", "far", due_ms=HOUR)], PACKET)
    cx.execute("UPDATE queue_scheduled SET deliver_at = deliver_at - 9000 WHERE id IN ('a', 'b')")
    found = scheduled.due(cx, [], 10, everything=True)
    assert [name for _, _, name in found] == ["a", "b", "z", "x"]
    assert scheduled.due(cx, [("t", "k")], 10, everything=False) == [("t", "l", "x")]
    assert scheduled.due(cx, [], 1, everything=False, topics=["t", "u"]) == [("t", "k", "a")]
    holder = open_raw()
    rows(holder, "SELECT 1 FROM queue_scheduled WHERE topic = 't' AND partition_key = 'k' AND id = 'z' FOR UPDATE")
    mine = scheduled.lock(cx, "t", [("k", "z"), ("k", "b"), ("k", "a"), ("k", "far")])
    assert [row.id for row in sorted(mine)] == ["a", "b"]
    holder.rollback()
    assert scheduled.find_shared(cx, "t", [("k", "z"), ("l", "z")]) == {("k", "z")}
    assert [scheduled.cancel(cx, "t", "k", "z") for _ in range(2)] == [True, False]
    assert scheduled.delete(cx, "t", [("k", "a"), ("k", "none")]) == 1
    assert (scheduled.exists(cx, "t", "k", "a"), scheduled.exists(cx, "t", "k", "b")) == (False, True)
    assert (scheduled.count(cx, "t"), scheduled.counts(cx), scheduled.of_topic(cx, "u", 9)) == (3, {"t": 3}, [])


@each_version
@pytest.mark.parametrize(
    ("at", "paused", "changed", "kept"),
    [
        *((FAR, paused, changed, not changed) for paused in (False, True) for changed in (False, True)),
        *((1, False, changed, True) for changed in (False, True)),
        *((1, True, changed, not changed) for changed in (False, True)),
    ],
)
def test_a_schedule_that_is_declared_again_keeps_its_time_or_gets_another(
    cx: Executor, tables: int, at: int, *, paused: bool, changed: bool, kept: bool
) -> None:
    """The schedule gets another time if its expression is another one, unless it is due and not paused."""
    schedules.declare(cx, evolve(SCHEDULE, next_fire_at=at, next_local="then", tzdata="a"), tables=tables)
    if paused:
        schedules.pause(cx, "s", 7, "me", "why")
    times = {"next_fire_at": FAR + 1, "expression_at": 9, "next_local": "later", "tzdata": "b"}
    again = evolve(SCHEDULE, expression="1 3 * * *" if changed else SCHEDULE.expression, payload=b"z", **times)
    schedules.declare(cx, again, tables=tables)
    row = schedules.get(cx, "s", tables=tables)
    assert row is not None
    assert (row.payload, row.expression_at, row.paused_at) == (b"z", 9 if changed else 5, 7 * paused)
    fires, *wall = (at, "then", "a") if kept else (FAR + 1, "later", "b")
    assert row.next_fire_at == fires
    assert [row.next_local, row.tzdata] == (wall if tables == VERSION else ["", ""])


@each_version
def test_a_schedule_moves_on_is_steered_and_removed(cx: Executor, open_raw: Any, tables: int) -> None:
    """The most overdue comes first. Tables of before have no wall-clock times, and none is noted there."""
    for name, at in (("due", 2), ("later", FAR), ("overdue", 1)):
        schedules.declare(cx, evolve(SCHEDULE, name=name, next_fire_at=at), tables=tables)
    assert schedules.due(cx, 9) == [Due("overdue", "t", 2), Due("due", "t", 2)]
    assert [each.name for each in schedules.to_come(cx, tables=tables)] == ["later"]
    wall = Wall(next_local="next", fired_local="fired", fired_again="again", tzdata="b")
    schedules.advance(cx, "due", next_fire_at=FAR, last_fire_at=8, fired=2, wall=wall, tables=tables)
    schedules.count_run(cx, "due")
    schedules.set_back(cx, "due", 3, 4)
    schedules.note_next(cx, "later", next_local="noted", tzdata="c", tables=tables)
    schedules.pause(cx, "overdue", 7, "me", "why")
    assert schedules.due(cx, 9) == [Due("due", "t", 2)]
    due, later, overdue = schedules.by_name(cx, 9, tables)
    assert schedules.names(cx) == schedules.of_topic(cx, "t") == ["due", "later", "overdue"]
    assert (due.next_fire_at, due.last_fire_at, due.expression_at, due.fired) == (3, 4, 4, 3)
    noted = (due.next_local, due.fired_local, due.fired_again, due.tzdata, later.next_local, later.tzdata)
    assert noted == (("next", "fired", "again", "b", "noted", "c") if tables == VERSION else ("",) * 6)
    assert (overdue.paused_at, overdue.paused_by, overdue.pause_reason) == (7, "me", "why")
    schedules.resume(cx, "overdue", FAR)
    holder = open_raw()
    rows(holder, "SELECT 1 FROM queue_schedules WHERE name = 'due' FOR UPDATE")
    _, resumed = schedules.try_lock(cx, ["overdue", "due", "later", "none"], tables=tables)
    assert resumed == evolve(overdue, paused_at=0, paused_by="", pause_reason="", next_fire_at=FAR, now=resumed.now)
    holder.rollback()
    schedules.remove(cx, "due")
    assert schedules.lock(cx, "due", tables=tables) is None
    assert schedules.lock(cx, "later", tables=tables) is not None
