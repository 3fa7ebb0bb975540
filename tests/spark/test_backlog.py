"""Lag, ages and stalled lanes over small logs whose results are worked out by hand."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from lanelog.spark import analytics

LOG = "topic string, key string, offset bigint, created_at timestamp"
GROUPS = "consumer_group string, topic string, paused_at timestamp, delivery_order string"
OFFSETS = (
    "consumer_group string, topic string, key string, offset_acked bigint, paused_at timestamp, updated_at timestamp"
)
STATES = (
    "consumer_group string, topic string, key string, message_offset bigint, through_offset bigint, acked boolean, "
    "retry_count int, last_error string"
)
BACKLOG = (
    "consumer_group string, topic string, key string, lag bigint, oldest_offset bigint, oldest_at timestamp, "
    "moved_at timestamp, paused boolean, role string"
)
GLYPH = "𝄞🦊"


def at(clock: str) -> datetime:
    """A time of 1 June 2026, UTC."""
    return datetime.fromisoformat(f"2026-06-01T{clock}+00:00")


def ms(clock: str) -> int:
    """Epoch milliseconds of that time."""
    return round(at(clock).timestamp() * 1000)


def messages(spark: SparkSession, *lanes: tuple[str, str, int, int]) -> DataFrame:
    """Topic, key, first and last offset; offset n was written at 10:00 and n seconds."""
    rows = [(topic, key, n, at(f"10:00:{n:02}")) for topic, key, first, last in lanes for n in range(first, last + 1)]
    return spark.createDataFrame(rows, LOG)


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
        spark.createDataFrame(list(groups), GROUPS),
        spark.createDataFrame(list(offsets), OFFSETS),
        spark.createDataFrame(list(states), STATES),
    )


def test_unsettled_is_what_no_watermark_floor_or_acked_row_covers(spark: SparkSession) -> None:
    """Each group by its own watermark, or the lane's floor; what is acked ahead is settled, also a whole run of it."""
    found = backlog(
        spark,
        messages(spark, ("t", GLYPH, 3, 9), ("t", "new", 1, 2), ("other", GLYPH, 1, 5)),
        [("g", "t", None, "strict"), ("h", "t", None, "strict")],
        [
            ("", "t", GLYPH, 4, None, at("09:00:00")),
            ("g", "t", GLYPH, 6, None, at("10:01:00")),
            ("g", "other", GLYPH, 2, None, at("10:01:00")),
        ],
        [
            ("g", "t", GLYPH, 8, 9, True, 0, None),
            ("h", "t", GLYPH, 5, 5, False, 2, "no"),
            ("h", "t", "new", 1, 1, True, 0, None),
            ("h", "other", GLYPH, 1, 9, True, 0, None),
        ],
    )
    assertDataFrameEqual(
        found,
        spark.createDataFrame(
            [
                ("g", "t", GLYPH, 1, 7, at("10:00:07"), at("10:01:00"), False, "consumer"),
                ("g", "t", "new", 2, 1, at("10:00:01"), None, False, "consumer"),
                ("h", "t", GLYPH, 5, 5, at("10:00:05"), None, False, "consumer"),
                ("h", "t", "new", 1, 2, at("10:00:02"), None, False, "consumer"),
            ],
            BACKLOG,
        ),
    )


def test_a_group_that_has_settled_everything_has_no_backlog_and_lag_nought(spark: SparkSession) -> None:
    """It is in the list of lags all the same, and nothing of it has an age."""
    groups = [("done", "t", None, "strict"), ("late", "t", at("10:00:30"), "replay")]
    unsettled = backlog(
        spark,
        messages(spark, ("t", "k", 1, 3), ("t", "l", 2, 2)),
        groups,
        [("done", "t", "k", 3, None, at("10:00:20")), ("done", "t", "l", 2, None, at("10:00:20"))],
    )
    found = analytics.lag(unsettled, spark.createDataFrame(groups, GROUPS), ms("10:01:00"))
    assertDataFrameEqual(
        found,
        spark.createDataFrame(
            [("done", "t", 0, 0, None, False, "consumer"), ("late", "t", 2, 4, 59_000, True, "replay")],
            "consumer_group string, topic string, lanes bigint, lag bigint, oldest_ms bigint, paused boolean, "
            "role string",
        ),
    )


def test_a_lane_stalls_that_had_something_to_do_and_did_nothing(spark: SparkSession) -> None:
    """Still since its row last moved, or since its oldest message came if that was later; a second less is no stall.

    Nothing stalls an archive, which runs now and then, or a replay's group, which never moves.
    """
    groups = [
        ("g", "t", None, "strict"),
        ("p", "t", at("10:00:00"), "concurrent"),
        ("_archive", "t", None, "archive"),
        ("_replay-x", "t", None, "replay"),
    ]
    states = [
        ("g", "t", "failing", 2, 2, False, 3, "boom"),
        ("g", "t", "failing", 3, 3, False, 1, "another"),
        ("g", "t", "busy", 1, 1, False, 1, None),
    ]
    unsettled = backlog(
        spark,
        messages(spark, *(("t", key, 1, 3) for key in ("failing", "moves", "busy")), ("t", "recent", 50, 50)),
        groups,
        [
            ("g", "t", "failing", 1, None, at("10:00:10")),
            ("g", "t", "moves", 1, None, at("10:04:11")),
            ("g", "t", "busy", 0, None, at("09:00:00")),
            ("g", "t", "recent", 49, None, at("09:00:00")),
            ("p", "t", "failing", 3, None, at("10:00:10")),
            ("p", "t", "moves", 2, None, at("10:00:10")),
            ("p", "t", "busy", 3, None, at("10:00:10")),
            ("p", "t", "recent", 50, None, at("10:00:10")),
        ],
        states,
    )
    found = analytics.stalled_lanes(unsettled, spark.createDataFrame(states, STATES), ms("10:05:10"), 60_000)
    assertDataFrameEqual(
        found,
        spark.createDataFrame(
            [
                ("g", "t", "failing", 2, 300_000, "retrying", 3, "boom"),
                ("g", "t", "busy", 3, 309_000, "waiting", 1, None),
                ("g", "t", "recent", 1, 260_000, "waiting", 0, None),
                ("p", "t", "moves", 1, 300_000, "paused", 0, None),
            ],
            "consumer_group string, topic string, key string, lag bigint, still_ms bigint, state string, "
            "attempts bigint, last_error string",
        ),
    )


def test_a_lane_paused_for_one_group_is_paused_for_that_group(spark: SparkSession) -> None:
    """The others have the same lag, and no pause."""
    found = backlog(
        spark,
        messages(spark, ("t", "k", 1, 1)),
        [("g", "t", None, "strict"), ("h", "t", None, "strict")],
        [("g", "t", "k", 0, at("10:00:00"), at("10:00:00")), ("h", "t", "k", 0, None, at("10:00:00"))],
    )
    assert {row.consumer_group: (row.lag, row.paused) for row in found.collect()} == {"g": (1, True), "h": (1, False)}


def test_no_log_no_backlog(spark: SparkSession) -> None:
    """Empty tables give empty tables, and groups without anything to do."""
    unsettled = backlog(spark, messages(spark), [("g", "t", None, "strict")])
    states = spark.createDataFrame([], STATES)
    assert unsettled.collect() == []
    assert analytics.stalled_lanes(unsettled, states, 0, 0).collect() == []
    lags = analytics.lag(unsettled, spark.createDataFrame([("g", "t", None, "strict")], GROUPS), 0).collect()
    assert [tuple(row) for row in lags] == [("g", "t", 0, 0, None, False, "consumer")]
