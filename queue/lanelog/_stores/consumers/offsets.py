"""`queue_offsets`: the acked watermark, the run mark and the pause of a lane for a group, and its floor (group '').

Owns the SQL of its table, except that of a flush (`flushes`). Never decides which message is acked, or which owner
takes a lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._database import NOW_MS, Lock
from lanelog._stores._counted import signed
from lanelog._stores._pause import RUNS, Pause
from lanelog._stores._points import all_locked, chunked, flat, number, placeholders, points, write
from lanelog._stores.consumers._offset_rows import FloorRow, LaneWatermark, OffsetsRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lanelog._base.places import GroupTopic, LaneId
    from lanelog._database import Executor

# Watermarks, marks and floors of some lanes for one group and the floor group '' (PRIMARY).
LOAD = f"""
SELECT consumer_group, partition_key, offset_acked, marked_through, marked_epoch,
       CAST({NOW_MS} AS SIGNED) - {signed("marked_at")}, paused_at
FROM queue_offsets FORCE INDEX (PRIMARY)
WHERE consumer_group IN ('', %s) AND topic = %s AND partition_key IN ({{keys}})
"""

# After a lock time-out: those of these rows that no other transaction has locked (PRIMARY).
TRY_LOCK = """
SELECT partition_key FROM queue_offsets FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND partition_key IN ({keys}) FOR UPDATE SKIP LOCKED
"""

# The watermark of a lane. The lock waits for a flush in flight (PRIMARY).
ACKED_LOCKED = """
SELECT offset_acked FROM queue_offsets FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND partition_key = %s LOCK IN SHARE MODE
"""

# Floors of some lanes, in key order (PRIMARY).
FLOORS = """SELECT partition_key, offset_acked, marked_through FROM queue_offsets FORCE INDEX (PRIMARY)
WHERE consumer_group = '' AND topic = %s AND partition_key IN ({keys}) ORDER BY partition_key{lock}"""

# Watermarks of some groups in some lanes (PRIMARY, one lookup a point).
WATERMARKS = """
SELECT consumer_group, partition_key, offset_acked FROM queue_offsets FORCE INDEX (PRIMARY)
WHERE consumer_group IN ({groups}) AND topic = %s AND partition_key IN ({keys})
"""

# Release offsets for deletion (PRIMARY; the rows are locked).
RAISE_FLOORS = f"""
UPDATE queue_offsets FORCE INDEX (PRIMARY)
SET offset_acked = GREATEST(offset_acked, CASE partition_key {{cases}} END), updated_at = {NOW_MS}
WHERE consumer_group = '' AND topic = %s AND partition_key IN ({{keys}})
"""

# After the deletion of released messages: the offset up to which they are gone (PRIMARY).
RAISE_DELETED = """
UPDATE queue_offsets FORCE INDEX (PRIMARY)
SET marked_through = LEAST(offset_acked, GREATEST(marked_through, CASE partition_key {cases} END))
WHERE consumer_group = '' AND topic = %s AND partition_key IN ({keys})
"""

# Purge: drained lanes whose floor has not moved for a time (both PRIMARY, group and topic).
IDLE_FLOORS = f"""
SELECT f.partition_key FROM queue_offsets f FORCE INDEX (PRIMARY)
JOIN queue_partitions p FORCE INDEX (PRIMARY) ON p.topic = f.topic AND p.partition_key = f.partition_key
WHERE f.consumer_group = '' AND f.topic = %s AND f.partition_key > %s AND f.offset_acked = f.marked_through
      AND p.head_offset = f.offset_acked AND f.updated_at < {NOW_MS} - %s ORDER BY f.partition_key LIMIT %s
