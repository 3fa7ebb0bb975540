"""The purge of one lane that every group has drained.

Owns that transaction. Never waits for a lock, and gives up when a row of
the lane is locked.

Lock order: topic row X → floor → head → leases → offsets, all SKIP LOCKED. The topic row keeps the highest offset and
epoch. A lane that comes back continues above them, so no offset and no epoch is used twice. A scheduled message waits
outside of the log and does not keep its lane. The lane comes back when the message is due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._base.open_lane_keys import is_open, lane_keys
from lanelog._database import Lock
from lanelog._stores.consumers import deliveries, groups, offsets
from lanelog._stores.log import partitions
from lanelog._stores.members import lease_removal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._database import Executor, Session


def removable(cx: Executor, topic: str, keys: Sequence[str], *, tables: int) -> list[str]:
    """The lanes that may be purged when they are drained: all but the open lanes that publishers choose from.

    An open lane would come back within the minute, and its lease must be acquired each time. One that was added just
    now may be purged all the same, and comes back with its next message. `tables`: the version of the tables.
    """
    if not any(map(is_open, keys)):
        return list(keys)
    kept = set(lane_keys(partitions.open_lanes(cx, topic, tables=tables)))
    return [key for key in keys if key not in kept]


def drained(session: Session, topic: str, key: str) -> bool:
    """Remove the lane if head, floor, deletion and all groups' watermarks are equal. False when it stays."""
    with session.transaction() as cx:
        return _purge(cx, topic, key)


def _purge(cx: Executor, topic: str, key: str) -> bool:
    topic_row = partitions.topic_row(cx, topic, Lock.FREE)
    if topic_row is None or topic_row.holds_dead_letters:
        return False
    floor = offsets.floors(cx, topic, [key], Lock.FREE).get(key)
    if floor is None or floor.floor != floor.deleted_through:
        return False
    head = partitions.head(cx, topic, key, Lock.FREE)
    if head is None or head != floor.floor:
        return False
    readers = list(groups.readers(cx, topic))
    if not readers:
        return False
    epoch = lease_removal.lock_lane(cx, topic, key, readers)
    if epoch is None or deliveries.count_lane(cx, topic, key, readers):
        return False
    rows = offsets.lock_lane(cx, topic, key, readers)
    if rows is None or any(row.offset_acked != head or row.paused for row in rows.values()):
        return False
    partitions.raise_topic(cx, topic, head, epoch)
    partitions.purge(cx, topic, key)
    lease_removal.purge(cx, topic, key, readers)
    offsets.purge(cx, topic, key, ["", *readers])
    return True
