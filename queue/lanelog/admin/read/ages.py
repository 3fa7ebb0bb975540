"""The age of unsettled messages: which lanes hold the oldest, and how old the oldest message of a group is.

Owns the choice of the lanes to look into. Never lists messages.

The age of a lane is the age of the message right behind its watermark: one look-up by primary key. 10,000 of them take
0.6 s, with a backlog of three times the server's memory: the server waits for its disk once for each. Four connections
that look into a quarter of the lanes each take 0.3 s. So the oldest age of a group is exact as long as one answer needs
no more look-ups than that. Otherwise, and for lists, few lanes are looked into (`Breadth`): those in
which nothing was settled for longest. That time counts from the first attempt of a message that is being retried there,
or else from the last change of the offsets row, or from the birth of the lane. A lane that makes progress through an
older backlog may then be missed, and the answer says that the age is a lower bound.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from attrs import frozen

from lanelog._database import NOW_MS
from lanelog._places import GroupTopic
from lanelog._stores._points import BEYOND
from lanelog.admin.lookup.known import read
from lanelog.admin.lookup.together import together
from lanelog.admin.read.lane_totals import WATERMARK
from lanelog.admin.read.message_state import bodies_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._database import Database, Executor


@frozen(kw_only=True)
class Breadth:
    """How many lanes one answer looks into."""

    exact: int = 10_000
    """Lanes of all groups, so that the oldest age of each group is exact."""
    candidates: int = 500
    """Lanes of one group, unless more are asked for."""
    many: int = 1000
    """Lagging lanes of one group above which several connections look into them."""


USUAL = Breadth()

PARTS: Final = 4
"""Connections that look into the lanes of one group."""

_LANES = f"""
LEFT JOIN queue_offsets o FORCE INDEX (PRIMARY)
       ON o.consumer_group = %s AND o.topic = p.topic AND o.partition_key = p.partition_key
LEFT JOIN queue_offsets f FORCE INDEX (PRIMARY)
       ON f.consumer_group = '' AND f.topic = p.topic AND f.partition_key = p.partition_key
WHERE p.topic = %s AND p.partition_key <> '' AND p.head_offset > {WATERMARK}
"""

# Lanes with something unsettled, those first whose offsets rows are unchanged for longest (all PRIMARY).
LONGEST_STILL = f"""
SELECT p.partition_key, {WATERMARK}, COALESCE(o.updated_at, p.created_at), {NOW_MS}
FROM queue_partitions p FORCE INDEX (PRIMARY) {_LANES}
ORDER BY COALESCE(o.updated_at, p.created_at), p.partition_key LIMIT %s
"""

# Of so many lanes whose offsets rows are unchanged for longest, those with something unsettled (all PRIMARY). The inner
# order leaves out the key: comparing keys costs MySQL half of the time, and of lanes that changed in the same
# millisecond any may be looked into.
STILL_LAGGING = f"""
SELECT o.partition_key, {WATERMARK}, o.updated_at, {NOW_MS}
FROM (SELECT topic, partition_key, offset_acked, updated_at FROM queue_offsets FORCE INDEX (PRIMARY)
      WHERE consumer_group = %s AND topic = %s ORDER BY updated_at LIMIT %s) o
JOIN queue_partitions p FORCE INDEX (PRIMARY) ON p.topic = o.topic AND p.partition_key = o.partition_key
LEFT JOIN queue_offsets f FORCE INDEX (PRIMARY)
       ON f.consumer_group = '' AND f.topic = p.topic AND f.partition_key = p.partition_key
WHERE p.head_offset > {WATERMARK} ORDER BY o.updated_at, o.partition_key LIMIT %s
"""

# Lanes with a message that is being retried, the longest retried first (all PRIMARY).
LONGEST_RETRIED = f"""
SELECT d.partition_key, MAX({WATERMARK}), MIN(d.first_attempt_at), {NOW_MS}
FROM queue_delivery_state d FORCE INDEX (PRIMARY)
JOIN queue_partitions p FORCE INDEX (PRIMARY) ON p.topic = d.topic AND p.partition_key = d.partition_key {_LANES}
      AND d.consumer_group = %s AND d.topic = %s AND d.acked = 0 AND d.first_attempt_at > 0
GROUP BY d.partition_key ORDER BY MIN(d.first_attempt_at), d.partition_key LIMIT %s
"""

# How old the oldest message right behind a watermark is, in a range of keys; a hole counts as new (all PRIMARY).
OLDEST = f"""
SELECT MAX({NOW_MS} - LEAST(COALESCE(m.created_at, {NOW_MS}), {NOW_MS}))
FROM queue_partitions p FORCE INDEX (PRIMARY)
LEFT JOIN queue_offsets o FORCE INDEX (PRIMARY)
       ON o.consumer_group = %s AND o.topic = p.topic AND o.partition_key = p.partition_key
