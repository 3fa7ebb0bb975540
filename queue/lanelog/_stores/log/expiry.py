"""The messages in `queue_messages` whose time to live is over, for one group.

Owns these reads. Never decides what becomes of such a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lanelog._database import NOW_MS
from lanelog._stores._points import points

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._base.places import GroupTopic, LaneId
    from lanelog._database import Executor


# The expired messages for a group within a range of offsets (PRIMARY, range bounded from below).
EXPIRED = f"""
SELECT `offset`, id, published_at FROM queue_messages FORCE INDEX (PRIMARY)
WHERE topic = %s AND partition_key = %s AND `offset` > %s AND `offset` <= %s
      AND target_group IN ('', %s) AND expires_at BETWEEN 1 AND {NOW_MS} ORDER BY `offset`
"""

# Those of some lanes in which the message right after the group's watermark has expired (all PRIMARY). That message
# may be for another group: EXPIRED reads again.
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


class Expired(NamedTuple):
    """An expired message. `published_at` in milliseconds."""

    offset: int
    id: str
    published_at: int


def expired(cx: Executor, lane: LaneId, watermark: int, limit: int) -> list[Expired]:
    """Return the expired messages for this group among the `limit` offsets above a watermark, in order."""
    rows = cx.query(EXPIRED, (lane.topic, lane.key, watermark, watermark + limit, lane.group))
    return [Expired(int(offset), message_id, int(published)) for offset, message_id, published in rows]


def expired_lanes(cx: Executor, at: GroupTopic, keys: Sequence[str]) -> list[str]:
    """Return those of these lanes with an expired message right after the group's watermark."""
    return [key for (key,) in points(cx, EXPIRED_LANES, keys, before=at.columns)]
