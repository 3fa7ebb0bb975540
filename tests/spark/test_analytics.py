"""The analyses over small logs whose results are worked out by hand."""

import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from lanelog._base.reasons import reason_of
from lanelog.spark import analytics
from support.spark import frame, ms, same

pytestmark = pytest.mark.thorough

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
HOURS = "topic string, start timestamp, messages bigint, bytes bigint"
LATENCIES = (
    "consumer_group string, topic string, keeps_history boolean, samples bigint, p50_ms bigint, p95_ms bigint, "
    "p99_ms bigint, max_ms bigint"
)
SIZES = "topic string, messages bigint, lanes bigint"
SKEWS = "topic string, lanes bigint, messages bigint, top_lanes bigint, top_share double, gini double"
KEY = ("topic", "key", "offset")
GLYPH = "schlüssel-𝄞-🦊"  # the last two take four bytes each


def log(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    """Messages that are no dead letters: topic, key, offset, bytes, time."""
    return frame(spark, LOG, *((*row, None, None, None, None) for row in rows))


def succeeded(spark: SparkSession, *rows: tuple[str, int]) -> DataFrame:
    """Successes of topic t: group, milliseconds."""
    return frame(spark, SUCCESSES, *((group, "t", ms_) for group, ms_ in rows))


# -- throughput --------------------------------------------------------------------------------------------------------


def test_throughput_is_counted_by_topic_and_hour(spark: SparkSession) -> None:
    """An hour holds what was written from its first millisecond to its last; topics are counted apart.

    Any other step of time begins at its multiples.
    """
    messages = log(
        spark,
        ("a", "k", 1, 10, "09:59:59.999"),
        ("a", "k", 2, 20, "10:00:00.000"),
        ("a", GLYPH, 1, 30, "10:59:59.999"),
        ("b", "k", 1, 5, "10:30:00"),
    )
    ten = ("b", "10:00:00", 1, 5)
    same(analytics.throughput(messages), HOURS, ("a", "09:00:00", 1, 10), ("a", "10:00:00", 2, 50), ten)
    steps = [(3, 30, "09:59:50"), (2, 20, "10:00:00")]
    messages = log(spark, *(("a", "k", n, 10, f"{clock[:7]}{n}") for count, _, clock in steps for n in range(count)))
    found = analytics.throughput(messages, step_ms=10_000)
    same(found, HOURS, *(("a", clock, count, size) for count, size, clock in steps))


def test_hours_are_those_of_utc_whatever_the_session(spark: SparkSession) -> None:
    """A session in a zone that is half an hour off counts by the same hours."""
    messages = log(spark, ("a", "k", 1, 1, "10:15:00"), ("a", "k", 2, 1, "10:45:00"))
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        assert [row.messages for row in analytics.throughput(messages).collect()] == [2]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_topics_are_added_up_with_their_busiest_hour(spark: SparkSession) -> None:
    """Of equally busy hours the first."""
    hours = [("a", "09:00:00", 1, 10), ("a", "11:00:00", 3, 5), ("a", "10:00:00", 3, 1), (GLYPH, "10:00:00", 2, 7)]
    same(
        analytics.busiest(frame(spark, HOURS, *hours)),
        "topic string, messages bigint, bytes bigint, peak_messages bigint, peak_start timestamp",
        ("a", 7, 16, 3, "10:00:00"),
        (GLYPH, 2, 7, 2, "10:00:00"),
    )


# -- latency and attempts ----------------------------------------------------------------------------------------------


def test_a_success_counts_from_when_its_message_was_written(spark: SparkSession) -> None:
    """Not from the first publish, which a delay or a redrive lies behind; where the message is gone, from that."""
    left = frame(
        spark,
        OUTCOMES,
        ("g", "t", GLYPH, 1, "success", 1, "09:00:00", "10:00:00.007"),
        ("g", "t", GLYPH, 2, "success", 1, "09:59:59", "10:00:00.500"),
        ("g", "other", GLYPH, 1, "success", 1, "10:00:00", "10:00:00.003"),
        ("g", "t", GLYPH, 3, "failed", 5, "10:00:00", "10:00:09"),
    )
    written = log(spark, ("t", GLYPH, 1, 1, "10:00:00"), ("t", GLYPH, 3, 1, "10:00:00"))
    same(analytics.successes(left, written), SUCCESSES, ("g", "t", 7), ("g", "t", 1500), ("g", "other", 3))


def test_the_first_success_of_a_message_counts(spark: SparkSession) -> None:
    """What succeeds again after a seek took no longer for that; what failed before, took until it succeeded."""
    left = frame(
        spark,
        OUTCOMES,
        ("g", "t", GLYPH, 1, "success", 1, "10:00:00", "12:00:00"),
        ("g", "t", GLYPH, 1, "success", 1, "10:00:00", "10:00:01"),
        ("h", "t", GLYPH, 1, "rejected", 1, "10:00:00", "10:00:02"),
        ("h", "t", GLYPH, 1, "success", 1, "10:00:00", "10:00:03"),
    )
    found = analytics.successes(left, log(spark, ("t", GLYPH, 1, 1, "10:00:00")))
    same(found, SUCCESSES, ("g", "t", 1000), ("h", "t", 3000))


def test_percentiles_are_latencies_that_were_measured(spark: SparkSession) -> None:
    """Of 1 to 100 ms each percentile is its own number; of four the median is the second; one sample is each of them.

    A group without history has a row without figures; one that is archived, but no longer registered, has figures.
    An archive's group, and a replay's, have no handlers, and no row.
    """
    measured = {"g": range(100, 0, -1), "h": (40, 10, 30, 20), "gone": (7,)}
    groups = [("g", "t", 1, "strict"), ("h", "t", 1, "serial"), ("silent", "t", 0, "strict")]
    groups += [("_archive", "t", 0, "archive"), ("_replay-x", "t", 0, "replay")]
    same(
        analytics.latency(
            succeeded(spark, *((group, each) for group, all_ in measured.items() for each in all_)),
            frame(spark, GROUPS, *groups),
        ),
        LATENCIES,
        ("g", "t", True, 100, 50, 95, 99, 100),
        ("h", "t", True, 4, 20, 40, 40, 40),
        ("gone", "t", None, 1, 7, 7, 7, 7),
        ("silent", "t", False, 0, None, None, None, None),
    )


def test_latencies_are_spread_over_classes(spark: SparkSession) -> None:
    """A class includes its upper bound; what is longer than the last is in the last."""
    longest = analytics.STEPS_MS[-1]
    found = analytics.latency_spread(
        succeeded(spark, *(("g", ms_) for ms_ in (0, 1, 2, 3, 5, 6, longest, longest + 1)))
    )
    wanted = ((1, 2), (2, 1), (5, 2), (10, 1), (longest, 2))
    columns = "consumer_group string, topic string, upto_ms bigint, messages bigint"
    same(found, columns, *(("g", "t", bound, count) for bound, count in wanted))


def test_attempts_are_counted_by_how_they_ended(spark: SparkSession) -> None:
    """One row for each number of attempts and outcome."""
    left = [("g", "success", 1), ("g", "success", 1), ("g", "success", 3), ("g", "failed", 3), ("h", "skipped", 0)]
    rows = ((group, "t", "k", n, end, tries, "10:00:00", "10:00:01") for n, (group, end, tries) in enumerate(left))
    same(
        analytics.attempts(frame(spark, OUTCOMES, *rows)),
        "consumer_group string, topic string, attempts bigint, outcome string, messages bigint",
        ("g", "t", 1, "success", 2),
        ("g", "t", 3, "success", 1),
        ("g", "t", 3, "failed", 1),
        ("h", "t", 0, "skipped", 1),
    )


# -- dead letters ------------------------------------------------------------------------------------------------------


def test_a_reason_is_the_first_line_without_its_numbers(spark: SparkSession) -> None:
    """What differs each time is `#`; what is no number stays."""
    reasons = {
        "TimeoutError: no answer after 12.5 s\nTraceback …": "TimeoutError: no answer after # s",
        "\r\n  \n  KeyError: 'k17'\r\nmore": "KeyError: 'k#'",
        "order 1,234,567 of 2026-06-01 is unknown": "order # of #-#-# is unknown",
        "no row 0xDEADBEEF in 10.11.19": "no row # in #",
        "job 6f1c2a9e-11d2-4c3b-9a55-0123456789ab is gone": "job # is gone",
        "commit 3f786850e387550fdab836ed7e6dc881de23001b is missing": "commit # is missing",
        "a feedfacebeef is no number": "a feedfacebeef is no number",
        f"{GLYPH} 7": f"{GLYPH} #",
        "": "",
        None: "",
        "  ": "",
        "x" * 300: "x" * 200,
    }
    errors = frame(spark, "last_error string", *((error,) for error in reasons))
    found = errors.select("last_error", analytics.reason_of("last_error").alias("reason")).collect()
    assert {row.last_error: row.reason for row in found} == reasons


def test_spark_finds_the_reasons_that_administration_finds(spark: SparkSession) -> None:
    """Of whatever errors, made of pieces that stand in errors: one function is the other one, in Java."""
    pieces = [
        *("order", " ", "#", "0x7f3a", "0XBEEF", "12", "3.5", ",", "-", "_", "feedfacebeef", "3f786850e387", "I", "é"),
        *("\n", "\t", "\r", "\x0b", "\x0c", "\x1c", "\u2028", "\xa0", "\u0663", "\u0130", "\u017f", "x" * 190),
        *("6f1c2a9e-11d2-4c3b-9a55-0123456789ab", "AAAAAAAA-BBBB-CCCC-DDDD-EEEEEEEEEEEE", "Z" * 900, GLYPH),
    ]
    chance = random.Random(0)
    errors = {"".join(chance.choices(pieces, k=chance.randrange(12))) for _ in range(3000)}
    made = frame(spark, "last_error string", *((error,) for error in errors))
    found = made.select("last_error", analytics.reason_of("last_error").alias("reason")).collect()
    assert {row.last_error: row.reason for row in found} == {error: reason_of(error) for error in errors}


def test_dead_letters_are_grouped_by_reason(spark: SparkSession) -> None:
    """By original topic, group and reason, with the first, the last and the last one's offset; the rest is left out.

    And how many of them still wait for somebody, if that is known.
    """
    letters = frame(
        spark,
        LOG,
        ("a_dlq", "k", 1, 1, "10:00:00", "09:00:01", "g", "timeout after 5 s", "a"),
        ("a_dlq", GLYPH, 1, 1, "10:00:00", "09:00:03", "g", "timeout after 17 s", "a"),
        ("a_dlq", "k", 2, 1, "10:00:00", "09:00:02", "g", None, "a"),
        ("a_dlq", "k", 3, 1, "10:00:00", "09:00:04", "h", "timeout after 5 s", "a"),
        ("a", "k", 1, 1, "10:00:00", None, None, None, None),
        ("a", "k", 2, 1, "10:00:00", None, "", "a note", ""),
    )
    left = frame(spark, "topic string, key string, offset bigint", ("a_dlq", GLYPH, 1), ("a_dlq", "k", 2))
    columns = (
        "original_topic string, failed_group string, reason string, dead_letters bigint, outstanding bigint, "
        "first_failed_at timestamp, last_failed_at timestamp, example_topic string, example_key string, "
        "example_offset bigint"
    )
    for (first, second, third), waiting in (((1, 1, 0), left), ((None, None, None), None)):
        same(
            analytics.dead_letters(letters, waiting),
            columns,
            ("a", "g", "timeout after # s", 2, first, "09:00:01", "09:00:03", "a_dlq", GLYPH, 1),
            ("a", "g", "", 1, second, "09:00:02", "09:00:02", "a_dlq", "k", 2),
            ("a", "h", "timeout after # s", 1, third, "09:00:04", "09:00:04", "a_dlq", "k", 3),
        )


# -- lanes -------------------------------------------------------------------------------------------------------------


def test_the_busiest_lanes_come_first(spark: SparkSession) -> None:
    """By messages, then by key; at most so many of each topic; a share is of the topic alone."""
    lanes = (("a", GLYPH, 3), ("a", "b", 2), ("a", "a", 2), ("a", "z", 1), ("other", "k", 1))
    rows = [(topic, key, n, 10, "10:00:00") for topic, key, count in lanes for n in range(count)]
    same(
        analytics.hot_lanes(log(spark, *rows), most=3),
        "topic string, place int, key string, messages bigint, bytes bigint, share double",
        ("a", 1, GLYPH, 3, 30, 0.375),
        ("a", 2, "a", 2, 20, 0.25),
        ("a", 3, "b", 2, 20, 0.25),
        ("other", 1, "k", 1, 10, 1.0),
    )


def test_skew_of_lanes_worked_out_by_hand(spark: SparkSession) -> None:
    """1, 1, 2, 4: (-3 - 1 + 2 + 12) / (4 * 8); one lane: 0; the top 1 % is one lane at least.

    Equal lanes have none, and their top 1 % of 200 lanes has its 1 %.
    """
    topics = {"a": [4, 1, 2, 1], "b": [5], "equal": [3] * 200}
    lanes = [(topic, f"k{n}", count) for topic, counts in topics.items() for n, count in enumerate(counts)]
    rows = [(topic, key, n, 1, "00:00:00") for topic, key, count in lanes for n in range(count)]
    found = analytics.skew(analytics.lane_sizes(log(spark, *rows)))
    same(found, SKEWS, ("a", 4, 8, 1, 0.5, 10 / 32), ("b", 1, 5, 1, 1.0, 0.0), ("equal", 200, 600, 2, 0.01, 0.0))


def test_sizes_far_beyond_64_bits_in_sum_stay_exact(spark: SparkSession) -> None:
    """Half of four thousand million lanes with a thousand messages each, half with three thousand: Gini 1/4.

    The top hundredth are 40 million lanes of 3,000 of 8 million million messages.
    """
    half = 2_000_000_000
    found = analytics.skew(frame(spark, SIZES, ("a", 1000, half), ("a", 3000, half)))
    same(found, SKEWS, ("a", 2 * half, 4000 * half, half // 50, 120 / 8000, 0.25))


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
    found = analytics.skew(frame(spark, SIZES, *rows)).collect()
    assert {row.topic: (row.gini, row.top_share) for row in found} == {
        str(n): (float(direct_gini(counts)), float(direct_top(counts))) for n, counts in enumerate(topics)
    }


# -- archive and live log ----------------------------------------------------------------------------------------------


def test_what_archive_and_live_log_both_hold_is_counted_once(spark: SparkSession) -> None:
    """The union has every (topic, key, offset) once; equal offsets of other lanes are other messages."""
    archived = log(spark, *(("a", key, n, 1, "10:00:00") for key in ("k", GLYPH) for n in (1, 2, 3)))
    live = log(spark, *(("a", "k", n, 1, "10:00:00") for n in (3, 4)), ("b", "k", 1, 1, "10:00:00"))
    found = analytics.until(archived, live, ms("11:00:00"), instant="created_at", key=KEY)
    assert sorted((row.topic, row.key, row.offset) for row in found.collect()) == sorted(
        [*(("a", "k", n) for n in (1, 2, 3, 4)), *(("a", GLYPH, n) for n in (1, 2, 3)), ("b", "k", 1)]
    )


def test_what_is_newer_than_the_cut_off_is_in_neither(spark: SparkSession) -> None:
    """The cut-off's own millisecond belongs to it, the next does not, wherever the message is."""
    both = log(spark, *(("a", "k", n, 1, clock) for n, clock in ((1, "10:00:00.000"), (2, "10:00:00.001"))))
    nothing = log(spark)
    for archived, live in ((both, nothing), (nothing, both), (both, both)):
        found = analytics.until(archived, live, ms("10:00:00"), instant="created_at", key=KEY)
        assert [row.offset for row in found.collect()] == [1]


def test_the_last_outcome_within_the_cut_off_counts(spark: SparkSession) -> None:
    """A message that left its group again after a seek counts once, as it left last by then."""
    first = ("g", "t", GLYPH, 1, "failed", 5, "09:00:00", "10:00:00")
    again = ("g", "t", GLYPH, 1, "success", 1, "09:00:00", "10:00:05")
    other = ("h", "t", GLYPH, 1, "success", 2, "09:00:00", "10:00:02")
    archived, live = frame(spark, OUTCOMES, first, other), frame(spark, OUTCOMES, other, again)
    key = ("consumer_group", "topic", "key", "message_offset", "finished_at")
    for cutoff, last in (("10:00:05", again), ("10:00:04.999", first)):
        found = analytics.until(archived, live, ms(cutoff), instant="finished_at", key=key)
        same(analytics.last_outcomes(found).select(live.columns), OUTCOMES, last, other)


def test_slim_messages_have_the_size_of_their_payload(spark: SparkSession) -> None:
    """Whether the payload itself was read or not."""
    whole = LOG.replace("bytes bigint", "value binary").replace("created_at", "payload_bytes int, created_at")
    row = ("a", "k", 1, None, 5, "10:00:00", None, None, None, None)
    same(analytics.slim(frame(spark, whole, row)), LOG, ("a", "k", 1, 5, *row[5:]))


def test_nothing_at_all_is_empty_everywhere(spark: SparkSession) -> None:
    """Empty input gives empty tables of the same columns."""
    nothing, none_left, no_success = log(spark), frame(spark, OUTCOMES), succeeded(spark)
    tables = [
        analytics.throughput(nothing),
        analytics.busiest(analytics.throughput(nothing)),
        analytics.successes(none_left, nothing),
        analytics.latency(no_success, frame(spark, GROUPS)),
        analytics.latency_spread(no_success),
        analytics.attempts(none_left),
        analytics.dead_letters(nothing, nothing.select("topic", "key", "offset")),
        analytics.hot_lanes(nothing),
        analytics.skew(analytics.lane_sizes(nothing)),
        analytics.until(nothing, nothing, 0, instant="created_at", key=KEY),
    ]
    assert [table.collect() for table in tables] == [[]] * len(tables)
