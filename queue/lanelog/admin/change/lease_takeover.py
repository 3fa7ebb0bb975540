"""What every verb does that changes a group's place in a lane: it takes the lane away from its owner first.

Owns how a lane is taken away; never decides where a watermark goes. Seek, skip, release and purge
call it inside their transactions.

Lock order: topic row S → groups S → floors → leases X → delivery → offsets. The floor keeps collection and the purge of
the lane out; topic row and group are there because a lease row may be born here. With the lease's epoch raised, no
settlement of its old owner can be committed any more: every one of them share-locks that row and compares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._stores import groups, leases, partitions
from lanelog.admin.lookup.known import no_group, no_topic

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lanelog._database import Executor
    from lanelog._places import GroupTopic
    from lanelog._stores.deliveries import DeliveryRow


def begin(cx: Executor, at: GroupTopic) -> int:
    """Hold topic row and group until the transaction ends; the epoch of lease rows that are born in it."""
    row = partitions.share_topic(cx, at.topic)
    if row is None:
        raise no_topic(at.topic)
    if groups.lock_shared(cx, at) is None:
        raise no_group(at)
    return row.first_epoch


def take_away(cx: Executor, at: GroupTopic, keys: Iterable[str], epoch: int) -> None:
    """Leave these lanes to nobody; `epoch` is that of rows that are born."""
    leases.take_away(cx, [at.lane(key) for key in keys], epoch)


def settled_between(rows: Iterable[DeliveryRow], low: int, high: int) -> int:
    """How many offsets above `low` and up to `high` the acked rows of a lane cover."""
    return sum(
        max(0, min(row.through, high) - max(row.offset - 1, low)) for row in rows if row.acked and row.through > low
    )
