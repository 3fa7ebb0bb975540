"""The age of unsettled messages: which lanes hold the oldest, and how old the oldest message of a group is.

Owns the choice of the lanes to read. Never lists messages.

The age of a lane is the age of the message right after its watermark: one look-up by primary key. 10,000 of them take
0.6 s, with a backlog of three times the server's memory: the server waits for its disk once for each. Four connections
that read a quarter of the lanes each take 0.3 s. So the oldest age of a group is exact as long as one answer needs
no more look-ups than that. Otherwise, and for lists, few lanes are read (`Breadth`): those in
which nothing was settled for longest. That time counts from the first attempt of a message that is being retried there,
or else from the last change of the offsets row, or from the birth of the lane. A lane that makes progress through an
older backlog may then be missed, and the answer says that the age is a lower bound.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from attrs import frozen

from lanelog._base.places import GroupTopic
from lanelog._database import NOW_MS
from lanelog._log.lookup.known import read
from lanelog._stores._points import BEYOND, united
from lanelog._stores.log import partitions
from lanelog.admin.lookup.parallel import in_parallel
from lanelog.admin.totals import group_lanes
from lanelog.admin.totals.group_lanes import Still
from lanelog.admin.totals.lane_totals import LANES, WATERMARK
from lanelog.admin.totals.message_state import first_bodies

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lanelog._database import Database, Executor
    from lanelog.admin.totals.group_lanes import GroupLanes


@frozen(kw_only=True)
class Breadth:
    """How many lanes one answer reads."""

    exact: int = 10_000
    """Lanes of all groups, so that the oldest age of each group is exact."""
    candidates: int = 500
    """Lanes of one group, unless more are asked for."""


USUAL = Breadth()

PARTS: Final = 4
"""Connections that read the lanes of one group."""

# Lanes of one group with a message that is being retried, the longest retried first; several groups joined by UNION ALL
# (all PRIMARY).
LONGEST_RETRIED = f"""
SELECT %s, MIN(d.first_attempt_at), d.partition_key, MAX({WATERMARK})
FROM queue_delivery_state d FORCE INDEX (PRIMARY)
JOIN queue_partitions p FORCE INDEX (PRIMARY) ON p.topic = d.topic AND p.partition_key = d.partition_key
LEFT JOIN queue_offsets o FORCE INDEX (PRIMARY)
       ON o.consumer_group = d.consumer_group AND o.topic = p.topic AND o.partition_key = p.partition_key
LEFT JOIN queue_offsets f FORCE INDEX (PRIMARY)
       ON f.consumer_group = '' AND f.topic = p.topic AND f.partition_key = p.partition_key
WHERE d.consumer_group = %s AND d.topic = %s AND d.acked = 0 AND d.first_attempt_at > 0
      AND p.partition_key <> '' AND p.head_offset > {WATERMARK}
GROUP BY d.partition_key ORDER BY MIN(d.first_attempt_at), d.partition_key LIMIT %s
"""

# How old the oldest message right after a watermark is, in a range of keys; a hole counts as new (all PRIMARY).
OLDEST = f"""
SELECT MAX({NOW_MS} - LEAST(COALESCE(m.created_at, {NOW_MS}), {NOW_MS}))
FROM {LANES}
LEFT JOIN queue_messages m FORCE INDEX (PRIMARY)
       ON m.topic = p.topic AND m.partition_key = p.partition_key AND m.`offset` = {WATERMARK} + 1
WHERE p.topic = %s AND p.partition_key > '' AND p.partition_key {{within}} AND p.head_offset > {WATERMARK}
"""

# The key of the lane that is so many lanes after another (PRIMARY).
BORDER = """
SELECT partition_key FROM queue_partitions FORCE INDEX (PRIMARY)
WHERE topic = %s AND partition_key > %s ORDER BY partition_key LIMIT %s, 1
"""


def oldest(cx: Executor, at: GroupTopic, limit: int, breadth: Breadth) -> list[str]:
    """Return keys of at most `limit` lanes: those with the oldest message first, then lanes in which all is settled."""
    most = max(limit, breadth.candidates)
    lanes = group_lanes.load(cx, at.topic, [at.group], most)
    return filled(cx, at.topic, {at.group: list(candidates(cx, at.topic, lanes, most)[at.group])}, limit)[at.group]


def filled(cx: Executor, topic: str, keys: Mapping[str, Sequence[str]], limit: int) -> dict[str, list[str]]:
    """Return the first `limit` keys of each group. If there are fewer, other lanes follow, in order of their keys."""
    few = any(len(named) < limit for named in keys.values())
    rest = [key for key, _ in partitions.page(cx, topic, "", limit)] if few else []
    return {group: list(dict.fromkeys([*named, *rest]))[:limit] for group, named in keys.items()}


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
    """Return the age in seconds of the oldest message right after a watermark. None: there is no message.

    Each part, from one border to the next, has a snapshot of its own: none may be held while thousands of messages are
    read. A lane on a border is in two parts, which changes nothing.
    """
    parts = zip(["", *borders], [*borders, BEYOND], strict=True)
    reads = [partial(read, database, _oldest_within, "finding the oldest message", at, *part) for part in parts]
    found = [age for age in in_parallel(reads) if age is not None]
    return max(found) / 1000 if found else None


def _oldest_within(cx: Executor, at: GroupTopic, first: str, last: str) -> int | None:
    """Return the age in milliseconds of the oldest message right after a watermark, in a range of keys."""
    row = cx.one(OLDEST.format(within="BETWEEN %s AND %s"), (*at.columns, first, last))
    return None if row is None or row[0] is None else int(row[0])


def candidates(cx: Executor, topic: str, lanes: Mapping[str, GroupLanes], limit: int) -> dict[str, dict[str, float]]:
    """Return, for each of a few groups, the ages in seconds of the messages after the watermarks of some lanes.

    They are at most `limit` lanes with something unsettled, in which nothing was settled for longest. Those with the
    oldest message come first. `lanes` names that many lanes of each group whose offsets rows are unchanged for longest.
    """
    since = {group: {still.key: still for still in sums.still} for group, sums in lanes.items()}
    for group, still in _retried(cx, topic, [group for group, sums in lanes.items() if sums.lagging > limit], limit):
        since[group][still.key] = min(since[group].get(still.key, still), still)
    chosen = {group: sorted(found.values())[:limit] for group, found in since.items()}
    offsets = {(still.key, still.watermark + 1) for found in chosen.values() for still in found}
    # A message may have been settled and collected since the watermarks were read. Then the next one is the oldest.
    created = {at: body.created_at for at, body in first_bodies(cx, topic, offsets).items()}
    found = {}
    for group, stills in chosen.items():
        now = lanes[group].now
        ages = {still.key: max(0, now - created.get((still.key, still.watermark + 1), now)) / 1000 for still in stills}
        found[group] = dict(sorted(ages.items(), key=lambda item: (-item[1], item[0])))
    return found


def _retried(cx: Executor, topic: str, groups: Sequence[str], limit: int) -> list[tuple[str, Still]]:
    """Return the lanes of these groups with a message that is being retried, since its first attempt.

    Where all lagging lanes are read, this finds no other one.
    """
    rows = [(group, group, topic, limit) for group in groups]
    return [(group, Still(*still)) for group, *still in united(cx, f"({LONGEST_RETRIED})", rows)]
