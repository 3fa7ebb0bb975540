"""Lanes whose rows contradict each other: the statements that find such a lane, lock its rows and read them.

Owns these statements over several tables. Never writes, and never decides which row is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from lanelog._stores._counted import BEYOND_COUNTING
from lanelog._stores._points import BEYOND, number, placeholders, points

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._database import Executor

# Lanes that hold messages above their head, or have no floor, or a head beyond counting: one read of the end of each
# lane (all PRIMARY). The order names every column of the key: otherwise MySQL sorts all messages of a lane.
LANES = f"""
SELECT p.partition_key FROM queue_partitions p FORCE INDEX (PRIMARY)
LEFT JOIN queue_offsets f FORCE INDEX (PRIMARY)
       ON f.consumer_group = '' AND f.topic = p.topic AND f.partition_key = p.partition_key
WHERE p.topic = %s AND p.partition_key <> '' AND (f.offset_acked IS NULL
      OR p.head_offset >= {BEYOND_COUNTING} OR p.head_offset < (
      SELECT m.`offset` FROM queue_messages m FORCE INDEX (PRIMARY)
      WHERE m.topic = p.topic AND m.partition_key = p.partition_key
      ORDER BY m.topic DESC, m.partition_key DESC, m.`offset` DESC LIMIT 1)) LIMIT %s
"""

# Lanes without a floor (all PRIMARY).
FLOORLESS = """
SELECT p.partition_key FROM queue_partitions p FORCE INDEX (PRIMARY)
LEFT JOIN queue_offsets f FORCE INDEX (PRIMARY)
       ON f.consumer_group = '' AND f.topic = p.topic AND f.partition_key = p.partition_key
WHERE p.topic = %s AND p.partition_key <> '' AND f.offset_acked IS NULL LIMIT %s
"""

# The first lanes of a topic (PRIMARY).
SOME = """SELECT partition_key FROM queue_partitions FORCE INDEX (PRIMARY)
WHERE topic = %s AND partition_key > '' ORDER BY partition_key LIMIT %s"""

# The heads of some lanes, and whether messages lie above them (both PRIMARY). NULL: there is no message.
ENDS = """
SELECT p.partition_key, p.head_offset, p.head_offset < (
       SELECT m.`offset` FROM queue_messages m FORCE INDEX (PRIMARY)
       WHERE m.topic = p.topic AND m.partition_key = p.partition_key
       ORDER BY m.topic DESC, m.partition_key DESC, m.`offset` DESC LIMIT 1)
FROM queue_partitions p FORCE INDEX (PRIMARY) WHERE p.topic = %s AND p.partition_key IN ({keys})
"""

# Lanes with a watermark or floor above the head, or with a floor and no head (both PRIMARY).
WATERMARKS = """
SELECT o.partition_key FROM queue_offsets o FORCE INDEX (PRIMARY)
LEFT JOIN queue_partitions p FORCE INDEX (PRIMARY) ON p.topic = o.topic AND p.partition_key = o.partition_key
WHERE o.consumer_group IN ({groups}) AND o.topic = %s AND o.partition_key <= %s
      AND (o.offset_acked > p.head_offset OR (p.head_offset IS NULL AND o.consumer_group = '')) LIMIT %s
