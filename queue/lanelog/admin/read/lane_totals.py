"""The rows of some lanes for some groups, and the arithmetic that turns them into lag, in flight and waiting.

Owns these look-ups, all by exact primary key, and the sums over delivery rows. Never chooses lanes, never judges
owners. Call it inside a snapshot: otherwise the sums would not fit the watermarks.

A message above the watermark is in one of four places:

* settled ahead: an acked row covers it;
* under a row of its own: in flight if the row has the lane's present epoch, else waiting;
* under the run mark: in flight if the mark has the present epoch, else waiting, because its process died;
* untouched.

So the lag is head - watermark - settled ahead, and needs no look at the backlog.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from lanelog._database import NOW_MS
from lanelog._places import GroupTopic
from lanelog._stores._points import chunked, placeholders

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lanelog._database import Executor

_ZERO = "CAST(0 AS UNSIGNED)"  # a plain 0 is signed; signed and unsigned together would become a DECIMAL
WATERMARK = f"GREATEST(COALESCE(o.offset_acked, {_ZERO}), COALESCE(f.offset_acked, {_ZERO}))"
"""Where a group is in a lane: `o` is its offsets row, `f` the floor's."""

# Heads of some lanes, with their floors, and the clock (both PRIMARY).
HEADS = f"""
SELECT p.partition_key, p.head_offset, COALESCE(f.offset_acked, {_ZERO}), COALESCE(f.marked_through, {_ZERO}), {NOW_MS}
FROM queue_partitions p FORCE INDEX (PRIMARY)
LEFT JOIN queue_offsets f FORCE INDEX (PRIMARY)
       ON f.consumer_group = '' AND f.topic = p.topic AND f.partition_key = p.partition_key
WHERE p.topic = %s AND p.partition_key IN ({{keys}})
"""

# Watermarks, marks and pauses of some groups in some lanes (PRIMARY).
PLACES = """
SELECT consumer_group, partition_key, offset_acked, marked_through, marked_epoch, marked_at, paused_at, paused_by,
       pause_reason, updated_at
FROM queue_offsets FORCE INDEX (PRIMARY)
WHERE consumer_group IN ({groups}) AND topic = %s AND partition_key IN ({keys})
"""

# Leases of some groups in some lanes (PRIMARY).
LEASES = """
SELECT consumer_group, partition_key, leased_by, lease_epoch FROM queue_partition_leases FORCE INDEX (PRIMARY)
WHERE consumer_group IN ({groups}) AND topic = %s AND partition_key IN ({keys})
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

# The delivery rows of some lanes, added up lane by lane (all PRIMARY).
EXCEPTIONS = f"""
SELECT d.consumer_group, d.partition_key, {_SUMS}
WHERE d.consumer_group IN ({{groups}}) AND d.topic = %s AND d.partition_key IN ({{keys}})
      AND d.through_offset > {WATERMARK}
GROUP BY d.consumer_group, d.partition_key
"""

# The delivery rows of a whole group, added up: as many rows as messages failed or were settled ahead (all PRIMARY).
GROUP_EXCEPTIONS = f"""
SELECT {_SUMS}
WHERE d.consumer_group = %s AND d.topic = %s AND d.through_offset > {WATERMARK}
"""

# A group's lanes, added up: lanes, offsets rows, paused, lagging, heads, messages above the watermark, under run marks
# of the present epoch, and under run marks of earlier ones (all PRIMARY). Where nothing is marked, no lease is looked
# up: that is a third of the time.
GROUP_LANES = f"""
SELECT COUNT(*), COUNT(o.partition_key), COALESCE(SUM(o.paused_at > 0), 0),
       COALESCE(SUM(p.head_offset > {WATERMARK}), 0), COALESCE(SUM(p.head_offset), 0),
       COALESCE(SUM(GREATEST(p.head_offset, {WATERMARK}) - {WATERMARK}), 0),
       COALESCE(SUM(IF({_MARK_LIVES}, GREATEST(o.marked_through, {WATERMARK}) - {WATERMARK}, 0)), 0),
       COALESCE(SUM(IF({_MARK_LIVES}, 0, GREATEST(COALESCE(o.marked_through, {_ZERO}), {WATERMARK}) - {WATERMARK})), 0)
FROM queue_partitions p FORCE INDEX (PRIMARY)
LEFT JOIN queue_offsets o FORCE INDEX (PRIMARY)
       ON o.consumer_group = %s AND o.topic = p.topic AND o.partition_key = p.partition_key
