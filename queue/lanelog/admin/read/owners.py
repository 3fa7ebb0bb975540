"""Who is alive: the owners of a group as their heartbeats and the server's locks show them.

Owns that judgement for everything administration shows; never takes a lane, which is the keeper's own, slower decision.
Called by the reading rooms and by `release`.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from attrs import field, frozen

from lanelog._database import Incarnation, server_start, signed
from lanelog._places import GroupTopic
from lanelog._stores import heartbeats
from lanelog.admin.types.topology import OwnerState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lanelog._database import Executor
    from lanelog._stores.heartbeats import HeartbeatRow

UNKNOWN = Incarnation(0, "")

# Whole seconds since the server started (no table, no privilege needed).
_UPTIME = "SHOW GLOBAL STATUS LIKE 'Uptime'"


@frozen
class Owners:
    """The heartbeat rows of a group on a topic, judged; and when the server started, if any lock was found free."""

    rows: Mapping[str, HeartbeatRow]
    _server: Incarnation = field(default=UNKNOWN)

    def state(self, owner: str) -> OwnerState:
        """What is known of an owner."""
        row = self.rows.get(owner)
        if row is None:
            return OwnerState.MISSING
        if row.deregistered_at:
            return OwnerState.STOPPED
        if row.expires_at <= row.now:
            return OwnerState.EXPIRED
        if row.lock_free_on(self._server):
            return OwnerState.DEAD
        return OwnerState.ALIVE

    def alive(self, owner: str) -> bool:
        """Whether it is."""
        return self.state(owner) is OwnerState.ALIVE

    def left(self, owner: str) -> float:
        """Seconds until its leases may be taken by expiry."""
        row = self.rows.get(owner)
        return 0.0 if row is None or row.deregistered_at else max(0, row.expires_at - row.now) / 1000

    def silent(self, owner: str) -> float | None:
        """Seconds since it stopped, or gave its last sign of life; None without a row."""
        row = self.rows.get(owner)
        return None if row is None else max(0, row.now - (row.deregistered_at or row.heartbeat_at)) / 1000

    def unchanged(self) -> float:
        """Seconds since the last of those that are not alive was heard of; infinite where there is none."""
        gone = [self.silent(owner) for owner in self.rows if not self.alive(owner)]
        return min((seconds for seconds in gone if seconds is not None), default=inf)

    def counted(self, lanes: Mapping[str, int]) -> tuple[int, int]:
        """How many of these lanes, counted by owner, have one that is alive, and how many one that is not."""
        owned = sum(count for owner, count in lanes.items() if owner and self.alive(owner))
        return owned, sum(count for owner, count in lanes.items() if owner) - owned


def load(cx: Executor, at: GroupTopic) -> Owners:
    """Read the owners of a group."""
    # What every version of the tables has is enough here: when the server started that granted a lock.
    found = heartbeats.members(cx, at, tables=1)
    rows = {row.owner: row for row in sorted(found, key=lambda row: row.owner.encode())}
    doubtful = any(row.lock_free and not row.deregistered and row.expires_at > row.now for row in found)
    return Owners(rows, Incarnation(server_start(cx), "") if doubtful else UNKNOWN)


def uptime(cx: Executor) -> float:
    """Seconds since the server started; infinite if it would not say."""
    row = cx.one(_UPTIME)
    return inf if row is None else max(0, signed(int(row[1])))
