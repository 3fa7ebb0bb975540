"""Liveness: which owners of a group are alive, and which are dead.

Owns this judgement, and one keeper's memory of what it saw. Pure: it never reads the database or a clock. `now` is
monotonic seconds, given by the caller. The steal checks once more, under locks, what is judged here.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from lanelog._base.backoff import OF_LOOPS
from lanelog._base.checks import MAX_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lanelog._database import Incarnation
    from lanelog._stores.members._heartbeat_rows import HeartbeatRow

SECOND_LOOK_SECONDS = 1.0
"""The least time between the two looks that must find a lock free."""

EVERYBODY_BACK_SECONDS = OF_LOOPS.most + 1.0
"""So long our own session must be steady before a free lock proves a death. The event that ended our session,
or made it wait, may have ended all sessions. The last of them is back after the longest back-off."""

VETO_DURATIONS = 2
"""How many of its own durations a heartbeat must stay unchanged before its owner counts as dead although the lock is
held. A proxy may keep the session of a process that is gone."""


@define(eq=False)
class _Sight:
    """The last heartbeat seen of one owner. All times but the heartbeat's are monotonic."""

    heartbeat_at: int
    expires_at: int
    since: float  # when this heartbeat was first seen
    first: float  # when the owner was first seen
    free_since: float | None = None


class Proof(Enum):
    """Why an owner counts as dead. The steal must find the same once more."""

    LOCK = "its lock is free"
    EXPIRY = "its heartbeat ran out, and it holds no lock"
    SILENCE = "its heartbeat has not changed for two of its durations, whoever holds its lock"


@frozen(kw_only=True)
class DeadOwner:
    """An owner that is judged dead, with the heartbeat that the steal must find unchanged."""

    owner: str
    heartbeat_at: int
    proof: Proof


@frozen(kw_only=True)
class LivenessView:
    """One look at a group: the owners that count for the fair share, and the owners whose lanes may be taken."""

    live: tuple[str, ...]
    dead: tuple[DeadOwner, ...] = ()
    registered: frozenset[str] = field(default=frozenset(), eq=False)  # every owner with a row, living or not
    newcomers: frozenset[str] = field(default=frozenset(), eq=False)  # living owners first seen just now
    trusted: bool = field(
        default=False, eq=False
    )  # our session has been steady long enough for an expired heartbeat to count

    @property
    def sharers(self) -> tuple[str, ...]:
        """The owners among whom lanes are shared out.

        While there are dead owners, newcomers get no share. A newcomer must look twice itself before it may take a dead
        owner's lanes, and until then these lanes would stand still. It gets its share when no dead owner is left, or
        when it is no newcomer any more.
        """
        return tuple(owner for owner in self.live if owner not in self.newcomers) if self.dead else self.live

    def without_heartbeat(self, holders: Iterable[str]) -> tuple[DeadOwner, ...]:
        """The holders of leases that have no heartbeat row any more. They count as expired.

        Rows are purged long after they ended. After an outage that lasts even longer, no other sign is left that these
        owners are dead.
        """
        if not self.trusted:
            return ()
        gone = sorted({holder for holder in holders if holder} - self.registered - set(self.live))
        return tuple(DeadOwner(owner=owner, heartbeat_at=0, proof=Proof.EXPIRY) for owner in gone)


@define(eq=False)
class LivenessMonitor:
    """One keeper's memory of the other owners of one group and topic.

    An owner is dead by its lock when three things are true. The lock was free in two looks at least a second apart. The
    heartbeat has not changed between them. And the row names the incarnation that answers now: a restart frees every
    lock, and must not lead to a steal.

    An owner is dead by expiry when its heartbeat ran out by the database's clock. After a clock was set back, a
    heartbeat may end later than its own duration allows. Such a heartbeat counts as expired when it has not changed for
    that duration. A row of another program may say that it never ends: then our own duration counts.

    Both need `steady_since`: our own session must have answered without a stall for so long that all owners had time to
    come back after an event that hit all of them.

    A lock that is held vetoes expiry: no owner dies because a server stood still or its clock was set. The veto ends
    after a long silence: see `VETO_DURATIONS`.

    An owner that stands aside gets no share. It may hold a lane whose handler still runs, so it may be dead as well.
    """

    me: str
    lease_duration: float
    _sights: dict[str, _Sight] = field(factory=dict)

    @property
    def second_look_due(self) -> bool:
        """Whether the last look found the lock of some owner free. The second look should follow soon."""
        return any(sight.free_since is not None for sight in self._sights.values())

    def judge(
        self, rows: Iterable[HeartbeatRow], *, now: float, steady_since: float, incarnation: Incarnation
    ) -> LivenessView:
        """Take one look."""
        live, dead, newcomers, seen, registered = [self.me], [], set(), set(), set()
        trusted = now - steady_since >= self.lease_duration
        for row in rows:
            registered.add(row.owner)
            if row.owner == self.me or row.deregistered:
                continue
            seen.add(row.owner)
            sight = self._seen(row, now)
            proof = self._proof(row, sight, now, steady_since, incarnation, trusted=trusted)
            if proof is not None:
                dead.append(DeadOwner(owner=row.owner, heartbeat_at=row.heartbeat_at, proof=proof))
            elif not row.aside:
                live.append(row.owner)
                if now - sight.first < SECOND_LOOK_SECONDS:
                    newcomers.add(row.owner)
        for gone in self._sights.keys() - seen:
            del self._sights[gone]
        return LivenessView(
            live=tuple(sorted(live)),
            dead=tuple(dead),
            newcomers=frozenset(newcomers),
            registered=frozenset(registered),
            trusted=trusted,
        )

    def _seen(self, row: HeartbeatRow, now: float) -> _Sight:
        sight = self._sights.get(row.owner)
        if sight is None or sight.heartbeat_at != row.heartbeat_at or sight.expires_at != row.expires_at:
            first = now if sight is None else sight.first
            sight = self._sights[row.owner] = _Sight(row.heartbeat_at, row.expires_at, now, first)
        return sight

    def _proof(
        self,
        row: HeartbeatRow,
        sight: _Sight,
        now: float,
        steady_since: float,
        incarnation: Incarnation,
        *,
        trusted: bool,
    ) -> Proof | None:
        lock_free = row.lock_free_on(incarnation)
        if lock_free:
            sight.free_since = now if sight.free_since is None else sight.free_since
            if now - sight.free_since >= SECOND_LOOK_SECONDS and now - steady_since >= EVERYBODY_BACK_SECONDS:
                return Proof.LOCK
        else:
            sight.free_since = None
        if not (trusted and self._expired(row, sight, now)):
            return None
        if lock_free is not False:
            return Proof.EXPIRY
        silent = now - max(sight.since, steady_since)
        return Proof.SILENCE if silent >= VETO_DURATIONS * self._duration(row) else None

    def _expired(self, row: HeartbeatRow, sight: _Sight, now: float) -> bool:
        if row.expires_at < row.now:
            return True
        from_the_future = row.expires_at > row.now + self._duration(row) * 1000
        return from_the_future and now - sight.since >= self._duration(row)

    def _duration(self, row: HeartbeatRow) -> float:
        """The row's lease, or ours if no lease lasts so long: another program may have written the row."""
        own = (row.expires_at - row.heartbeat_at) / 1000
        return own if 0 < own <= MAX_SECONDS else self.lease_duration
