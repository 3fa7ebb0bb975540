"""Loading: lanes are built from their rows after an acquisition, and again on a new connection.

Owns these reads, in bulk and outside of any transaction. That is safe: a previous owner's writes were committed before
its lease changed hands, and since then only the new owner writes. A message that a transaction of its own has settled
is the exception: a locking read decides it. Never acquires a lane.

A lane whose rows contradict each other is repaired instead of loaded (`_log/repair`). It comes back with the next
read-back, or is acquired again under its new epoch.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

from lanelog._engine.lane.lane import Lane
from lanelog._engine.lane.values import LaneSnapshot
from lanelog._log import repair
from lanelog._stores.consumers import deliveries, offsets
from lanelog._stores.log import fetches, lane_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lanelog._database import Session
    from lanelog._engine.member.member import Member
    from lanelog._stores.members.leases import OwnedLane

GENERATIONS = itertools.count(1)
"""Numbers the loads of this process. So a lane that is loaded again under the same epoch has another term."""

REPAIR_SECONDS = 1.0
"""After this time, a load repairs no further lane: the heartbeat must be written. The next turn goes on."""


def load(cx: Session, member: Member, leases: Sequence[OwnedLane]) -> list[Lane]:
    """Build the lanes of these leases, without lanes that were purged (no head) and lanes that must be repaired."""
    at, topic = member.at, member.topic
    keys = [lease.key for lease in leases]
    ends = lane_rows.ends(cx, topic, keys)
    offset_rows = offsets.load(cx, at, keys)
    rows = deliveries.load(cx, at, keys)
    suspect: set[str] = set()
    now = time.monotonic()
    lanes = []
    for lease in leases:
        head, behind = ends.get(lease.key, (None, False))
        own, floor = offset_rows.get((at.group, lease.key)), offset_rows.get(("", lease.key))
        if head is None:
            suspect.update([lease.key] if floor is not None else ())  # a purge would have deleted the floor, too
            continue
        snapshot = LaneSnapshot(
            key=lease.key,
            epoch=lease.epoch,
            generation=next(GENERATIONS),
            head=head,
            floor=0 if floor is None else floor.offset_acked,
            offset_acked=None if own is None else own.offset_acked,
            marked_through=0 if own is None else own.marked_through,
            marked_epoch=0 if own is None else own.marked_epoch,
            marked_age=0.0 if own is None else own.marked_age,
            paused=lease.paused,
            rows=rows.get(lease.key, ()),
        )
        highest = max(snapshot.floor, snapshot.offset_acked or 0, *(row.through for row in snapshot.rows))
        if behind or floor is None or highest > head:
            suspect.add(lease.key)
        else:
            lanes.append(Lane.load(snapshot, member.rules, member.budget, now))
    _repair(cx, topic, suspect)
    return lanes


def _repair(session: Session, topic: str, keys: Iterable[str]) -> None:
    """Check these lanes under locks and repair them, as long as there is time. A locked one waits for a later turn."""
    until = time.monotonic() + REPAIR_SECONDS
    for key in sorted(keys, key=str.encode):
        if time.monotonic() > until:
            return
        repair.repair_lane(session, topic, key)


def reload(session: Session, member: Member, leases: Sequence[OwnedLane]) -> None:
    """Load the lanes of these leases again, and replace those in memory. See `lane/reload.py`.

    No handler starts meanwhile: the caller has withdrawn the authority. A message whose handler ends meanwhile was
    running before, so its id is compared, too.
    """
    vouched = member.leasing.vouched(lease.key for lease in leases)
    old = {lane.key: lane for lane in vouched}
    points = [(lane.key, offset) for lane, ids in vouched.items() for offset in ids]
    found = fetches.ids(session, member.topic, points)
    fresh: set[str] = set()
    for lane in load(session, member, [lease for lease in leases if lease.key in old]):
        fresh.add(lane.key)
        ids = {offset: found[(lane.key, offset)] for offset in vouched[old[lane.key]] if (lane.key, offset) in found}
        asked: dict[int, bool] = {}
        # Another transaction may commit during these questions: then the loop asks about that one, too.
        while open_questions := member.leasing.replace_lane(old[lane.key], lane, ids, asked):
            asked.update(_settled(session, member, lane.key, open_questions))
    for key in old.keys() - fresh:
        member.disown_lane(
            old[key].term, "on the new connection its rows are missing, or contradicted each other and were repaired"
        )


def _settled(session: Session, member: Member, key: str, at: Iterable[int]) -> dict[int, bool]:
    """Whether this server has each of these offsets settled. Waits for a COMMIT that is still on its way."""
    lane, answers = member.at.lane(key), {}
    for offset in sorted(at):
        with session.transaction() as cx:
            answers[offset] = deliveries.is_settled(cx, lane, offset) or (offsets.acked_locked(cx, lane) >= offset)
    return answers