LEFT JOIN queue_offsets f FORCE INDEX (PRIMARY)
       ON f.consumer_group = '' AND f.topic = p.topic AND f.partition_key = p.partition_key
LEFT JOIN queue_messages m FORCE INDEX (PRIMARY)
       ON m.topic = p.topic AND m.partition_key = p.partition_key AND m.`offset` = {WATERMARK} + 1
WHERE p.topic = %s AND p.partition_key > '' AND p.partition_key {{within}} AND p.head_offset > {WATERMARK}
"""

# The key of the lane that is so many lanes behind another (PRIMARY).
BORDER = """
SELECT partition_key FROM queue_partitions FORCE INDEX (PRIMARY)
WHERE topic = %s AND partition_key > %s ORDER BY partition_key LIMIT %s, 1
"""

# Lanes in key order, to fill a list up with those that have nothing unsettled (PRIMARY).
REST = """
SELECT partition_key FROM queue_partitions FORCE INDEX (PRIMARY)
WHERE topic = %s AND partition_key > '' ORDER BY partition_key LIMIT %s
"""


def oldest(cx: Executor, at: GroupTopic, limit: int, breadth: Breadth) -> list[str]:
    """Return keys of at most `limit` lanes: those with the oldest message first, then lanes in which all is settled."""
    ages = candidates(cx, at, max(limit, breadth.candidates))
    keys = list(ages)[:limit]
    if len(keys) < limit:
        keys += [key for (key,) in cx.query(REST, (at.topic, limit)) if key not in ages]
    return keys[:limit]


def oldest_age(cx: Executor, at: GroupTopic) -> float | None:
    """Return the age in seconds of the oldest message right behind a watermark. None: there is no message."""
    found = _oldest_within(cx, at, "", BEYOND)
    return None if found is None else found / 1000


def borders(cx: Executor, topic: str, lanes: int) -> list[str]:
    """Return the keys that cut the lanes of a topic, of which there are about so many, into `PARTS` parts."""
    found: list[str] = []
    while len(found) < PARTS - 1:
        row = cx.one(BORDER, (topic, found[-1] if found else "", lanes // PARTS - 1))
        if row is None:
            break
        found.append(str(row[0]))
    return found


def oldest_of_many(database: Database, at: GroupTopic, borders: Sequence[str]) -> float | None:
    """Return what `oldest_age` does, exactly. Each part, from one border to the next, has a snapshot of its own.

    A lane on a border is in two parts, which changes nothing.
    """
    parts = zip(["", *borders], [*borders, BEYOND], strict=True)
    looks = [partial(read, database, _oldest_within, "looking for the oldest message", at, *part) for part in parts]
    found = [age for age in together(looks) if age is not None]
    return max(found) / 1000 if found else None


def _oldest_within(cx: Executor, at: GroupTopic, first: str, last: str) -> int | None:
    """Return the age in milliseconds of the oldest message right behind a watermark, in a range of keys."""
    row = cx.one(OLDEST.format(within="BETWEEN %s AND %s"), (*at.columns, first, last))
    return None if row is None or row[0] is None else int(row[0])


def candidates(cx: Executor, at: GroupTopic, limit: int, *, most_lag: bool = False) -> dict[str, float]:
    """Return the ages in seconds of the messages behind the watermarks of at most `limit` lanes, the oldest first.

    The lanes are those with something unsettled in which nothing was settled for longest.

    Args:
        cx: The connection.
        at: The group.
        limit: How many lanes.
        most_lag: All lanes have an offsets row, and in most of them something is unsettled. The lanes are then found
            without a look at every head: that takes a fifth of the time.
    """
    still = cx.query(STILL_LAGGING, (*at.columns, 2 * limit, limit)) if most_lag else []
    if len(still) < limit:
        still = cx.query(LONGEST_STILL, (*at.columns, limit))
    retried = cx.query(LONGEST_RETRIED, (*at.columns, *at.columns, limit))
    since: dict[str, tuple[int, str, int, int]] = {}
    for key, mark, began, now in (*still, *retried):
        since[key] = min(since.get(key, (began, key, mark, now)), (began, key, mark, now))
    chosen = {key: (mark, now) for _, key, mark, now in sorted(since.values())[:limit]}
    created = {
        body.key: body.created_at for body in bodies_at(cx, at.topic, {key: m + 1 for key, (m, _) in chosen.items()})
    }
    ages = {key: max(0, now - created.get(key, now)) / 1000 for key, (_, now) in chosen.items()}
    return dict(sorted(ages.items(), key=lambda item: (-item[1], item[0])))
