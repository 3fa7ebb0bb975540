"""What a living owner had in flight when its lane was taken away: it is delivered again, and nobody counts a crash.

Owns these rows and that judgement; never takes a lane away itself. Called by skip, release and purge, behind
`lease_takeover` and inside their transactions.

The next owner of a lane believes that whatever an earlier epoch had in flight died with its process: it counts as a
crash, runs alone before its last attempt, and under a policy of one attempt it goes to the dead letters. A message that
merely ran when an operator took its lane gets a waiting row instead: its attempt counts, and one more is granted
whatever caps the deliveries, because it was the operator who ended this one. What its handler settles later is refused.

An owner that is dead leaves what it had in flight as it is: that is a crash, and stays one. What dies between this
judgement and the COMMIT is released nevertheless, and gets the one attempt more. An owner whose server lock is free
only for the moment in which it logs in again is taken for dead.

Lock order: leases X (held by the caller) → delivery (`interrupt`) → offsets (`unmark`). With the lease locked and its
epoch raised nobody else writes these rows. Bounded by what one owner may have in flight: `prefetch` messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._stores import deliveries, offsets, partitions
from lanelog._stores.deliveries import DeliveryWrite
from lanelog.admin.read import owners as _owners

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lanelog._database import Executor
    from lanelog._places import GroupTopic
    from lanelog._stores.deliveries import DeliveryRow
    from lanelog._stores.leases import Held

INTERRUPTED = "an operator took the lane away while it was handed out"
"""`last_error` of an attempt that ended so."""


def interrupt(cx: Executor, at: GroupTopic, held: Mapping[str, Held]) -> list[str]:
    """Write down what the living among these owners had in flight; the keys whose run marks are void by that.

    `held`: the leases by key, as they were before they were taken away.
    """
    if not any(lease.owner for lease in held.values()):
        return []
    owners = _owners.load(cx, at)
    lanes = {key: lease.epoch for key, lease in held.items() if lease.owner and owners.alive(lease.owner)}
    keys = sorted(lanes, key=str.encode)
    places = offsets.load(cx, at, keys)
    heads = partitions.heads(cx, at.topic, keys)
    rows = deliveries.load(cx, at, keys)
    writes: list[DeliveryWrite] = []
    void: list[str] = []
    for key, epoch in lanes.items():
        mine = rows.get(key, [])
        flying = [row for row in mine if row.lease_epoch == epoch and not row.acked]
        writes += [_again(key, row) for row in flying]
        place, floor = places.get((at.group, key)), places.get(("", key))
        if place is None or place.marked_epoch != epoch:
            continue
        void.append(key)
        low = max(place.offset_acked, 0 if floor is None else floor.offset_acked)
        for offset in _uncovered(mine, low, min(place.marked_through, heads.get(key, 0))):
            writes.append(_first(key, offset, place.marked_age))
    deliveries.upsert(cx, at, writes)
    return void


def _again(key: str, row: DeliveryRow) -> DeliveryWrite:
    """A redelivery in flight, waiting again; a crash that it had before stays one."""
    return DeliveryWrite(
        key=key,
        offset=row.offset,
        through=row.through,
        retry_count=row.retry_count,
        postponed=row.postponed,
        crashed=row.crashed,
        released=True,
        first_age=row.first_age,
        last_error=INTERRUPTED,
    )


def _first(key: str, offset: int, age: float) -> DeliveryWrite:
    """A first delivery that only the run mark knew of."""
    return DeliveryWrite(
        key=key,
        offset=offset,
        through=offset,
        retry_count=1,
        released=True,
        first_age=age,
        last_error=INTERRUPTED,
    )


def _uncovered(rows: Iterable[DeliveryRow], low: int, high: int) -> Iterator[int]:
    """The offsets above `low` and up to `high` that no row covers."""
    at = low + 1
    for row in sorted(rows, key=lambda row: row.offset):
        yield from range(at, min(row.offset, high + 1))
        at = max(at, row.through + 1)
    yield from range(at, high + 1)
