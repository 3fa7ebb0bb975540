"""Administration, looking: exact numbers for situations made by hand, and what a look costs the others: nothing."""

from datetime import UTC, datetime
from typing import Any

import pytest

import lanelog
from lanelog._base.places import GroupTopic
from lanelog.admin import Admin, GroupInfo, GroupState, LaneInfo, MessageState, OwnerState
from lanelog.admin.totals import lane_totals, lanes, topics
from lanelog.admin.totals.ages import Breadth
from lanelog.devserver import DevServer
from support.shop import LOOKS, open_shop
from support.situations import HOUR, Situations, around
from support.sql import connect, rows


def lane(admin: Admin, key: str) -> LaneInfo:
    (found,) = [lane for lane in admin.lanes("t", "g", order_by="key") if lane.key == key]
    return found


def state_of(admin: Admin, key: str, offset: int, group: str = "g", topic: str = "t") -> GroupState:
    message = admin.message(topic, key, offset=offset)
    (found,) = [state for state in message.states if state.group == group]
    return found


# -- lanes -------------------------------------------------------------------------------------------------------------


def test_lag_leaves_out_what_is_settled_ahead(made: Situations, admin: Admin) -> None:
    """Lag is head - watermark - what is acked above it; the lane waits for the message behind the watermark."""
    made.fill("k", 10)
    made.place("k", 3)
    made.row("k", 5, through=7, acked=1)
    made.row("k", 9, acked=1)
    made.written("k", 4, ago=500)
    seen = lane(admin, "k")
    assert (seen.head, seen.watermark, seen.lag, seen.acked_ahead) == (10, 3, 3, 4)
    assert seen.state is MessageState.PENDING
    assert around(seen.oldest_age, 500)
    (place,) = admin.offsets("t", "g", "k")
    assert (place.lag, place.acked_ahead, place.watermark) == (3, 4, 3)


def test_rows_behind_the_watermark_count_for_nothing(made: Situations, admin: Admin) -> None:
    """A flush that raised the watermark leaves rows behind it for the next one to delete."""
    made.fill("k", 10)
    made.place("k", 6, marked_through=6)
    made.row("k", 2, retry_count=2)
    made.row("k", 4, through=8, acked=1)
    seen = lane(admin, "k")
    assert (seen.lag, seen.acked_ahead, seen.waiting, seen.in_flight) == (2, 2, 0, 0)


def test_a_run_settled_right_behind_the_watermark_is_stepped_over(made: Situations, admin: Admin) -> None:
    """`message.transaction()` settles by a row of its own until the next flush: the lane waits for what follows."""
    made.fill("k", 8)
    made.place("k", 3)
    made.row("k", 4, through=5, acked=1)
    made.row("k", 6, acked=1)
    made.row("k", 7, retry_count=2, last_error="boom", due=90)
    seen = lane(admin, "k")
    assert (seen.lag, seen.state, seen.attempts, seen.last_error) == (2, MessageState.RETRYABLE, 2, "boom")


def test_a_lane_settled_to_its_head_ahead_of_the_watermark_waits_for_nothing(made: Situations, admin: Admin) -> None:
    """Everything is settled, though the watermark is still to be raised."""
    made.fill("k", 4)
    made.place("k", 1)
    made.row("k", 2, through=4, acked=1)
    seen = lane(admin, "k")
    assert (seen.lag, seen.oldest_age, seen.state, seen.attempts) == (0, None, None, 0)


def test_a_lane_that_the_group_has_not_reached_starts_at_its_floor(made: Situations, admin: Admin) -> None:
    """Without a row of the group nothing above the floor is settled, and nothing below it will be delivered."""
    made.fill("k", 6)
    made.place("k", 4, group="", marked_through=3)
    seen = lane(admin, "k")
    assert (seen.watermark, seen.floor, seen.lag, seen.lease_epoch) == (4, 4, 2, 0)
    assert (seen.owner, seen.owner_state, seen.lease_left) == (None, None, None)
    (place,) = admin.offsets("t", key="k")
    assert (place.deleted_through, place.updated_at, place.marked_at) == (3, None, None)


def test_a_hole_behind_the_watermark_does_not_hide_the_age(made: Situations, admin: Admin) -> None:
    """The age of a hole in the log is that of the next message."""
    made.fill("k", 5)
    made.place("k", 2)
    made.lose("k", 3)
    made.written("k", 4, ago=700)
    seen = lane(admin, "k")
    assert seen.lag == 3
    assert around(seen.oldest_age, 700)
    made.lose("k", 4)
    made.lose("k", 5)
    assert lane(admin, "k").oldest_age is None


