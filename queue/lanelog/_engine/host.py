"""What every loop of one client shares: the database, the memberships, the server's identity, and who has failed.

Owns that list and nothing of what the loops do; sends no SQL. Made by the engine, read by its loops.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._engine.assignment import SERVER_START_TOLERANCE_MS
from lanelog._telemetry import get_logger
from lanelog.errors import ClosedError, DatabaseError, LanelogError

if TYPE_CHECKING:
    from lanelog._database import Database, Session
    from lanelog._engine.membership import Membership

FAULTS_UNTIL_FAILED = 5

log = get_logger()


def _nobody(_seconds: float) -> None:
    """Whom to tell before the engine says."""


@define(eq=False)
class Host:
    """One client's engine, as its loops see it."""

    database: Database
    ensure_lanes: Callable[[str, Sequence[str]], None]
    published: Callable[[str], None]
    closing: threading.Event = field(factory=threading.Event)
    pid: int = field(factory=os.getpid)
    due_in: Callable[[float], None] = _nobody
    """Told by who learns that a delayed message is due in so many seconds; wakes the scheduler."""
    doubted: bool = False  # another loop sees another start of the server than the keeper did
    _deferred: dict[str, LanelogError] = field(factory=dict)
    server_started_ms: int = 0  # the server whose rows memory stands on; the keeper sets it after a reload
    _memberships: list[Membership] = field(factory=list)
    _faults: dict[tuple[Membership, str], int] = field(factory=dict)
    _lock: threading.Lock = field(factory=threading.Lock)

    def memberships(self) -> list[Membership]:
        """The memberships of this moment."""
        with self._lock:
            return list(self._memberships)

    def add(self, membership: Membership) -> None:
        """Start working for a membership."""
        with self._lock:
            self._memberships.append(membership)

    def remove(self, membership: Membership) -> None:
        """Stop working for a membership that holds nothing any more."""
        with self._lock:
            if membership in self._memberships:
                self._memberships.remove(membership)
            for key in [key for key in self._faults if key[0] is membership]:
                del self._faults[key]

    @contextmanager
    def watch(self, membership: Membership, loop: str, session: Session) -> Iterator[None]:
        """Let a membership's own faults fail that membership alone; what a repetition may mend goes to the loop.

        That goes at once when the connection is gone; else (a lock) after the others had their turn, with
        `raise_deferred`.

        A membership that is faulty five times in a row in one loop has failed: its subscription says so and stops.
        """
        try:
            yield
        except LanelogError as error:
            if not error.retriable:
                self._fault(membership, loop, error)
            elif session.connected:
                self._deferred.setdefault(loop, error)
            else:
                raise
        except Exception as error:  # noqa: BLE001 - one membership's fault must not stop the others
            self._fault(membership, loop, error)
        else:
            self._faults.pop((membership, loop), None)

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

    def _fault(self, membership: Membership, loop: str, error: Exception) -> None:
        count = self._faults[(membership, loop)] = self._faults.get((membership, loop), 0) + 1
        if count == 1:
            log.error("membership.faulty", loop=loop, topic=membership.topic, group=membership.group, exc_info=error)
        if count >= FAULTS_UNTIL_FAILED:
            membership.fail(error)

    def same_server(self, session: Session) -> None:
        """Refuse to write what memory believes to a server that restarted, until the keeper has reloaded.

        A crashed server may have forgotten commits that were visible, and hand their offsets to other messages.
        """
        session.ensure()
        if abs(session.server_started_ms - self.server_started_ms) > SERVER_START_TOLERANCE_MS:
            # Or this very connection is of the server before, and was idle when it went: only a new one can tell.
            session.drop()
            self.doubted = True
            raise DatabaseError(
                "the database server was restarted; lanes are being reloaded", code=None, retriable=True
            )
