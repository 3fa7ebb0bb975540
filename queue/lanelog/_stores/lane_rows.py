"""What the tables say of a lane that cannot all be true: how it is found, read under locks, and put right.

Owns these statements over several tables; never decides what is wrong or what becomes of it. Called by
`_engine.contradictions`, for the keeper, the janitor and administration alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from lanelog._stores._points import chunked, placeholders

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._database import Executor

# Lanes that hold messages above their head, or have no floor (all PRIMARY): one look at the end of each lane. MySQL
# sorts all messages of a lane unless the order names every column of the key.
LANES = """
SELECT p.partition_key FROM queue_partitions p FORCE INDEX (PRIMARY)
LEFT JOIN queue_offsets f FORCE INDEX (PRIMARY)
       ON f.consumer_group = '' AND f.topic = p.topic AND f.partition_key = p.partition_key
WHERE p.topic = %s AND p.partition_key <> '' AND (f.offset_acked IS NULL OR p.head_offset < (
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

# Of some lanes, those that hold messages above their head (both PRIMARY).
BEHIND = """
SELECT p.partition_key FROM queue_partitions p FORCE INDEX (PRIMARY)
WHERE p.topic = %s AND p.partition_key IN ({keys}) AND p.head_offset < (
      SELECT m.`offset` FROM queue_messages m FORCE INDEX (PRIMARY)
      WHERE m.topic = p.topic AND m.partition_key = p.partition_key
      ORDER BY m.topic DESC, m.partition_key DESC, m.`offset` DESC LIMIT 1)
"""

# Watermarks and floors above the head, and floors without one (both PRIMARY).
WATERMARKS = """
SELECT o.partition_key FROM queue_offsets o FORCE INDEX (PRIMARY)
LEFT JOIN queue_partitions p FORCE INDEX (PRIMARY) ON p.topic = o.topic AND p.partition_key = o.partition_key
WHERE o.consumer_group IN ({groups}) AND o.topic = %s
      AND (o.offset_acked > p.head_offset OR (p.head_offset IS NULL AND o.consumer_group = '')) LIMIT %s
"""

# Delivery rows that reach above the head (both PRIMARY): of these groups, and of the settled dead letters (group '').
DELIVERIES = """
SELECT d.partition_key FROM queue_delivery_state d FORCE INDEX (PRIMARY)
JOIN queue_partitions p FORCE INDEX (PRIMARY) ON p.topic = d.topic AND p.partition_key = d.partition_key
WHERE d.consumer_group IN ({groups}) AND d.topic = %s AND d.through_offset > p.head_offset LIMIT %s
"""

# The floor of one lane, against collection, seek, and the purge of the lane (PRIMARY).
LOCK_FLOOR = """SELECT offset_acked FROM queue_offsets FORCE INDEX (PRIMARY)
WHERE consumer_group = '' AND topic = %s AND partition_key = %s FOR UPDATE"""

# The head of one lane, against publishers (PRIMARY).
LOCK_HEAD = """SELECT head_offset FROM queue_partitions FORCE INDEX (PRIMARY)
WHERE topic = %s AND partition_key = %s FOR UPDATE"""

# Floor and watermarks of one lane (PRIMARY by exact group).
PLACES = """SELECT consumer_group, offset_acked FROM queue_offsets FORCE INDEX (PRIMARY)
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

# Nobody may settle anything in the lane any more for these groups: who holds it is waited for (PRIMARY).
LOCK_LEASES = """SELECT consumer_group FROM queue_partition_leases FORCE INDEX (PRIMARY)
WHERE consumer_group IN ({groups}) AND topic = %s AND partition_key = %s ORDER BY consumer_group FOR UPDATE"""


@frozen(kw_only=True)
class LaneRows:
    """What the tables say of one lane, read while nobody can change it, or in one snapshot."""

    head: int | None
    floor: int | None
    first: int | None
    last: int | None
    watermarks: dict[str, int]
    """By group, without the floor."""
    rows: dict[str, list[tuple[int, int]]]
    """(first, last offset) of the delivery rows, by group; the reserved group '' with them."""


def suspects(cx: Executor, topic: str, groups: Sequence[str], limit: int, heads: int | None = None) -> list[str]:
    """Keys of lanes that look wrong, in few statements however many lanes there are, without a lock.

    The end of each lane's log is a read from the disk of its own: of the first `heads` lanes only, if given.
    """
    found: dict[str, None] = {}
    named = ["", *groups]
    if heads is not None:
        found.update(dict.fromkeys(behind(cx, topic, [key for (key,) in cx.query(SOME, (topic, heads))])))
    for sql, args in (
        (LANES if heads is None else FLOORLESS, (topic, limit)),
        (WATERMARKS.format(groups=placeholders(named)), (*named, topic, limit)),
        (DELIVERIES.format(groups=placeholders(named)), (*named, topic, limit)),
    ):
        found.update(dict.fromkeys(key for (key,) in cx.query(sql, args) if key))
    return list(found)[:limit]


def behind(cx: Executor, topic: str, keys: Sequence[str]) -> set[str]:
    """Those of these lanes whose head is below the log."""
    found: set[str] = set()
    for chunk in chunked(keys):
        found.update(key for (key,) in cx.query(BEHIND.format(keys=placeholders(chunk)), (topic, *chunk)))
    return found


def lock_floor(cx: Executor, topic: str, key: str) -> int | None:
    """Lock the floor of a lane."""
    return _number(cx.one(LOCK_FLOOR, (topic, key)))


def lock_head(cx: Executor, topic: str, key: str) -> int | None:
    """Lock the head of a lane."""
    return _number(cx.one(LOCK_HEAD, (topic, key)))


def read(cx: Executor, topic: str, key: str, groups: Sequence[str]) -> LaneRows:
    """What the tables say of a lane, statement by statement: the caller holds it still."""
    named = ["", *groups]
    marks = placeholders(named)
    places = {group: int(acked) for group, acked in cx.query(PLACES.format(groups=marks), (*named, topic, key))}
    rows: dict[str, list[tuple[int, int]]] = {}
    for group, offset, through in cx.query(ROWS.format(groups=marks), (*named, topic, key)):
        rows.setdefault(group, []).append((int(offset), int(through)))
    return LaneRows(
        head=_number(cx.one(HEAD, (topic, key))),
        floor=places.pop("", None),
        first=_number(cx.one(FIRST, (topic, key))),
        last=_number(cx.one(LAST, (topic, key))),
        watermarks=places,
        rows=rows,
    )


def lock_leases(cx: Executor, topic: str, key: str, groups: Sequence[str]) -> None:
    """Wait for who is settling in the lane, and keep everybody else out."""
    named = sorted(groups, key=str.encode)
    cx.query(LOCK_LEASES.format(groups=placeholders(named)), (*named, topic, key))


def _number(row: tuple[int, ...] | None) -> int | None:
    return None if row is None else int(row[0])
