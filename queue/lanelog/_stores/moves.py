"""The leaving side of `queue_messages`: copies into dead letters and back, and deletion up to the floor.

Owns these INSERT … SELECTs and DELETEs, and the reads before them. Never decides which message leaves.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from lanelog._database import NOW_MS
from lanelog._stores._counted import signed
from lanelog._stores._points import chunked, exactly, pairs, placeholders
from lanelog._stores._redriven import ID, METADATA

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lanelog._database import Executor
    from lanelog._places import GroupTopic, LaneId

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

# The ages of messages at exact places (PRIMARY).
AGES = f"""SELECT partition_key, CAST({NOW_MS} AS SIGNED) - {signed("created_at")}
FROM queue_messages FORCE INDEX (PRIMARY) WHERE topic = %s AND (partition_key, `offset`) IN ({{points}})"""

# The age of the oldest message of a lane above its floor. UNION ALL joins many lanes (PRIMARY).
OLDEST = f"""(SELECT partition_key, CAST({NOW_MS} AS SIGNED) - {signed("created_at")}
 FROM queue_messages FORCE INDEX (PRIMARY)
 WHERE topic = %s AND partition_key = %s AND `offset` > %s ORDER BY `offset` LIMIT 1)"""

# The last message of a lane, within a range of offsets, that is older than the retention. UNION ALL joins many lanes
# (PRIMARY, bounded range).
OLD_ENOUGH = f"""(SELECT %s, COALESCE(MAX(`offset`), 0) FROM queue_messages FORCE INDEX (PRIMARY)
 WHERE topic = %s AND partition_key = %s AND `offset` > %s AND `offset` <= %s AND created_at <= {NOW_MS} - %s)"""

# The dead letters of a lane within a range of offsets: source topic, group and age. UNION ALL joins many lanes
# (PRIMARY, bounded range).
LETTERS = f"""(SELECT partition_key, `offset`, original_topic, failed_group,
 CAST({NOW_MS} AS SIGNED) - {signed("created_at")} AS age_ms
 FROM queue_messages FORCE INDEX (PRIMARY)
 WHERE topic = %s AND partition_key = %s AND `offset` > %s AND `offset` <= %s)"""

# Delete by exact offsets, so that it waits for no publisher (PRIMARY, one lookup a point).
DELETE = """DELETE gone FROM ({exact}) AS exact STRAIGHT_JOIN queue_messages AS gone FORCE INDEX (PRIMARY)
ON gone.topic = %s AND gone.partition_key = exact.k AND gone.`offset` = exact.o"""

# The expired messages for a group within a range of offsets (PRIMARY, range bounded from below).
EXPIRED = f"""
SELECT `offset`, id, published_at FROM queue_messages FORCE INDEX (PRIMARY)
WHERE topic = %s AND partition_key = %s AND `offset` > %s AND `offset` <= %s
      AND target_group IN ('', %s) AND expires_at BETWEEN 1 AND {NOW_MS} ORDER BY `offset`
"""

# Those of some lanes in which the message right after the group's watermark has expired (all PRIMARY). That message
# may be for another group: EXPIRED looks again.
EXPIRED_LANES = f"""
SELECT p.partition_key FROM queue_partitions p FORCE INDEX (PRIMARY)
LEFT JOIN queue_offsets f FORCE INDEX (PRIMARY)
       ON f.consumer_group = '' AND f.topic = p.topic AND f.partition_key = p.partition_key
LEFT JOIN queue_offsets o FORCE INDEX (PRIMARY)
       ON o.consumer_group = %s AND o.topic = p.topic AND o.partition_key = p.partition_key
STRAIGHT_JOIN queue_messages m FORCE INDEX (PRIMARY)
       ON m.topic = p.topic AND m.partition_key = p.partition_key
          AND m.`offset` = GREATEST(COALESCE(o.offset_acked, 0), COALESCE(f.offset_acked, 0)) + 1
