"""Lag, ages, stalled lanes and dead letters left over small logs whose results are worked out by hand."""

from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from lanelog.spark import analytics
from support.spark import frame, ms, same

pytestmark = pytest.mark.thorough

LOG = "topic string, key string, offset bigint, created_at timestamp"
GROUPS = "consumer_group string, topic string, paused_at timestamp, delivery_order string, created_at timestamp"
OFFSETS = (
    "consumer_group string, topic string, key string, offset_acked bigint, paused_at timestamp, updated_at timestamp"
)
STATES = (
    "consumer_group string, topic string, key string, message_offset bigint, through_offset bigint, acked boolean, "
    "retry_count int, last_error string, postponed int, invisible_until timestamp, first_attempt_at timestamp"
)
STALLED = (
    "consumer_group string, topic string, key string, lag bigint, still_ms bigint, state string, attempts bigint, "
    "last_error string"
)
BACKLOG = (
    "consumer_group string, topic string, key string, lag bigint, oldest_offset bigint, oldest_at timestamp, "
    "registered_at timestamp, moved_at timestamp, paused boolean, role string"
)
GLYPH = "𝄞🦊"


def messages(spark: SparkSession, *lanes: tuple[str, str, int, int]) -> DataFrame:
    """Topic, key, first and last offset; offset n was written at 10:00 and n seconds."""
    rows = ((topic, key, n, f"10:00:{n:02}") for topic, key, first, last in lanes for n in range(first, last + 1))
    return frame(spark, LOG, *rows)


def state(*row: Any, postponed: int = 0, until: str | None = None, first: str | None = None) -> tuple[Any, ...]:
    """A delivery row: the columns up to last_error, how often it was postponed, until when, when it was first tried."""
    return (*row, postponed, until, first)


def group(name: str, order: str = "strict", *, paused: str | None = None, since: str = "08:00:00") -> tuple[Any, ...]:
    """A group of the topic t, registered before anything was written."""
    return (name, "t", paused, order, since)


def backlog(
    spark: SparkSession,
    log: DataFrame,
    groups: Sequence[tuple[Any, ...]],
    offsets: Sequence[tuple[Any, ...]] = (),
    states: Sequence[tuple[Any, ...]] = (),
) -> DataFrame:
    """What is unsettled."""
    return analytics.backlog(
        log,
        frame(spark, GROUPS, *groups),
        frame(spark, OFFSETS, *offsets),
        frame(spark, STATES, *states),
    )


def test_unsettled_is_what_no_watermark_floor_or_acked_row_covers(spark: SparkSession) -> None:
    """Each group by its own watermark, or the lane's floor; what is acked ahead is settled, also a whole run of it.

    A lane that is paused for one group is paused for that group.
    """
    found = backlog(
        spark,
        messages(spark, ("t", GLYPH, 3, 9), ("t", "new", 1, 2), ("other", GLYPH, 1, 5)),
        [group("g"), group("h")],
        [
            ("", "t", GLYPH, 4, None, "09:00:00"),
            ("g", "t", GLYPH, 6, "10:00:30", "10:01:00"),
            ("g", "other", GLYPH, 2, None, "10:01:00"),
        ],
        [
            state("g", "t", GLYPH, 8, 9, True, 0, None),
            state("h", "t", GLYPH, 5, 5, False, 2, "no"),
            state("h", "t", "new", 1, 1, True, 0, None),
            state("h", "other", GLYPH, 1, 9, True, 0, None),
        ],
    )
    same(
        found,
        BACKLOG,
        ("g", "t", GLYPH, 1, 7, "10:00:07", "08:00:00", "10:01:00", True, "consumer"),
        ("g", "t", "new", 2, 1, "10:00:01", "08:00:00", None, False, "consumer"),
        ("h", "t", GLYPH, 5, 5, "10:00:05", "08:00:00", None, False, "consumer"),
        ("h", "t", "new", 1, 2, "10:00:02", "08:00:00", None, False, "consumer"),
    )