"""

# Purge of one lane, one group at a time (PRIMARY by exact group).
PURGE = """DELETE queue_offsets FROM queue_offsets FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND partition_key = %s"""

# Purge of one lane: the groups' rows, without those that another transaction has locked (PRIMARY).
LOCK_LANE = """
SELECT consumer_group, offset_acked, paused_at FROM queue_offsets FORCE INDEX (PRIMARY)
WHERE consumer_group IN ({groups}) AND topic = %s AND partition_key = %s FOR UPDATE SKIP LOCKED
"""

# How many of some groups have a row for a lane, without a lock (PRIMARY by exact group).
COUNT_LANE = """
SELECT COUNT(*) FROM queue_offsets FORCE INDEX (PRIMARY)
WHERE consumer_group IN ({groups}) AND topic = %s AND partition_key = %s
"""

# Registration with start="latest": every lane that exists starts at its head (queue_partitions PRIMARY).
START_AT_HEAD = f"""
INSERT INTO queue_offsets (consumer_group, topic, partition_key, offset_acked, marked_through, updated_at)
SELECT %s, topic, partition_key, head_offset, head_offset, {NOW_MS}
FROM queue_partitions FORCE INDEX (PRIMARY) WHERE topic = %s AND partition_key <> ''
"""

_FLOOR = "COALESCE(f.offset_acked, 0)"
_BEGIN = f"GREATEST(COALESCE(o.offset_acked, 0), {_FLOOR})"
# What a new group gets of the messages that are there, and what it passes (all PRIMARY).
BEGINNING = f"""
SELECT COALESCE(SUM(GREATEST(p.head_offset, {_BEGIN}) - {_BEGIN}), 0), COALESCE(SUM({_BEGIN} - {_FLOOR}), 0)
FROM queue_partitions p FORCE INDEX (PRIMARY)
LEFT JOIN queue_offsets o FORCE INDEX (PRIMARY)
       ON o.consumer_group = %s AND o.topic = p.topic AND o.partition_key = p.partition_key
LEFT JOIN queue_offsets f FORCE INDEX (PRIMARY)
       ON f.consumer_group = '' AND f.topic = p.topic AND f.partition_key = p.partition_key
WHERE p.topic = %s AND p.partition_key <> ''
"""

# Registration with start at an instant: the start of one lane (PRIMARY).
START_AT = f"""
INSERT INTO queue_offsets (consumer_group, topic, partition_key, offset_acked, marked_through, updated_at)
VALUES (%s, %s, %s, %s, %s, {NOW_MS})
"""

# The paused lanes of a group (PRIMARY, prefix).
PAUSED = """SELECT partition_key FROM queue_offsets FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND paused_at > 0"""

# The pause of one lane, locked for a change (PRIMARY).
LOCK_PAUSE = """SELECT paused_at, paused_by, pause_reason FROM queue_offsets FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND partition_key = %s FOR UPDATE"""

# Pause one lane, or resume it. A group without a row there gets one, at the floor, where it would begin (PRIMARY).
SET_PAUSE = f"""
INSERT INTO queue_offsets (consumer_group, topic, partition_key, offset_acked, marked_through, paused_at, paused_by,
       pause_reason, updated_at)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, {NOW_MS})
ON DUPLICATE KEY UPDATE paused_at = VALUES(paused_at), paused_by = VALUES(paused_by),
       pause_reason = VALUES(pause_reason), updated_at = VALUES(updated_at)
"""

# Whether a group has any row for a topic (PRIMARY, prefix).
ANY_OF_GROUP = "SELECT 1 FROM queue_offsets FORCE INDEX (PRIMARY) WHERE consumer_group = %s AND topic = %s LIMIT 1"

# Some of the rows of a group (PRIMARY, prefix).
SOME_OF_GROUP = """SELECT partition_key FROM queue_offsets FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s LIMIT %s"""

# Delete rows by exact key (PRIMARY, one lookup a key).
DELETE = """DELETE gone FROM ({exact}) AS exact STRAIGHT_JOIN queue_offsets AS gone FORCE INDEX (PRIMARY)
ON gone.consumer_group = %s AND gone.topic = %s AND gone.partition_key = exact.k"""

# Every group with a row in a topic, registered or not (by_topic).
GROUPS_SEEN = "SELECT DISTINCT consumer_group FROM queue_offsets FORCE INDEX (by_topic) WHERE topic = %s"

# Leftovers of an earlier group of that name (PRIMARY).
DELETE_GROUP = """DELETE queue_offsets FROM queue_offsets FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s"""

# The floors of new lanes: all offsets up to theirs are released and gone (PRIMARY).
CREATE_FLOORS = """INSERT IGNORE INTO queue_offsets
(consumer_group, topic, partition_key, offset_acked, marked_through, updated_at) VALUES {rows}"""
FLOOR = f"('',%s,%s,%s,%s,{NOW_MS})"

# A seek: set watermarks, up or down, and remove the run marks (PRIMARY).
MOVE = """
INSERT INTO queue_offsets (consumer_group, topic, partition_key, offset_acked, marked_through, updated_at)
VALUES {rows}
ON DUPLICATE KEY UPDATE offset_acked = VALUES(offset_acked), marked_through = VALUES(marked_through), marked_epoch = 0,
       marked_at = 0, updated_at = VALUES(updated_at)
