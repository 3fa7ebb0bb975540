"""Loading: lanes that were just acquired, and lanes reloaded on a new connection, rebuilt from their rows.

Owns these reads, in bulk and outside of any transaction: what a previous owner had to say was committed before its
lease changed hands, and nothing but the new owner writes since. What a transaction of its own has settled is the
exception: a locking read decides it. Never acquires a lane. Called by the keeper, on its connection.

A lane whose rows contradict each other is mended instead of loaded (`contradictions`): it comes back with the next
read-back, or is acquired again under its new epoch.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

from lanelog._engine import contradictions
from lanelog._engine.lane.lane import Lane
from lanelog._engine.lane.values import LaneSnapshot
from lanelog._stores import deliveries, fetches, lane_rows, offsets, partitions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lanelog._database import Session
    from lanelog._engine.member.member import Member
    from lanelog._stores.leases import OwnedLane

GENERATIONS = itertools.count(1)
"""Numbers the loads of this process, so that a lane that is loaded anew under its epoch is another one."""

MENDING_A_LOAD = 1.0
"""Seconds after which a load mends no further lane: the heartbeat is to be written meanwhile. The next turn goes on."""


def lose_others(member: Member, owned: Sequence[OwnedLane], why: str) -> dict[str, OwnedLane]:
    """Lose the lanes that are not among the leases we own, or are there with another epoch; those leases by key."""
    mine = {lease.key: lease for lease in owned}
    for lane in list(member.leasing.lanes.values()):
        lease = mine.get(lane.key)
        if lease is None or lease.epoch != lane.epoch:
            member.lose_lane(lane.term, why)
    return mine


def load(cx: Session, member: Member, leases: Sequence[OwnedLane]) -> list[Lane]:
    """Build the lanes of these leases; left out are one whose head is gone (purged meanwhile) and one to be mended."""
    at, topic = member.at, member.topic
    keys = [lease.key for lease in leases]
    heads = partitions.heads(cx, topic, keys)
    places = offsets.load(cx, at, keys)
    rows = deliveries.load(cx, at, keys)
    suspects = lane_rows.behind(cx, topic, keys)
    now = time.monotonic()
    lanes = []
    for lease in leases:
        head = heads.get(lease.key)
        own, floor = places.get((at.group, lease.key)), places.get(("", lease.key))
        if head is None:
            suspects.update([lease.key] if floor is not None else ())  # the purge of a lane leaves neither
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
        if floor is None or max(snapshot.floor, snapshot.offset_acked or 0, *(r.through for r in snapshot.rows)) > head:
            suspects.add(lease.key)
        if lease.key not in suspects:
            lanes.append(Lane.load(snapshot, member.rules, member.budget, now))
    _mend(cx, topic, suspects)
    return lanes


def _mend(session: Session, topic: str, keys: Iterable[str]) -> None:
    """Look at suspects under locks, as many as there is time for; one that somebody holds is one for the next turn."""
    until = time.monotonic() + MENDING_A_LOAD
    for key in sorted(keys, key=str.encode):
        if time.monotonic() > until:
            return
        contradictions.mend(session, topic, key)


def reload(session: Session, member: Member, leases: Sequence[OwnedLane]) -> None:
    """Replace what memory believes of these lanes by what the server has; see `Lane.carry_over`.

    Nothing starts meanwhile: the caller has withdrawn the authority to start handlers. What ends meanwhile was
    running, and so is among the offsets whose ids are compared.
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
        # A transaction may commit while this one is asked about: whatever is new is asked about, too.
        while open_questions := member.leasing.replace_lane(old[lane.key], lane, ids, asked):
            asked.update(_settled(session, member, lane.key, open_questions))
    for key in old.keys() - fresh:
        member.disown_lane(old[key].term, "what the tables say of it on the new connection is no lane, or was mended")


def _settled(session: Session, member: Member, key: str, at: Iterable[int]) -> dict[int, bool]:
    """Whether this server has each of them settled; waits for a COMMIT that is still on its way."""
    lane, answers = member.at.lane(key), {}
    for offset in sorted(at):
        with session.transaction() as cx:
            answers[offset] = deliveries.is_settled(cx, lane, offset) or (offsets.acked_locked(cx, lane) >= offset)
    return answers
