"""The publishing side of `queue_partitions`: lock and advance heads, and the birth of a lane, which includes its floor.

It never waits for a head unless asked to and never creates a lane in a publisher's own transaction. The publisher calls
it; who consumes reads the table through `discovery`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from lanelog import _open_lanes
from lanelog._database import NOW_MS
from lanelog._stores._points import chunked, placeholders

if TYPE_CHECKING:
    from lanelog._database import Executor

# Which of some lanes exist, committed and without a lock (PRIMARY).
EXISTING = """SELECT partition_key FROM queue_partitions FORCE INDEX (PRIMARY)
WHERE topic = %s AND partition_key IN ({keys})"""

# Lock heads in key order, one exact row each (PRIMARY).
LOCK_HEADS = """SELECT partition_key, head_offset FROM queue_partitions FORCE INDEX (PRIMARY)
WHERE topic = %s AND partition_key IN ({keys}) ORDER BY partition_key FOR UPDATE"""

# The same, leaving out those that somebody else has locked (PRIMARY).
TRY_LOCK_HEADS = LOCK_HEADS + " SKIP LOCKED"

# Hand out so many offsets in each of some lanes whose heads are locked (PRIMARY).
ADVANCE = """UPDATE queue_partitions FORCE INDEX (PRIMARY) SET head_offset = head_offset + %s
WHERE topic = %s AND partition_key IN ({keys})"""

# Is there a topic row? (PRIMARY)
TOPIC_EXISTS = "SELECT 1 FROM queue_partitions WHERE topic = %s AND partition_key = ''"

# Insert the topic row if it is absent (PRIMARY).
CREATE_TOPIC = f"INSERT IGNORE INTO queue_partitions (topic, partition_key, created_at) VALUES (%s, '', {NOW_MS})"

# Hold the topic row against a purge, and read where new lanes begin (PRIMARY).
SHARE_TOPIC = "SELECT head_offset FROM queue_partitions WHERE topic = %s AND partition_key = '' LOCK IN SHARE MODE"

# Over how many open lanes a topic's messages without a key spread (PRIMARY).
OPEN_LANES = "SELECT open_lanes FROM queue_partitions WHERE topic = %s AND partition_key = ''"

# Say so (PRIMARY).
SET_OPEN_LANES = "UPDATE queue_partitions SET open_lanes = %s WHERE topic = %s AND partition_key = ''"

# The floors of new lanes: everything up to the first offset is released and gone (PRIMARY of queue_offsets).
CREATE_FLOORS = """INSERT IGNORE INTO queue_offsets
(consumer_group, topic, partition_key, offset_acked, marked_through, updated_at) VALUES """
FLOOR = f"('',%s,%s,%s,%s,{NOW_MS})"

# The heads of new lanes, where the purged ones ended (PRIMARY).
CREATE_HEADS = "INSERT IGNORE INTO queue_partitions (topic, partition_key, head_offset, created_at) VALUES "
HEAD = f"(%s,%s,%s,{NOW_MS})"


class Partitions:
    """Statements of publishers on `queue_partitions`."""

    def existing(self, cx: Executor, topic: str, keys: Iterable[str]) -> set[str]:
        """Which of the lanes exist."""
        found: set[str] = set()
        for chunk in chunked(sorted(keys)):
            found.update(key for (key,) in cx.query(EXISTING.format(keys=placeholders(chunk)), (topic, *chunk)))
        return found

    def lock_heads(self, cx: Executor, topic: str, keys: Iterable[str], *, wait: bool) -> dict[str, int]:
        """Lock the heads in key order; heads by key. Without `wait`, those that somebody else has are left out."""
        statement = LOCK_HEADS if wait else TRY_LOCK_HEADS
        heads: dict[str, int] = {}
        for chunk in chunked(sorted(keys)):
            heads.update(
                (key, int(head)) for key, head in cx.query(statement.format(keys=placeholders(chunk)), (topic, *chunk))
            )
        return heads

    def advance(self, cx: Executor, topic: str, counts: Mapping[str, int]) -> int:
        """Hand out `counts[key]` offsets in each lane; returns how many heads that moved, to be compared."""
        keys_by_count: dict[int, list[str]] = defaultdict(list)
        for key in sorted(counts):
            keys_by_count[counts[key]].append(key)
        moved = 0
        for count, keys in keys_by_count.items():
            for chunk in chunked(keys):
                moved += cx.execute(ADVANCE.format(keys=placeholders(chunk)), (count, topic, *chunk))
        return moved

    def create_topic(self, cx: Executor, topic: str) -> None:
        """Make sure that the topic row exists; for a session that commits every statement by itself."""
        if cx.one(TOPIC_EXISTS, (topic,)) is None:
            cx.execute(CREATE_TOPIC, (topic,))

    def share_topic(self, cx: Executor, topic: str) -> int | None:
        """Lock the topic row against a purge; the highest offset ever purged, None if there is no such row."""
        row = cx.one(SHARE_TOPIC, (topic,))
        return None if row is None else int(row[0])

    def open_lanes(self, cx: Executor, topic: str, *, tables: int) -> int:
        """How many open lanes a topic has; the default in tables of a version that does not tell, or without topic."""
        row = cx.one(OPEN_LANES, (topic,)) if tables >= _open_lanes.SINCE else None
        return _open_lanes.DEFAULT if row is None else int(row[0])

    def set_open_lanes(self, cx: Executor, topic: str, count: int) -> None:
        """Change the number of a topic's open lanes."""
        cx.execute(SET_OPEN_LANES, (count, topic))

    def create_floors(self, cx: Executor, topic: str, keys: Sequence[str], begin: int) -> None:
        """Insert the floors that are absent."""
        for chunk in chunked(sorted(keys)):
            args = [value for key in chunk for value in (topic, key, begin, begin)]
            cx.execute(CREATE_FLOORS + ",".join([FLOOR] * len(chunk)), args)

    def create_heads(self, cx: Executor, topic: str, keys: Sequence[str], begin: int) -> None:
        """Insert the heads that are absent."""
        for chunk in chunked(sorted(keys)):
            args = [value for key in chunk for value in (topic, key, begin)]
            cx.execute(CREATE_HEADS + ",".join([HEAD] * len(chunk)), args)
