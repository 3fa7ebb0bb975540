"""Who is alive, and how many lanes are whose.

Owns the arithmetic of fair shares and the judgement over owners; pure: it never reads a clock (`now` is monotonic
seconds, handed in) nor the database. Called by the keeper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field, frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lanelog._engine.lane import Lane
    from lanelog._stores.heartbeats import HeartbeatRow

SERVER_START_TOLERANCE_MS = 2000
"""`now - Uptime` is known to a second, and read at different moments."""

SECOND_LOOK = 1.0
"""Seconds between the two looks that have to find a lock free."""


def fair_share(lanes: int, owners: Sequence[str], me: str) -> int:
    """How many lanes are mine: the first (lanes mod owners) in sorted order get one more than the rest.

    Every owner computes the same from the same two numbers, so nobody has to lead. An owner that does not see itself
    in the list (its heartbeat is not visible yet) counts itself in.
    """
    ranked = sorted({*owners, me})
    share, left_over = divmod(lanes, len(ranked))
    return share + (1 if ranked.index(me) < left_over else 0)


def to_shed(lanes: Iterable[Lane], surplus: int) -> list[Lane]:
    """Which lanes to give back: idle ones first, else in order of their keys."""
    if surplus <= 0:
        return []
    staying = [lane for lane in lanes if not lane.closing]
    return sorted(staying, key=lambda lane: (bool(lane.running), lane.key))[:surplus]


@define(eq=False)
class _Sight:
    """What was seen of one owner, and since when (monotonic) it has not changed."""

    heartbeat_at: int
    expires_at: int
    since: float
    first: float  # when it was seen at all
    free_since: float | None = None


@frozen(kw_only=True)
class Suspect:
    """An owner judged dead, with what the steal has to find unchanged."""

    owner: str
    heartbeat_at: int
    by_lock: bool  # its session lock is free; else its heartbeat ran out


@frozen(kw_only=True)
class Verdict:
    """One look at a group: who counts for the fair share, and from whom may be taken."""

    live: tuple[str, ...]
    dead: tuple[Suspect, ...] = ()
    registered: frozenset[str] = field(default=frozenset(), eq=False)  # whoever has a row, living or not
    newcomers: frozenset[str] = field(default=frozenset(), eq=False)  # of the living: who came less than a look ago
    trusted: bool = field(
        default=False, eq=False
    )  # our session is unbroken for so long that an expired heartbeat means something

    @property
    def heirs(self) -> tuple[str, ...]:
        """Among whom lanes are shared out.

        While a dead owner's are among them, not to who has just come: it has to look twice itself before it may take
        those, and they would stand still for as long. It gets its share when they have been taken, or it can take them.
        """
        return tuple(owner for owner in self.live if owner not in self.newcomers) if self.dead else self.live

    def without_heartbeat(self, holders: Iterable[str]) -> tuple[Suspect, ...]:
        """Those among the holders of leases whose row is gone altogether: that counts as expired.

        Rows are purged long after they ended; after an outage that outlasts even that, nothing else tells that their
        owners are dead.
        """
        if not self.trusted:
            return ()
        gone = sorted({holder for holder in holders if holder} - self.registered - set(self.live))
        return tuple(Suspect(owner=owner, heartbeat_at=0, by_lock=False) for owner in gone)


@define(eq=False)
class Watch:
    """One keeper's memory of the other owners of one group and topic.

    An owner is dead by its lock when the lock was free in two looks a second apart, its heartbeat has not changed since
    before the first, and the server that the row knows is the server that answers: a restart frees every lock and
    must steal nothing. It is dead by expiry when its heartbeat ran out by the database's clock, or claims to run out
    later than its own duration allows (a clock was set back) and has not changed for that long; this needs
    `session_since`: a session of ours unbroken for a whole lease duration, so that owners had time to come back after
    an outage that hit everybody.
    """

    me: str
    lease_duration: float
    _sights: dict[str, _Sight] = field(factory=dict)

    @property
    def suspects(self) -> bool:
        """Whether somebody's lock was found free the last time: the second look is not to be late."""
        return any(sight.free_since is not None for sight in self._sights.values())

    def judge(
        self, rows: Iterable[HeartbeatRow], *, now: float, session_since: float, server_started_ms: int
    ) -> Verdict:
        """Take one look."""
        live, dead, newcomers, seen, registered = [self.me], [], set(), set(), set()
        trusted = now - session_since >= self.lease_duration
        for row in rows:
            registered.add(row.owner)
            if row.owner == self.me or row.deregistered:
                continue
            seen.add(row.owner)
            sight = self._sights.get(row.owner)
            if sight is None or sight.heartbeat_at != row.heartbeat_at or sight.expires_at != row.expires_at:
                first = now if sight is None else sight.first
                sight = self._sights[row.owner] = _Sight(row.heartbeat_at, row.expires_at, now, first)
            same_server = abs(row.server_started_at - server_started_ms) <= SERVER_START_TOLERANCE_MS
            if row.lock_free and same_server:
                sight.free_since = now if sight.free_since is None else sight.free_since
            else:
                sight.free_since = None
            by_lock = sight.free_since is not None and now - sight.free_since >= SECOND_LOOK
            if by_lock or (trusted and self._expired(row, sight, now)):
                dead.append(Suspect(owner=row.owner, heartbeat_at=row.heartbeat_at, by_lock=by_lock))
            else:
                live.append(row.owner)
                if now - sight.first < SECOND_LOOK:
                    newcomers.add(row.owner)
        for gone in self._sights.keys() - seen:
            del self._sights[gone]
        return Verdict(
            live=tuple(sorted(live)),
            dead=tuple(dead),
            newcomers=frozenset(newcomers),
            registered=frozenset(registered),
            trusted=trusted,
        )

    @staticmethod
    def _expired(row: HeartbeatRow, sight: _Sight, now: float) -> bool:
        if row.expires_at < row.now:
            return True
        duration_ms = row.expires_at - row.heartbeat_at
        from_the_future = row.expires_at > row.now + duration_ms
        return from_the_future and now - sight.since >= duration_ms / 1000
