"""The rows of `queue_subscriber_heartbeats` as values, and the expressions that several statements have for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from attrs import frozen

from lanelog._database import Incarnation
from lanelog._stores._counted import LONGEST_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

FOUND_DEAD = "dead by "
"""What `liveness_lock` begins with in the row of an owner that was found dead. No lock is called like this."""
VERSION_WITH_WORKLOAD = 6

LOCK_FREE = "IF(liveness_lock = '', NULL, IS_FREE_LOCK(liveness_lock))"
"""Whether an owner's lock is free. NULL: it has none, or the server does not report it."""


def finder(lock: str) -> str | None:
    """Return who found an owner dead, by its `liveness_lock`. None: nobody did."""
    return lock.removeprefix(FOUND_DEAD) if lock.startswith(FOUND_DEAD) else None


@frozen
class HeartbeatRow:
    """One owner as the database sees it. Times are by the database's clock, in milliseconds."""

    owner: str
    heartbeat_at: int
    expires_at: int
    deregistered_at: int  # 0: it has not left
    lock_free: bool | None  # None: it has no lock, or the server does not report it
    incarnation: Incarnation  # of the server that granted the lock
    now: int
    found_dead_by: str | None = None  # None: it lives, or left by itself
    workload: str | None = None  # what its workers did; None: it does not say, or was not asked

    @classmethod
    def of(cls, columns: Sequence[Any], started: int, identity: str, now: int, lock: str, workload: str | None) -> Self:
        """Make it of a row that begins with the owner, three times, and whether `lock` is free.

        `started` and `identity`: of the server that granted the lock.
        """
        owner, beat, expires, gone, free = columns
        lock_free = None if free is None else bool(free)
        return cls(owner, beat, expires, gone, lock_free, Incarnation(started, identity), now, finder(lock), workload)

    @property
    def deregistered(self) -> bool:
        """Whether it has left."""
        return self.deregistered_at != 0 and not self.aside

    @property
    def aside(self) -> bool:
        """Whether it lives, or did at its last heartbeat, and wants no lanes."""
        return self.deregistered_at == self.heartbeat_at != 0

    @property
    def expired(self) -> bool:
        """Whether its heartbeat has ended, or ends later than any that lanelog writes."""
        return self.ended(0)

    def ended(self, ago_ms: int) -> bool:
        """Whether it has ended so long ago, or ends later than any that lanelog writes."""
        return not self.now - ago_ms < self.expires_at <= self.now + LONGEST_MS

    def lock_free_on(self, server: Incarnation) -> bool | None:
        """Whether its lock is free on that server. None: unknown.

        A restart frees every lock. So a lock of an earlier incarnation proves nothing, until its owner has written a
        heartbeat with a new lock.
        """
        return self.lock_free if self.incarnation.same(server) else None
