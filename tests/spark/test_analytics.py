"""The analyses over small logs whose results are worked out by hand."""

from collections.abc import Sequence
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from lanelog.spark import analytics

LOG = (
    "topic string, key string, offset bigint, bytes bigint, created_at timestamp, failed_at timestamp, "
    "failed_group string, last_error string, original_topic string"
)
OUTCOMES = (
    "consumer_group string, topic string, key string, message_offset bigint, outcome string, attempts bigint, "
    "published_at timestamp, finished_at timestamp"
)
GROUPS = "consumer_group string, topic string, history_ms bigint, delivery_order string"
SUCCESSES = "consumer_group string, topic string, ms bigint"
GLYPH = "schlüssel-𝄞-🦊"  # the last two take four bytes each


def at(clock: str) -> datetime:
    """A time of 1 June 2026, UTC."""
    return datetime.fromisoformat(f"2026-06-01T{clock}+00:00")


def log(spark: SparkSession, *rows: Sequence[Any]) -> DataFrame:
    """Messages that are no dead letters: topic, key, offset, bytes, time."""
    return spark.createDataFrame([(*row, None, None, None, None) for row in rows], LOG)


def sizes(spark: SparkSession, topic: str, counts: Sequence[int]) -> DataFrame:
    """Lanes that hold as many messages as it says."""
    made = [(topic, f"k{n}", o, 1, at("00:00:00")) for n, count in enumerate(counts) for o in range(1, count + 1)]
    return analytics.lane_sizes(log(spark, *made))


# -- throughput --------------------------------------------------------------------------------------------------------


def test_throughput_is_counted_by_topic_and_hour(spark: SparkSession) -> None:
    """An hour holds what was written from its first millisecond to its last; topics are told apart."""
    found = analytics.throughput(
        log(
            spark,
            ("a", "k", 1, 10, at("09:59:59.999")),
            ("a", "k", 2, 20, at("10:00:00.000")),
            ("a", GLYPH, 1, 30, at("10:59:59.999")),
            ("b", "k", 1, 5, at("10:30:00")),
        )
    )
    hours = "topic string, start timestamp, messages bigint, bytes bigint"
    assertDataFrameEqual(
        found,
        spark.createDataFrame(
            [("a", at("09:00:00"), 1, 10), ("a", at("10:00:00"), 2, 50), ("b", at("10:00:00"), 1, 5)], hours
        ),
    )


def test_hours_are_those_of_utc_whatever_the_session(spark: SparkSession) -> None:
    """A session in a zone that is half an hour off counts by the same hours."""
    messages = log(spark, ("a", "k", 1, 1, at("10:15:00")), ("a", "k", 2, 1, at("10:45:00")))
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        assert [row.messages for row in analytics.throughput(messages).collect()] == [2]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_topics_are_added_up_with_their_busiest_hour(spark: SparkSession) -> None:
    """Of equally busy hours the first."""
    hours = spark.createDataFrame(
        [
            ("a", at("09:00:00"), 1, 10),
            ("a", at("11:00:00"), 3, 5),
            ("a", at("10:00:00"), 3, 1),
            (GLYPH, at("10:00:00"), 2, 7),
        ],
        "topic string, start timestamp, messages bigint, bytes bigint",
    )
    assertDataFrameEqual(
        analytics.busiest(hours),
        spark.createDataFrame(
            [("a", 7, 16, 3, at("10:00:00")), (GLYPH, 2, 7, 2, at("10:00:00"))],
            "topic string, messages bigint, bytes bigint, peak_messages bigint, peak_start timestamp",
        ),
    )


# -- latency and attempts ----------------------------------------------------------------------------------------------


def succeeded(spark: SparkSession, *rows: tuple[str, int]) -> DataFrame:
    """Successes of topic t: group, milliseconds."""
    return spark.createDataFrame([(group, "t", ms_) for group, ms_ in rows], SUCCESSES)


