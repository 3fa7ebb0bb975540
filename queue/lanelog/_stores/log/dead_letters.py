"""The dead letters in `queue_messages`: one message is copied there, and some are copied back.

Owns these INSERT … SELECTs, and the reads before them. Never decides which message is given up, or which is redriven.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from lanelog._database import NOW_MS
from lanelog._stores._points import flat, number, pairs
from lanelog._stores._redriven import ID, METADATA

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lanelog._base.places import LaneId
    from lanelog._database import Executor


# Copy one message into the dead letter topic (both PRIMARY). No row: the source is gone. A redriven message keeps the
# original id that its metadata has already.
BURY = f"""
INSERT INTO queue_messages (topic, partition_key, `offset`, id, payload, payload_bytes, metadata, created_at,
       published_at, failed_at, failure_count, last_error, original_topic, original_offset, failed_group)
SELECT %s, partition_key, %s, %s, payload, payload_bytes,
       JSON_INSERT(COALESCE(metadata, '{{}}'), '$."lanelog.original_id"', id), {NOW_MS}, published_at,
       {NOW_MS}, %s, %s, topic, `offset`, %s
FROM queue_messages AS source WHERE source.topic = %s AND source.partition_key = %s AND source.`offset` = %s
"""

# The id of the message to copy (PRIMARY).
SOURCE_ID = "SELECT id FROM queue_messages WHERE topic = %s AND partition_key = %s AND `offset` = %s"

# The offset of a copy that exists already (by_id).
BURIED = "SELECT `offset` FROM queue_messages WHERE topic = %s AND partition_key = %s AND id = %s"

# Copy dead letters back as messages, after the given heads and in their order (PRIMARY).
REDRIVE = f"""
INSERT INTO queue_messages (topic, partition_key, `offset`, id, payload, payload_bytes, metadata, created_at,
       published_at, expires_at, target_group)
SELECT %s, m.partition_key,
       CASE m.partition_key {{cases}} END + ROW_NUMBER() OVER (PARTITION BY m.partition_key ORDER BY m.`offset`),
       {ID}, m.payload, m.payload_bytes, {METADATA}, {NOW_MS}, m.published_at,
       IF(%s = 0, 0, {NOW_MS} + %s), %s
FROM queue_messages m FORCE INDEX (PRIMARY)
WHERE m.topic = %s AND (m.partition_key, m.`offset`) IN ({{points}})
"""


def derived_id(group: str, message_id: str, offset: int) -> str:
    """Return the dead letter's id. It is the same for every repetition of the move, and different for every group."""
    parts = "\x1f".join((group, message_id, str(offset)))
    return "dl-" + hashlib.sha256(parts.encode()).hexdigest()


def source_id(cx: Executor, topic: str, key: str, offset: int) -> str | None:
    """Return the id of the message to copy, or None when it is gone."""
    row = cx.one(SOURCE_ID, (topic, key, offset))
    return None if row is None else str(row[0])


def buried(cx: Executor, dead_topic: str, key: str, derived_id: str) -> int | None:
    """Return the offset of the copy, or None if there is none."""
    return number(cx.one(BURIED, (dead_topic, key, derived_id)))


def bury(
    cx: Executor,
    lane: LaneId,
    *,
    offset: int,
    dead_topic: str,
    dead_offset: int,
    derived_id: str,
    failures: int,
    error: str,
) -> int:
    """Copy one message into the dead letter topic. Return the number of copied rows: 0 or 1."""
    return cx.execute(BURY, (dead_topic, dead_offset, derived_id, failures, error, *lane.columns, offset))


def redrive(
    cx: Executor,
    dead_topic: str,
    offsets: Sequence[tuple[str, int]],
    heads: Mapping[str, int],
    *,
    target: str,
    cap: int,
    ttl_ms: int,
    for_group: str,
) -> int:
    """Copy dead letters (key, offset) after the locked `heads` of topic `target`. Return how many.

    `cap`: 0 for none. `ttl_ms`: 0 for ever. `for_group`: the only group that gets them, '' for every group.
    """
    bases = [(key, heads[key]) for key in dict.fromkeys(key for key, _ in offsets)]
    sql = REDRIVE.format(cases="WHEN %s THEN %s " * len(bases), points=pairs(offsets))
    return cx.execute(sql, (target, *flat(bases), cap, cap, ttl_ms, ttl_ms, for_group, dead_topic, *flat(offsets)))
