"""Who is alive, and how many lanes are whose.

Owns the arithmetic of fair shares and the judgement over owners; pure: it never reads a clock (`now` is monotonic
seconds, handed in) nor the database. Called by the keeper.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from lanelog._backoff import OF_LOOPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lanelog._database import Incarnation
    from lanelog._engine.lane.lane import Lane
    from lanelog._stores.heartbeats import HeartbeatRow

SECOND_LOOK = 1.0
"""Seconds between the two looks that have to find a lock free."""

EVERYBODY_BACK = OF_LOOPS.most + 1.0
"""Seconds that our own session must be steady for before a free lock proves a death: what ended it, or made it wait,
may have ended everybody's, and the last of them is back after the longest back-off."""

VETO_DURATIONS = 2
"""For so many of its own durations a heartbeat has to stay unchanged before that counts although the lock is held: a
proxy may keep the session of a process that is gone."""


def fair_share(lanes: int, owners: Sequence[str], me: str) -> int:
    """How many lanes are mine: the first (lanes mod owners) in sorted order get one more than the rest.

    Every owner computes the same from the same two numbers, so nobody has to lead. An owner that does not see itself
    in the list (its heartbeat is not visible yet) counts itself in.
    """
    ranked = sorted({*owners, me})
    share, left_over = divmod(lanes, len(ranked))
    return share + (1 if ranked.index(me) < left_over else 0)


@frozen(kw_only=True)
class Share:
    """How many lanes of each kind are one owner's."""

    open: int
    keyed: int
    by_kind: bool
    """Whether there are open lanes at all; without, all lanes are alike."""

    @property
    def total(self) -> int:
        """How many in all."""
        return self.open + self.keyed


def fair_shares(open_lanes: int, keyed: int, owners: Sequence[str], me: str) -> Share:
    """How many open lanes and how many others are mine: both evenly, and all lanes together as by `fair_share`.

    So nobody has all the open lanes of a topic, and all its work, while others have its idle keys; and an owner of an
    older version, which shares out all lanes alike, computes the same number for everybody.
    """
    mine = fair_share(open_lanes, owners, me)
    total = fair_share(open_lanes + keyed, owners, me)
    return Share(open=mine, keyed=total - mine, by_kind=open_lanes > 0)


def to_shed(lanes: Iterable[Lane], surplus: int) -> list[Lane]:
    """Which lanes to give back: idle ones first, else in order of their keys."""
    if surplus <= 0:
        return []
    staying = [lane for lane in lanes if not lane.state.closing]
    return sorted(staying, key=lambda lane: (bool(lane.state.running), lane.key))[:surplus]


@define(eq=False)
class _Sight:
    """What was seen of one owner, and since when (monotonic) it has not changed."""

    heartbeat_at: int
    expires_at: int
    since: float
    first: float  # when it was seen at all
    free_since: float | None = None


class Proof(Enum):
    """Why an owner counts as dead, and so what the steal has to find once more."""

    LOCK = "its lock is free"
    EXPIRY = "its heartbeat ran out, and it holds no lock"
    SILENCE = "its heartbeat has not changed for two of its durations, whoever holds its lock"


@frozen(kw_only=True)
class DeadOwner:
    """An owner judged dead, with what the steal has to find unchanged."""

    owner: str
    heartbeat_at: int
    proof: Proof


@frozen(kw_only=True)
class LivenessView:
    """One look at a group: who counts for the fair share, and from whom may be taken."""

    live: tuple[str, ...]
    dead: tuple[DeadOwner, ...] = ()
    registered: frozenset[str] = field(default=frozenset(), eq=False)  # whoever has a row, living or not
    newcomers: frozenset[str] = field(default=frozenset(), eq=False)  # of the living: who came less than a look ago
    trusted: bool = field(
        default=False, eq=False
    )  # our session is steady for so long that an expired heartbeat means something

    @property
    def heirs(self) -> tuple[str, ...]:
        """Among whom lanes are shared out.

        While a dead owner's are among them, not to who has just come: it has to look twice itself before it may take
        those, and they would stand still for as long. It gets its share when they have been taken, or it can take them.
        """
        return tuple(owner for owner in self.live if owner not in self.newcomers) if self.dead else self.live

    def without_heartbeat(self, holders: Iterable[str]) -> tuple[DeadOwner, ...]:
        """Those among the holders of leases whose row is gone altogether: that counts as expired.

        Rows are purged long after they ended; after an outage that outlasts even that, nothing else tells that their
        owners are dead.
        """
        if not self.trusted:
            return ()
        gone = sorted({holder for holder in holders if holder} - self.registered - set(self.live))
        return tuple(DeadOwner(owner=owner, heartbeat_at=0, proof=Proof.EXPIRY) for owner in gone)


@define(eq=False)
class LivenessMonitor:
    """One keeper's memory of the other owners of one group and topic.

    An owner is dead by its lock when the lock was free in two looks a second apart, its heartbeat has not changed since
    before the first, and the incarnation that the row names is the one that answers: a restart frees every lock and
    must steal nothing. It is dead by expiry when its heartbeat ran out by the database's clock, or claims to run out
    later than its own duration allows (a clock was set back) and has not changed for that long. Both need
    `steady_since`: our own session has to be there, and answered without a stall, for so long that owners had time to
    come back after what hit everybody.

    A lock that is held vetoes expiry: a server that stood still, or whose clock was set, kills nobody. The veto ends
    with silence, see `VETO_DURATIONS`.
    """

    me: str
    lease_duration: float
    _sights: dict[str, _Sight] = field(factory=dict)

    @property
    def suspects(self) -> bool:
        """Whether somebody's lock was found free the last time: the second look is not to be late."""
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
            else:
                live.append(row.owner)
                if now - sight.first < SECOND_LOOK:
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
            if now - sight.free_since >= SECOND_LOOK and now - steady_since >= EVERYBODY_BACK:
                return Proof.LOCK
        else:
            sight.free_since = None
        if not (trusted and self._expired(row, sight, now)):
            return None
        if lock_free is not False:
            return Proof.EXPIRY
        silent = now - max(sight.since, steady_since)
        return Proof.SILENCE if silent >= VETO_DURATIONS * _duration(row) else None

    @staticmethod
    def _expired(row: HeartbeatRow, sight: _Sight, now: float) -> bool:
        if row.expires_at < row.now:
            return True
        from_the_future = row.expires_at > row.now + _duration(row) * 1000
        return from_the_future and now - sight.since >= _duration(row)


def _duration(row: HeartbeatRow) -> float:
    return (row.expires_at - row.heartbeat_at) / 1000