WHERE p.topic = %s AND p.partition_key IN ({{keys}}) AND m.expires_at BETWEEN 1 AND {NOW_MS}
ORDER BY p.partition_key
"""

# The time at which a message was written (PRIMARY).
CREATED_AT = "SELECT created_at FROM queue_messages WHERE topic = %s AND partition_key = %s AND `offset` = %s"


class LetterAge(NamedTuple):
    """A dead letter, with what its retention depends on."""

    offset: int
    original_topic: str
    group: str
    age_ms: int


class Expired(NamedTuple):
    """An expired message. `published_at` in milliseconds."""

    offset: int
    id: str
    published_at: int


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
    row = cx.one(BURIED, (dead_topic, key, derived_id))
    return None if row is None else int(row[0])


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
    points: Sequence[tuple[str, int]],
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
    bases = [value for key in dict.fromkeys(key for key, _ in points) for value in (key, heads[key])]
    sql = REDRIVE.format(cases="WHEN %s THEN %s " * (len(bases) // 2), points=pairs(points))
    flat = [value for point in points for value in point]
    return cx.execute(sql, (target, *bases, cap, cap, ttl_ms, ttl_ms, for_group, dead_topic, *flat))


def ages(cx: Executor, topic: str, lanes: Sequence[tuple[str, int]]) -> dict[str, float]:
    """Return the age in seconds of the first message above each (key, floor), by key.

    Nearly always, it is the next one. To ask for that one costs the server a small part of a search for the first.
    """
    found: dict[str, float] = {}
    for chunk in chunked(lanes):
        args = [value for key, floor in chunk for value in (key, floor + 1)]
        found.update(cx.query(AGES.format(points=pairs(chunk)), (topic, *args)))
    for chunk in chunked([lane for lane in lanes if lane[0] not in found], 100):
        args = [value for key, floor in chunk for value in (topic, key, floor)]
        found.update(cx.query(" UNION ALL ".join([OLDEST] * len(chunk)), args))
    return {key: age_ms / 1000 for key, age_ms in found.items()}


def old_enough(cx: Executor, topic: str, ranges: Sequence[tuple[str, int, int]], retention_ms: int) -> dict[str, int]:
    """Return the highest offset older than the retention in each (key, floor, through), by key. 0: none."""
    found: dict[str, int] = {}
    for chunk in chunked(ranges, 100):
        args: list[object] = []
        for key, floor, through in chunk:
            args += (key, topic, key, floor, through, retention_ms)
        for key, offset in cx.query(" UNION ALL ".join([OLD_ENOUGH] * len(chunk)), args):
            found[key] = int(offset)
    return found


def letters(cx: Executor, topic: str, ranges: Sequence[tuple[str, int, int]]) -> dict[str, list[LetterAge]]:
    """Return the dead letters in each (key, floor, through), by key and in order."""
    found: dict[str, list[LetterAge]] = {}
    for chunk in chunked(ranges, 100):
        args = [value for key, floor, through in chunk for value in (topic, key, floor, through)]
        for key, offset, original, group, age_ms in cx.query(" UNION ALL ".join([LETTERS] * len(chunk)), args):
            found.setdefault(key, []).append(LetterAge(offset, original, group, age_ms))
    for letters in found.values():
        letters.sort()
    return found


def expired(cx: Executor, lane: LaneId, watermark: int, limit: int) -> list[Expired]:
    """Return the expired messages for this group among the `limit` offsets above a watermark, in order."""
    rows = cx.query(EXPIRED, (lane.topic, lane.key, watermark, watermark + limit, lane.group))
    return [Expired(int(offset), message_id, int(published)) for offset, message_id, published in rows]


def expired_lanes(cx: Executor, at: GroupTopic, keys: Sequence[str]) -> list[str]:
    """Return those of these lanes with an expired message right after the group's watermark."""
    found: list[str] = []
    for chunk in chunked(keys):
        sql = EXPIRED_LANES.format(keys=placeholders(chunk))
        found += [key for (key,) in cx.query(sql, (*at.columns, *chunk))]
    return found


def delete(cx: Executor, topic: str, points: Sequence[tuple[str, int]]) -> int:
    """Delete messages by exact (key, offset), in primary-key order. Return how many."""
    deleted = 0
    for chunk in chunked(sorted(points, key=lambda point: (point[0].encode(), point[1]))):
        args = [value for point in chunk for value in point]
        deleted += cx.execute(DELETE.format(exact=exactly(chunk)), (*args, topic))
    return deleted


def created_at(cx: Executor, topic: str, key: str, offset: int) -> int | None:
    """Return the time at which a message was written (milliseconds), or None if it is not in the log."""
    row = cx.one(CREATED_AT, (topic, key, offset))
    return None if row is None else int(row[0])
