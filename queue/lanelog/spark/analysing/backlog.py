"""What is still to do: lag and age by group, stalled lanes, dead letters left. DataFrames in, a DataFrame out.

Owns the arithmetic of unsettled messages. Never reads anything, and asks no clock. `analytics` exports its functions.

`messages` is the live log up to the cut-off; it holds every unsettled message, archived or not. `groups`, `offsets` and
`states` are the tables `groups`, `offsets` and `delivery_state` of `spark.read.format("lanelog")`. They must be read
after the messages, and `states` before `offsets`: then a message that is settled meanwhile never counts as unsettled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documentation gives it

from lanelog._base.reasons import FIRST_LINE
from lanelog.spark.archiving.group import ORDER as ARCHIVE
from lanelog.spark.replaying.options import ORDER as REPLAY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CONSUMER: Final = "consumer"
"""The role of a group with handlers. The role of an archive's or a replay's group is its `delivery_order`."""
_OWN: Final = (ARCHIVE, REPLAY)
POSTPONED: Final = "postponed"
"""The state of a stalled lane whose handler postponed the oldest message."""

ERROR_MAX: Final = 500
"""The most characters of an error in a row."""

_LANE = ["topic", "key"]
_LANE_ID = ["consumer_group", "topic", "key"]


def backlog(messages: DataFrame, groups: DataFrame, offsets: DataFrame, states: DataFrame) -> DataFrame:
    """Return what each group has not settled, lane by lane. A lane without lag has no row.

    A message is unsettled if it is above the group's watermark and above the lane's floor, and no acked row of the
    group covers it.

    Columns: consumer_group, topic, key STRING; lag BIGINT (messages); oldest_offset BIGINT; oldest_at TIMESTAMP (when
    the oldest of them was written); registered_at TIMESTAMP (when the group was); moved_at TIMESTAMP (when the group's
    row of the lane last changed; NULL: never); paused BOOLEAN (the group, or the lane for it); role STRING (as in
    `lag`).

    Args:
        messages: The live log, through `slim`.
        groups: The table `groups`.
        offsets: The table `offsets`.
        states: The table `delivery_state`.
    """
    floors = offsets.where("consumer_group = ''").select(*_LANE, F.col("offset_acked").alias("floor"))
    watermarks = offsets.where("consumer_group <> ''").select(
        *_LANE_ID,
        "offset_acked",
        F.col("updated_at").alias("moved_at"),
        F.col("paused_at").alias("lane_paused_at"),
    )
    readers = groups.select(
        "consumer_group",
        "topic",
        F.col("paused_at").alias("group_paused_at"),
        F.col("created_at").alias("registered_at"),
        role(),
    )
    settled = states.where("acked").select(*_LANE_ID, "message_offset", "through_offset")
    mark = F.greatest(F.coalesce("offset_acked", F.lit(0)), F.coalesce("floor", F.lit(0)))
    waiting = (
        messages.join(readers, on="topic")
        .join(watermarks, on=_LANE_ID, how="left")
        .join(floors, on=_LANE, how="left")
        .where(F.col("offset") > mark)
    )
    covered = F.col("m.offset").between(F.col("s.message_offset"), F.col("s.through_offset"))
    same = [F.col(f"m.{name}") == F.col(f"s.{name}") for name in _LANE_ID]
    return (
        waiting.alias("m")
        .join(settled.alias("s"), on=[*same, covered], how="left_anti")
        .groupBy(*_LANE_ID)
        .agg(
            F.count("*").alias("lag"),
            F.min("offset").alias("oldest_offset"),
            F.min("created_at").alias("oldest_at"),
            F.first("registered_at").alias("registered_at"),
            F.first("moved_at").alias("moved_at"),
            F.coalesce(F.first("group_paused_at"), F.first("lane_paused_at")).isNotNull().alias("paused"),
            F.first("role").alias("role"),
        )
        .select(*_LANE_ID, "lag", "oldest_offset", "oldest_at", "registered_at", "moved_at", "paused", "role")
    )


def lag(unsettled: DataFrame, groups: DataFrame, cutoff_ms: int) -> DataFrame:
    """Return how far behind each group is, from its `backlog`. A group that has settled everything has a row, too.

    Columns: consumer_group, topic STRING; lanes BIGINT (that have lag); lag BIGINT (messages); oldest_ms BIGINT (age
    of the oldest at the cut-off, milliseconds; NULL: nothing is unsettled); paused BOOLEAN (the whole group); role
    STRING: `consumer`, `archive` (behind until it runs again) or `replay` (never moves).

    Args:
        unsettled: The result of `backlog`.
        groups: The table `groups`.
        cutoff_ms: The cut-off, epoch milliseconds.
    """
    known = groups.select("consumer_group", "topic", F.col("paused_at").isNotNull().alias("paused"), role())
    summed = unsettled.groupBy("consumer_group", "topic").agg(
        F.count("*").alias("lanes"), F.sum("lag").alias("lag"), F.min("oldest_at").alias("oldest_at")
    )
    return known.join(summed, on=["consumer_group", "topic"], how="left").select(
        "consumer_group",
        "topic",
        F.coalesce("lanes", F.lit(0)).cast("bigint").alias("lanes"),
        F.coalesce("lag", F.lit(0)).cast("bigint").alias("lag"),
        _before(cutoff_ms, "oldest_at").alias("oldest_ms"),
        "paused",
        "role",
    )


def stalled_lanes(unsettled: DataFrame, states: DataFrame, cutoff_ms: int, still_ms: int) -> DataFrame:
    """Return the lanes that stall, from `backlog`: they have unsettled messages, and settled nothing for `still_ms`.

    The time counts from the last change of the group's row of the lane. If the first attempt at the oldest unsettled
    message began earlier, it counts from there, because a failed attempt changes the row, too, and settles nothing. It
    never counts from before that message was written, or before the group was registered. So a lane stalls when a
    handler runs for long, and when a message fails again and again, even if others of its lane overtake it. Lanes of an
    archive or a replay do not stall.

    Columns: consumer_group, topic, key STRING; lag BIGINT (messages); still_ms BIGINT (milliseconds); state STRING:
    `paused` by an operator, `postponed` (the oldest, by its handler, until after the cut-off), `retrying` (the oldest
    has failed before), else `waiting` (for its handler, or for an owner); attempts BIGINT (started so far for the
    oldest); last_error STRING (of the oldest's last attempt, one line of at most 500 characters; NULL: there is none,
    or the next attempt runs).

    Args:
        unsettled: The result of `backlog`.
        states: The table `delivery_state`.
        cutoff_ms: The cut-off, epoch milliseconds.
        still_ms: Milliseconds without progress, at the cut-off, after which a lane stalls.
    """
    moved = F.when(F.col("moved_at").isNotNull(), F.least("moved_at", "first_attempt_at"))  # least() ignores NULL
    since = F.greatest("oldest_at", "registered_at", moved)  # so does greatest()
    oldest = states.where("not acked").select(
        *_LANE_ID,
        F.col("message_offset").alias("oldest_offset"),
        F.col("retry_count").cast("bigint").alias("attempts"),
        F.substring(first_line(F.col("last_error")), 1, ERROR_MAX).alias("last_error"),
        "first_attempt_at",
        ((F.col("postponed") > 0) & (F.col("retry_count") == 0) & (F.unix_millis("invisible_until") > cutoff_ms)).alias(
            "postponed"
        ),
    )
    state = (
        F.when(F.col("paused"), "paused")
        .when(F.col("postponed"), POSTPONED)
        .when((F.col("last_error").isNotNull() & (F.col("attempts") > 0)) | (F.col("attempts") > 1), "retrying")
        .otherwise("waiting")
    )
    return (
        unsettled.where(F.col("role") == CONSUMER)
        .join(oldest, on=[*_LANE_ID, "oldest_offset"], how="left")
        .withColumn("still_ms", F.lit(cutoff_ms) - F.unix_millis(since))
        .where(F.col("still_ms") >= still_ms)
        .select(
            *_LANE_ID,
            "lag",
            F.col("still_ms").cast("bigint").alias("still_ms"),
            state.alias("state"),
            F.coalesce("attempts", F.lit(0)).cast("bigint").alias("attempts"),
            "last_error",
        )
    )


def outstanding(messages: DataFrame, states: DataFrame) -> DataFrame:
    """Return the dead letters of the live log that are neither redriven nor deleted.

    A dead letter that left by its group's retention is not in the log, and so not among them.

    Columns: topic, key STRING; offset BIGINT.
    """
    row = [*_LANE, "offset"]
    settled = states.where("consumer_group = ''").select(*_LANE, F.col("message_offset").alias("offset"))
    return messages.where("failed_group <> ''").join(settled, on=row, how="left_anti").select(*row)


def first_line(text: Column) -> Column:
    """Return the first line that is not blank of a column of texts; NULL stays NULL."""
    return F.trim(F.regexp_extract(text, FIRST_LINE, 1))


def role() -> Column:
    """Return the role of a group of the table `groups`."""
    order = F.col("delivery_order")
    return F.when(order.isin(*_OWN), order).otherwise(CONSUMER).alias("role")


def _before(cutoff_ms: int, column: str) -> Column:
    return (F.lit(cutoff_ms) - F.unix_millis(F.col(column))).cast("bigint")