def test_messages_under_the_run_mark_of_the_owner_are_in_flight(made: Situations, admin: Admin) -> None:
    """Under the mark and without a row, or with a row of the present epoch; what was settled meanwhile is not."""
    made.fill("k", 9)
    made.owner("alice")
    made.lease("k", "alice", 7)
    made.place("k", 2, marked_through=7, marked_epoch=7, marked_at=8000)
    made.row("k", 4, retry_count=2, lease_epoch=7)
    made.row("k", 6, acked=1)
    made.row("k", 8, retry_count=1, lease_epoch=7)
    made.row("k", 9, retry_count=1, due=60)
    seen = lane(admin, "k")
    assert (seen.in_flight, seen.waiting, seen.lag) == (5, 1, 6)  # 3, 5, 7 by the mark; 4 and 8 by their rows
    assert (seen.state, seen.attempts, seen.next_attempt_in) == (MessageState.PROCESSING, 1, None)
    assert (seen.owner, seen.owner_state, seen.lease_epoch) == ("alice", OwnerState.ALIVE, 7)
    assert around(seen.lease_left, 3600)


def test_what_a_dead_epoch_had_in_flight_waits(made: Situations, admin: Admin) -> None:
    """Attempts of a dead epoch count, and are due at once whatever their rows say."""
    made.fill("k", 9)
    made.lease("k", "", 8)
    made.place("k", 2, marked_through=5, marked_epoch=7, marked_at=8000)
    made.row("k", 4, retry_count=3, lease_epoch=7, due=900)
    seen = lane(admin, "k")
    assert (seen.in_flight, seen.waiting) == (0, 3)
    assert (seen.state, seen.attempts, seen.next_attempt_in) == (MessageState.RETRYABLE, 1, 0.0)
    state = state_of(admin, "k", 4)
    assert (state.state, state.attempts, state.next_attempt_in) == (MessageState.RETRYABLE, 3, 0.0)


def test_a_paused_lane_says_by_whom_and_why(made: Situations, admin: Admin) -> None:
    """The answer distinguishes the lane's pause and the group's."""
    made.fill("k", 1)
    made.place("k", 0, paused_at=8000, paused_by="ada", pause_reason="disk")
    seen = lane(admin, "k")
    assert (seen.paused_by, seen.pause_reason, seen.group_paused) == ("ada", "disk", False)
    assert seen.paused_at == datetime(1970, 1, 1, 0, 0, 8, tzinfo=UTC)
    rows(made.raw, "UPDATE queue_groups SET paused_at = 9000, paused_by = 'bob', pause_reason = 'night'")
    (group,) = admin.groups("t")
    assert (group.paused_by, group.pause_reason, group.paused_lanes) == ("bob", "night", 1)
    assert lane(admin, "first").group_paused
    assert lane(admin, "first").paused_at is None
    assert state_of(admin, "first", 1).paused


def test_lanes_come_in_the_order_asked_for(made: Situations, admin: Admin) -> None:
    """The oldest first, the most behind first, or by key; the limit cuts the rest off."""
    for key, count, ago in (("a", 3, 100), ("b", 9, 50), ("c", 5, 400), ("d", 2, 0)):
        made.fill(key, count)
        made.written(key, 1, ago=ago)
    made.place("d", 2)
    made.place("b", 0)
    made.row("b", 2, through=8, acked=1)  # 2 are left, fewer than in a and c
    made.written("first", 1, ago=10)

    def keys(**options: Any) -> list[str]:
        return [lane.key for lane in admin.lanes("t", "g", **options)]

    assert keys() == ["c", "a", "b", "first", "d"]
    assert keys(limit=2) == ["c", "a"]
    assert keys(order_by="lag") == ["c", "a", "b", "first", "d"]
    assert keys(order_by="lag", limit=3) == ["c", "a", "b"]
    assert keys(order_by="key", limit=3) == ["a", "b", "c"]


