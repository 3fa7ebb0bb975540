"""Which owners of a group are alive, and which are dead, as one keeper has watched them.

Owns the keeper's memory of what it saw; `_log/lookup/liveness` judges. Pure: it never reads the database or a clock.
`now` is monotonic seconds, given by the caller. The take-over checks once more, under locks, what is judged here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field, frozen

from lanelog._log.lookup.liveness import SECOND_CHECK_SECONDS, Observation, Proof, proof

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lanelog._database import Incarnation
    from lanelog._stores.members._heartbeat_rows import HeartbeatRow


@define(eq=False)
class _Sight:
    """The last heartbeat seen of one owner. All times but the heartbeat's are monotonic."""

    heartbeat_at: int
    expires_at: int
    since: float  # when this heartbeat was first seen
    first: float  # when the owner was first seen
    free_since: float | None = None


@frozen(kw_only=True)
class DeadOwner:
    """An owner that is judged dead, with the heartbeat that the take-over must find unchanged."""

    owner: str
    heartbeat_at: int
    proof: Proof


@frozen(kw_only=True)
class LivenessView:
    """What one check of a group shows: the owners that count for the fair share, and those whose lanes may be taken."""

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

        While there are dead owners, newcomers get no share. A newcomer must check twice itself before it may take a
        dead owner's lanes, and until then these lanes would stand still. It gets its share when no dead owner is left,
        or when it is no newcomer any more.
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

    An owner that stands aside gets no share. It may hold a lane whose handler still runs, so it may be dead as well.
    """

    me: str
    lease_duration: float
    _sights: dict[str, _Sight] = field(factory=dict)

    @property
    def second_check_due(self) -> bool:
        """Whether the last check found the lock of some owner free. The second check should follow soon."""
        return any(sight.free_since is not None for sight in self._sights.values())

    def judge(
        self, rows: Iterable[HeartbeatRow], *, now: float, steady_since: float, incarnation: Incarnation
    ) -> LivenessView:
        """Check the owners once."""
        live, dead, newcomers, seen, registered = [self.me], [], set(), set(), set()
        trusted = now - steady_since >= self.lease_duration
        for row in rows:
            registered.add(row.owner)
            if row.owner == self.me or row.deregistered:
                continue
            seen.add(row.owner)
            sight = self._seen(row, now)
            if row.lock_free_on(incarnation):
                sight.free_since = now if sight.free_since is None else sight.free_since
            else:
                sight.free_since = None
            free = 0.0 if sight.free_since is None else now - sight.free_since
            watched = Observation(unchanged=now - sight.since, free=free, steady=now - steady_since)
            found = proof(row, incarnation, watched, lease=self.lease_duration)
            if found is not None:
                dead.append(DeadOwner(owner=row.owner, heartbeat_at=row.heartbeat_at, proof=found))
            elif not row.aside:
                live.append(row.owner)
                if now - sight.first < SECOND_CHECK_SECONDS:
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
