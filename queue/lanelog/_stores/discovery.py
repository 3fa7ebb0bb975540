"""The consuming side of `queue_partitions`: which lanes exist, how far their heads are, and the topic row.

Owns these SELECTs and the purge of a head; publishing has its own. Called by registration, keeper, fetcher and janitor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._database import NOW_MS
from lanelog._stores._points import chunked, placeholders

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._database import Executor

# Owned lanes whose head is beyond what was acked (leases by_owner; heads and offsets PRIMARY).
LOOK = """
SELECT l.partition_key, p.head_offset
FROM queue_partition_leases l FORCE INDEX (by_owner)
JOIN queue_partitions p FORCE INDEX (PRIMARY) ON p.topic = l.topic AND p.partition_key = l.partition_key
LEFT JOIN queue_offsets o FORCE INDEX (PRIMARY)
       ON o.consumer_group = l.consumer_group AND o.topic = l.topic AND o.partition_key = l.partition_key
WHERE l.consumer_group = %s AND l.topic = %s AND l.leased_by = %s AND p.head_offset > COALESCE(o.offset_acked, 0)
"""

# Lanes created since (new_lanes), and the database's clock for the next call.
NEW_LANES = f"""
SELECT partition_key FROM queue_partitions FORCE INDEX (new_lanes)
WHERE topic = %s AND created_at >= {NOW_MS} - %s AND partition_key <> ''
"""

# How many lanes a topic has (PRIMARY, prefix).
COUNT_LANES = """SELECT COUNT(*) FROM queue_partitions FORCE INDEX (PRIMARY)
WHERE topic = %s AND partition_key <> ''"""

# Heads of some lanes (PRIMARY).
HEADS = """SELECT partition_key, head_offset FROM queue_partitions FORCE INDEX (PRIMARY)
WHERE topic = %s AND partition_key IN ({keys})"""

# All keys and heads of a topic in key order, page by page (PRIMARY).
PAGE = """SELECT partition_key, head_offset FROM queue_partitions FORCE INDEX (PRIMARY)
WHERE topic = %s AND partition_key > %s ORDER BY partition_key LIMIT %s"""

# Create the topic row (PRIMARY).
CREATE_TOPIC = f"""INSERT INTO queue_partitions (topic, partition_key, created_at) VALUES (%s, '', {NOW_MS})
ON DUPLICATE KEY UPDATE topic = topic"""

# The topic row, shared: a lease is born, or a collector asks who reads the topic (PRIMARY).
SHARE_TOPIC = """SELECT head_offset, max_epoch, holds_dead_letters FROM queue_partitions
WHERE topic = %s AND partition_key = '' LOCK IN SHARE MODE"""

# The topic row, exclusive: a group is registered (PRIMARY).
LOCK_TOPIC = """SELECT head_offset, max_epoch, holds_dead_letters FROM queue_partitions
WHERE topic = %s AND partition_key = '' FOR UPDATE"""

# The topic row, exclusive and without waiting: a lane is purged (PRIMARY).
TRY_LOCK_TOPIC = """SELECT head_offset, max_epoch, holds_dead_letters FROM queue_partitions
WHERE topic = %s AND partition_key = '' FOR UPDATE SKIP LOCKED"""

# The topic row keeps the highest offset and epoch that left with purged lanes and groups (PRIMARY).
RAISE_TOPIC = """UPDATE queue_partitions
SET head_offset = GREATEST(head_offset, %s), max_epoch = GREATEST(max_epoch, %s)
WHERE topic = %s AND partition_key = ''"""

# A dead letter topic is marked as such before its first dead letter (PRIMARY).
MARK_DEAD_LETTERS = "UPDATE queue_partitions SET holds_dead_letters = 1 WHERE topic = %s AND partition_key = ''"

# Take a head without waiting: a dead letter is published, or the lane purged (PRIMARY).
TRY_LOCK_HEAD = """SELECT head_offset FROM queue_partitions
WHERE topic = %s AND partition_key = %s FOR UPDATE SKIP LOCKED"""

# Advance a head that is locked (PRIMARY).
SET_HEAD = "UPDATE queue_partitions SET head_offset = %s WHERE topic = %s AND partition_key = %s"

# Purge of one lane (PRIMARY).
PURGE = "DELETE FROM queue_partitions WHERE topic = %s AND partition_key = %s"


class Discovery:
    """SELECTs of `queue_partitions`."""

    def look(self, cx: Executor, group: str, topic: str, owner: str) -> list[tuple[str, int]]:
        """(key, head) of owned lanes that hold something not acked."""
        return [(key, head) for key, head in cx.query(LOOK, (group, topic, owner))]

    def new_lanes(self, cx: Executor, topic: str, age: float) -> list[str]:
        """Keys of lanes created in the last `age` seconds."""
        return [key for (key,) in cx.query(NEW_LANES, (topic, int(age * 1000)))]

    def count_lanes(self, cx: Executor, topic: str) -> int:
        """How many lanes the topic has."""
        row = cx.one(COUNT_LANES, (topic,))
        return 0 if row is None else int(row[0])

    def heads(self, cx: Executor, topic: str, keys: Sequence[str]) -> dict[str, int]:
        """Heads by key; a purged lane is absent."""
        found: dict[str, int] = {}
        for chunk in chunked(keys):
            found.update(cx.query(HEADS.format(keys=placeholders(chunk)), (topic, *chunk)))
        return found

    def page(self, cx: Executor, topic: str, after: str, limit: int) -> list[tuple[str, int]]:
        """(key, head) of up to `limit` lanes behind `after`."""
        return [(key, head) for key, head in cx.query(PAGE, (topic, after, limit))]

    def create_topic(self, cx: Executor, topic: str) -> None:
        """Make sure that the topic row exists (autocommit)."""
        cx.execute(CREATE_TOPIC, (topic,))

    def share_topic(self, cx: Executor, topic: str) -> tuple[int, int, bool] | None:
        """Share-lock the topic row: (highest purged offset, highest retired epoch, holds dead letters)."""
        return _topic(cx.one(SHARE_TOPIC, (topic,)))

    def lock_topic(self, cx: Executor, topic: str) -> tuple[int, int, bool] | None:
        """Lock the topic row."""
        return _topic(cx.one(LOCK_TOPIC, (topic,)))

    def try_lock_topic(self, cx: Executor, topic: str) -> tuple[int, int, bool] | None:
        """Lock the topic row, or None at once."""
        return _topic(cx.one(TRY_LOCK_TOPIC, (topic,)))

    def raise_topic(self, cx: Executor, topic: str, offset: int, epoch: int) -> None:
        """Remember what must never be handed out again."""
        cx.execute(RAISE_TOPIC, (offset, epoch, topic))

    def mark_dead_letters(self, cx: Executor, topic: str) -> None:
        """Exempt a topic from collection: its messages are somebody's dead letters."""
        cx.execute(MARK_DEAD_LETTERS, (topic,))

    def try_lock_head(self, cx: Executor, topic: str, key: str) -> int | None:
        """Lock a head; None: it is missing, or somebody has it."""
        row = cx.one(TRY_LOCK_HEAD, (topic, key))
        return None if row is None else int(row[0])

    def set_head(self, cx: Executor, topic: str, key: str, head: int) -> None:
        """Move a locked head."""
        cx.execute(SET_HEAD, (head, topic, key))

    def purge(self, cx: Executor, topic: str, key: str) -> None:
        """Remove a head."""
        cx.execute(PURGE, (topic, key))


def _topic(row: tuple[int, int, int] | None) -> tuple[int, int, bool] | None:
    return None if row is None else (int(row[0]), int(row[1]), bool(row[2]))
