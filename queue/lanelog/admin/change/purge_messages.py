"""Purge: an operator deletes messages, even if a group has not settled them.

Owns the transactions that release messages, and the deletes that follow. Never removes a lane: collection does, once
the lane is drained.

One transaction releases some lanes: topic row S → floors X → leases X of every group that is behind → delivery →
offsets. A lane whose floor is locked is tried again later. The transaction takes the lanes away from owners that are
behind; deliveries in flight above the purged messages are delivered again, see `interrupt`. It raises the groups'
watermarks and the floors. Then the messages are deleted by exact keys, in bounded batches of their own. While the topic
row is locked, no group can be registered or deleted.

If the process dies right before the COMMIT, nothing has happened to these lanes. If it dies right after or in the
middle of the deletes, or the COMMIT is not answered, the repetition or the next collection deletes the rest, because
the floor row says how far the deletion got. If two processes do this at once, the higher floor stands, lane by lane.
"""

from __future__ import annotations

import time
from datetime import datetime
from threading import Event
from typing import TYPE_CHECKING

from attrs import evolve, field, frozen

from lanelog._base.checks import aware
from lanelog._base.places import GroupTopic
from lanelog._database import Lock
from lanelog._log import collect, interrupt, take_away
from lanelog._log.collect import Span
from lanelog._log.lookup.known import no_topic, pages, read, repeated
from lanelog._stores.consumers import deliveries, groups, offsets
from lanelog._stores.log import leaving, partitions
from lanelog._stores.members import leases
from lanelog.admin.audit_entry import Act, Call, Unanswered
from lanelog.admin.change.deletion_facts import deleting
from lanelog.admin.change.seek import instants
from lanelog.admin.lookup.arguments import milliseconds, offset_of
from lanelog.admin.lookup.given import given_topic
from lanelog.admin.types.results import Purged
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lanelog._database import Database, Executor
    from lanelog._stores.consumers._offset_rows import FloorRow

LANES_A_TRANSACTION = 100
FLOOR_HELD = 0.02
"""Seconds before a lane whose floor is locked is tried again."""


@frozen
class ReleasedLanes:
    """What one transaction released. `lanes`: (deleted through, floor) by key."""

    lanes: Mapping[str, tuple[int, int]]
    held: Mapping[str, int]
    """Messages to delete, by key, in lanes whose floor is locked."""
    unsettled: Mapping[str, int] = field(factory=dict)
    """The messages that each group had not settled."""
    lost: int = 0
    """The same, summed over groups. It includes a COMMIT that released messages and was not answered."""


def purge(call: Call, topic: str, *, before: datetime | int) -> Purged:
    """See `Admin.purge`."""
    database, dry_run = call.database, call.dry_run
    targets = _targets(topic, before)
    given_topic(database, topic)
    if not dry_run:
        read(database, may_delete, "finding the privilege to delete")
    messages, lanes, remaining = 0, 0, 0
    unsettled: dict[str, int] = {}
    choice = f"before {before.isoformat() if isinstance(before, datetime) else f'offset {before}'}"
    act = Act(call, "purge", topic=topic, choice=choice)
    with deleting(act) as tally:
        for page in pages(database, topic, LANES_A_TRANSACTION):
            wanted = read(database, targets, "finding an instant", dict(page))
            for released in _released(act, topic, wanted):
                gone = {key: span for key, span in released.lanes.items() if span[1] > span[0]}
                lanes += len(gone)
                remaining += sum(released.held.values())
                for group, count in released.unsettled.items():
                    unsettled[group] = unsettled.get(group, 0) + count
                if dry_run:
                    messages += sum(b - a for a, b in gone.values())
                    continue
                tally.done |= bool(gone)
                tally.add(unsettled=released.lost)
                deleted = delete_released(database, topic, gone)
                tally.add(messages=deleted)
                messages += deleted
    return Purged(
        topic=topic,
        before=before,
        messages=messages,
        lanes=lanes,
        unsettled=unsettled,
        remaining=remaining,
        dry_run=dry_run,
    )


def may_delete(cx: Executor) -> None:
    """Refuse an account that may not delete messages, before any is released.

    The lane without a name has none to delete.
    """
    leaving.delete(cx, "", [("", 0)])


def _targets(topic: str, before: object) -> Callable[[Executor, Mapping[str, int]], dict[str, int]]:
    """Return a function that finds the last offset to delete, by key, from the heads of lanes."""
    if isinstance(before, datetime):
        start_ms = milliseconds(aware("before", before))
        return lambda cx, heads: instants(cx, topic, list(heads), start_ms)
    if isinstance(before, int) and not isinstance(before, bool):
        last = offset_of(before, "before") - 1
        return lambda _, heads: {key: min(last, head) for key, head in heads.items()}
    raise ConfigurationError(f"before must be an aware datetime or an offset (int), not {before!r}")


