"""`queue_partition_leases`: the rows that leave with a purged lane, a deleted group or its leftovers.

Owns these statements; the others are in `leases`. Never decides what may leave.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._stores._points import MAX_POINTS, all_locked, number, write

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lanelog._base.places import GroupTopic
    from lanelog._database import Executor

# Purge of one lane: the groups' rows, without those that another transaction has locked (PRIMARY).
LOCK_LANE = """
SELECT consumer_group, lease_epoch FROM queue_partition_leases FORCE INDEX (PRIMARY)
WHERE consumer_group IN ({groups}) AND topic = %s AND partition_key = %s FOR UPDATE SKIP LOCKED
"""

# How many of some groups have a lease row for a lane, without a lock (PRIMARY by exact group).
COUNT_LANE = """
SELECT COUNT(*) FROM queue_partition_leases FORCE INDEX (PRIMARY)
WHERE consumer_group IN ({groups}) AND topic = %s AND partition_key = %s
"""

# Purge of one lane, one group at a time (PRIMARY by exact group).
PURGE = """DELETE queue_partition_leases FROM queue_partition_leases FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND partition_key = %s"""

# The highest epoch of a group's leftovers (PRIMARY, prefix).
MAX_EPOCH = """SELECT COALESCE(MAX(lease_epoch), 0) FROM queue_partition_leases FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s"""

# Some of the keys of a group's leases, in order (PRIMARY, prefix).
KEYS_OF_GROUP = f"""SELECT partition_key FROM queue_partition_leases FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND partition_key > %s ORDER BY partition_key LIMIT {MAX_POINTS}"""

# Delete rows by exact key (PRIMARY, one lookup a key).
DELETE = """
DELETE gone FROM ({exact}) AS exact STRAIGHT_JOIN queue_partition_leases AS gone FORCE INDEX (PRIMARY)
ON gone.consumer_group = %s AND gone.topic = %s AND gone.partition_key = exact.k"""

# Leftovers of an earlier group of that name (PRIMARY).
DELETE_GROUP = """DELETE queue_partition_leases FROM queue_partition_leases FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s"""


def lock_lane(cx: Executor, topic: str, key: str, groups: Sequence[str]) -> int | None:
    """Lock every group's lease row of a lane, and return the highest epoch. None: another transaction holds one."""
    rows = all_locked(cx, LOCK_LANE, COUNT_LANE, groups, topic, key)
    return None if rows is None else max((int(epoch) for _, epoch in rows), default=0)


def purge(cx: Executor, topic: str, key: str, groups: Sequence[str]) -> None:
    """Remove a lane's lease rows."""
    for group in sorted(groups, key=str.encode):  # for several at once a server may read the whole table, and wait
        cx.execute(PURGE, (group, topic, key))


def max_epoch(cx: Executor, at: GroupTopic) -> int:
    """Return the highest epoch in a group's rows for a topic, 0 without rows."""
    return number(cx.one(MAX_EPOCH, at.columns)) or 0


def delete_group(cx: Executor, at: GroupTopic) -> None:
    """Remove every lease row of a group for a topic."""
    cx.execute(DELETE_GROUP, at.columns)


def keys_of_group(cx: Executor, at: GroupTopic, after: str = "") -> list[str]:
    """Return the next keys behind `after` of lanes for which a group has a lease row. Empty: there is none."""
    return [key for (key,) in cx.query(KEYS_OF_GROUP, (*at.columns, after))]


def delete(cx: Executor, at: GroupTopic, keys: Iterable[str]) -> None:
    """Remove a group's lease rows of these lanes."""
    write(cx, DELETE, [(key, 0) for key in sorted(keys)], after=at.columns)
