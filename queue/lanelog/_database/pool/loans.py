"""The wires that threads share, each lent to one at a time.

An interrupt is an exception that comes between any two instructions: a signal handler that raises, Ctrl-C, a time
limit. No interrupt may lose a wire, or lend it twice. So an idle wire waits in a queue of C, where nothing is
interrupted half way, and in front of DBUtils, whose lock stays locked if an interrupt meets it. What must not be
interrupted is one call of C, or some assignments in a row: the interpreter raises only behind a call, at the beginning
of a function, and where a loop goes back. A loan that was interrupted while it ended is ended when it is collected.

Never begins, commits or rolls back a transaction, and holds no lock.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Final, Self

from dbutils.pooled_db import PooledDB

from lanelog._database import fork
from lanelog._database.connection.driver import Driver
from lanelog._database.connection.wire import Wire
from lanelog.errors import LanelogError


class _Pool(PooledDB):  # type: ignore[misc] # DBUtils ships no types
    """DBUtils' pool of wires. A wire connects at its first use.

    Statements run on the wire itself (`dbapi_connection`). Cursors of DBUtils would repeat one after an error, on a new
    connection where the earlier ones are missing.
    """

    def __init__(self, driver: Driver) -> None:
        self._inherited = False
        super().__init__(
            _WireFactory(driver),
            maxcached=driver.config.pool_size,
            maxconnections=driver.config.pool_size,
            blocking=False,  # threads wait in `SharedWires`
            reset=False,  # every transaction ends before its wire comes back
            failures=(LanelogError,),
            ping=0,  # whoever borrows a wire tests it
        )

    def abandon(self) -> None:
        """In a forked child: a thread that is gone may hold the pool's lock, so it is not taken any more."""
        self._inherited = True

    def cache(self, con: object) -> None:
        """Take a wire back. DBUtils calls this when the one that it has given is collected."""
        if not self._inherited:
            super().cache(con)

    def close(self) -> None:
        """Close the wires that came back. DBUtils also calls this when the pool is collected."""
        if not self._inherited:
            super().close()


class _WireFactory:
    """A driver for DBUtils. Its `connect` makes a wire that is not connected yet."""

    threadsafety = 1

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    @property
    def dbapi(self) -> _WireFactory:
        return self

    def connect(self) -> Wire:
        return Wire(self._driver, autocommit=False)


class SharedWires:
    """As many wires as the pool's size. Thread-safe."""

    def __init__(self, driver: Driver) -> None:
        self._pool = _Pool(driver)
        self._idle: SimpleQueue[Any] = SimpleQueue()
        # A pool connects no more wires than are needed at once, so those that were never lent are the last choice.
        self._unused: SimpleQueue[Any] = SimpleQueue()
        for _ in range(driver.config.pool_size):
            self._unused.put(self._pool.connection(shareable=False))

    def loan(self, finish: Callable[[Loan, BaseException | None], None]) -> Loan:
        """Return a loan without a wire. `finish`: see `Loan`."""
        return Loan(self._idle, self._unused, finish)

    def close_idle(self, while_: Callable[[], bool]) -> None:
        """Close idle wires, as long as it is wanted. Never waits. A later use connects anew."""
        closed: list[Loan] = []
        try:
            while while_():
                closed.append(self.loan(_nothing_to_do))
                if not closed[-1].take_idle():
                    break
                closed[-1].wire.close()
        finally:
            for loan in closed:
                loan.give_back()

    def abandon(self) -> None:
        """In a forked child: the wires are the parent's. None is lent or closed any more."""
        self._pool.abandon()
        fork.keep((self._pool, self._idle, self._unused))  # collected, DBUtils would close what is idle
        self._idle, self._unused = SimpleQueue(), SimpleQueue()


_AT_ONCE: Final = ((False,),)
"""The arguments of `SimpleQueue.get` that wait for nothing, as `Loan._take` wants them."""


def _nothing_to_do(_loan: Loan, _error: BaseException | None) -> None:
    pass


class Loan:
    """A wire while one thread has it, as a context manager that gives it back.

    `finish` is called at the end of the block with the loan and the exception that passed, if one did. If it is not
    called, or does not return, the wire is closed before others get it: nobody knows its state.
    """

    _over = True  # until it is made

    def __init__(
        self, idle: SimpleQueue[Any], unused: SimpleQueue[Any], finish: Callable[[Loan, BaseException | None], None]
    ) -> None:
        self._idle = idle
        self._unused = unused
        self._finish = finish
        self._held: list[Any] = []  # DBUtils' object for the wire, if there is one
        self._finished = False
        self._over = False

    def take(self) -> bool:
        """Take a wire, if one is there. Return whether one was."""
        return self.take_idle() or self._take(self._unused, *_AT_ONCE)

    def take_idle(self) -> bool:
        """Take a wire that was lent before, if one is there. Return whether one was."""
        return self._take(self._idle, *_AT_ONCE)

    def wait(self, seconds: float) -> bool:
        """Wait for a wire. Return whether there was one in time."""
        return self._take(self._idle, (True,), (max(0.0, seconds),))

    def _take(self, queue: SimpleQueue[Any], *how: tuple[Any]) -> bool:
        """`how`: the arguments of `SimpleQueue.get`, each in a tuple of its own, for one call of `map`."""
        try:
            # One call takes it from the queue into the list. In between it would be lost.
            self._held.extend(map(queue.get, *how))
        except Empty:
            return False
        return True

    @property
    def pooled(self) -> Any:
        """DBUtils' object, for `begin`, `commit` and `rollback`."""
        return self._held[0]

    @property
    def wire(self) -> Wire:
        """The wire itself."""
        wire: Wire = self._held[0].dbapi_connection
        return wire

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._finish(self, exc)
            self._finished = True
        finally:
            self.give_back()

    def give_back(self) -> None:
        """Let others have the wire. It is closed before, unless `finish` has returned."""
        if self._over or not self._held:
            return
        held = self._held
        try:
            if not self._finished:
                self.wire.drop()
        finally:
            # No call between these two, so that it comes back once, and not twice.
            self._over = True
            self._idle.put(held[0])

    def __del__(self) -> None:
        self.give_back()  # if an interrupt came before
