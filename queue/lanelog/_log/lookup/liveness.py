"""Whether an owner is alive: the one judgement, of one row and of how long it was watched.

Pure: it never reads the database or a clock. Keepers take lanes by it, and administration shows it. Deletion asks for
less than a proof of death: whether the owner may live.

A keeper has watched, and knows for how long. A reader of one row judges like a keeper that has watched since the row's
heartbeat was written, on a server that was steady. So a screen calls no owner dead that this keeper calls alive.
A heartbeat that ran out while the lock is held is no death yet: screens call it expired.
"""

from __future__ import annotations

from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Final, Self

from attrs import frozen

from lanelog._base.backoff import OF_LOOPS
from lanelog._base.checks import MAX_SECONDS

if TYPE_CHECKING:
    from lanelog._database import Incarnation
    from lanelog._stores.members._heartbeat_rows import HeartbeatRow

SECOND_CHECK_SECONDS: Final = 1.0
"""The least time between the two checks that must find a lock free."""

EVERYBODY_BACK_SECONDS: Final = OF_LOOPS.most + 1.0
"""How long the server must have been steady before a free lock proves a death. The event that ended our session,
or made it wait, may have ended all sessions. The last of them is back after the longest back-off."""

VETO_DURATIONS: Final = 2
"""How many of its own durations a heartbeat must stay unchanged before its owner counts as dead although the lock is
held. A proxy may keep the session of a process that is gone."""


class Proof(Enum):
    """Why an owner counts as dead. The take-over must find the same once more."""

    LOCK = "its lock is free"
    EXPIRY = "its heartbeat ran out, and it holds no lock"
    SILENCE = "its heartbeat has not changed for two of its durations, whoever holds its lock"

    def still_holds(self, *, lock_free: bool | None) -> bool:
        """Whether the owner's lock, read again right before its lanes are taken, contradicts this proof nowhere."""
        return self is Proof.SILENCE or bool(lock_free) or (self is Proof.EXPIRY and lock_free is None)


@frozen(kw_only=True)
class Observation:
    """What is known of an owner beside its row, in seconds."""

    unchanged: float
    """Seconds since its heartbeat changed."""
    free: float
    """Seconds since its lock became free, if it is free."""
    steady: float
    """Seconds since the server began to answer without a stall."""

    @classmethod
    def since_heartbeat(cls, row: HeartbeatRow) -> Self:
        """Return the most that a reader can know: it has watched a steady server since the row's heartbeat.

        After a clock was set back, a heartbeat may be of a time to come. Then it is unknown when it was written, and a
        free lock is believed at once. One that no lanelog can have written counts as old, unless its lock is held.
        """
        ahead = row.heartbeat_at - row.now
        absurd = ahead > MAX_SECONDS * 1000 and row.lock_free is not False
        unchanged = inf if absurd else max(0, -ahead) / 1000
        return cls(unchanged=unchanged, free=inf if ahead > 0 else unchanged, steady=inf)


def proof(row: HeartbeatRow, server: Incarnation, watched: Observation, *, lease: float = 0.0) -> Proof | None:
    """Return why the owner of a row is dead. None: it lives, or it has left.

    An owner is dead by its lock when three things are true. The lock was free in two checks at least a second apart.
    The heartbeat has not changed between them. And the row names the incarnation that answers now: a restart frees
    every lock, and must not lead to a take-over.

    An owner is dead by expiry when its heartbeat ran out by the database's clock. After a clock was set back, a
    heartbeat may end later than its own duration allows. Such a heartbeat counts as expired when it has not changed for
    that duration. A row of another program may say that it never ends: then `lease` counts.

    Both need a steady server, for so long that all owners had time to come back after an event that hit all of them.

    A lock that is held vetoes expiry: no owner dies because a server stood still or its clock was set. The veto ends
    after a long silence: see `VETO_DURATIONS`. Without a lock (`liveness="lease"`) the heartbeat must also have stayed
    unchanged for its duration, so that a step of the clock alone proves nothing.

    Args:
        row: The owner's row.
        server: The incarnation that answers now.
        watched: How long its heartbeat, its lock and the server have been watched.
        lease: The watcher's own lease, in seconds. Expiry needs a server that was steady for so long. 0: the owner's.
    """
    if row.deregistered:
        return None
    free = row.lock_free_on(server)
    if free and watched.free >= SECOND_CHECK_SECONDS and watched.steady >= EVERYBODY_BACK_SECONDS:
        return Proof.LOCK
    duration = _duration(row, lease)
    if watched.steady < (lease or duration) or not _expired(row, watched.unchanged, duration):
        return None
    if row.lock_free is None and watched.unchanged < duration:
        return None
    if free is not False:
        return Proof.EXPIRY
    return Proof.SILENCE if duration and min(watched.unchanged, watched.steady) >= VETO_DURATIONS * duration else None


def may_live(row: HeartbeatRow, *, silence_ms: int = 0) -> bool:
    """Whether an owner has not left, and holds its lock or has been without a heartbeat for less than `silence_ms`.

    `_stores.consumers.groups` asks the same of all members of all groups, in SQL.
    """
    return not row.deregistered and (row.lock_free is False or not row.ended(silence_ms))


def _expired(row: HeartbeatRow, unchanged: float, duration: float) -> bool:
    if row.expires_at < row.now:
        return True
    if not duration:  # nobody knows for how long it was to last
        return row.expired
    from_the_future = row.expires_at > row.now + duration * 1000
    return from_the_future and unchanged >= duration


def _duration(row: HeartbeatRow, lease: float) -> float:
    """The row's lease, or the watcher's if no lease lasts so long: another program may have written the row."""
    own = (row.expires_at - row.heartbeat_at) / 1000
    return own if 0 < own <= MAX_SECONDS else lease