"""

# Set a watermark back and remove the run mark. A pause stays (PRIMARY).
REWIND = f"""UPDATE queue_offsets FORCE INDEX (PRIMARY)
SET offset_acked = %s, marked_through = %s, marked_epoch = 0, marked_at = 0, updated_at = {NOW_MS}
WHERE consumer_group = %s AND topic = %s AND partition_key = %s"""

# Remove run marks of lanes that were taken away: the messages under them have delivery rows now (PRIMARY).
UNMARK = """
UPDATE queue_offsets FORCE INDEX (PRIMARY) SET marked_through = offset_acked, marked_epoch = 0, marked_at = 0
WHERE consumer_group = %s AND topic = %s AND partition_key IN ({keys})
"""

# A skip or a purge: raise watermarks. The run marks above them stay (PRIMARY).
RAISE = """
INSERT INTO queue_offsets (consumer_group, topic, partition_key, offset_acked, marked_through, updated_at)
VALUES {rows}
ON DUPLICATE KEY UPDATE offset_acked = GREATEST(offset_acked, VALUES(offset_acked)), updated_at = VALUES(updated_at)
"""


def load(cx: Executor, at: GroupTopic, keys: Sequence[str]) -> dict[tuple[str, str], OffsetsRow]:
    """Return the rows of the group and of the floor group '', by (group, key)."""
    found = {}
    for group, key, acked, through, epoch, age_ms, paused_at in points(cx, LOAD, keys, before=at.columns):
        found[(group, key)] = OffsetsRow(acked, through, epoch, max(0, age_ms) / 1000, bool(paused_at))
    return found


def reached(rows: Mapping[tuple[str, str], OffsetsRow], group: str, key: str) -> int:
    """Return up to where a group needs no message of a lane: its watermark, or the floor if that is higher."""
    return max(rows[each, key].offset_acked if (each, key) in rows else 0 for each in ("", group))


def move_watermarks(cx: Executor, at: GroupTopic, watermarks: Mapping[str, int]) -> None:
    """Set watermarks by key, up or down, and remove the run marks."""
    _write(cx, MOVE, at, watermarks)


def raise_watermarks(cx: Executor, at: GroupTopic, watermarks: Mapping[str, int]) -> None:
    """Raise watermarks by key. The run marks above them stay."""
    _write(cx, RAISE, at, watermarks)


def _write(cx: Executor, sql: str, at: GroupTopic, watermarks: Mapping[str, int]) -> None:
    rows = [(*at.columns, key, acked, acked) for key, acked in sorted(watermarks.items())]
    write(cx, sql, rows, row=f"(%s, %s, %s, %s, %s, {NOW_MS})")


def rewind(cx: Executor, lane: LaneId, offset: int) -> None:
    """Set a group's watermark back to `offset`."""
    cx.execute(REWIND, (offset, offset, *lane.columns))


def unmark(cx: Executor, at: GroupTopic, keys: Sequence[str]) -> None:
    """Remove the run marks of these lanes."""
    write(cx, UNMARK, sorted(keys), before=at.columns)


def try_lock(cx: Executor, at: GroupTopic, keys: Sequence[str]) -> set[str]:
    """Lock the rows that no other transaction has locked, and return their keys."""
    return {key for (key,) in points(cx, TRY_LOCK, sorted(keys), before=at.columns)}


def acked_locked(cx: Executor, lane: LaneId) -> int:
    """Return the watermark, after the commits in flight. 0: there is no row."""
    return number(cx.one(ACKED_LOCKED, lane.columns)) or 0


def create_floors(cx: Executor, topic: str, keys: Sequence[str], begin: int) -> None:
    """Insert the floors that are absent."""
    write(cx, CREATE_FLOORS, [(topic, key, begin, begin) for key in sorted(keys)], row=FLOOR)


def floors(cx: Executor, topic: str, keys: Iterable[str], lock: Lock = Lock.NONE) -> dict[str, FloorRow]:
    """Return the floors of these lanes. A missing one has been purged.

    A lock, also a shared one, keeps collection and the purge of the lane away.
    """
    found = points(cx, FLOORS, sorted(keys), before=[topic], lock=lock)
    return {key: FloorRow(floor, deleted) for key, floor, deleted in found}


