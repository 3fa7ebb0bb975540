"""The context that all loops of one client share: the database, the members, the server's identity, and the faults.

Owns the list of members and their counts of faults. Never does a loop's work, and sends no SQL of its own.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._database import outage
from lanelog._engine.server_identity import ServerIdentity
from lanelog._engine.shortage import Shortage
from lanelog._facts.engine import subscription as facts
from lanelog._hints.receiver import Receiver
from lanelog._process.loop import FAILURES_UNTIL_FAILED
from lanelog.errors import ClosedError, DatabaseError

if TYPE_CHECKING:
    from lanelog._database import Database, Executor, Session
    from lanelog._engine.member.member import Member
    from lanelog._log.append.appender import Appender
    from lanelog._stores.members.leases import Fence


def _nobody(_seconds: float) -> None:
    """Default for `due_in`: does nothing."""


def _nothing(_cx: Executor) -> None:
    """Default for `read_endpoints`: does nothing."""


@define(eq=False)
class Faults:
    """The faults of one member in one loop, in a row."""

    count: int = 0
    since: float | None = None
    """When (monotonic) the first fault came that fails the member if it lasts, such as a missing grant. None: none came
    since the last lost connection."""


@define(eq=False)
class EngineContext:
    """One client's engine, as its loops see it."""

    database: Database
    appender: Appender
    closing: threading.Event = field(factory=threading.Event)
    pid: int = field(factory=os.getpid)
    due_in: Callable[[float], None] = _nobody
    """The callback that gets the seconds until a delayed message is due. It wakes the scheduler."""
    read_endpoints: Callable[[Executor], None] = _nothing
    """Reads which processes want hints of what this one publishes, if that is due. Raises nothing."""
    server_identity: ServerIdentity = field(factory=ServerIdentity)
    shortage: Shortage = field(factory=Shortage)
    receiver: Receiver = field(factory=Receiver)
    """Its address stands in the heartbeat of every member."""
    _deferred: dict[str, Exception] = field(factory=dict)
    withdrawn_at: float = 0.0
    """When (monotonic) authority was last taken away. A read-back that was sent before gives no authority."""
    _members: list[Member] = field(factory=list)
    _faults: dict[tuple[Member, str], Faults] = field(factory=dict)
    _lock: threading.Lock = field(factory=threading.Lock)

    def members(self) -> list[Member]:
        """A copy of the list of members."""
        with self._lock:
            return list(self._members)

    def add(self, member: Member) -> None:
        """Start working for a member."""
        with self._lock:
            self._members.append(member)

    def remove(self, member: Member) -> None:
        """Stop working for a member that holds no lane any more."""
        with self._lock:
            if member in self._members:
                self._members.remove(member)
            for key in [key for key in self._faults if key[0] is member]:
                del self._faults[key]

    @contextmanager
    def watch(self, member: Member, loop: str, session: Session) -> Iterator[None]:
        """Count a member's own fault against that member alone. The loop gets the error if the database is away.

        A lost connection is raised at once. A passing error on a living connection, such as a lock, is deferred:
        `raise_deferred` raises it after the turns of the other members.

        A member fails, and its subscription stops, after five faults of its own in a row in one loop. It also fails
        when an error that only an operator can fix, such as a missing grant, has lasted for its lease.
        """
        try:
            yield
        except Exception as error:
            borne = outage.patience(error, member.config.lease_duration)
            if borne and (not session.connected or borne == outage.WITHOUT_END) and (member, loop) in self._faults:
                self._faults[member, loop].since = None  # nothing lasts over an outage
            if session.connected and borne == outage.WITHOUT_END:
                self._deferred.setdefault(loop, error)
            elif session.connected or not borne:
                self._fault(member, loop, error, borne)
            else:
                raise
        else:
            self._faults.pop((member, loop), None)

    def raise_deferred(self, loop: str) -> None:
        """Raise the first error of this turn by which the database is away. To be called at the end of the turn."""
        error = self._deferred.pop(loop, None)
        if error is not None:
            raise error

    def check_process(self) -> None:
        """Raise ClosedError in a forked child: the threads of the parent do not exist there."""
        if os.getpid() != self.pid:
            raise ClosedError(
                "this subscription was started in the parent process and its threads did not come along: "
                "subscribe after the fork (in gunicorn: in post_fork, or without --preload)"
            )

    def patience(self, error: BaseException) -> float:
        """Seconds for which a loop bears an error that is no single member's: the longest lease, where that decides."""
        return outage.patience(error, max((each.config.lease_duration for each in self.members()), default=0.0))

    def _fault(self, member: Member, loop: str, error: Exception, borne: float) -> None:
        faults, now = self._faults.setdefault((member, loop), Faults()), time.monotonic()
        faults.count += 1
        if faults.count == 1:
            facts.membership_faulty(loop=loop, topic=member.topic, group=member.group, exc_info=error)
        if borne and faults.since is None:
            faults.since = now
        lasted = faults.since is not None and now - faults.since >= borne
        if lasted if borne else faults.count >= FAILURES_UNTIL_FAILED:
            member.fail(error)

    def vouched(self, session: Session) -> int:
        """The generation of memory if a loop may act on its session, else 0. Connects first, if necessary.

        A loop that gets 0 tries again soon. After a reconnection, 0 also takes the authority away: the event that ended
        this connection may have ended others. Raises DatabaseError if no connection can be made, or if it leads to the
        other one of two servers: then the loop's back-off keeps it from connecting again and again.
        """
        session.ensure()
        generation = self.server_identity.vouches(session)
        if not generation and self.server_identity.strays(session):
            name = session.incarnation.name
            session.drop()
            raise DatabaseError(f"this connection led to {name}, and the keeper's to another server", retriable=True)
        if not generation and session.generation > 1:
            self.withdraw_authority()
        if not generation and self.server_identity.suspect:
            session.drop()  # this session itself may still lead to the server before
        return generation

    def check_generation(self, session: Session, generation: int) -> None:
        """Raise DatabaseError if memory was loaded again since, or does not stand on this session's server.

        To be called inside a transaction: from here on the connection stays the same until the COMMIT. If memory is
        loaded from another server meanwhile, the COMMIT goes to the server before. Then the term of its writes finds no
        lane.
        """
        if self.server_identity.vouches(session) != generation:
            raise DatabaseError("the database server was changed; lanes are being reloaded", code=None, retriable=True)

    def fenced(self, fence: Fence) -> dict[str, int | None]:
        """The epochs of a fence, if memory's own server has answered. Raises DatabaseError if another server has."""
        if not self.server_identity.meets(fence.server):
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
