"""Acquisition: a member takes free lanes, the lanes of dead owners, and lanes that never had a lease row.

Owns these two transactions, and so the take-over of a lease. Never decides how many lanes are wanted, nor which owner
is dead. It only checks once more, in the transaction that takes the lanes, that a dead owner is still silent.

A crash before a COMMIT takes nothing; after it, the lease is ours and runs out with our heartbeat. The read-back finds
a lease whose COMMIT was not answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from lanelog._base.open_lane_keys import PREFIX
from lanelog._database import Lock
from lanelog._engine import lifecycle
from lanelog._engine.leasing.sharing import Kind
from lanelog._facts.engine import keeper as facts
from lanelog._stores.consumers import groups
from lanelog._stores.log import partitions
from lanelog._stores.members import heartbeats, leases

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._base.places import GroupTopic
    from lanelog._database import Executor, Session
    from lanelog._engine.leasing.liveness import DeadOwner, LivenessView
    from lanelog._engine.member.member import Member

LIKE = {Kind.ANY: ("LIKE", "%"), Kind.OPEN: ("LIKE", f"{PREFIX}%"), Kind.KEYED: ("NOT LIKE", f"{PREFIX}%")}


@frozen
class Taken:
    """How many lanes were taken, and keys among which they are."""

    lanes: int = 0
    among: tuple[str, ...] = ()

    def __add__(self, other: Taken) -> Taken:
        return Taken(self.lanes + other.lanes, self.among + other.among)


def acquire(session: Session, member: Member, view: LivenessView | None, missing: int, kind: Kind) -> Taken:
    """Take up to `missing` lanes of a kind: free ones or a dead owner's, then those that never had a lease row.

    `view` None: the heartbeats cannot be read, so no owner counts as dead.
    """
    dead: tuple[DeadOwner, ...] = ()
    if view is not None:
        dead = view.dead
        if view.trusted:
            dead += view.without_heartbeat(leases.counts(session, member.at))
    taken = _take(session, member, dead, missing, kind)
    if missing > taken.lanes:
        taken += _create(session, member, missing - taken.lanes, kind)
    return taken


def acquire_new(session: Session, member: Member, new: Sequence[str], missing: int, kind: Kind) -> Taken:
    """Take up to `missing` lanes of a kind among these, which were created just now. Nobody had them before."""
    return _create(session, member, missing, kind, among=new)


def _take(session: Session, member: Member, dead: Sequence[DeadOwner], missing: int, kind: Kind) -> Taken:
    """Take lanes that have a lease row."""
    at = member.at
    owners = ["", *(each.owner for each in dead)]
    candidates = leases.candidates(session, at, owners, missing, LIKE[kind])
    if not candidates:
        return Taken()
    with session.transaction() as cx:
        holders = ["", *(each.owner for each in dead if _still_dead(cx, at, each))]
        took = leases.take(cx, at, member.owner, candidates, holders)
    taken = took.lanes
    if took.absurd:
        lifecycle.epochs_replaced(member, took.absurd)
    if taken and len(holders) > 1:
        member.counters.taken_over += taken
        notices = member.signals.notices
        facts.lanes_taken_over(notices, topic=at.topic, group=at.group, lanes=taken, owners=holders[1:])
    return Taken(taken, tuple(candidates))


def _create(session: Session, member: Member, missing: int, kind: Kind, *, among: Sequence[str] = ()) -> Taken:
    """Take lanes that have no lease row. The new row gets the lowest epoch that was never used."""
    at = member.at
    unclaimed = leases.unclaimed(session, at, missing, LIKE[kind], among)
    if not unclaimed:
        return Taken()
    # A process that stops in this transaction holds these locks until the server ends its session.
    with session.brief_lock_waits(), session.transaction() as cx:
        # Both rows are locked shared: no purge and no delete_group can come between these reads and the insert.
        topic_row = partitions.topic_row(cx, at.topic, Lock.SHARE)
        registered = groups.lock_shared(cx, at)
        still_there = partitions.heads(cx, at.topic, unclaimed)
        if topic_row is None or registered != member.registered_at or not still_there:
            return Taken()
        leases.create(cx, at, member.owner, list(still_there), topic_row.first_epoch)
    if topic_row.absurd_epoch is not None:
        # The new rows have the clock as their epoch. If the process dies here, the next acquisition finds the same row.
        partitions.raise_topic(session, at.topic, 0, 0)
        facts.topic_epoch_replaced(topic=at.topic, epoch=topic_row.absurd_epoch)
    return Taken(len(still_there), tuple(still_there))


def deregister_dead(session: Session, member: Member, dead: Sequence[DeadOwner], known: set[DeadOwner]) -> None:
    """Deregister dead owners that hold no lane. Otherwise a server restart voids the proof, and gives them a share.

    `known`: the owners that are deregistered already. The others are added to it.
    """
    at = member.at
    for each in dead:
        if each not in known and not leases.holds(session, at, each.owner):
            heartbeats.deregister_dead(session, at, each.owner, each.heartbeat_at, by=member.owner)
            known.add(each)


def _still_dead(cx: Executor, at: GroupTopic, dead: DeadOwner) -> bool:
    """Whether a dead owner has given no sign of life since. A missing row is silence."""
    sign = heartbeats.last_sign(cx, at, dead.owner)
    return sign is None or (sign[0] == dead.heartbeat_at and dead.proof.still_holds(lock_free=sign[1]))
