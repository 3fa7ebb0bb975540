"""Stores of what groups have done, by the bare executor: rows in, rows out."""

from typing import Any

import pytest

from lanelog._base.places import GroupTopic, LaneId
from lanelog._database import Executor
from lanelog._stores._pause import RUNS, Pause
from lanelog._stores.consumers import deliveries, groups, history, offsets
from lanelog._stores.consumers._offset_rows import FloorRow
from lanelog._stores.consumers.deliveries import DeliveryWrite
from lanelog._stores.consumers.groups import GroupRow, Kept, Unattended
from lanelog._stores.consumers.history import Ended, HistoryWrite
from support.situations import NOW, Situations
from support.sql import rows

AT = GroupTopic(topic="t", group="g")
LANE = LaneId(topic="t", group="g", key="k")
ABSURD = (2**62, 2**63, 2**64 - 1)
"""Times beyond all calendars, as another program or a damaged disk may leave them."""


def kept(raw: Any) -> list[tuple[str, int]]:
    return rows(raw, "SELECT consumer_group, message_offset FROM queue_history ORDER BY 1, 2")


def write(cx: Executor, group: str, *offsets: int, age: float) -> None:
    ended = [HistoryWrite("k", offset, "id", Ended.SUCCESS, 1, 1, None, -age, None) for offset in offsets]
    history.upsert(cx, GroupTopic(topic="t", group=group), "me", ended, 0.0)


def test_old_history_leaves_in_batches_and_the_rest_stays(cx: Executor, raw: Any) -> None:
    """The oldest first. The age of what is left comes with the count; another group's rows stay, and its topics."""
    count = history.BATCH + 1
    for group in ("g", "h"):
        write(cx, group, *range(1, count + 1), age=7200)
        write(cx, group, count + 1, age=60)
    deleted = [history.purge(cx, AT, 3_600_000) for _ in range(3)]
    assert [number for number, _ in deleted] == [history.BATCH, 1, 0]
    assert [round(age or 0, -1) for _, age in deleted] == [7200, 60, 60]
    assert kept(raw) == [("g", count + 1), *(("h", offset) for offset in range(1, count + 2))]
    assert history.kept(cx) == [AT, GroupTopic(topic="t", group="h")]


