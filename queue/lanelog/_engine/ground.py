"""The server that memory stands on, and which connections may act on what memory believes.

Owns that one belief: an incarnation, how often memory was loaded from a server, and when the keeper's unbroken session
last had its answer. The keeper alone sets it; loops and handlers' transactions ask. It sends nothing itself.

What memory believes of a server, and what becomes of it when the keeper's session ends, because the next one may find
a server that lost its last commits, or a machine that was set back:

* lanes (watermarks, heads, rows, marks, what is ready): loaded again; see `Lane.carry_over` for what is kept;
* lanes known, members seen, views, what an operator paused: forgotten, and read again (`Coordinator`);
* topics that are marked as holding dead letters (`DeadLetters`), lanes that need no collection (`Janitor`): forgotten;
* when a loop looks next, and what the packet's limit is: true of no server for longer than one look or connection.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Protocol

from attrs import define, field

if TYPE_CHECKING:
    from collections.abc import Callable

    from lanelog._database import Incarnation


class Connected(Protocol):
    """A connection that somebody wants to act on."""

    @property
    def incarnation(self) -> Incarnation:
        """The server as it answered when the connection was made."""

    @property
    def connected_at(self) -> float:
        """When (monotonic) it was made."""


@define(eq=False)
class Ground:
    """See the module. Any thread may ask; the keeper's sets."""

    wake_keeper: Callable[[], None] = lambda: None  # until the engine says whom
    generation: int = 0
    """Counts the loads of memory from a server."""
    incarnation: Incarnation | None = None
    """What the keeper's session is connected to, once memory was loaded from it; None: it has none just now."""
    doubted: bool = False
    """Somebody's connection has met another server than the keeper's."""
    _asked_at: float = 0.0
    _answered_at: float = 0.0  # (monotonic) before the keeper's last question that was answered was sent
    _changed: threading.Condition = field(factory=lambda: threading.Condition(threading.Lock()))

    @property
    def asked(self) -> bool:
        """Whether somebody waits for the keeper's next answer."""
        return self._asked_at > self._answered_at

    def lost(self) -> None:
        """The keeper's session has ended: memory stands on nothing until it was loaded again."""
        self.incarnation = None

    def loaded(self, incarnation: Incarnation, asked_at: float) -> None:
        """Memory was loaded from this server; the keeper's session was unbroken since `asked_at`."""
        with self._changed:
            self.generation += 1
            self.incarnation, self._answered_at, self.doubted = incarnation, asked_at, False
            self._changed.notify_all()

    def confirmed(self, asked_at: float) -> None:
        """The keeper's session, unbroken since memory was loaded, was asked then and has named the same server."""
        with self._changed:
            self._answered_at = asked_at
            self._changed.notify_all()

    def vouches(self, line: Connected) -> int:
        """The generation of memory if it may act on this connection, else 0.

        It may when its server is the one that memory stands on, and the keeper's session has answered after the
        connection was made: a server that was set back ends both, and then the keeper loads first.
        """
        if self.incarnation is None:
            return 0
        if not self._shared(line):
            self.doubted = True
            self.wake_keeper()
            return 0
        if line.connected_at > self._answered_at:
            if line.connected_at > self._asked_at:
                self._asked_at = time.monotonic()
                self.wake_keeper()
            return 0
        return self.generation

    def wait(self, line: Connected, seconds: float) -> int:
        """As `vouches`, after waiting so long at most: for a handler, which has nothing else to do."""
        deadline, before = time.monotonic() + seconds, self.generation
        while not (generation := self.vouches(line)):
            with self._changed:
                self._changed.wait_for(lambda: self._decided(line, before), deadline - time.monotonic())
            if time.monotonic() >= deadline or (self.generation != before and not self._shared(line)):
                return 0  # memory was loaded meanwhile, and this connection is of the server before
        return generation

    def meets(self, mark: int | None) -> bool:
        """Whether a statement was answered by the server that memory stands on; if not, the keeper asks at once.

        A proxy may change the server behind a connection that lives. `mark`: SERVER_MARK; None: nothing was answered.
        """
        incarnation = self.incarnation
        if mark is None or incarnation is None or mark == incarnation.mark:
            return True
        self.doubted = True
        self.wake_keeper()
        return False

    def _shared(self, line: Connected) -> bool:
        return self.incarnation is not None and line.incarnation.same(self.incarnation)

    def _decided(self, line: Connected, before: int) -> bool:
        if self.incarnation is None:
            return False
        return self.generation != before or (self._shared(line) and line.connected_at <= self._answered_at)