"""

# Lanes with a delivery row that reaches above the head (both PRIMARY).
DELIVERIES = """
SELECT d.partition_key FROM queue_delivery_state d FORCE INDEX (PRIMARY)
JOIN queue_partitions p FORCE INDEX (PRIMARY) ON p.topic = d.topic AND p.partition_key = d.partition_key
WHERE d.consumer_group IN ({groups}) AND d.topic = %s AND d.through_offset > p.head_offset LIMIT %s
"""

# Floor and watermarks of one lane (PRIMARY by exact group).
OF_LANE = """SELECT consumer_group, offset_acked FROM queue_offsets FORCE INDEX (PRIMARY)
WHERE consumer_group IN ({groups}) AND topic = %s AND partition_key = %s"""

# Head of one lane (PRIMARY).
HEAD = "SELECT head_offset FROM queue_partitions FORCE INDEX (PRIMARY) WHERE topic = %s AND partition_key = %s"

# The first message of one lane (PRIMARY).
FIRST = """SELECT `offset` FROM queue_messages FORCE INDEX (PRIMARY)
WHERE topic = %s AND partition_key = %s ORDER BY `offset` LIMIT 1"""

# The last message of one lane (PRIMARY).
LAST = """SELECT `offset` FROM queue_messages FORCE INDEX (PRIMARY)
WHERE topic = %s AND partition_key = %s ORDER BY `offset` DESC LIMIT 1"""

# Delivery rows of one lane (PRIMARY by exact group and lane).
ROWS = """SELECT consumer_group, message_offset, through_offset FROM queue_delivery_state FORCE INDEX (PRIMARY)
WHERE consumer_group IN ({groups}) AND topic = %s AND partition_key = %s"""

# The leases of one lane, against every settlement of these groups (PRIMARY).
LOCK_LEASES = """SELECT consumer_group FROM queue_partition_leases FORCE INDEX (PRIMARY)
WHERE consumer_group IN ({groups}) AND topic = %s AND partition_key = %s ORDER BY consumer_group FOR UPDATE"""


@frozen(kw_only=True)
class LaneRows:
    """The rows of one lane, as they were read."""

    head: int | None
    floor: int | None
    first: int | None
    last: int | None
    watermarks: dict[str, int]
    """The watermarks by group, without the floor."""
    rows: dict[str, list[tuple[int, int]]]
    """(first, last offset) of the delivery rows, by group. The reserved group '' is one of them."""


def suspects(cx: Executor, topic: str, groups: Sequence[str], limit: int) -> list[str]:
    """Return keys of lanes that seem wrong, without a lock. The end of each lane's log is one read from the disk."""
    return _found(cx, topic, (LANES, (topic, limit)), ["", *groups], ["", *groups], BEYOND, limit)


def suspects_among(
    cx: Executor, topic: str, groups: Sequence[str], limit: int, heads: int, watermarks: int
) -> list[str]:
    """Return the same, with fewer reads: the end of the log is read for the first `heads` lanes only.

    Floors are compared with the heads of the first `watermarks` lanes, and no watermarks of groups are.
    """
    first = [key for (key,) in cx.query(SOME, (topic, watermarks))]
    last = first[-1] if len(first) == watermarks else BEYOND
    found = [key for key, (_, behind) in ends(cx, topic, first[:heads]).items() if behind]
    others = _found(cx, topic, (FLOORLESS, (topic, limit)), [""], ["", *groups], last, limit)
    return list(dict.fromkeys([*found, *others]))[:limit]


def _found(
    cx: Executor,
    topic: str,
    lanes: tuple[str, tuple[object, ...]],
    compared: Sequence[str],
    groups: Sequence[str],
    last: str,
    limit: int,
) -> list[str]:
    found: dict[str, None] = {}
    for sql, args in (
        lanes,
        (WATERMARKS.format(groups=placeholders(compared)), (*compared, topic, last, limit)),
        (DELIVERIES.format(groups=placeholders(groups)), (*groups, topic, limit)),
    ):
        found.update(dict.fromkeys(key for (key,) in cx.query(sql, args) if key))
    return list(found)[:limit]


def ends(cx: Executor, topic: str, keys: Sequence[str]) -> dict[str, tuple[int, bool]]:
    """Return the heads of these lanes, and whether each must be wrong. A purged lane is absent.

    A head is wrong if messages lie above it, or if it is beyond counting.
    """
    return {
        key: (int(head), bool(behind) or head >= BEYOND_COUNTING)
        for key, head, behind in points(cx, ENDS, keys, before=[topic])
    }


def first(cx: Executor, topic: str, key: str) -> int | None:
    """Return the offset of the first message of a lane, None if there is none."""
    return number(cx.one(FIRST, (topic, key)))


def read(cx: Executor, topic: str, key: str, groups: Sequence[str]) -> LaneRows:
    """Read the rows of a lane in several statements. The caller holds the locks, or reads in one snapshot."""
    named = ["", *groups]
    marks = placeholders(named)
    watermarks = {group: int(acked) for group, acked in cx.query(OF_LANE.format(groups=marks), (*named, topic, key))}
    rows: dict[str, list[tuple[int, int]]] = {}
    for group, offset, through in cx.query(ROWS.format(groups=marks), (*named, topic, key)):
        rows.setdefault(group, []).append((int(offset), int(through)))
    return LaneRows(
        head=number(cx.one(HEAD, (topic, key))),
        floor=watermarks.pop("", None),
        first=first(cx, topic, key),
        last=number(cx.one(LAST, (topic, key))),
        watermarks=watermarks,
        rows=rows,
    )


def lock_leases(cx: Executor, topic: str, key: str, groups: Sequence[str]) -> None:
    """Wait for the settlements in flight, and keep out all others."""
    named = sorted(groups, key=str.encode)
    cx.query(LOCK_LEASES.format(groups=placeholders(named)), (*named, topic, key))
