"""Retry: the waiting messages of a lane are due now, whatever their back-off or their handler had said.

Owns this transaction. Attempts, errors and limits stay as they are; never settles a message.

The owner keeps back-offs in memory. So the lane is taken away from it, as by a skip, and the next owner reads the times
anew: topic row S → groups S → floor S → lease X → delivery → offsets, see `_log/take_away`. What else is in flight
there is delivered again, see `interrupt`.

If the process dies right before the COMMIT, nothing has happened. If it dies right after, or the COMMIT is not
answered, the repetition finds nothing that waits, and returns `changed=False`. If two processes do this at once, the
second waits for the lease, and finds it done. If the owner settles meanwhile, it comes first, or finds another epoch
and is refused. If the owner sleeps, its epoch is over when it wakes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._log import take_away
from lanelog._log.lookup.known import repeated
from lanelog._stores.consumers import deliveries, offsets
from lanelog.admin.audit_entry import Act, Call
from lanelog.admin.lookup.given import given_lane, given_offset
from lanelog.admin.types.results import Retried

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lanelog._base.places import LaneId
    from lanelog._stores.consumers.deliveries import DeliveryRow


def retry(call: Call, lane: LaneId, offset: int | None) -> Retried:
    """See `Admin.retry`."""
    group, topic, key = lane.columns
    if offset is None:
        given_lane(call.database, lane)
    else:
        given_offset(call.database, lane, offset)
    choice = "" if offset is None else f"offset {offset}"
    act = Act(call, "retry", topic=topic, group=group, key=key, choice=choice)
    return repeated(call.database, _retry, "retrying", act, lane, offset)


def _retry(act: Act, lane: LaneId, offset: int | None) -> Retried:
    at, key = lane.of, lane.key
    with act.database.transaction(hasty=True) as cx:
        held = take_away.hold(cx, lane)
        waiting = tuple(_waiting(deliveries.load(cx, at, [key]).get(key, []), offset, held.watermark))
        if waiting and not act.dry_run:
            void = held.take(cx)
            deliveries.make_due(cx, lane, waiting)
            offsets.unmark(cx, at, void)
            act.record(cx, messages=len(waiting))
        return Retried(
            topic=at.topic,
            group=at.group,
            key=key,
            changed=bool(waiting),
            offsets=waiting,
            messages=len(waiting),
            owner=(held.owner or None) if waiting else None,
            dry_run=act.dry_run,
        )


def _waiting(rows: Iterable[DeliveryRow], offset: int | None, watermark: int) -> Iterable[int]:
    """Yield the offsets that are not due yet.

    None that is settled, and none with an epoch in its row: that is in flight, or was when its process died.
    """
    for row in rows:
        unsettled = row.offset > watermark and not row.acked
        if unsettled and not row.lease_epoch and row.due_in > 0 and offset in (None, row.offset):
            yield row.offset
