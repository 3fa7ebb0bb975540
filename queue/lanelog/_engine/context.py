"""What every loop of one client shares: the database, the members, the server's identity, and who has failed.

Owns that list and nothing of what the loops do; sends no SQL. Made by the engine, read by its loops.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._engine.ground import Ground
from lanelog._telemetry import get_logger
from lanelog.errors import ClosedError, DatabaseError, LanelogError

if TYPE_CHECKING:
    from lanelog._database import Database, Session
    from lanelog._engine.member.member import Member
    from lanelog._stores.leases import Fence

FAULTS_UNTIL_FAILED = 5

log = get_logger("subscription")


def _nobody(_seconds: float) -> None:
    """Default for `due_in`: does nothing."""


@define(eq=False)
class EngineContext:
    """One client's engine, as its loops see it."""

    database: Database
    ensure_lanes: Callable[[str, Sequence[str]], None]
    published: Callable[[str], None]
    closing: threading.Event = field(factory=threading.Event)
    pid: int = field(factory=os.getpid)
    due_in: Callable[[float], None] = _nobody
    """Told by who learns that a delayed message is due in so many seconds; wakes the scheduler."""
    ground: Ground = field(factory=Ground)
    _deferred: dict[str, LanelogError] = field(factory=dict)
    withdrawn_at: float = 0.0
    """When (monotonic) authority was last taken away: a read-back that was sent before gives none."""
    _members: list[Member] = field(factory=list)
    _faults: dict[tuple[Member, str], int] = field(factory=dict)
    _lock: threading.Lock = field(factory=threading.Lock)

    def members(self) -> list[Member]:
        """The members of this moment."""
        with self._lock:
            return list(self._members)

    def add(self, member: Member) -> None:
        """Start working for a member."""
        with self._lock:
            self._members.append(member)

    def remove(self, member: Member) -> None:
        """Stop working for a member that holds nothing any more."""
        with self._lock:
            if member in self._members:
                self._members.remove(member)
            for key in [key for key in self._faults if key[0] is member]:
                del self._faults[key]

    @contextmanager
    def watch(self, member: Member, loop: str, session: Session) -> Iterator[None]:
        """Let a member's own faults fail that member alone; what a repetition may mend goes to the loop.

        That goes at once when the connection is gone; else (a lock) after the others had their turn, with
        `raise_deferred`.

        A member that is faulty five times in a row in one loop has failed: its subscription says so and stops.
        """
        try:
            yield
        except LanelogError as error:
            if not error.retriable:
                self._fault(member, loop, error)
            elif session.connected:
                self._deferred.setdefault(loop, error)
            else:
                raise
        except Exception as error:  # noqa: BLE001 - one member's fault must not stop the others
            self._fault(member, loop, error)
        else:
            self._faults.pop((member, loop), None)

    def raise_deferred(self, loop: str) -> None:
        """At the end of a turn: raise the first error that a repetition may mend."""
        error = self._deferred.pop(loop, None)
        if error is not None:
            raise error

    def check_process(self) -> None:
        """Threads do not survive a fork: what was inherited raises instead of looking alive."""
        if os.getpid() != self.pid:
            raise ClosedError(
                "this subscription was started in the parent process and its threads did not come along: "
                "subscribe after the fork (in gunicorn: in post_fork, or without --preload)"
            )

    def _fault(self, member: Member, loop: str, error: Exception) -> None:
        count = self._faults[(member, loop)] = self._faults.get((member, loop), 0) + 1
        if count == 1:
            log.error("membership.faulty", loop=loop, topic=member.topic, group=member.group, exc_info=error)
        if count >= FAULTS_UNTIL_FAILED:
            member.fail(error)

    def vouched(self, session: Session) -> int:
        """The generation of memory if a loop may act on its session, else 0; connects if it must.

        A loop that has to wait tries again soon. Nothing is handed out meanwhile: what ended its connection may have
        ended more than that. Raises DatabaseError if there is no connection to be had.
        """
        session.ensure()
        generation = self.ground.vouches(session)
        if not generation and session.generation > 1:
            self.withdraw_authority()
        if not generation and self.ground.doubted:
            session.drop()  # it may itself be of the server before, and idle when that went
        return generation

    def check_generation(self, session: Session, generation: int) -> None:
        """Inside a transaction: raise DatabaseError unless memory still stands on this server, not loaded anew since.

        From here on the connection is the same until the COMMIT. If memory is loaded from another server meanwhile, the
        COMMIT goes to the one before, and whoever is told of it finds its lane replaced.
        """
        if self.ground.vouches(session) != generation:
            raise DatabaseError("the database server was changed; lanes are being reloaded", code=None, retriable=True)

    def fenced(self, fence: Fence) -> dict[str, int | None]:
        """The epochs of a fence that the server of memory's own has set. Raises DatabaseError for another server."""
        if not self.ground.meets(fence.server):
            raise DatabaseError(
                "another database server answers on a connection that lives; lanes are being reloaded",
                code=None,
                retriable=True,
            )
        return fence.epochs

    def withdraw_authority(self) -> None:
        """No handler starts until the keeper has read the leases again."""
        self.withdrawn_at = time.monotonic()
        for member in self.members():
            member.leasing.withdraw_authority()
