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

from lanelog._checks import check_integer, check_name
from lanelog._places import LaneId
from lanelog._stores import deliveries, leases, offsets
from lanelog.admin.change import interrupt, lease_takeover
from lanelog.admin.change.pause_and_skip import MAX_OFFSET
from lanelog.admin.lookup.act import Act, Actor
from lanelog.admin.lookup.known import known_group, known_lane, no_lane, read, repeated
from lanelog.admin.types.results import Retried
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lanelog._database import Database
    from lanelog._stores.deliveries import DeliveryRow


def retry(
    database: Database, topic: str, group: str, key: str, offset: int | None, *, actor: Actor, dry_run: bool
) -> Retried:
    """See `Admin.retry`."""
    check_name("topic", topic)
    check_name("group", group)
    check_name("key", key)
    lane = LaneId(topic=topic, group=group, key=key)
    read(database, known_group, "looking for the group", lane.of)
    head = read(database, known_lane, "looking for the lane", topic, key)
    if offset is not None:
        check_integer("offset", offset, least=1, most=MAX_OFFSET)
        if offset > head:
            raise ConfigurationError(
                f"lane {key!r} of topic {topic!r} ends at offset {head}: there is no message {offset}"
            )
    choice = "" if offset is None else f"offset {offset}"
    act = Act(verb="retry", topic=topic, group=group, key=key, choice=choice, actor=actor)
    return repeated(database, _retry, "retrying", database, lane, offset, act, dry_run=dry_run)


def _retry(database: Database, lane: LaneId, offset: int | None, act: Act, *, dry_run: bool) -> Retried:
    at, key = lane.of, lane.key
    with database.transaction() as cx:
        epoch = lease_takeover.begin(cx, at)
        if key not in offsets.share_floors(cx, at.topic, [key]):
            raise no_lane(at.topic, key)
        held = leases.lock_owners(cx, at, [key]).get(key)
        rows = deliveries.load(cx, at, [key]).get(key, [])
        waiting = list(_waiting(rows, offset, 0 if held is None else held.epoch))
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
            messages=len(waiting),
            owner=(held.owner or None) if held and waiting else None,
            dry_run=dry_run,
        )


def _waiting(rows: Iterable[DeliveryRow], offset: int | None, epoch: int) -> Iterable[int]:
    """Yield the offsets that are not due yet: none that is settled or in flight under the lane's present epoch."""
    for row in rows:
        flying = row.lease_epoch != 0 and row.lease_epoch == epoch
        if row.due_in > 0 and not row.acked and not flying and offset in (None, row.offset):
            yield row.offset