def test_a_success_counts_from_when_its_message_was_written(spark: SparkSession) -> None:
    """Not from the first publish, which a delay or a redrive lies behind; where the message is gone, from that."""
    left = [
        ("g", "t", GLYPH, 1, "success", 1, at("09:00:00"), at("10:00:00.007")),
        ("g", "t", GLYPH, 2, "success", 1, at("09:59:59"), at("10:00:00.500")),
        ("g", "other", GLYPH, 1, "success", 1, at("10:00:00"), at("10:00:00.003")),
        ("g", "t", GLYPH, 3, "failed", 5, at("10:00:00"), at("10:00:09")),
    ]
    written = log(spark, ("t", GLYPH, 1, 1, at("10:00:00")), ("t", GLYPH, 3, 1, at("10:00:00")))
    assertDataFrameEqual(
        analytics.successes(spark.createDataFrame(left, OUTCOMES), written),
        spark.createDataFrame([("g", "t", 7), ("g", "t", 1500), ("g", "other", 3)], SUCCESSES),
    )


def test_the_first_success_of_a_message_counts(spark: SparkSession) -> None:
    """What succeeds again after a seek took no longer for that; what failed before, took until it succeeded."""
    left = [
        ("g", "t", GLYPH, 1, "success", 1, at("10:00:00"), at("12:00:00")),
        ("g", "t", GLYPH, 1, "success", 1, at("10:00:00"), at("10:00:01")),
        ("h", "t", GLYPH, 1, "rejected", 1, at("10:00:00"), at("10:00:02")),
        ("h", "t", GLYPH, 1, "success", 1, at("10:00:00"), at("10:00:03")),
    ]
    assertDataFrameEqual(
        analytics.successes(spark.createDataFrame(left, OUTCOMES), log(spark, ("t", GLYPH, 1, 1, at("10:00:00")))),
        spark.createDataFrame([("g", "t", 1000), ("h", "t", 3000)], SUCCESSES),
    )


def outcomes(spark: SparkSession, *rows: tuple[str, str, int, int]) -> DataFrame:
    """Outcomes of topic t: group, outcome, attempts, milliseconds from publish to its end."""
    return spark.createDataFrame(
        [
            (group, "t", "k", n, outcome, tries, at("10:00:00"), datetime.fromtimestamp(1780308000 + ms / 1000, UTC))
            for n, (group, outcome, tries, ms) in enumerate(rows, 1)
        ],
        OUTCOMES,
    )


LATENCIES = (
    "consumer_group string, topic string, keeps_history boolean, samples bigint, p50_ms bigint, p95_ms bigint, "
    "p99_ms bigint, max_ms bigint"
)


def test_percentiles_are_latencies_that_were_measured(spark: SparkSession) -> None:
    """Of 1 to 100 ms each percentile is its own number; of four the median is the second."""
    hundred = [("g", ms) for ms in range(100, 0, -1)]
    four = [("h", ms) for ms in (40, 10, 30, 20)]
    found = analytics.latency(
        succeeded(spark, *hundred, *four),
        spark.createDataFrame([("g", "t", 1, "strict"), ("h", "t", 1, "serial")], GROUPS),
    )
    assertDataFrameEqual(
        found,
        spark.createDataFrame([("g", "t", True, 100, 50, 95, 99, 100), ("h", "t", True, 4, 20, 40, 40, 40)], LATENCIES),
    )


def test_one_sample_is_every_percentile(spark: SparkSession) -> None:
    """A group with a single success has that latency throughout."""
    groups = spark.createDataFrame([("g", "t", 1, "strict")], GROUPS)
    found = analytics.latency(succeeded(spark, ("g", 7)), groups)
    assertDataFrameEqual(found, spark.createDataFrame([("g", "t", True, 1, 7, 7, 7, 7)], LATENCIES))


def test_a_group_without_history_says_so(spark: SparkSession) -> None:
    """It has a row without figures; one that is archived, but no longer registered, has figures.

    An archive's group, and a replay's, have no handlers, and no row.
    """
    groups = [("silent", "t", 0, "strict"), ("_archive", "t", 0, "archive"), ("_replay-x", "t", 0, "replay")]
    found = analytics.latency(succeeded(spark, ("gone", 3)), spark.createDataFrame(groups, GROUPS))
    assertDataFrameEqual(
        found,
        spark.createDataFrame(
            [("silent", "t", False, 0, None, None, None, None), ("gone", "t", None, 1, 3, 3, 3, 3)], LATENCIES
        ),
    )


