"""Who is alive: the owners of a group as their heartbeats and the server's locks show them.

Owns that judgement for everything administration shows; never takes a lane, which is the keeper's own, slower decision.
Called by the reading rooms and by `release`.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from attrs import field, frozen

from lanelog._database import NOW_MS, signed
from lanelog.admin.types.topology import OwnerState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lanelog._database import Executor

# Every owner of a group and topic, with the state of its lock as the server sees it, by name (PRIMARY).
MEMBERS = f"""
SELECT subscriber_name, heartbeat_at, expires_at, deregistered_at,
       IF(liveness_lock = '', NULL, IS_FREE_LOCK(liveness_lock)), server_started_at, {NOW_MS}
FROM queue_subscriber_heartbeats FORCE INDEX (PRIMARY) WHERE consumer_group = %s AND topic = %s ORDER BY subscriber_name
"""

# Whole seconds since the server started (no table, no privilege needed).
_UPTIME = "SHOW GLOBAL STATUS LIKE 'Uptime'"

SAME_START_MS = 3000
"""Two readings of one server's start differ by less: Uptime is whole seconds, read beside the clock."""


@frozen
class OwnerRow:
    """One heartbeat row; times are the database's, in milliseconds, 0 for never."""

    owner: str
    heartbeat_at: int
    expires_at: int
    deregistered_at: int
    lock_free: int | None
    """None: no lock, or the server would not say."""
    server_started_at: int
    now: int


@frozen
class Owners:
    """The heartbeat rows of a group on a topic, judged; and when the server started, if any lock was found free."""

    rows: Mapping[str, OwnerRow]
    _server_started_at: int = field(default=0)

    def state(self, owner: str) -> OwnerState:
        """What is known of an owner."""
        row = self.rows.get(owner)
        if row is None:
            return OwnerState.MISSING
        if row.deregistered_at:
            return OwnerState.STOPPED
        if row.expires_at <= row.now:
            return OwnerState.EXPIRED
        # A restart of the server frees every lock: one granted before it says nothing until the owner has a new one.
        if row.lock_free and abs(row.server_started_at - self._server_started_at) < SAME_START_MS:
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


def load(cx: Executor, group: str, topic: str) -> Owners:
    """Read the owners of a group."""
    rows = {row[0]: OwnerRow(*row) for row in cx.query(MEMBERS, (group, topic))}
    suspects = [row for row in rows.values() if row.lock_free and not row.deregistered_at and row.expires_at > row.now]
    return Owners(rows, _server_start(cx, suspects[0].now) if suspects else 0)


def uptime(cx: Executor) -> float:
    """Seconds since the server started; infinite if it would not say."""
    row = cx.one(_UPTIME)
    return inf if row is None else max(0, signed(int(row[1])))


def _server_start(cx: Executor, now: int) -> int:
    row = cx.one(_UPTIME)
    return 0 if row is None else now - signed(int(row[1])) * 1000
