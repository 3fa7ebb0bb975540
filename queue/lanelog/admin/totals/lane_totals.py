"""The rows of some lanes for some groups, and the arithmetic of lag, in flight and waiting.

Owns these look-ups, all by exact primary key, and the sums over delivery rows and run marks. Heads and watermarks of
whole groups are added up by `group_lanes`. Never chooses lanes, never judges owners. Call it inside a snapshot:
otherwise the sums would not fit the watermarks.

A message above the watermark is in one of four states:

* settled ahead: an acked row covers it;
* under a row of its own: in flight if the row has the lane's present epoch, else waiting;
* under the run mark: in flight if the mark has the present epoch, else waiting, because its process died;
* untouched.

So the lag is head - watermark - settled ahead, and needs no read of the backlog.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from lanelog._base.places import GroupTopic
from lanelog._database import NOW_MS
from lanelog._stores._points import GROUPS_TOGETHER, chunked, for_groups, points, united
from lanelog.admin.totals import group_lanes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lanelog._database import Executor
    from lanelog.admin.totals.group_lanes import GroupLanes

_ZERO = "CAST(0 AS UNSIGNED)"  # a plain 0 is signed; signed and unsigned together would become a DECIMAL
WATERMARK = f"GREATEST(COALESCE(o.offset_acked, {_ZERO}), COALESCE(f.offset_acked, {_ZERO}))"
"""Where a group is in a lane: `o` is its offsets row, `f` the floor's."""

LANES = """queue_partitions p FORCE INDEX (PRIMARY)
LEFT JOIN queue_offsets o FORCE INDEX (PRIMARY)
       ON o.consumer_group = %s AND o.topic = p.topic AND o.partition_key = p.partition_key
LEFT JOIN queue_offsets f FORCE INDEX (PRIMARY)
       ON f.consumer_group = '' AND f.topic = p.topic AND f.partition_key = p.partition_key"""
"""The lanes with both rows, for a group that is an argument."""

# Heads of some lanes, with their floors, and the clock (both PRIMARY).
HEADS = f"""
SELECT p.partition_key, p.head_offset, COALESCE(f.offset_acked, {_ZERO}), COALESCE(f.marked_through, {_ZERO}), {NOW_MS}
FROM queue_partitions p FORCE INDEX (PRIMARY)
LEFT JOIN queue_offsets f FORCE INDEX (PRIMARY)
       ON f.consumer_group = '' AND f.topic = p.topic AND f.partition_key = p.partition_key
WHERE p.topic = %s AND p.partition_key IN ({{keys}})
"""

# Watermarks, marks and pauses of a group in some lanes; several groups joined by UNION ALL (PRIMARY).
OFFSETS = """
SELECT consumer_group, partition_key, offset_acked, marked_through, marked_epoch, marked_at, paused_at, paused_by,
       pause_reason, updated_at
FROM queue_offsets FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND partition_key IN ({keys})
"""

# Leases of a group in some lanes; several groups joined by UNION ALL (PRIMARY).
LEASES = """
SELECT consumer_group, partition_key, leased_by, lease_epoch FROM queue_partition_leases FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND partition_key IN ({keys})
"""

_FLYING = f"(d.acked = 0 AND d.lease_epoch <> 0 AND d.lease_epoch = COALESCE(l.lease_epoch, {_ZERO}))"
_FIRST = f"GREATEST(d.message_offset, {WATERMARK} + 1)"
# How many offsets under the run mark a delivery row covers.
_COVERED = (
    f"IF(o.marked_through > {WATERMARK} AND d.message_offset <= o.marked_through,"
    f" LEAST(d.through_offset, o.marked_through) + 1 - {_FIRST}, 0)"
)
_MARK_LIVES = f"(o.marked_epoch <> 0 AND o.marked_epoch = COALESCE(l.lease_epoch, {_ZERO}))"

