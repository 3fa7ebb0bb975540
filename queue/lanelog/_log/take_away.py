"""How a method of `Admin` takes a lane away from its owner before it changes what the group has settled in it.

Owns the take-over alone. Never decides where a watermark goes. It runs inside the transaction of the method.

Lock order: topic row S → groups S → floors → leases X → delivery → offsets. The floor keeps collection and the purge of
the lane out. Topic row and group are locked because a lease row may be born here. Once the lease's epoch is raised, the
old owner can commit no settlement any more: each settlement share-locks the lease row and compares the epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from lanelog._database import Lock
from lanelog._log import interrupt
from lanelog._log.lookup.known import no_group, no_lane, no_topic
from lanelog._stores.consumers import groups, offsets
from lanelog._stores.log import partitions
from lanelog._stores.members import leases

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lanelog._base.places import GroupTopic, LaneId
    from lanelog._database import Executor
    from lanelog._stores.consumers.deliveries import DeliveryRow
    from lanelog._stores.members.leases import Held


def begin(cx: Executor, at: GroupTopic) -> int:
    """Lock topic row and group until the transaction ends. Return the epoch for lease rows that are born in it."""
    row = partitions.topic_row(cx, at.topic, Lock.SHARE)
    if row is None:
        raise no_topic(at.topic)
    if groups.lock_shared(cx, at) is None:
        raise no_group(at)
    return row.first_epoch


def lanes(cx: Executor, at: GroupTopic, keys: Iterable[str], epoch: int) -> None:
    """Leave these lanes without an owner. A lease row that is born here gets `epoch`."""
    leases.take_away(cx, [at.lane(key) for key in keys], epoch)


@frozen
class HeldLane:
    """One lane, locked for a method of `Admin` that changes it for one group."""

    at: GroupTopic
    key: str
    watermark: int
    held: Held | None
    """Its lease. None: it never had one."""
    _epoch: int

    @property
    def owner(self) -> str:
        """The owner, '' without one."""
        return "" if self.held is None else self.held.owner

    def take(self, cx: Executor) -> list[str]:
        """Leave the lane without an owner, and let what is in flight wait again. Return what `interrupt` does."""
        lanes(cx, self.at, [self.key], self._epoch)
        return interrupt.interrupt(cx, self.at, {} if self.held is None else {self.key: self.held})


def hold(cx: Executor, lane: LaneId) -> HeldLane:
    """Lock topic row, group, floor and lease of a lane, in this order. Refuse a lane that was purged."""
    epoch = begin(cx, lane.of)
    floor = offsets.floors(cx, lane.topic, [lane.key], Lock.SHARE).get(lane.key)
    if floor is None:
        raise no_lane(lane.topic, lane.key)
    held = leases.lock_owners(cx, lane.of, [lane.key]).get(lane.key)
    row = offsets.load(cx, lane.of, [lane.key]).get((lane.group, lane.key))
    return HeldLane(lane.of, lane.key, max(floor.floor, row.offset_acked if row else 0), held, epoch)


def settled_between(rows: Iterable[DeliveryRow], low: int, high: int) -> int:
    """Return how many offsets above `low` and up to `high` the acked rows of a lane cover."""
    return sum(
        max(0, min(row.through, high) - max(row.offset - 1, low)) for row in rows if row.acked and row.through > low
    )