def test_latencies_are_spread_over_classes(spark: SparkSession) -> None:
    """A class includes its upper bound; what is longer than the last is in the last."""
    longest = analytics.STEPS_MS[-1]
    found = analytics.latency_spread(succeeded(spark, *(("g", ms) for ms in (0, 1, 2, 3, 5, 6, longest, longest + 1))))
    assertDataFrameEqual(
        found,
        spark.createDataFrame(
            [("g", "t", bound, n) for bound, n in ((1, 2), (2, 1), (5, 2), (10, 1), (longest, 2))],
            "consumer_group string, topic string, upto_ms bigint, messages bigint",
        ),
    )


def test_attempts_are_counted_by_how_they_ended(spark: SparkSession) -> None:
    """One row for each number of attempts and outcome."""
    found = analytics.attempts(
        outcomes(
            spark,
            ("g", "success", 1, 1),
            ("g", "success", 1, 1),
            ("g", "success", 3, 1),
            ("g", "failed", 3, 1),
            ("h", "skipped", 0, 1),
        )
    )
    assertDataFrameEqual(
        found,
        spark.createDataFrame(
            [
                ("g", "t", 1, "success", 2),
                ("g", "t", 3, "success", 1),
                ("g", "t", 3, "failed", 1),
                ("h", "t", 0, "skipped", 1),
            ],
            "consumer_group string, topic string, attempts bigint, outcome string, messages bigint",
        ),
    )


# -- dead letters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("TimeoutError: no answer after 12.5 s\nTraceback …", "TimeoutError: no answer after # s"),
        ("\r\n  \n  KeyError: 'k17'\r\nmore", "KeyError: 'k#'"),
        ("order 1,234,567 of 2026-06-01 is unknown", "order # of #-#-# is unknown"),
        ("no row 0xDEADBEEF in 10.11.19", "no row # in #"),
        ("job 6f1c2a9e-11d2-4c3b-9a55-0123456789ab is gone", "job # is gone"),
        ("commit 3f786850e387550fdab836ed7e6dc881de23001b is missing", "commit # is missing"),
        ("a feedfacebeef is no number", "a feedfacebeef is no number"),
        (f"{GLYPH} 7", f"{GLYPH} #"),
        ("", ""),
        (None, ""),
        ("  ", ""),
        ("x" * 300, "x" * 200),
    ],
)
def test_a_reason_is_the_first_line_without_its_numbers(spark: SparkSession, error: str | None, reason: str) -> None:
    """What differs each time is `#`; what is no number stays."""
    given_ = spark.createDataFrame([(error,)], "last_error string")
    assert given_.select(analytics.reason_of("last_error").alias("r")).first().r == reason  # type: ignore[union-attr]


def test_dead_letters_are_grouped_by_reason(spark: SparkSession) -> None:
    """By original topic, group and reason, with the first, the last and the last one's place; the rest is left out.

    And how many of them still wait for somebody, if that is known.
    """
    rows = [
        ("a_dlq", "k", 1, 1, at("10:00:00"), at("09:00:01"), "g", "timeout after 5 s", "a"),
        ("a_dlq", GLYPH, 1, 1, at("10:00:00"), at("09:00:03"), "g", "timeout after 17 s", "a"),
        ("a_dlq", "k", 2, 1, at("10:00:00"), at("09:00:02"), "g", None, "a"),
        ("a_dlq", "k", 3, 1, at("10:00:00"), at("09:00:04"), "h", "timeout after 5 s", "a"),
        ("a", "k", 1, 1, at("10:00:00"), None, None, None, None),
        ("a", "k", 2, 1, at("10:00:00"), None, "", "a note", ""),
    ]
    left = spark.createDataFrame([("a_dlq", GLYPH, 1), ("a_dlq", "k", 2)], "topic string, key string, offset bigint")
    columns = (
        "original_topic string, failed_group string, reason string, dead_letters bigint, outstanding bigint, "
        "first_failed_at timestamp, last_failed_at timestamp, example_topic string, example_key string, "
        "example_offset bigint"
    )
    for (first, second, third), waiting in (((1, 1, 0), left), ((None, None, None), None)):
        assertDataFrameEqual(
            analytics.dead_letters(spark.createDataFrame(rows, LOG), waiting),
            spark.createDataFrame(
                [
                    ("a", "g", "timeout after # s", 2, first, at("09:00:01"), at("09:00:03"), "a_dlq", GLYPH, 1),
                    ("a", "g", "", 1, second, at("09:00:02"), at("09:00:02"), "a_dlq", "k", 2),
                    ("a", "h", "timeout after # s", 1, third, at("09:00:04"), at("09:00:04"), "a_dlq", "k", 3),
                ],
                columns,
            ),
        )


