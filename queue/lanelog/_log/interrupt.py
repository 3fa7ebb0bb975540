"""The deliveries that a living owner had in flight when its lane was taken away: they wait again, and are no crash.

Owns these rows and this judgement. Never takes a lane away itself: it works inside the transaction of the `Admin`
method, after `_log/take_away`.

The next owner of a lane believes that everything in flight under an earlier epoch died with its process. It counts a
crash, runs the last attempt alone, and under a policy of one attempt it writes a dead letter. That would be wrong for a
message that merely ran when an operator took the lane. So the message gets a waiting row: its attempt counts, and one
more attempt is granted whatever caps the deliveries, because the operator ended this one. What its handler settles
later is refused.

A dead owner's deliveries stay as they are: they are crashes. An owner that died within a second of its last heartbeat,
or dies between this judgement and the COMMIT, counts as living: its messages get one attempt more. An owner that is
just logging in again, whose liveness lock is free for that moment, counts as dead.

Lock order: leases X (held by the caller) → delivery (`interrupt`) → offsets (`unmark`). No other transaction writes
these rows while the lease is locked and its epoch is raised. Bounded by `prefetch`, the messages that one owner may
have in flight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lanelog._log.lookup import owners as _owners
from lanelog._stores.consumers import deliveries, offsets
from lanelog._stores.consumers.deliveries import DeliveryWrite
from lanelog._stores.log import partitions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lanelog._base.places import GroupTopic
    from lanelog._database import Executor
    from lanelog._stores.consumers.deliveries import DeliveryRow
    from lanelog._stores.members.leases import Held

INTERRUPTED: Final = "an operator took the lane away while it was handed out"
"""`last_error` of an attempt that an operator ended. It is no failure."""


def interrupt(cx: Executor, at: GroupTopic, held: Mapping[str, Held]) -> list[str]:
    """Write waiting rows for the deliveries in flight of living owners.

    Return the keys whose run marks that makes void.

    Args:
        cx: The open transaction.
        at: The group and its topic.
        held: The leases by key, as they were before they were taken away.
    """
    if not any(lease.owner for lease in held.values()):
        return []
    owners = _owners.load(cx, at)
    lanes = {key: lease.epoch for key, lease in held.items() if lease.owner and owners.alive(lease.owner)}
    keys = sorted(lanes, key=str.encode)
    progress = offsets.load(cx, at, keys)
    heads = partitions.heads(cx, at.topic, keys)
    rows = deliveries.load(cx, at, keys)
    writes: list[DeliveryWrite] = []
    void: list[str] = []
    for key, epoch in lanes.items():
        mine = rows.get(key, [])
        flying = [row for row in mine if row.lease_epoch == epoch and not row.acked]
        writes += [_again(key, each) for each in flying]
        row = progress.get((at.group, key))
        if row is None or row.marked_epoch != epoch:
            continue
        void.append(key)
        low = offsets.reached(progress, at.group, key)
        for offset in _uncovered(mine, low, min(row.marked_through, heads.get(key, 0))):
            writes.append(_first(key, offset, row.marked_age))
    deliveries.upsert(cx, at, writes)
    return void


def _again(key: str, row: DeliveryRow) -> DeliveryWrite:
    """Return the write that lets a redelivery in flight wait again. A crash that it had before stays counted."""
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
    """Return the write for a first delivery, which only the run mark recorded so far."""
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
    """Yield the offsets above `low` and up to `high` that no row covers."""
    at = low + 1
    for row in sorted(rows, key=lambda row: row.offset):
        yield from range(at, min(row.offset, high + 1))
        at = max(at, row.through + 1)
    yield from range(at, high + 1)