def test_a_message_that_keeps_failing_is_among_the_oldest(made: Situations, admin: Admin) -> None:
    """With more lanes behind than are read, the first attempt chooses the message: its offsets row is always new."""
    for number in range(6):
        made.fill(f"k{number}", 2)
        made.place(f"k{number}", 0, updated_at=1_000_000 + number)
    made.place("first", 0, updated_at=8 * HOUR)
    made.row("first", 1, retry_count=3, first_attempt_at=1000)
    made.written("first", 1, ago=900)
    at = GroupTopic(topic="t", group="g")
    found = lanes.lanes(admin._database, at, order_by="age", limit=1, breadth=Breadth(candidates=2))
    assert [lane.key for lane in found] == ["first"]


def test_the_oldest_message_of_a_group_is_exact_or_said_to_be_a_lower_bound(made: Situations, admin: Admin) -> None:
    """The age is exact within the bound of look-ups of an answer. Each group has a share, and what others leave."""

    def groups(exact: int) -> list[GroupInfo]:
        return topics.groups(admin._database, "t", Breadth(exact=exact, candidates=2))

    made.register("h")
    made.register("a")
    for group in ("a", "g", "h"):
        made.place("first", 99, group=group)
    for number in range(6):
        made.fill(f"k{number}", 2)
        made.place(f"k{number}", 0, updated_at=1_000_000 + number)
        made.place(f"k{number}", 1, group="h", updated_at=1_000_000 + number)
    made.written("k5", 1, ago=900)  # in the lane that has made progress last
    made.written("k5", 2, ago=800)
    for number in range(3):
        made.place(f"k{number}", 2, group="a")
    first, second, third = groups(14)
    assert (first.group, first.lagging_lanes, first.oldest_age_exact) == ("a", 3, True)
    assert around(first.oldest_age, 900)
    assert (second.group, second.lagging_lanes, second.oldest_age_exact) == ("g", 6, False)  # 11 are left for two
    assert around(second.oldest_age, 0)
    assert not third.oldest_age_exact
    made.lose("k5", 2)
    exact = groups(15)
    assert [each.oldest_age_exact for each in exact] == [True] * 3
    assert around(exact[1].oldest_age, 900)
    assert around(exact[2].oldest_age, 0)  # a hole counts as new
    for number in range(6):
        made.place(f"k{number}", 2, group="h")
    assert groups(15)[2].oldest_age is None


def test_the_oldest_of_many_lanes_is_found_wherever_it_is(made: Situations, admin: Admin) -> None:
    """Several connections look into a part of the lanes each; every lane belongs to one part."""
    many = Breadth(candidates=2)
    made.place("first", 99)
    keys = [f"k{number}" for number in range(11)]
    for key in keys:
        made.fill(key, 1)
        made.place(key, 0)
    for number, key in enumerate(keys):
        made.written(key, 1, ago=1000 * (number + 1))
        (group,) = topics.groups(admin._database, "t", many)
        assert (group.lagging_lanes, group.oldest_age_exact) == (11, True)
        assert around(group.oldest_age, 1000 * (number + 1))
    for key in keys:
        made.place(key, 1)
    assert topics.groups(admin._database, "t", many)[0].oldest_age is None


# -- what must not happen ----------------------------------------------------------------------------------------------


def test_reading_waits_for_no_lock(lanelog_server: DevServer) -> None:
    """Every reading verb answers while somebody holds every row there is."""
    with (
        open_shop(lanelog_server) as url,
        connect(url) as raw,
        connect(url) as other,
        lanelog.connect(url) as client,
        Situations(raw).everything_locked(other),
    ):
        for verb in LOOKS:
            if verb.method:
                getattr(client.admin, verb.method)(*verb.args, **verb.options)


def test_lag_is_exact_while_it_changes(made: Situations, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Watermark and what is settled ahead of it are of one moment, also when a flush comes between."""
    made.fill("k", 10)
    made.place("k", 3)
    made.row("k", 5, through=9, acked=1)
    flushes = []

    def flush_first(*values: Any) -> lane_totals.OffsetsOfGroup:
        if not flushes:  # the watermarks were read, the rows above them not yet
            rows(made.raw, "UPDATE queue_offsets SET offset_acked = 9 WHERE consumer_group = 'g'")
            flushes.append(rows(made.raw, "DELETE FROM queue_delivery_state"))
        return place(*values)

    place = lane_totals.OffsetsOfGroup
    monkeypatch.setattr(lane_totals, "OffsetsOfGroup", flush_first)
    assert lane(admin, "k").lag == 2
    assert flushes
    assert lane(admin, "k").lag == 1