# Sums over the delivery rows above the watermark: settled ahead, in flight, waiting, and the offsets that rows cover
# under a run mark of the present epoch, and under one of an earlier epoch.
_SUMS = f"""
       COALESCE(SUM(IF(d.acked, d.through_offset + 1 - {_FIRST}, 0)), 0),
       COALESCE(SUM({_FLYING}), 0),
       COALESCE(SUM(d.acked = 0 AND NOT {_FLYING}), 0),
       COALESCE(SUM(IF({_MARK_LIVES}, {_COVERED}, 0)), 0),
       COALESCE(SUM(IF({_MARK_LIVES}, 0, {_COVERED})), 0)
FROM queue_delivery_state d FORCE INDEX (PRIMARY)
LEFT JOIN queue_offsets o FORCE INDEX (PRIMARY)
       ON o.consumer_group = d.consumer_group AND o.topic = d.topic AND o.partition_key = d.partition_key
LEFT JOIN queue_offsets f FORCE INDEX (PRIMARY)
       ON f.consumer_group = '' AND f.topic = d.topic AND f.partition_key = d.partition_key
LEFT JOIN queue_partition_leases l FORCE INDEX (PRIMARY)
       ON l.consumer_group = d.consumer_group AND l.topic = d.topic AND l.partition_key = d.partition_key
"""

# A group's delivery rows in some lanes, added up lane by lane; several groups joined by UNION ALL (all PRIMARY).
EXCEPTIONS = f"""
SELECT d.consumer_group, d.partition_key, {_SUMS}
WHERE d.consumer_group = %s AND d.topic = %s AND d.partition_key IN ({{keys}})
      AND d.through_offset > {WATERMARK}
GROUP BY d.consumer_group, d.partition_key
"""

# The delivery rows of a whole group, added up: as many rows as messages failed or were settled ahead; several groups
# joined by UNION ALL (all PRIMARY).
GROUP_EXCEPTIONS = f"""
SELECT %s, {_SUMS}
WHERE d.consumer_group = %s AND d.topic = %s AND d.through_offset > {WATERMARK}
"""

# A group's lanes that are paused or marked above what is acked, added up: paused, messages under run marks of the
# present epoch, and under run marks of earlier ones; several groups joined by UNION ALL (all PRIMARY).
GROUP_MARKS = f"""
SELECT %s, COALESCE(SUM(o.paused_at > 0), 0),
       COALESCE(SUM(IF({_MARK_LIVES}, GREATEST(o.marked_through, {WATERMARK}) - {WATERMARK}, 0)), 0),
       COALESCE(SUM(IF({_MARK_LIVES}, 0, GREATEST(o.marked_through, {WATERMARK}) - {WATERMARK})), 0)
FROM queue_offsets o FORCE INDEX (PRIMARY)
STRAIGHT_JOIN queue_partitions p FORCE INDEX (PRIMARY) ON p.topic = o.topic AND p.partition_key = o.partition_key
LEFT JOIN queue_offsets f FORCE INDEX (PRIMARY)
       ON f.consumer_group = '' AND f.topic = o.topic AND f.partition_key = o.partition_key
LEFT JOIN queue_partition_leases l FORCE INDEX (PRIMARY)
       ON l.consumer_group = o.consumer_group AND l.topic = o.topic AND l.partition_key = o.partition_key
WHERE o.consumer_group = %s AND o.topic = %s AND o.partition_key > ''
      AND (o.paused_at > 0 OR o.marked_through > o.offset_acked)
"""


@frozen
class OffsetsOfGroup:
    """A group's offsets row. Times in milliseconds."""

    acked: int
    marked_through: int = 0
    marked_epoch: int = 0
    marked_at: int = 0
    paused_at: int = 0
    paused_by: str = ""
    pause_reason: str = ""
    updated_at: int = 0


NO_OFFSETS = OffsetsOfGroup(0)


@frozen
class Sums:
    """The delivery rows above a watermark, added up."""

    ahead: int = 0
    flying: int = 0
    waiting: int = 0
    covered_live: int = 0
    covered_dead: int = 0


NONE = Sums()


@frozen(kw_only=True)
class LaneFacts:
    """One lane as one group sees it."""

    head: int
    floor: int
    deleted_through: int
    now: int
    """The database's clock, in milliseconds."""
    offsets: OffsetsOfGroup = NO_OFFSETS
    owner: str = ""
    epoch: int = 0
    sums: Sums = NONE
    watermark: int = field(init=False)

    @watermark.default
    def _watermark(self) -> int:
        return max(self.offsets.acked, self.floor)

    @property
    def lag(self) -> int:
        """Messages that are not settled."""
        return max(0, self.head - self.watermark - self.sums.ahead)

    @property
    def mark_lives(self) -> bool:
        """Whether the run mark is the present owner's."""
        return self.offsets.marked_epoch != 0 and self.offsets.marked_epoch == self.epoch

    @property
    def _marked(self) -> int:
        covered = self.sums.covered_live + self.sums.covered_dead
        return max(0, self.offsets.marked_through - self.watermark - covered)

    @property
    def in_flight(self) -> int:
        """Messages handed out and not settled."""
        return self.sums.flying + (self._marked if self.mark_lives else 0)

    @property
    def waiting(self) -> int:
        """Messages that had an attempt, or were postponed, and wait for the next one."""
        return self.sums.waiting + (0 if self.mark_lives else self._marked)