LEFT JOIN queue_offsets f FORCE INDEX (PRIMARY)
       ON f.consumer_group = '' AND f.topic = p.topic AND f.partition_key = p.partition_key
LEFT JOIN queue_partition_leases l FORCE INDEX (PRIMARY)
       ON l.consumer_group = %s AND l.topic = p.topic
      AND l.partition_key = IF(o.marked_epoch <> 0, p.partition_key, NULL)
WHERE p.topic = %s AND p.partition_key <> ''
"""


@frozen
class Place:
    """A group's offsets row. Times in milliseconds."""

    acked: int
    marked_through: int = 0
    marked_epoch: int = 0
    marked_at: int = 0
    paused_at: int = 0
    paused_by: str = ""
    pause_reason: str = ""
    updated_at: int = 0


NOWHERE = Place(0)


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
    place: Place = NOWHERE
    owner: str = ""
    epoch: int = 0
    sums: Sums = NONE
    watermark: int = field(init=False)

    @watermark.default
    def _watermark(self) -> int:
        return max(self.place.acked, self.floor)

    @property
    def lag(self) -> int:
        """Messages that are not settled."""
        return max(0, self.head - self.watermark - self.sums.ahead)

    @property
    def mark_lives(self) -> bool:
        """Whether the run mark is the present owner's."""
        return self.place.marked_epoch != 0 and self.place.marked_epoch == self.epoch

    @property
    def _marked(self) -> int:
        covered = self.sums.covered_live + self.sums.covered_dead
        return max(0, self.place.marked_through - self.watermark - covered)

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

    lanes: int
    placed: int
    """Lanes for which the group has an offsets row."""
    paused: int
    lagging: int
    head: int
    lag: int
    in_flight: int
    waiting: int


def load(cx: Executor, topic: str, groups: Sequence[str], keys: Sequence[str]) -> dict[tuple[str, str], LaneFacts]:
    """Return the facts by (group, key), for each of `groups` and those of `keys` that have a lane.

    One statement looks up at most a thousand rows.
    """
    found: dict[tuple[str, str], LaneFacts] = {}
    for some in chunked(groups, 10):
        for chunk in chunked(keys, 100 if len(some) > 1 else 1000):
            found.update(_load(cx, topic, some, chunk))
    return found


def _load(
    cx: Executor, topic: str, groups: Sequence[str], keys: Sequence[str]
) -> Iterable[tuple[tuple[str, str], LaneFacts]]:
    lists = {"groups": placeholders(groups), "keys": placeholders(keys)}
    points = (*groups, topic, *keys)
    heads = cx.query(HEADS.format(keys=lists["keys"]), (topic, *keys))
    places = {(group, key): Place(*rest) for group, key, *rest in cx.query(PLACES.format(**lists), points)}
    leases = {(group, key): lease for group, key, *lease in cx.query(LEASES.format(**lists), points)}
    sums = {(group, key): _sums(rest) for group, key, *rest in cx.query(EXCEPTIONS.format(**lists), points)}
    for key, head, floor, deleted, now in heads:
        for group in groups:
            owner, epoch = leases.get((group, key), ("", 0))
            yield (
                (group, key),
                LaneFacts(
                    head=head,
                    floor=floor,
                    deleted_through=deleted,
                    now=now,
                    place=places.get((group, key), NOWHERE),
                    owner=owner,
                    epoch=epoch,
                    sums=sums.get((group, key), NONE),
                ),
            )


def total(cx: Executor, at: GroupTopic) -> GroupFacts:
    """Return all lanes of a group, added up by the server."""
    row = cx.one(GROUP_LANES, (at.group, *at.columns))
    exceptions = cx.one(GROUP_EXCEPTIONS, at.columns)
    assert row is not None  # noqa: S101 - a sum always has a row
    assert exceptions is not None  # noqa: S101
    lanes, placed, paused, lagging, head, behind, live, dead = row
    sums = _sums(exceptions)
    return GroupFacts(
        lanes=int(lanes),
        placed=int(placed),
        paused=int(paused),
        lagging=int(lagging),
        head=int(head),
        lag=max(0, int(behind) - sums.ahead),
        in_flight=sums.flying + max(0, int(live) - sums.covered_live),
        waiting=sums.waiting + max(0, int(dead) - sums.covered_dead),
    )


def _sums(row: Iterable[Any]) -> Sums:
    return Sums(*map(int, row))  # the server adds up to DECIMAL