# -- lanes -------------------------------------------------------------------------------------------------------------


def test_the_busiest_lanes_come_first(spark: SparkSession) -> None:
    """By messages, then by key; at most so many of each topic; a share is of the topic alone."""
    rows = [
        ("a", key, n, 10, at("10:00:00"))
        for key, count in ((GLYPH, 3), ("b", 2), ("a", 2), ("z", 1))
        for n in range(count)
    ]
    found = analytics.hot_lanes(log(spark, *rows, ("other", "k", 1, 1, at("10:00:00"))), most=3)
    assertDataFrameEqual(
        found,
        spark.createDataFrame(
            [
                ("a", 1, GLYPH, 3, 30, 0.375),
                ("a", 2, "a", 2, 20, 0.25),
                ("a", 3, "b", 2, 20, 0.25),
                ("other", 1, "k", 1, 1, 1.0),
            ],
            "topic string, place int, key string, messages bigint, bytes bigint, share double",
        ),
    )


SKEWS = "topic string, lanes bigint, messages bigint, top_lanes bigint, top_share double, gini double"


def test_equal_lanes_have_no_skew(spark: SparkSession) -> None:
    """Gini 0, and the top 1 % of 200 lanes has its 1 %."""
    found = analytics.skew(sizes(spark, "a", [3] * 200))
    assertDataFrameEqual(found, spark.createDataFrame([("a", 200, 600, 2, 0.01, 0.0)], SKEWS))


def test_skew_of_lanes_worked_out_by_hand(spark: SparkSession) -> None:
    """1, 1, 2, 4: (-3 - 1 + 2 + 12) / (4 * 8); one lane: 0; the top 1 % is one lane at least."""
    found = analytics.skew(sizes(spark, "a", [4, 1, 2, 1]).unionAll(sizes(spark, "b", [5])))
    assertDataFrameEqual(found, spark.createDataFrame([("a", 4, 8, 1, 0.5, 10 / 32), ("b", 1, 5, 1, 1.0, 0.0)], SKEWS))


def test_sizes_far_beyond_64_bits_in_sum_stay_exact(spark: SparkSession) -> None:
    """Half of four thousand million lanes with a thousand messages each, half with three thousand: Gini 1/4."""
    half = 2_000_000_000
    given_ = spark.createDataFrame(
        [("a", 1000, half), ("a", 3000, half)], "topic string, messages bigint, lanes bigint"
    )
    found = analytics.skew(given_).collect()
    assert [(row.messages, row.gini) for row in found] == [(4000 * half, 0.25)]
    assert found[0].top_share == 120 / 8000  # 40 million lanes of 3,000 of 8 million million messages


def direct_gini(counts: Sequence[int]) -> Fraction:
    """The mean absolute difference of all pairs, over twice the mean."""
    pairs = sum(abs(a - b) for a in counts for b in counts)
    return Fraction(pairs, 2 * len(counts) * sum(counts))


def direct_top(counts: Sequence[int]) -> Fraction:
    """The part of the largest hundredth, rounded up."""
    top = sorted(counts, reverse=True)[: -(-len(counts) // 100)]
    return Fraction(sum(top), sum(counts))


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(topics=st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=250), min_size=1, max_size=40))
def test_skew_is_that_of_the_direct_formulas(spark: SparkSession, topics: list[list[int]]) -> None:
    """For any lanes: Gini by all pairs, and the top hundredth by sorting."""
    rows = [(str(n), size, counts.count(size)) for n, counts in enumerate(topics) for size in set(counts)]
    found = analytics.skew(spark.createDataFrame(rows, "topic string, messages bigint, lanes bigint")).collect()
    assert {row.topic: (row.gini, row.top_share) for row in found} == {
        str(n): (float(direct_gini(counts)), float(direct_top(counts))) for n, counts in enumerate(topics)
    }


# -- archive and live log ----------------------------------------------------------------------------------------------

KEY = ("topic", "key", "offset")


def ms(clock: str) -> int:
    """Epoch milliseconds of that time."""
    return round(at(clock).timestamp() * 1000)


