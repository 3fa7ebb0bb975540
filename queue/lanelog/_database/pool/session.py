"""A dedicated connection of one thread, for long work.

Never shares its connection and never repeats a statement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from attrs import define, field

from lanelog._database.connection.driver import LOCK_WAIT_SECONDS
from lanelog._database.connection.wire import FRESH, Wire
from lanelog._database.executor import Executor
from lanelog._database.pool import reserve
from lanelog._database.pool.connection_priority import ConnectionPriority
from lanelog._database.server.incarnation import Incarnation
from lanelog._database.server.server_facts import ServerFacts
from lanelog.errors import LanelogError

T = TypeVar("T")

# How long statements wait for a row lock. A process that stops in a transaction keeps its locks for much longer.
_SET_LOCK_WAIT: Final = "SET SESSION innodb_lock_wait_timeout = %s"
_BRIEF_SECONDS: Final = 1

_GIVE_BACK: Final = frozenset({"keeper", "settler"})
"""Purposes that lock rows in any session: they write what was handled, and give lanes back. The keeper takes none."""


@define(eq=False)
class Session:
    """One thread's own connection, made at the first use, and again after it was lost. An Executor.

    Outside of `transaction()` every statement commits by itself. Not for two threads at once. In a forked child it
    makes a new connection.
    """

    purpose: str
    """Its purpose, shown in its repr and ranked by `connection_priority`: `keeper`, `settler`."""
    _wire: Wire = field(repr=False)
    _connected: Callable[[ServerFacts], None] = field(repr=False)
    _priority: ConnectionPriority = field(repr=False)
    _relieve: Callable[[], None] = field(repr=False)
    """Called when it got no connection. Closes idle connections of the pool."""
    _inside: bool = field(default=False, init=False, repr=False)
    refused_since: float | None = field(default=None, init=False)
    """Since when (monotonic) it has asked for a connection and had none. None: it has one, or does not ask."""
    refusal: str = field(default="", init=False)
    """Why it had none, the last time it asked."""

    @property
    def generation(self) -> int:
        """The number of connections made so far. A change means that locks and session state are gone."""
        return self._wire.generation

    @property
    def incarnation(self) -> Incarnation:
        """The server that answered when this session connected, or at the last `ask_incarnation`.

        Raises DatabaseError.
        """
        return self._wire.incarnation

    @property
    def connected_at(self) -> float:
        """The time (monotonic) at which the connection was made."""
        return self._wire.connected_at

    @property
    def steady_since(self) -> float:
        """The time (monotonic) since which the connection exists and no statement took longer than `STALL` seconds."""
        return self._wire.steady_since

    @property
    def connected(self) -> bool:
        """Whether there is a connection that has not been found broken."""
        return self._wire.raw is not None

    @property
    def connection_id(self) -> int:
        """The connection's number at the server. 0: there is no connection."""
        return self._wire.facts.connection_id if self._wire.raw is not None and self._wire.facts else 0

    def ensure(self) -> bool:
        """Connect if not connected. Return whether the connection is new. Raises DatabaseError.

        If the server has too few connections, it gives its own up to a session with a higher priority, and raises.
        """
        self._give_way()
        return self._greet() if self._connect(self._wire.ensure) else False

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Keep all statements of the block on one connection.

        If it is lost inside, each further statement raises DatabaseError.
        """
        if self._inside:
            yield
            return
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    def ask_incarnation(self) -> Incarnation:
        """Ask again which server answers: a proxy may have changed it. Raises DatabaseError."""
        self._ready()
        return self._wire.ask_incarnation()

    def ensure_fresh(self) -> None:
        """As `ensure`, but a connection that was silent for some seconds is tested, and replaced if it has died."""
        self._give_way()
        before = self._wire.generation
        self._connect(self._wire.ensure_fresh)
        if self._wire.generation != before:
            self._greet()

    def ping_if_idle(self, seconds: float = FRESH) -> None:
        """Ping, so that the server does not drop a silent connection.

        Raises DatabaseError if the server has dropped it, or if this session gives it up.
        """
        self._give_way()
        if self._wire.raw is not None and self._wire.idle() >= seconds:
            self._wire.ping()

    def execute(self, sql: str, args: Sequence[object] = ()) -> int:
        """Run a statement; return the number of rows it matched."""
        self._ready()
        return self._wire.execute(sql, args)

    def query(self, sql: str, args: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a query; return all its rows."""
        self._ready()
        return self._wire.query(sql, args)

    def one(self, sql: str, args: Sequence[object] = ()) -> tuple[Any, ...] | None:
        """Run a query; return its first row, or None."""
        self._ready()
        return self._wire.one(sql, args)

    @contextmanager
    def transaction(self) -> Iterator[Executor]:
        """A transaction, which begins with the first statement. COMMIT at the end; any exception rolls back.

        A transaction that met a deadlock, a lock time-out or a lost connection is not committed, even if the block
        swallows that error: it is raised again instead.
        """
        self._ready()
        if self.purpose not in _GIVE_BACK:
            self._wire.check_locks()
        self._wire.begin()
        pinned, self._inside = self._inside, True
        try:
            yield self
            self._wire.commit()
        except BaseException:
            self._wire.rollback()
            raise
        finally:
            self._inside = pinned

    @contextmanager
    def brief_lock_waits(self) -> Iterator[None]:
        """Let the statements of the block wait for a row lock for a second only: their thread has other duties."""
        self.execute(_SET_LOCK_WAIT, (_BRIEF_SECONDS,))
        try:
            yield
        finally:
            if self.connected:
                self.execute(_SET_LOCK_WAIT, (LOCK_WAIT_SECONDS,))

    def check_locks(self) -> None:
        """Raise ConfigurationError if the connection last made must hold no lock."""
        self._wire.check_locks()

    def close(self) -> None:
        """Close the connection. A later use makes a new one."""
        self._wire.close()
        self.refused_since = None

    def drop(self) -> None:
        """Close the connection without a word to the server."""
        self._wire.drop()

    def _ready(self) -> None:
        if not self._inside:
            if self._wire.proof.begun:
                self._wire.drop()  # an interrupt has left a transaction open, and what follows would be part of it
            self.ensure()

    def _give_way(self) -> None:
        others = self._priority.lacking(self.purpose)
        if others:
            self._wire.close()
            raise self._lacks(self._priority.gave_way(self.purpose, others))

    def _connect(self, ensure: Callable[[], T]) -> T:
        if self._wire.raw is None and (error := self._priority.too_soon(self.purpose)) is not None:
            raise self._lacks(error)
        before = self._wire.generation
        try:
            made = ensure()
            if self._wire.generation != before:
                reserve.check(self._wire, self.purpose)
        except LanelogError as exc:
            self._priority.refused(self.purpose, exc)
            self._relieve()
            self._lacks(exc)
            raise
        self._priority.connected(self.purpose)
        self.refused_since = None
        return made

    def _lacks(self, error: LanelogError) -> LanelogError:
        if self.refused_since is None:
            self.refused_since = time.monotonic()
        self.refusal = str(error)
        return error

    def _greet(self) -> bool:
        assert self._wire.facts is not None  # noqa: S101 - for the type checker: it just connected
        self._connected(self._wire.facts)
        try:
            _ = self._wire.incarnation
        except BaseException:
            self._wire.drop()
            raise
        return True
