"""What went through the log: throughput, latency, attempts, dead letters, skew. DataFrames in, a DataFrame out.

Owns this arithmetic; `backlog` has that of unsettled messages. Never reads or writes anything, keeps no state, asks no
clock. So it works in any notebook that has the log as a DataFrame.

`messages` is a DataFrame of `read_archive` or of `spark.read.format("lanelog")`, passed through `slim`. `outcomes` is
the table `history` of either, passed through `last_outcomes` or `successes`. Every function ends in the select that is
its schema. Counts, bytes and milliseconds are integers to the end. A ratio is one division of two exact integers, so
that the order of rows changes no digit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documentation gives it

from lanelog._base.reasons import ERROR_MAX, REASON_MAX, VARIABLE
from lanelog.spark.analysing.backlog import CONSUMER, backlog, first_line, lag, outstanding, role, stalled_lanes

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "attempts",
    "backlog",
    "busiest",
    "dead_letters",
    "hot_lanes",
    "lag",
    "lane_sizes",
    "last_outcomes",
    "latency",
    "latency_spread",
    "outstanding",
    "reason_of",
    "skew",
    "slim",
    "stalled_lanes",
    "successes",
    "throughput",
    "until",
]

HOUR_MS: Final = 3_600_000
SUCCESS: Final = "success"

STEPS_MS: Final = tuple(step * 10**power for power in range(10) for step in (1, 2, 5))
"""Upper bounds of the classes of `latency_spread`: 1, 2, 5, 10 … milliseconds, up to 58 days."""

_EXACT = "decimal(38,0)"  # sums of ranks times sizes exceed 64 bits at some hundred million lanes


def slim(messages: DataFrame) -> DataFrame:
    """Return the columns of messages that the analyses need, without payloads.

    Columns: topic, key STRING; offset BIGINT; bytes BIGINT (size of the payload);
    created_at, failed_at TIMESTAMP; failed_group, last_error, original_topic STRING (NULL unless a dead letter).
    """
    return messages.select(
        "topic",
        "key",
        "offset",
        F.col("payload_bytes").cast("bigint").alias("bytes"),
        "created_at",
        "failed_at",
        "failed_group",
        "last_error",
        "original_topic",
    )


def until(archived: DataFrame, live: DataFrame, cutoff_ms: int, *, instant: str, key: tuple[str, ...]) -> DataFrame:
    """Return archive and live log as one: every row once, up to the cut-off.

    A row that both hold is the same in both. The live one is taken, because the live log is the smaller side, which
    fits into every task of the join.

    Args:
        archived: Rows of the archive.
        live: Rows of the live log, with the same columns in any order. The result has their order.
        cutoff_ms: Epoch milliseconds of the last instant that is included.
        instant: The column that is compared with the cut-off.
        key: The columns that identify a row.
    """
    before = F.unix_millis(F.col(instant)) <= F.lit(cutoff_ms)
    inside = live.where(before)
    return (
        archived.where(before)
        .join(inside.select(*key), on=list(key), how="left_anti")
        .unionByName(inside)
        .select(*live.columns)
    )


def last_outcomes(outcomes: DataFrame) -> DataFrame:
    """Return the last outcome of each message and group. After a seek, a message can leave a group a second time.

    Columns: consumer_group, topic, key STRING; message_offset BIGINT; finished_at, published_at TIMESTAMP; outcome
    STRING; attempts BIGINT.
    """
    last = F.max(F.struct("finished_at", "published_at", "outcome", "attempts"))
    return (
        outcomes.groupBy("consumer_group", "topic", "key", "message_offset")
        .agg(last.alias("last"))
        .select("consumer_group", "topic", "key", "message_offset", "last.*")
    )


def successes(outcomes: DataFrame, messages: DataFrame) -> DataFrame:
    """Return how long each message took, in each group, from its writing to its first success.

    A delay does not count: a delayed message is written when it is due. Neither does the time as a dead letter: a
    redrive writes the message anew. A second success after a seek does not count either.

    Columns: consumer_group, topic STRING; ms BIGINT (milliseconds).

    Args:
        outcomes: All outcomes, archived ones too. The live log keeps only the last outcome of a message. So a first
            success from before a seek is only known if it was archived by then.
        messages: The messages. If one is missing, its time counts from its first publish.
    """
    message = ["topic", "key", "message_offset"]
    first = F.min(F.struct("finished_at", "published_at"))
    written = messages.select("topic", "key", F.col("offset").alias("message_offset"), "created_at")
    began = F.coalesce("created_at", "first.published_at")
    return (
        outcomes.where(F.col("outcome") == SUCCESS)
        .groupBy("consumer_group", *message)
        .agg(first.alias("first"))
        .join(written, on=message, how="left")
        .select("consumer_group", "topic", (F.unix_millis("first.finished_at") - F.unix_millis(began)).alias("ms"))
    )


def throughput(messages: DataFrame, step_ms: int = HOUR_MS) -> DataFrame:
    """Return messages and bytes that were written to each topic, hour by hour. An hour without any has no row.

    Columns: topic STRING; start TIMESTAMP (of the hour); messages BIGINT; bytes BIGINT (of payloads).

    Args:
        messages: The messages.
        step_ms: Milliseconds of a step. Steps begin at multiples of it since 1970, UTC.
    """
    at = F.unix_millis("created_at")
    return (
        messages.groupBy("topic", F.timestamp_millis(at - F.pmod(at, F.lit(step_ms))).alias("start"))
        .agg(F.count("*").alias("messages"), F.sum("bytes").alias("bytes"))
        .select("topic", "start", "messages", "bytes")
    )


def busiest(hours: DataFrame) -> DataFrame:
    """Return the sums of each topic, and its busiest hour (of equal ones the first), from `throughput`.

    Columns: topic STRING; messages, bytes BIGINT; peak_messages BIGINT; peak_start TIMESTAMP (of that hour).
    """
    peak = F.max(F.struct("messages", (-F.unix_millis("start")).alias("sooner")))
    return (
        hours.groupBy("topic")
        .agg(F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes"), peak.alias("peak"))
        .select(
            "topic",
            "messages",
            "bytes",
            F.col("peak.messages").alias("peak_messages"),
            F.timestamp_millis(-F.col("peak.sooner")).alias("peak_start"),
        )
    )


def latency(succeeded: DataFrame, groups: DataFrame) -> DataFrame:
    """Return percentiles of latency for each group of consumers and topic, from `successes`.

    A percentile is the nearest rank: the smallest measured latency that at least that share of the messages does not
    exceed. A group that keeps no history has a row with 0 samples and NULL latencies. The groups of archives and
    replays have none.

    Columns: consumer_group, topic STRING; keeps_history BOOLEAN (NULL: the group is not registered any more);
    samples BIGINT; p50_ms, p95_ms, p99_ms, max_ms BIGINT (milliseconds).

    Args:
        succeeded: The result of `successes`.
        groups: The table `groups`.
    """
    lane = Window.partitionBy("consumer_group", "topic")
    ranked = (
        succeeded.groupBy("consumer_group", "topic", "ms")
        .agg(F.count("*").alias("n"))
        .withColumn("upto", F.sum("n").over(lane.orderBy("ms").rowsBetween(Window.unboundedPreceding, 0)))
        .withColumn("of", F.sum("n").over(lane))
    )
    measured = ranked.groupBy("consumer_group", "topic").agg(
        F.sum("n").alias("samples"), *(_rank(percent) for percent in (50, 95, 99)), F.max("ms").alias("max_ms")
    )
    known = groups.where(role() == CONSUMER).select(
        "consumer_group", "topic", (F.col("history_ms") > 0).alias("keeps_history")
    )
    return known.join(measured, on=["consumer_group", "topic"], how="full").select(
        "consumer_group",
        "topic",
        "keeps_history",
        F.coalesce("samples", F.lit(0)).cast("bigint").alias("samples"),
        "p50_ms",
        "p95_ms",
        "p99_ms",
        "max_ms",
    )


def _rank(percent: int) -> Column:
    return F.min(F.when(F.col("upto") * 100 >= F.col("of") * percent, F.col("ms"))).alias(f"p{percent}_ms")


def latency_spread(succeeded: DataFrame) -> DataFrame:
    """Return the distribution of latencies: `successes` in classes of 1, 2, 5, 10 … milliseconds.

    Columns: consumer_group, topic STRING; upto_ms BIGINT (upper bound of the class, included; the last class also holds
    all longer ones); messages BIGINT.
    """
    longest = F.lit(STEPS_MS[-1])
    bound = F.coalesce(*(F.when(F.col("ms") <= step, F.lit(step)) for step in STEPS_MS[:-1]), longest)
    return (
        succeeded.groupBy("consumer_group", "topic", bound.cast("bigint").alias("upto_ms"))
        .agg(F.count("*").alias("messages"))
        .select("consumer_group", "topic", "upto_ms", "messages")
    )


def attempts(outcomes: DataFrame) -> DataFrame:
    """Return how many messages had which outcome after how many attempts, from `last_outcomes`.

    Columns: consumer_group, topic STRING; attempts BIGINT (0: never handed out); outcome STRING; messages BIGINT.
    """
    return (
        outcomes.groupBy("consumer_group", "topic", F.col("attempts").cast("bigint").alias("attempts"), "outcome")
        .agg(F.count("*").alias("messages"))
        .select("consumer_group", "topic", "attempts", "outcome", "messages")
    )


def dead_letters(messages: DataFrame, left: DataFrame | None) -> DataFrame:
    """Return dead letters by reason: the first line of the last error, with every number as `#`.

    All dead letters in `messages` count, also those redriven or deleted since. The example is the last one.

    Columns: original_topic, failed_group, reason STRING (empty: no error was recorded); dead_letters BIGINT;
    outstanding BIGINT (neither redriven nor deleted; NULL: not known); first_failed_at, last_failed_at TIMESTAMP;
    example_topic, example_key STRING; example_offset BIGINT.

    Args:
        messages: The messages, dead letters among them.
        left: The result of `outstanding`. None: the live log is not known.
    """
    last = F.max(F.struct("failed_at", "topic", "key", "offset"))
    letters = messages.where(F.coalesce("failed_group", F.lit("")) != "")
    waits: Column = F.lit(None)
    if left is not None:
        letters = letters.join(left.withColumn("waits", F.lit(1)), on=["topic", "key", "offset"], how="left")
        waits = F.coalesce("waits", F.lit(0))
    return (
        letters.groupBy("original_topic", "failed_group", reason_of("last_error").alias("reason"))
        .agg(
            F.count("*").alias("dead_letters"),
            F.sum(waits.cast("bigint")).alias("outstanding"),
            F.min("failed_at").alias("first_failed_at"),
            last.alias("last"),
        )
        .select(
            "original_topic",
            "failed_group",
            "reason",
            "dead_letters",
            "outstanding",
            "first_failed_at",
            F.col("last.failed_at").alias("last_failed_at"),
            F.col("last.topic").alias("example_topic"),
            F.col("last.key").alias("example_key"),
            F.col("last.offset").alias("example_offset"),
        )
    )


def reason_of(error: str) -> Column:
    """Return the reason in a column of errors, as `lanelog._base.reasons.reason_of` does for one error."""
    first = first_line(F.substring(F.coalesce(F.col(error), F.lit("")), 1, ERROR_MAX))
    return F.rtrim(F.substring(F.trim(F.regexp_replace(first, VARIABLE, "#")), 1, REASON_MAX))


def hot_lanes(messages: DataFrame, most: int = 20) -> DataFrame:
    """Return the busiest lanes of each topic, at most `most`; of equal ones the first by key.

    Columns: topic STRING; `place` INT (1: the busiest); key STRING; messages BIGINT; bytes BIGINT; share DOUBLE (of the
    topic's messages, 0 to 1).
    """
    topic = Window.partitionBy("topic")
    return (
        messages.groupBy("topic", "key")
        .agg(F.count("*").alias("messages"), F.sum("bytes").alias("bytes"))
        .withColumn("place", F.row_number().over(topic.orderBy(F.desc("messages"), F.asc("key"))))
        .withColumn("share", F.col("messages").cast("double") / F.sum("messages").over(topic))
        .where(F.col("place") <= most)
        .select("topic", "place", "key", "messages", "bytes", "share")
    )


def lane_sizes(messages: DataFrame) -> DataFrame:
    """Return how many lanes of a topic hold how many messages. The result is small, even for many lanes.

    Columns: topic STRING; messages BIGINT (in each of these lanes, at least 1); lanes BIGINT.
    """
    return (
        messages.groupBy("topic", "key")
        .agg(F.count("*").alias("messages"))
        .groupBy("topic", "messages")
        .agg(F.count("*").alias("lanes"))
        .select("topic", "messages", "lanes")
    )


def skew(sizes: DataFrame) -> DataFrame:
    """Return how unevenly the messages of a topic are distributed over its lanes, from `lane_sizes`.

    The Gini coefficient of n lanes with x_1 <= … <= x_n messages is sum((2i - n - 1) x_i) / (n sum(x_i)): 0 if all are
    equal, (n - 1) / n if one lane has all. The top 1 % of the lanes is rounded up to whole lanes.

    Columns: topic STRING; lanes, messages BIGINT; top_lanes BIGINT (number of the top 1 %); top_share DOUBLE (their
    part of the messages, 0 to 1); gini DOUBLE (0 to 1).
    """
    topic = Window.partitionBy("topic")
    smaller = topic.orderBy("messages").rowsBetween(Window.unboundedPreceding, -1)
    larger = topic.orderBy(F.desc("messages")).rowsBetween(Window.unboundedPreceding, -1)
    size, lanes, total = (F.col(name).cast(_EXACT) for name in ("messages", "lanes", "total"))
    below, above = (F.coalesce(F.sum("lanes").over(window), F.lit(0)) for window in (smaller, larger))
    # Lanes of one size take the ranks below + 1 … below + lanes: the sum of 2i - n - 1 over them has a closed form.
    weight = lanes * (2 * F.col("below") + lanes - total)
    return (
        sizes.withColumn("total", F.sum("lanes").over(topic))
        .withColumn("below", below.cast(_EXACT))
        .withColumn("top", F.ceil(F.col("total") / 100).cast("bigint"))
        .withColumn("taken", F.least("lanes", F.greatest(F.lit(0), F.col("top") - above)))
        .groupBy("topic")
        .agg(
            F.first("total").alias("lanes"),
            F.sum(F.col("messages") * F.col("lanes")).alias("messages"),
            F.first("top").alias("top_lanes"),
            F.sum(F.col("messages") * F.col("taken")).alias("top_messages"),
            F.sum((size * weight).cast(_EXACT)).alias("moment"),
        )
        .select(
            "topic",
            "lanes",
            "messages",
            "top_lanes",
            (F.col("top_messages").cast("double") / F.col("messages")).alias("top_share"),
            (F.col("moment").cast("double") / (F.col("lanes").cast("double") * F.col("messages"))).alias("gini"),
        )
    )