def test_what_archive_and_live_log_both_hold_is_counted_once(spark: SparkSession) -> None:
    """The union has every (topic, key, offset) once; equal offsets of other lanes are other messages."""
    archived = log(spark, *(("a", key, n, 1, at("10:00:00")) for key in ("k", GLYPH) for n in (1, 2, 3)))
    live = log(spark, *(("a", "k", n, 1, at("10:00:00")) for n in (3, 4)), ("b", "k", 1, 1, at("10:00:00")))
    found = analytics.until(archived, live, ms("11:00:00"), instant="created_at", key=KEY)
    assert sorted((row.topic, row.key, row.offset) for row in found.collect()) == sorted(
        [*(("a", "k", n) for n in (1, 2, 3, 4)), *(("a", GLYPH, n) for n in (1, 2, 3)), ("b", "k", 1)]
    )


def test_what_is_newer_than_the_cut_off_is_in_neither(spark: SparkSession) -> None:
    """The cut-off's own millisecond belongs to it, the next does not, wherever the message is."""
    rows = [("a", "k", n, 1, at(clock)) for n, clock in ((1, "10:00:00.000"), (2, "10:00:00.001"))]
    nothing = log(spark)
    for archived, live in ((log(spark, *rows), nothing), (nothing, log(spark, *rows)), (log(spark, *rows),) * 2):
        found = analytics.until(archived, live, ms("10:00:00"), instant="created_at", key=KEY)
        assert [row.offset for row in found.collect()] == [1]


def test_the_last_outcome_within_the_cut_off_counts(spark: SparkSession) -> None:
    """A message that left its group again after a seek counts once, as it left last by then."""
    columns = (
        "consumer_group string, topic string, key string, message_offset bigint, finished_at timestamp, "
        "published_at timestamp, outcome string, attempts bigint"
    )
    first = ("g", "t", GLYPH, 1, at("10:00:00"), at("09:00:00"), "failed", 5)
    again = ("g", "t", GLYPH, 1, at("10:00:05"), at("09:00:00"), "success", 1)
    other = ("h", "t", GLYPH, 1, at("10:00:02"), at("09:00:00"), "success", 2)
    archived = spark.createDataFrame([first, other], columns)
    live = spark.createDataFrame([other, again], columns)
    key = (*columns.replace(" string", "").split(", ")[:3], "message_offset", "finished_at")
    for cutoff, last in (("10:00:05", again), ("10:00:04.999", first)):
        found = analytics.until(archived, live, ms(cutoff), instant="finished_at", key=key)
        assertDataFrameEqual(analytics.last_outcomes(found), spark.createDataFrame([last, other], columns))


def test_slim_messages_have_the_size_of_their_payload(spark: SparkSession) -> None:
    """Whether the payload itself was read or not."""
    whole = (
        "topic string, key string, offset bigint, value binary, created_at timestamp, payload_bytes int, "
        "failed_at timestamp, failed_group string, last_error string, original_topic string"
    )
    row = ("a", "k", 1, None, at("10:00:00"), 5, None, None, None, None)
    assertDataFrameEqual(analytics.slim(spark.createDataFrame([row], whole)), log(spark, (*row[:3], 5, row[4])))


def test_any_step_of_time_can_be_counted_by(spark: SparkSession) -> None:
    """Steps begin at their multiples; the sum is the same."""
    found = analytics.throughput(
        log(spark, *(("a", "k", n, 1, at(f"10:00:{n:02}")) for n in (9, 10, 19, 20))), step_ms=10_000
    )
    assert sorted((row.start.second, row.messages) for row in found.collect()) == [(0, 1), (10, 2), (20, 1)]


def test_nothing_at_all_is_empty_everywhere(spark: SparkSession) -> None:
    """Empty input gives empty tables of the same columns."""
    nothing, none_left, no_success = log(spark), outcomes(spark), succeeded(spark)
    assert not nothing.collect()
    tables = [
        analytics.throughput(nothing),
        analytics.busiest(analytics.throughput(nothing)),
        analytics.successes(none_left, nothing),
        analytics.latency(no_success, spark.createDataFrame([], GROUPS)),
        analytics.latency_spread(no_success),
        analytics.attempts(none_left),
        analytics.dead_letters(nothing, nothing.select("topic", "key", "offset")),
        analytics.hot_lanes(nothing),
        analytics.skew(analytics.lane_sizes(nothing)),
        analytics.until(nothing, nothing, 0, instant="created_at", key=KEY),
    ]
    assert [table.collect() for table in tables] == [[]] * len(tables)