def _released(act: Act, topic: str, wanted: Mapping[str, int]) -> Iterator[ReleasedLanes]:
    """Release these lanes. Lanes with a locked floor are tried again for `publish_timeout` seconds."""
    pause = Event()
    until = time.monotonic() + act.database.config.publish_timeout
    keys: Iterable[str] = wanted
    while True:
        some = {key: wanted[key] for key in keys}
        unanswered = Unanswered()
        released = repeated(act.database, _transaction, "releasing messages", act, topic, some, unanswered)
        released = evolve(released, lost=unanswered.committed(sum(released.unsettled.values())))
        if not released.held or time.monotonic() >= until:
            yield released
            return
        yield evolve(released, held={})
        pause.wait(FLOOR_HELD)
        keys = released.held


def _transaction(act: Act, topic: str, wanted: Mapping[str, int], unanswered: Unanswered) -> ReleasedLanes:
    dry_run = act.dry_run
    with unanswered.attempt(), act.database.transaction(hasty=True) as cx:
        topic_row = partitions.topic_row(cx, topic, Lock.SHARE)
        if topic_row is None:
            raise no_topic(topic)
        readers = sorted(groups.readers(cx, topic), key=str.encode)
        at = {group: GroupTopic(topic=topic, group=group) for group in readers}
        floors = offsets.floors(cx, topic, wanted, Lock.NONE if dry_run else Lock.FREE)
        # A lane without a floor has been removed.
        missing = offsets.floors(cx, topic, [key for key in wanted if key not in floors])
        held = {key: max(0, wanted[key] - row.deleted_through) for key, row in missing.items()}
        targets = {key: wanted[key] for key, row in floors.items() if wanted[key] > row.floor}
        watermarks = _watermarks(cx, topic, readers, floors)
        behind = {group: [key for key in targets if watermarks[group, key] < targets[key]] for group in readers}
        void: dict[str, list[str]] = {}
        if not dry_run:
            held_by = {}
            for group in readers:
                held_by[group] = leases.lock_owners(cx, at[group], behind[group])
                take_away.lanes(cx, at[group], behind[group], topic_row.first_epoch)
            for group in readers:
                void[group] = interrupt.interrupt(cx, at[group], held_by[group])
            watermarks = _watermarks(cx, topic, readers, floors)  # an owner may have settled more until it was fenced
            _forget_settled_letters(cx, topic, targets)
        unsettled = {}
        reached = {}
        for group in readers:
            count, reached[group] = _pass(cx, at[group], targets, watermarks, behind[group], dry_run=dry_run)
            if count:
                unsettled[group] = count
        if not dry_run:
            unanswered.plan(sum(unsettled.values()))
            offsets.raise_floors(cx, topic, targets)
            for group in readers:
                offsets.unmark(cx, at[group], void[group])
                offsets.raise_watermarks(cx, at[group], reached[group])
            if gone := sum(target - floors[key].floor for key, target in targets.items()):
                act.record(cx, messages=gone)
        lanes = {key: (row.deleted_through, wanted[key]) for key, row in floors.items()}
        return ReleasedLanes(lanes, held, unsettled)


def _watermarks(
    cx: Executor, topic: str, readers: Sequence[str], floors: Mapping[str, FloorRow]
) -> dict[tuple[str, str], int]:
    """Return where each group is in each lane. A group without a row is at the floor."""
    if not readers or not floors:
        return {}
    marks = offsets.watermarks(cx, topic, readers, list(floors))
    return {
        (group, key): max(row.floor, marks.get((group, key), 0)) for group in readers for key, row in floors.items()
    }


def _pass(
    cx: Executor,
    at: GroupTopic,
    targets: Mapping[str, int],
    watermarks: Mapping[tuple[str, str], int],
    keys: Sequence[str],
    *,
    dry_run: bool,
) -> tuple[int, dict[str, int]]:
    """Set a group's watermark to the end of the purged messages.

    Return how many of them it had not settled, and its new watermarks by key.
    """
    rows = deliveries.load(cx, at, keys)
    unsettled, reached, points = 0, {}, []
    for key in keys:
        mine, watermark, target = rows.get(key, []), watermarks[at.group, key], targets[key]
        unsettled += max(0, target - watermark) - take_away.settled_between(mine, watermark, target)
        reached[key] = deliveries.advanced(mine, max(watermark, target))
        points += [(key, row.offset) for row in mine if row.through <= reached[key]]
    if not dry_run:
        deliveries.delete(cx, at, points)
    return unsettled, reached


def _forget_settled_letters(cx: Executor, topic: str, targets: Mapping[str, int]) -> None:
    """Delete the rows of the reserved group '' for dead letters that are purged."""
    letters = GroupTopic.reserved(topic)
    rows = deliveries.load(cx, letters, list(targets))
    points = [(key, row.offset) for key, found in rows.items() for row in found if row.through <= targets[key]]
    deliveries.delete(cx, letters, points)


def delete_released(database: Database, topic: str, lanes: Mapping[str, tuple[int, int]]) -> int:
    """Delete released messages, (deleted through, floor) by key, in bounded batches. Return their number."""
    spans = {key: Span(deleted=deleted, floor=floor) for key, (deleted, floor) in lanes.items()}
    return sum(read(database, step, "deleting messages") for step in collect.deletion(topic, spans))
