"""Which owners of a group are alive, for readers that are no keepers.

Owns the words for it; `_log/lookup/liveness` judges. Never takes a lane: that is the keeper's own, slower decision.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Final

from attrs import field, frozen

from lanelog._base.places import GroupTopic
from lanelog._database import Incarnation, server_start, signed
from lanelog._log.lookup.liveness import Observation, proof
from lanelog._process.workload import parsed
from lanelog._stores.members import heartbeats, member_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lanelog._database import Executor
    from lanelog._process.workload import Workload
    from lanelog._stores.members._heartbeat_rows import HeartbeatRow

UNKNOWN = Incarnation(0, "")
GRACE: Final = 30.0
"""Seconds before some states are called wrong: meanwhile workers that restart take their lanes again."""
LAST: Final = 3
"""The most members that are named of those that were there last."""

# Whole seconds since the server started (no table, no privilege needed).
_UPTIME = "SHOW GLOBAL STATUS LIKE 'Uptime'"


class OwnerState(StrEnum):
    """What is known of a lane's owner or a group's member."""

    ALIVE = "alive"
    """Its heartbeat is valid."""
    ASIDE = "aside"
    """The same, but the server has too few connections for it: it gives its lanes to others until it has enough."""
    DEAD = "dead"
    """Its process is gone: its liveness lock is free, or others have found it dead and taken its lanes."""
    EXPIRED = "expired"
    """Its heartbeat ran out. Others take its lanes: at once, or after two `lease_duration` while its lock is held."""
    STOPPED = "stopped"
    """It ended in order, and its row says so."""
    MISSING = "missing"
    """It holds a lease and has no heartbeat row: it counts as expired."""

    @property
    def lives(self) -> bool:
        """Whether its process is there."""
        return self in (OwnerState.ALIVE, OwnerState.ASIDE)


@frozen(kw_only=True)
class LastMember:
    """A member of a group that is not alive."""

    name: str
    """As leases name it. Unless `subscriber_name` says otherwise, it begins with the host and the process."""
    state: OwnerState
    silent: float
    """Seconds since it stopped, or since its last sign of life."""


@frozen
class Owners:
    """The heartbeat rows of a group on a topic, and when the server started.

    The start is only read if a lock was found free.
    """

    rows: Mapping[str, HeartbeatRow]
    _server: Incarnation = field(default=UNKNOWN)

    def state(self, owner: str) -> OwnerState:
        """Return what is known of an owner."""
        row = self.rows.get(owner)
        if row is None:
            return OwnerState.MISSING
        if row.deregistered:
            return OwnerState.STOPPED if row.found_dead_by is None else OwnerState.DEAD
        if row.expired:
            return OwnerState.EXPIRED
        if proof(row, self._server, Observation.since_heartbeat(row)) is not None:
            return OwnerState.DEAD
        return OwnerState.ASIDE if row.aside else OwnerState.ALIVE

    def alive(self, owner: str) -> bool:
        """Return whether the owner is alive."""
        return self.state(owner).lives

    def workload(self, owner: str) -> Workload | None:
        """Return what the workers of an owner that is alive do, if that was asked, and its row says it."""
        row = self.rows.get(owner)
        return None if row is None or row.workload is None or not self.alive(owner) else parsed(row.workload)

    def workloads(self) -> tuple[Workload, ...]:
        """Return what the workers of all owners do that say it."""
        return tuple(found for owner in self.rows if (found := self.workload(owner)) is not None)

    def gone(self, owner: str) -> bool:
        """Return whether the heartbeat ran out, and not only a moment ago. Its lock may be held all the same.

        A proxy may keep the session of a process that is gone. A server that stood still for a moment makes every
        heartbeat run out.
        """
        row = self.rows.get(owner)
        return row is not None and not row.deregistered and row.expired and (self.silent(owner) or 0) > GRACE

    def left(self, owner: str) -> float:
        """Return the seconds until the owner's leases may be taken by expiry."""
        row = self.rows.get(owner)
        return 0.0 if row is None or row.deregistered or row.expired else (row.expires_at - row.now) / 1000

    def silent(self, owner: str) -> float | None:
        """Return the seconds since the owner stopped, or since its last sign of life. None: it has no row."""
        row = self.rows.get(owner)
        if row is None:
            return None
        left = row.deregistered_at if row.found_dead_by is None else 0
        return max(0, row.now - (left or row.heartbeat_at)) / 1000

    def unchanged(self) -> float:
        """Return the seconds since the last sign of life of an owner that is not alive; infinite if there is none."""
        gone = [self.silent(owner) for owner in self.rows if not self.alive(owner)]
        return min((seconds for seconds in gone if seconds is not None), default=inf)

    def handed_out(self, in_flight: int, waiting: int) -> tuple[int, int]:
        """Return how many messages are in flight, and how many wait. Without a living owner, all of them wait."""
        return (in_flight, waiting) if any(map(self.alive, self.rows)) else (0, in_flight + waiting)

    def last(self) -> tuple[LastMember, ...]:
        """Return the owners that were there last, if none is alive."""
        if any(map(self.alive, self.rows)):
            return ()
        gone = [LastMember(name=each, state=self.state(each), silent=self.silent(each) or 0) for each in self.rows]
        return tuple(sorted(gone, key=lambda each: each.silent)[:LAST])

    def counted(self, lanes: Mapping[str, int]) -> tuple[int, int]:
        """Split lanes, counted by owner: how many have a living owner, and how many one that is not alive."""
        owned = sum(count for owner, count in lanes.items() if owner and self.alive(owner))
        return owned, sum(count for owner, count in lanes.items() if owner) - owned


def load(cx: Executor, at: GroupTopic) -> Owners:
    """Read the owners of a group."""
    return load_each(cx, at.topic, [at.group])[at.group]


def load_each(cx: Executor, topic: str, groups: Sequence[str]) -> dict[str, Owners]:
    """Read the owners of each of a few groups."""
    # The columns of version 1 of the tables are enough here: they say when the server that granted a lock started.
    return _judged(cx, heartbeats.members_of(cx, topic, groups, tables=1))


def at_work(
    cx: Executor, topic: str, groups: Sequence[str], *, tables: int, handlers: bool = False
) -> dict[str, Owners]:
    """Read the same, and what their workers do. `tables`: the version of the tables.

    `handlers`: also where handlers stand, and only of the owners that say it.
    """
    return _judged(cx, member_rows.at_work(cx, topic, groups, tables=tables, handlers=handlers))


def granting(cx: Executor, rows: Iterable[HeartbeatRow]) -> Incarnation:
    """Return the server as far as the judgement of these owners needs it.

    It is asked only if a lock is free although the heartbeat is valid.
    """
    unclear = any(row.lock_free and not row.expired and not row.deregistered for row in rows)
    return Incarnation(server_start(cx), "") if unclear else UNKNOWN


def _judged(cx: Executor, found: Mapping[str, Sequence[HeartbeatRow]]) -> dict[str, Owners]:
    server = granting(cx, chain.from_iterable(found.values()))
    return {
        group: Owners({row.owner: row for row in sorted(rows, key=lambda row: row.owner.encode())}, server)
        for group, rows in found.items()
    }


def uptime(cx: Executor) -> float:
    """Return the seconds since the server started; infinite if the server does not say."""
    row = cx.one(_UPTIME)
    if row is None:
        return inf
    _, seconds = row
    return max(0, signed(int(seconds)))