def test_history_that_was_written_anew_is_not_deleted_for_its_age(
    cx: Executor, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the search for old rows and their deletion the message was handled again."""
    query = type(cx).query

    def queried(self: Any, sql: str, args: Any = ()) -> Any:
        found = query(self, sql, args)
        rows(raw, f"UPDATE queue_history SET finished_at = {NOW}")
        return found

    write(cx, "g", 1, age=7200)
    monkeypatch.setattr(type(cx), "query", queried)
    assert history.purge(cx, AT, 3_600_000)[0] == 0
    assert kept(raw) == [("g", 1)]


def test_a_delivery_row_comes_back_as_it_was_written(cx: Executor) -> None:
    """Settled, it is never again unsettled; made due, it waits no longer; deleted, it is gone."""
    waiting = {"delay": 60, "retry_count": 2, "postponed": 1, "lease_epoch": 7, "first_age": 9, "last_error": "no"}
    waits = DeliveryWrite(key="k", offset=3, through=3, **waiting)
    acked = DeliveryWrite(key="k", offset=5, through=7, acked=True)
    deliveries.upsert(cx, AT, [waits, acked, DeliveryWrite(key="l", offset=1, through=1)])
    first, run = deliveries.load(cx, AT, ["k"])["k"]
    assert (first.offset, first.acked, first.retry_count, first.postponed, first.lease_epoch) == (3, False, 2, 1, 7)
    assert (round(first.due_in, -1), round(first.first_age or 0, -1), first.last_error) == (60, 10, "no")
    assert (run.offset, run.through, run.acked, run.first_age) == (5, 7, True, None)
    deliveries.settle(cx, LANE, 3)
    deliveries.upsert(cx, AT, [waits])
    assert deliveries.is_settled(cx, LANE, 3)
    deliveries.make_due(cx, LANE, [3])
    assert deliveries.load(cx, AT, ["k"])["k"][0].due_in <= 0
    deliveries.delete(cx, AT, [("k", 3), ("k", 5)])
    assert deliveries.load(cx, AT, ["k", "l"]).keys() == {"l"}


@pytest.mark.parametrize("time", ABSURD)
@pytest.mark.parametrize("column", ["invisible_until", "last_attempt_at", "first_attempt_at"])
def test_a_time_beyond_all_calendars_keeps_no_message_waiting(
    cx: Executor, made: Situations, raw: Any, column: str, time: int
) -> None:
    """The message is due, and its first attempt is of now at the latest."""
    made.row("k", 1, invisible_until=1, first_attempt_at=1)
    rows(raw, f"UPDATE queue_delivery_state SET {column} = %s", time)
    (row,) = deliveries.load(cx, AT, ["k"])["k"]
    assert row.due_in <= 0
    assert (row.first_age or 0) >= 0


def test_watermarks_go_up_down_and_back(cx: Executor, made: Situations) -> None:
    """A seek moves them, a skip raises them, a floor rises alone; a mark beyond all calendars has no age."""
    made.place("k", 5, marked_through=9, marked_epoch=7, marked_at=ABSURD[1])
    made.place("k", 2, group="")
    assert [offsets.load(cx, AT, ["k"])["g", "k"].marked_through, offsets.acked_locked(cx, LANE)] == [9, 5]
    for change, expected in (
        (lambda: offsets.raise_watermarks(cx, AT, {"k": 4, "new": 1}), {"k": 5, "new": 1}),
        (lambda: offsets.raise_watermarks(cx, AT, {"k": 6}), {"k": 6, "new": 1}),
        (lambda: offsets.move_watermarks(cx, AT, {"k": 3}), {"k": 3, "new": 1}),
        (lambda: offsets.rewind(cx, LANE, 2), {"k": 2, "new": 1}),
    ):
        change()
        found = offsets.watermarks(cx, "t", ["g"], ["k", "new", "none"])
        assert {key: acked for (_, key), acked in found.items()} == expected
    offsets.raise_floors(cx, "t", {"k": 4})
    offsets.raise_floors(cx, "t", {"k": 1})
    offsets.raise_deleted(cx, "t", {"k": 9})
    assert offsets.floors(cx, "t", ["k", "none"]) == {"k": FloorRow(4, 4)}


def test_a_drained_lane_is_idle_when_all_is_released_and_deleted(cx: Executor, made: Situations) -> None:
    """The lane's floor has reached its head, no message is left below it, and it has not moved for a while."""
    for key, floor, deleted, moved in (("a", 3, 3, 1), ("b", 2, 2, 1), ("c", 3, 2, 1), ("d", 3, 3, 0)):
        cx.execute("INSERT INTO queue_partitions (topic, partition_key, head_offset) VALUES ('t', %s, 3)", (key,))
        made.place(key, floor, group="", marked_through=deleted, updated_at=1 if moved else 2**60)
    assert offsets.idle_floors(cx, "t", "", 60.0, 10) == ["a"]
    assert offsets.idle_floors(cx, "t", "a", 60.0, 10) == []


def test_a_group_is_registered_changed_and_deleted(cx: Executor, made: Situations) -> None:
    """A retention of history or dead letters that is not None is kept as a millisecond at least: 0 is for None."""
    at = GroupTopic(topic="t", group="new")
    groups.create(cx, at, order="serial", start="latest", kept=Kept(messages=2, history=None, dead_letters=1e-6))
    assert (groups.lock(cx, at), groups.start(cx, at), groups.lock_pause(cx, at)) == ("serial", "latest", RUNS)
    assert (groups.readers(cx, "t"), groups.letters_kept(cx, "t")) == ({"g": 0, "new": 2000}, {"new": 1})
    groups.set_kept(cx, at, Kept(messages=0.5, history=0, dead_letters=None))
    assert (groups.readers(cx, "t"), groups.letters_kept(cx, "t")) == ({"g": 0, "new": 500}, {})
    groups.set_pause(cx, at, Pause(7, "me", "why"))
    groups.set_start(cx, at, "another")
    groups.count_lane_pause(cx, at)
    assert (groups.start(cx, at), groups.lock_pause(cx, at)) == ("another", Pause(7, "me", "why"))
    created = groups.lock_shared(cx, at) or 0
    assert created > 1000
    assert groups.get(cx, at) == GroupRow("serial", True, created, 1, 1, None)
    groups.delete(cx, at)
    looks = (groups.get, groups.lock, groups.lock_shared, groups.lock_pause, groups.start)
    assert [look(cx, at) for look in looks] == [None] * 5
    assert groups.readers(cx, "t") == {"g": 0}


def test_a_group_that_runs_without_members_is_unattended(cx: Executor, made: Situations) -> None:
    """If it has said where its dead letters go. Who is a member is in `integration/log/test_liveness`."""
    at = GroupTopic(topic="t", group="h")
    for group, paused in (("h", 0), ("paused", 1), ("silent", 0)):
        made.register(group, paused_at=paused, history_ms=5)
    for group, to in (("g", None), ("h", "d"), ("paused", "d")):
        groups.set_dead_letter_topic(cx, GroupTopic(topic="t", group=group), to)
    found = Unattended("h", "d", history=True)
    assert set(groups.unattended(cx, "t")) == {Unattended("g", "", history=False), found}
    assert groups.unattended_now(cx, at) == found
    made.group = "h"
    made.owner("lives")
    assert groups.unattended_now(cx, at) is None