def watermarks(cx: Executor, topic: str, groups: Sequence[str], keys: Sequence[str]) -> dict[tuple[str, str], int]:
    """Return watermarks by (group, key). A missing entry: the group has no row for the lane."""
    sql = WATERMARKS.replace("{groups}", placeholders(groups))
    return {(group, key): acked for group, key, acked in points(cx, sql, keys, before=(*groups, topic))}


def raise_floors(cx: Executor, topic: str, floors: Mapping[str, int]) -> None:
    """Release all offsets up to these floors, by key."""
    _raise(cx, RAISE_FLOORS, topic, floors)


def raise_deleted(cx: Executor, topic: str, through: Mapping[str, int]) -> None:
    """Note that the log has no message up to these offsets, by key."""
    _raise(cx, RAISE_DELETED, topic, through)


def idle_floors(cx: Executor, topic: str, after: str, idle: float, limit: int) -> list[str]:
    """Return keys above `after` of drained lanes whose floor has not moved for `idle` seconds."""
    return [key for (key,) in cx.query(IDLE_FLOORS, (topic, after, int(idle * 1000), limit))]


def lock_lane(cx: Executor, topic: str, key: str, groups: Sequence[str]) -> dict[str, LaneWatermark] | None:
    """Lock every group's row of a lane, and return them by group. None: another transaction holds one."""
    rows = all_locked(cx, LOCK_LANE, COUNT_LANE, groups, topic, key)
    return None if rows is None else {group: LaneWatermark(acked, bool(paused)) for group, acked, paused in rows}


def purge(cx: Executor, topic: str, key: str, groups: Sequence[str]) -> None:
    """Remove a lane's rows for these groups."""
    for group in sorted(groups, key=str.encode):  # for several at once a server may read the whole table, and wait
        cx.execute(PURGE, (group, topic, key))


def beginning(cx: Executor, at: GroupTopic) -> tuple[int, int]:
    """Return how many of the messages that are there a new group gets, and how many it passes."""
    again, passed = cx.one(BEGINNING, (at.group, at.topic)) or (0, 0)
    return int(again), int(passed)


def start_at_head(cx: Executor, at: GroupTopic) -> None:
    """Let a new group begin at the head of every lane."""
    cx.execute(START_AT_HEAD, at.columns)


def start_at(cx: Executor, lane: LaneId, offset: int) -> None:
    """Let a new group begin after `offset` of one lane."""
    cx.execute(START_AT, (*lane.columns, offset, offset))


def paused(cx: Executor, at: GroupTopic) -> set[str]:
    """Return the keys of the paused lanes of a group."""
    return {key for (key,) in cx.query(PAUSED, at.columns)}


def lock_pause(cx: Executor, lane: LaneId) -> Pause:
    """Lock a group's row of a lane, if there is one, and return its pause."""
    row = cx.one(LOCK_PAUSE, lane.columns)
    return RUNS if row is None else Pause(*row)


def set_pause(cx: Executor, lane: LaneId, pause: Pause, floor: int) -> None:
    """Pause a lane, or resume it. A new row begins at the floor."""
    cx.execute(SET_PAUSE, (*lane.columns, floor, floor, *pause))


def any_of_group(cx: Executor, at: GroupTopic) -> bool:
    """Whether a group has any row for a topic."""
    return cx.one(ANY_OF_GROUP, at.columns) is not None


def delete_group(cx: Executor, at: GroupTopic) -> None:
    """Remove every row of a group for a topic."""
    cx.execute(DELETE_GROUP, at.columns)


def _raise(cx: Executor, sql: str, topic: str, offsets: Mapping[str, int]) -> None:
    for chunk in chunked(sorted(offsets.items()), 200):
        keys = [key for key, _ in chunk]
        filled = sql.format(cases="WHEN %s THEN %s " * len(chunk), keys=placeholders(keys))
        cx.execute(filled, (*flat(chunk), topic, *keys))


def some_of_group(cx: Executor, at: GroupTopic, limit: int) -> list[str]:
    """Return the keys of some lanes for which a group has a row."""
    return [key for (key,) in cx.query(SOME_OF_GROUP, (*at.columns, limit))]


def delete(cx: Executor, at: GroupTopic, keys: Iterable[str]) -> None:
    """Remove a group's rows of these lanes."""
    write(cx, DELETE, [(key, 0) for key in sorted(keys)], after=at.columns)


def groups_seen(cx: Executor, topic: str) -> list[str]:
    """Return every group that has a row in a topic, registered or not. The reserved group '' is one of them."""
    return [group for (group,) in cx.query(GROUPS_SEEN, (topic,))]