def test_a_group_that_has_settled_everything_has_no_backlog_and_lag_nought(spark: SparkSession) -> None:
    """The group is in the list of lags all the same, and nothing of it has an age."""
    groups = [group("done"), group("late", "replay", paused="10:00:30")]
    unsettled = backlog(
        spark,
        messages(spark, ("t", "k", 1, 3), ("t", "l", 2, 2)),
        groups,
        [("done", "t", "k", 3, None, "10:00:20"), ("done", "t", "l", 2, None, "10:00:20")],
    )
    found = analytics.lag(unsettled, frame(spark, GROUPS, *groups), ms("10:01:00"))
    same(
        found,
        "consumer_group string, topic string, lanes bigint, lag bigint, oldest_ms bigint, paused boolean, role string",
        ("done", "t", 0, 0, None, False, "consumer"),
        ("late", "t", 2, 4, 59_000, True, "replay"),
    )


def test_a_lane_stalls_that_had_something_to_do_and_did_nothing(spark: SparkSession) -> None:
    """Still since its row last moved, or since its oldest message came if that was later; a second less is no stall.

    Nothing stalls an archive, which runs now and then, or a replay's group, which never moves.
    """
    groups = [
        group("g"),
        group("p", "concurrent", paused="10:00:00"),
        group("_archive", "archive"),
        group("_replay-x", "replay"),
    ]
    states = [
        state("g", "t", "failing", 2, 2, False, 3, "boom"),
        state("g", "t", "failing", 3, 3, False, 1, "another"),
        state("g", "t", "busy", 1, 1, False, 1, None),
    ]
    unsettled = backlog(
        spark,
        messages(spark, *(("t", key, 1, 3) for key in ("failing", "moves", "busy")), ("t", "recent", 50, 50)),
        groups,
        [
            ("g", "t", "failing", 1, None, "10:00:10"),
            ("g", "t", "moves", 1, None, "10:04:11"),
            ("g", "t", "busy", 0, None, "09:00:00"),
            ("g", "t", "recent", 49, None, "09:00:00"),
            ("p", "t", "failing", 3, None, "10:00:10"),
            ("p", "t", "moves", 2, None, "10:00:10"),
            ("p", "t", "busy", 3, None, "10:00:10"),
            ("p", "t", "recent", 50, None, "10:00:10"),
        ],
        states,
    )
    found = analytics.stalled_lanes(unsettled, frame(spark, STATES, *states), ms("10:05:10"), 60_000)
    same(
        found,
        STALLED,
        ("g", "t", "failing", 2, 300_000, "retrying", 3, "boom"),
        ("g", "t", "busy", 3, 309_000, "waiting", 1, None),
        ("g", "t", "recent", 1, 260_000, "waiting", 0, None),
        ("p", "t", "moves", 1, 300_000, "paused", 0, None),
    )


def test_an_oldest_message_that_fails_stalls_its_lane_since_its_first_attempt(spark: SparkSession) -> None:
    """Whatever changed the lane's row since; not since before it was written, as after a seek; later, not earlier."""
    groups = [group("g", "serial")]
    states = [
        state("g", "t", "fails", 1, 1, False, 9, "boom", first="10:01:00"),
        state("g", "t", "runs", 1, 1, False, 2, None, first="10:01:00"),
        state("g", "t", "later", 1, 1, False, 1, "boom", first="10:04:59"),
        state("g", "t", "unmoved", 1, 1, False, 1, "boom", first="10:04:59"),
        state("g", "t", "again", 5, 5, False, 2, "boom", first="09:00:00"),
    ]
    unsettled = backlog(
        spark,
        messages(spark, *(("t", key, 1, 1) for key in ("fails", "runs", "later", "unmoved")), ("t", "again", 5, 5)),
        groups,
        [
            *(("g", "t", key, 0, None, "10:05:00") for key in ("fails", "runs")),
            ("g", "t", "later", 0, None, "10:00:30"),
            ("g", "t", "again", 4, None, "10:05:00"),
        ],
        states,
    )
    found = analytics.stalled_lanes(unsettled, frame(spark, STATES, *states), ms("10:05:00"), 60_000)
    same(
        found,
        STALLED,
        ("g", "t", "fails", 1, 240_000, "retrying", 9, "boom"),
        ("g", "t", "runs", 1, 240_000, "retrying", 2, None),
        ("g", "t", "later", 1, 270_000, "retrying", 1, "boom"),
        ("g", "t", "unmoved", 1, 299_000, "retrying", 1, "boom"),
        ("g", "t", "again", 1, 295_000, "retrying", 2, "boom"),
    )