@frozen(kw_only=True)
class GroupFacts:
    """All lanes of a topic as one group sees them, added up."""

    lanes: GroupLanes
    paused: int
    lag: int
    in_flight: int
    waiting: int


def load(cx: Executor, topic: str, groups: Sequence[str], keys: Sequence[str]) -> dict[tuple[str, str], LaneFacts]:
    """Return the facts by (group, key), for each of `groups` and those of `keys` that have a lane.

    One statement looks up at most a thousand rows.
    """
    found: dict[tuple[str, str], LaneFacts] = {}
    for some in chunked(groups, GROUPS_TOGETHER):
        found.update(load_each(cx, topic, dict.fromkeys(some, keys)))
    return found


def load_each(cx: Executor, topic: str, chosen: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], LaneFacts]:
    """Return the facts by (group, key), for each of a few groups and those of its keys that have a lane."""
    every = dict.fromkeys(chain.from_iterable(chosen.values()))
    heads = {key: rest for key, *rest in points(cx, HEADS, every, before=[topic])}
    offsets = {at: OffsetsOfGroup(*rest) for at, rest in _rows(cx, OFFSETS, topic, chosen)}
    leases = dict(_rows(cx, LEASES, topic, chosen))
    sums = {at: _sums(rest) for at, rest in _rows(cx, EXCEPTIONS, topic, chosen)}
    found = {}
    for at in ((group, key) for group, keys in chosen.items() for key in keys if key in heads):
        head, floor, deleted, now = heads[at[1]]
        owner, epoch = leases.get(at, ("", 0))
        found[at] = LaneFacts(
            head=head,
            floor=floor,
            deleted_through=deleted,
            now=now,
            offsets=offsets.get(at, NO_OFFSETS),
            owner=owner,
            epoch=epoch,
            sums=sums.get(at, NONE),
        )
    return found


def _rows(
    cx: Executor, sql: str, topic: str, chosen: Mapping[str, Sequence[str]]
) -> Iterator[tuple[tuple[str, str], list[Any]]]:
    """Yield rows by (group, key), of each group those of its own keys."""
    named = [(group, key) for group, keys in chosen.items() for key in keys]
    for group, key, *rest in for_groups(cx, sql, topic, named):
        yield (group, key), rest


def total(cx: Executor, at: GroupTopic) -> GroupFacts:
    """Return all lanes of a group, added up."""
    return totals(cx, at.topic, [at.group])[at.group]


def totals(cx: Executor, topic: str, groups: Sequence[str], still: int = 0) -> dict[str, GroupFacts]:
    """Return all lanes of each of a few groups, added up.

    At most `still` lagging lanes of each are named: those in which nothing was settled for longest.
    """
    lanes = group_lanes.load(cx, topic, groups, still)
    sums = {group: _sums(row) for group, *row in _each(cx, GROUP_EXCEPTIONS, topic, groups)}
    marked = [group for group in groups if lanes[group].marked]
    marks = {group: tuple(map(int, row)) for group, *row in _each(cx, GROUP_MARKS, topic, marked)}
    return {group: _facts(lanes[group], sums[group], *marks.get(group, (0, 0, 0))) for group in groups}


def _each(cx: Executor, sql: str, topic: str, groups: Sequence[str]) -> list[tuple[Any, ...]]:
    return united(cx, f"({sql})", [(group, group, topic) for group in groups])


def _facts(lanes: GroupLanes, sums: Sums, paused: int, live: int, dead: int) -> GroupFacts:
    return GroupFacts(
        lanes=lanes,
        paused=paused,
        lag=max(0, lanes.behind - sums.ahead),
        in_flight=sums.flying + max(0, live - sums.covered_live),
        waiting=sums.waiting + max(0, dead - sums.covered_dead),
    )


def _sums(row: Iterable[Any]) -> Sums:
    return Sums(*map(int, row))  # the server adds up to DECIMAL
