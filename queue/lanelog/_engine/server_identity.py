"""The server that memory was loaded from, and the connections that may act on memory.

Owns the record of it: which server (an incarnation), how often memory was loaded, when the keeper's session, which must
not break, was last answered, and whether new connections lead to two servers by turns. Only the keeper checks the
server and sets the record (`Keeper`). Loops and handlers' transactions ask, and may mark it suspect. It sends no SQL.

When the keeper's session ends, the next one may find a server that lost its last commits, or a machine that was set
back. Then memory is treated so:

* lanes (watermarks, heads, rows, marks, ready messages): loaded again; `lane/reload.py` says what is kept;
* known lanes, seen members, views, an operator's pauses: forgotten, and read again (`Coordinator`);
* topics that are marked as holding dead letters (`DeadLetters`), lanes that need no collection (`Janitor`): forgotten;
* the time of a loop's next poll, and the packet's limit: kept, because they last only one poll or one connection.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Protocol

from attrs import define, field

from lanelog._facts.engine import keeper as facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from lanelog._database import Incarnation


class Connected(Protocol):
    """A connection, as it is judged here."""

    @property
    def incarnation(self) -> Incarnation:
        """The server as it answered when the connection was made."""

    @property
    def connected_at(self) -> float:
        """When (monotonic) the connection was made."""


@define(eq=False)
class ServerIdentity:
    """The server that memory was loaded from. Any thread may ask or suspect. Only the keeper's thread may set."""

    wake_keeper: Callable[[], None] = lambda: None
    generation: int = 0
    """Counts the loads of memory from a server."""
    incarnation: Incarnation | None = None
    """The server of the keeper's session, after memory was loaded from it. None: memory stands on no server now."""
    by_turns_seconds: float = 60.0
    """Seconds for which two servers count as alternating, after a connection led back to one of them."""
    suspect: bool = False
    """A connection has met another server than the keeper's."""
    _asked_at: float = 0.0
    _answered_at: float = 0.0  # (monotonic) when the keeper sent its last question that was answered
    _met: Incarnation | None = None  # the server of the newest connection
    _met_at: float = 0.0  # when (monotonic) that was made
    _left: Incarnation | None = None  # the server before that one
    _left_at: float = 0.0  # when (monotonic) a connection first led away from there
    _by_turns_until: float = 0.0  # (monotonic)
    _changed: threading.Condition = field(factory=lambda: threading.Condition(threading.Lock()))

    @property
    def asked(self) -> bool:
        """Whether a thread waits for the keeper's next answer."""
        return self._asked_at > self._answered_at

    def lost(self) -> None:
        """The keeper's session has ended: memory stands on no server until it was loaded again."""
        self.incarnation = None

    def loaded(self, incarnation: Incarnation, asked_at: float) -> None:
        """Memory was loaded from this server. The keeper's session was unbroken since `asked_at`."""
        with self._changed:
            self.generation += 1
            self.incarnation, self._answered_at, self.suspect = incarnation, asked_at, False
            self._changed.notify_all()

    def confirmed(self, asked_at: float) -> None:
        """The keeper's session, unbroken since the load, was asked at `asked_at` and has named the same server."""
        with self._changed:
            self._answered_at = asked_at
            self._changed.notify_all()

    @property
    def by_turns(self) -> bool:
        """Whether two servers alternate behind new connections, as behind a proxy that balances them.

        Then the keeper stays where it is as long as it can work there, and a loop that meets the other server tries
        again. After a failover, in contrast, no connection leads back.
        """
        return time.monotonic() < self._by_turns_until

    def strays(self, connection: Connected) -> bool:
        """Whether two servers alternate, and this connection leads to the one without the keeper."""
        return self.incarnation is not None and not self._shared(connection) and self.by_turns

    def note(self, connection: Connected) -> None:
        """Note where a connection leads. If it leads back to a server that others led away from, log that."""
        if connection.connected_at <= self._met_at:
            return
        met = connection.incarnation  # it may ask the server, which must not happen under the lock
        with self._changed:
            if connection.connected_at <= self._met_at:
                return
            before, self._met, self._met_at = self._met, met, connection.connected_at
            if before is None or before.identity == self._met.identity:
                return
            back = self._left is not None and self._left.identity == self._met.identity
            recent = self._met_at - self._left_at < self.by_turns_seconds
            self._left, self._left_at = before, self._met_at
            if not (back and recent):
                return
            known, self._by_turns_until = self.by_turns, time.monotonic() + self.by_turns_seconds
        if not known:
            facts.servers_alternate(one=before.name, other=self._met.name)

    def vouches(self, connection: Connected) -> int:
        """The generation of memory if a thread may act on this connection, else 0.

        It may when two things are true. The connection's server is the one that memory stands on. And the keeper's
        session has answered after the connection was made: a server that was set back ends both connections, and then
        the keeper loads memory first.
        """
        self.note(connection)
        if self.incarnation is None:
            return 0
        if not self._shared(connection):
            if not self.by_turns:
                self.suspect = True
                self.wake_keeper()
            return 0
        if connection.connected_at > self._answered_at:
            if connection.connected_at > self._asked_at:
                self._asked_at = time.monotonic()
                self.wake_keeper()
            return 0
        return self.generation

    def wait(self, connection: Connected, seconds: float) -> int:
        """The same as `vouches`, but waits up to `seconds` for an answer. For a handler, which may block."""
        deadline, before = time.monotonic() + seconds, self.generation
        while not (generation := self.vouches(connection)):
            if self.strays(connection):
                return 0
            with self._changed:
                self._changed.wait_for(lambda: self._decided(connection, before), deadline - time.monotonic())
            if time.monotonic() >= deadline or (self.generation != before and not self._shared(connection)):
                return 0  # time is over, or memory was loaded meanwhile and this connection leads to the server before
        return generation

    @property
    def mark(self) -> int:
        """The SERVER_MARK of the server that memory stands on. 0: of none."""
        incarnation = self.incarnation
        return 0 if incarnation is None else incarnation.mark

    def meets(self, mark: int | None) -> bool:
        """Whether the server that memory stands on has answered a statement. If not, the keeper is woken to check.

        A proxy may change the server behind a living connection. `mark`: SERVER_MARK; None: no answer came.
        """
        incarnation = self.incarnation
        if mark is None or incarnation is None or mark == incarnation.mark:
            return True
        self.suspect = True
        self.wake_keeper()
        return False

    def _shared(self, connection: Connected) -> bool:
        return self.incarnation is not None and connection.incarnation.same(self.incarnation)

    def _decided(self, connection: Connected, before: int) -> bool:
        if self.incarnation is None:
            return False
        return self.generation != before or (self._shared(connection) and connection.connected_at <= self._answered_at)