def test_no_lane_stalls_since_before_its_group_was_registered(spark: SparkSession) -> None:
    """Neither one that it has no row of yet, however old the messages are, nor one whose row is older than it."""
    unsettled = backlog(
        spark,
        messages(spark, ("t", GLYPH, 1, 3), ("t", "row", 1, 3), ("t", "recent", 59, 59)),
        [group("new", since="10:00:50"), group("newer", since="10:04:01"), group("old")],
        [("new", "t", "row", 1, None, "09:00:00")],
    )
    found = analytics.stalled_lanes(unsettled, frame(spark, STATES), ms("10:05:00"), 60_000)
    assert {(row.consumer_group, row.key): row.still_ms for row in found.collect()} == {
        ("new", GLYPH): 250_000,
        ("new", "row"): 250_000,
        ("new", "recent"): 241_000,
        ("old", GLYPH): 299_000,
        ("old", "row"): 299_000,
        ("old", "recent"): 241_000,
    }
    lags = analytics.lag(unsettled, frame(spark, GROUPS, group("newer")), ms("10:05:00"))
    assert [row.oldest_ms for row in lags.collect()] == [299_000]  # how old a message is has nothing to do with it


def test_a_lane_whose_handler_wants_it_still_is_postponed(spark: SparkSession) -> None:
    """Until after the cut-off, and while no attempt has begun since; not where an operator has paused it.

    Afterwards it waits for somebody to take it: it has not failed.
    """
    states = [
        state("g", "t", "long", 1, 1, False, 0, None, postponed=2, until="10:05:00.001"),
        state("g", "t", "over", 1, 1, False, 0, "postponed by 60 s", postponed=2, until="10:05:00"),
        state("g", "t", "failed", 1, 1, False, 1, "boom", postponed=2, until="11:00:00"),
        state("g", "t", "never", 1, 1, False, 0, None, until="11:00:00"),
        state("g", "t", "stopped", 1, 1, False, 0, None, postponed=1, until="11:00:00"),
    ]
    unsettled = backlog(
        spark,
        messages(spark, *(("t", row[2], 1, 1) for row in states)),
        [group("g")],
        [("g", "t", "stopped", 0, "10:00:02", "10:00:02")],
        states,
    )
    found = analytics.stalled_lanes(unsettled, frame(spark, STATES, *states), ms("10:05:00"), 60_000)
    assert {row.key: row.state for row in found.collect()} == {
        "long": "postponed",
        "over": "waiting",
        "failed": "retrying",
        "never": "waiting",
        "stopped": "paused",
    }


def test_an_error_is_shown_in_one_line(spark: SparkSession) -> None:
    """The first that is not blank, at most 500 characters of it."""
    error = "\r\n  " + GLYPH + "x" * 600 + "\nTraceback …"
    states = [state("g", "t", "k", 1, 1, False, 1, error)]
    unsettled = backlog(spark, messages(spark, ("t", "k", 1, 1)), [group("g")], (), states)
    found = analytics.stalled_lanes(unsettled, frame(spark, STATES, *states), ms("10:05:00"), 60_000)
    assert [row.last_error for row in found.collect()] == [GLYPH + "x" * 498]


def test_outstanding_is_a_dead_letter_that_no_row_of_the_reserved_group_settles(spark: SparkSession) -> None:
    """The alerting group that has read it settles nothing; what is no dead letter is none."""
    columns = "topic string, key string, offset bigint, failed_group string"
    log = [("d", GLYPH, 1, "g"), ("d", GLYPH, 2, "g"), ("d", "k", 1, "g"), ("d", "k", 2, None), ("d", "k", 3, "")]
    states = [
        state("", "d", GLYPH, 1, 1, True, 0, "redrive"),
        state("alert", "d", GLYPH, 2, 2, True, 0, None),
        state("", "other", "k", 1, 1, True, 0, None),
    ]
    found = analytics.outstanding(frame(spark, columns, *log), frame(spark, STATES, *states))
    same(found, "topic string, key string, offset bigint", ("d", GLYPH, 2), ("d", "k", 1))


def test_no_log_no_backlog(spark: SparkSession) -> None:
    """Empty tables give empty tables, and groups without anything to do."""
    unsettled = backlog(spark, messages(spark), [group("g")])
    states = frame(spark, STATES)
    assert (unsettled.collect(), analytics.stalled_lanes(unsettled, states, 0, 0).collect()) == ([], [])
    lags = analytics.lag(unsettled, frame(spark, GROUPS, group("g")), 0).collect()
    assert [tuple(row) for row in lags] == [("g", "t", 0, 0, None, False, "consumer")]
