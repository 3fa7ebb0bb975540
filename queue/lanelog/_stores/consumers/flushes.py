"""The flush of `queue_offsets`: watermarks and run marks of the lanes of one group.

Owns these statements. Never decides what is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._database import NOW_MS, SERVER_MARK
from lanelog._stores._points import write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._base.places import GroupTopic
    from lanelog._database import Executor
    from lanelog._stores.consumers._offset_rows import OffsetsWrite, WrittenOffsets

_COLUMNS = "consumer_group, topic, partition_key, offset_acked, marked_through, marked_epoch, marked_at, updated_at"

# One flush: watermarks and run marks of many lanes (PRIMARY). A flush never lowers a watermark.
FLUSH = f"""
INSERT INTO queue_offsets ({_COLUMNS})
VALUES {{rows}}
ON DUPLICATE KEY UPDATE offset_acked = GREATEST(offset_acked, VALUES(offset_acked)),
       marked_at = IF(marked_through = VALUES(marked_through) AND marked_epoch = VALUES(marked_epoch), marked_at,
                      VALUES(marked_at)),
       marked_through = VALUES(marked_through), marked_epoch = VALUES(marked_epoch), updated_at = VALUES(updated_at)
"""

# Whether the row is still as the last flush left it. Assignments are made in order, so those that ask come before those
# that change the answer.
_SAME = "offset_acked = %s AND marked_through = %s"

# Fence and flush of one lane whose row is known. The lease is locked as by `leases.FENCE` (queue_partition_leases
# PRIMARY). The statement may arrive late, when its connection is long lost and a newer flush has been made. Then the
# row is another one, and stays: an older mark must not hide a message that a handler has. One case is left: the run was
# recalled and its mark undone meanwhile, so that the row is as before. Then the late mark counts an attempt that never
# began, if the process dies before the lane's next flush. An attempt too many is safe, one too few is not.
# NOW_MS is the time before any wait for a lock, so the mark may seem older than it is, by the length of that wait.
FLUSH_FENCED = f"""
INSERT INTO queue_offsets ({_COLUMNS})
SELECT consumer_group, topic, partition_key, %s, %s, lease_epoch, {NOW_MS}, {NOW_MS}
FROM queue_partition_leases FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND partition_key = %s AND leased_by = %s AND lease_epoch = %s
      AND {SERVER_MARK} = %s LOCK IN SHARE MODE
ON DUPLICATE KEY UPDATE updated_at = IF({_SAME}, VALUES(updated_at), updated_at),
       marked_at = IF({_SAME} AND NOT (marked_through = VALUES(marked_through) AND marked_epoch = VALUES(marked_epoch)),
                      VALUES(marked_at), marked_at),
       marked_epoch = IF({_SAME}, VALUES(marked_epoch), marked_epoch),
       marked_through = IF({_SAME}, VALUES(marked_through), marked_through),
       offset_acked = IF(marked_through = VALUES(marked_through) AND marked_epoch = VALUES(marked_epoch),
                         GREATEST(offset_acked, VALUES(offset_acked)), offset_acked)
"""

_CHANGED = 2
"""How many rows the server counts for an existing one that it changed. 1: for a new one, and for one that stays."""


def flush(cx: Executor, at: GroupTopic, rows: Sequence[OffsetsWrite]) -> None:
    """Write rows in primary-key order."""
    group, topic = at.columns
    values = [(group, topic, *row) for row in sorted(rows)]
    write(cx, FLUSH, values, row=f"(%s, %s, %s, %s, %s, %s, {NOW_MS}, {NOW_MS})")


def flush_fenced(
    cx: Executor, at: GroupTopic, owner: str, row: OffsetsWrite, *, before: WrittenOffsets, server: int
) -> bool:
    """Write one row and commit, if the lane is the owner's under the row's epoch, and the server has this SERVER_MARK.

    `before`: what the row says now. The lease stays locked until the COMMIT. False: nothing is known to be written.
    """
    where = (*at.columns, row.key, owner, row.marked_epoch, server)
    args = (row.offset_acked, row.marked_through, *where, *before, *before, *before, *before)
    return cx.execute(FLUSH_FENCED, args) == _CHANGED
