"""Retry: the waiting messages of a lane are due now, whatever their back-off or their handler had said.

Owns this transaction. Attempts, errors and limits stay as they are; never settles a message.

The owner keeps back-offs in memory. So the lane is taken away from it, as by a skip, and the next owner reads the times
anew: topic row S → groups S → floor S → lease X → delivery → offsets, see `lease_takeover`. What else is in flight
there is delivered again, see `interrupt`.

Dies right before the COMMIT: nothing has happened. Right after, or with an unanswered COMMIT: the repetition finds
nothing that waits, and returns `changed=False`. Two at once: the second waits for the lease, and finds it done. The
owner settles meanwhile: it comes first, or finds another epoch and is refused. It sleeps: its epoch is over when it
wakes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._checks import check_name
from lanelog._database import Lock
from lanelog._stores import deliveries, leases, offsets
from lanelog.admin.change import interrupt, lease_takeover
from lanelog.admin.lookup.act import Act, Actor
from lanelog.admin.lookup.arguments import check_names, offset_of
from lanelog.admin.lookup.known import known_group, known_lane, no_lane, read, repeated
from lanelog.admin.types.results import Retried
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lanelog._database import Database
    from lanelog._places import LaneId
    from lanelog._stores.deliveries import DeliveryRow


def retry(database: Database, lane: LaneId, offset: int | None, *, actor: Actor, dry_run: bool) -> Retried:
    """See `Admin.retry`."""
    group, topic, key = lane.columns
    check_names(lane.of)
    check_name("key", key)
    read(database, known_group, "looking for the group", lane.of)
    head = read(database, known_lane, "looking for the lane", topic, key)
    if offset is not None:
        offset_of(offset)
        if offset > head:
            raise ConfigurationError(
                f"lane {key!r} of topic {topic!r} ends at offset {head}: there is no message {offset}"
            )
    choice = "" if offset is None else f"offset {offset}"
    act = Act(verb="retry", topic=topic, group=group, key=key, choice=choice, actor=actor)
    return repeated(database, _retry, "retrying", database, lane, offset, act, dry_run=dry_run)


def _retry(database: Database, lane: LaneId, offset: int | None, act: Act, *, dry_run: bool) -> Retried:
    at, key = lane.of, lane.key
    with database.transaction(hasty=True) as cx:
        epoch = lease_takeover.begin(cx, at)
        floor = offsets.floors(cx, at.topic, [key], Lock.SHARE).get(key)
        if floor is None:
            raise no_lane(at.topic, key)
        held = leases.lock_owners(cx, at, [key]).get(key)
        place = offsets.load(cx, at, [key]).get((at.group, key))
        watermark = max(floor.floor, place.offset_acked if place else 0)
        waiting = tuple(_waiting(deliveries.load(cx, at, [key]).get(key, []), offset, watermark))
        if waiting and not dry_run:
            lease_takeover.take_away(cx, at, [key], epoch)
            void = interrupt.interrupt(cx, at, {} if held is None else {key: held})
            deliveries.make_due(cx, lane, waiting)
            offsets.unmark(cx, at, void)
            act.record(cx, database, messages=len(waiting))
        return Retried(
            topic=at.topic,
            group=at.group,
            key=key,
            changed=bool(waiting),
            offsets=waiting,
            messages=len(waiting),
            owner=(held.owner or None) if held and waiting else None,
            dry_run=dry_run,
        )


def _waiting(rows: Iterable[DeliveryRow], offset: int | None, watermark: int) -> Iterable[int]:
    """Yield the offsets that are not due yet.

    None that is settled, and none with an epoch in its row: that is in flight, or was when its process died.
    """
    for row in rows:
        unsettled = row.offset > watermark and not row.acked
        if unsettled and not row.lease_epoch and row.due_in > 0 and offset in (None, row.offset):
            yield row.offset
