"""The lag of one group as one statement with one number, for programs that speak SQL alone, such as autoscalers.

Owns the statement, and its form as text. The number is that of `Admin.lag`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from lanelog.admin.lookup.arguments import check_names
from lanelog.admin.totals.lane_totals import WATERMARK

if TYPE_CHECKING:
    from lanelog._base.places import GroupTopic

_PLAIN: Final = re.compile(r"[^'\\%\x00-\x1f]*")
"""Text that means the same in quotes under every sql_mode."""

# Messages above the watermark, less those that were settled ahead of it (all PRIMARY).
LAG = f"""
SELECT CAST((
  SELECT COALESCE(SUM(GREATEST(p.head_offset, {WATERMARK}) - {WATERMARK}), 0)
  FROM queue_partitions p FORCE INDEX (PRIMARY)
  LEFT JOIN queue_offsets o FORCE INDEX (PRIMARY)
         ON o.consumer_group = %s AND o.topic = p.topic AND o.partition_key = p.partition_key
  LEFT JOIN queue_offsets f FORCE INDEX (PRIMARY)
         ON f.consumer_group = '' AND f.topic = p.topic AND f.partition_key = p.partition_key
  WHERE p.topic = %s AND p.partition_key <> ''
) - (
  SELECT COALESCE(SUM(d.through_offset + 1 - GREATEST(d.message_offset, {WATERMARK} + 1)), 0)
  FROM queue_delivery_state d FORCE INDEX (PRIMARY)
  LEFT JOIN queue_offsets o FORCE INDEX (PRIMARY)
         ON o.consumer_group = d.consumer_group AND o.topic = d.topic AND o.partition_key = d.partition_key
  LEFT JOIN queue_offsets f FORCE INDEX (PRIMARY)
         ON f.consumer_group = '' AND f.topic = d.topic AND f.partition_key = d.partition_key
  WHERE d.consumer_group = %s AND d.topic = %s AND d.acked = 1 AND d.through_offset > {WATERMARK}
) AS SIGNED) AS messages
"""


def lag_statement(at: GroupTopic) -> str:
    """Return the statement with both names in it."""
    check_names(at)
    topic, group = _literal(at.topic), _literal(at.group)
    return (LAG % (group, topic, group, topic)).strip()


def _literal(name: str) -> str:
    """Return a name as SQL text. A quote, or what some sql_mode escapes, is written in hexadecimal."""
    return f"'{name}'" if _PLAIN.fullmatch(name) else f"_utf8mb4 X'{name.encode().hex()}'"
