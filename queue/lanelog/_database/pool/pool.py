"""The connections that threads share, and the transactions on them.

Repeats a whole transaction only in `retry`. Holds no lock while it waits for the server.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from attrs import define, field

from lanelog._database import codes, fork
from lanelog._database.connection.driver import Driver
from lanelog._database.connection.packet import Statement
from lanelog._database.connection.stopped_packets import StoppedPackets
from lanelog._database.connection.wire import Wire
from lanelog._database.executor import Executor
from lanelog._database.pool.blocking import LockHolder, holder
from lanelog._database.pool.connection_priority import ORDER, ConnectionPriority
from lanelog._database.pool.crowd import Crowd
from lanelog._database.pool.loans import Loan, SharedWires
from lanelog._database.pool.naming import Naming
from lanelog._database.pool.session import Session
from lanelog._database.pool.transaction import Transaction
from lanelog._database.retries import with_retries
from lanelog._database.server.server_facts import ServerFacts
from lanelog._database.time_left import Limit, at_most, deadline
from lanelog.config import ConnectConfig
from lanelog.errors import ClosedError, DatabaseError, LanelogError

T = TypeVar("T")

_PURPOSE = "publishing"

# For a metadata lock or a global read lock, a server waits for a day. What an operator asked for must not be done then.
_HASTY = "SET SESSION lock_wait_timeout = 5"
_PATIENT = "SET SESSION lock_wait_timeout = DEFAULT"
# The error has one number for all of these, and names none.
_HELD_UP = (
    "another session holds a lock on these rows, on a table (LOCK TABLES, ALTER TABLE) or on the whole server "
    "(FLUSH TABLES WITH READ LOCK, as a backup takes it): end it there, or try again after it"
)

# The level holds only for the transaction that the second statement begins.
_SNAPSHOT = ("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "START TRANSACTION READ ONLY")


@define(eq=False)
class Database:
    """One database. Thread-safe. Connects at its first use."""

    config: ConnectConfig
    tables_version: int = field(default=0, init=False)
    """The version of the tables. 0: `migrations` has not read it yet."""
    _driver: Driver = field(init=False, repr=False)
    _wires: SharedWires = field(init=False, repr=False)
    _closed: bool = field(default=False, init=False)
    _facts: ServerFacts | None = field(default=None, init=False)
    _priority: ConnectionPriority = field(factory=ConnectionPriority, init=False, repr=False)
    _crowd: Crowd = field(init=False, repr=False)
    _stopped_packets: StoppedPackets = field(init=False, repr=False)
    waits: int = field(default=0, init=False, repr=False)
    """How often a thread had to wait for a connection of the pool."""

    def __attrs_post_init__(self) -> None:
        self._driver = Driver(self.config)
        self._crowd = Crowd(self.config.pool_size)
        self._wires = SharedWires(self._driver)
        self._stopped_packets = StoppedPackets(self._driver)
        fork.register_shared(self)

    @contextmanager
    def transaction(
        self, *, wait: float | None = None, guarded: bool = False, locks: bool = True, hasty: bool = False
    ) -> Iterator[Transaction]:
        """A transaction on a pooled connection: COMMIT at the end of the block, ROLLBACK if it raises.

        `wait`: seconds until a connection is free (default: publish_timeout), then DatabaseError. `guarded`: for blocks
        that give `raw` to user code, see `Transaction.reclaim`. Our statements then name their database, and afterwards
        the connection is as new, or closed. If COMMIT loses the connection, the DatabaseError has `outcome_unknown`.
        After a deadlock or a lock time-out nothing is committed: an error that the block swallows is raised again.
        `locks`: whether it may lock rows. Then ConfigurationError refuses a session that would keep them for hours.
        `hasty`: a statement, or COMMIT, that waits for a table or a global read lock fails after five seconds with a
        retriable error that says what to check.
        """
        try:
            with self._borrow(wait, lent=guarded, hasty=hasty) as loan:
                wire = loan.wire
                if locks:
                    wire.check_locks()
                transaction = Transaction(wire, Naming(wire, self.config.database) if guarded else None)
                if hasty:
                    wire.execute(_HASTY)
                loan.pooled.begin(proven=locks)  # without locks nothing is written
                if guarded:
                    wire.lend()
                yield transaction
                loan.pooled.commit()
        except DatabaseError as exc:
            if hasty and exc.code == codes.LOCK_WAIT_TIMEOUT:
                exc.args = (f"{exc}: {_HELD_UP}",)
            raise

    def commit_at_once(self, statements: Sequence[Statement], *, noted: str) -> int | None:
        """Run a transaction in one round trip. Return what its last statement reports by LAST_INSERT_ID(expr).

        Below a trigger a statement reports 0. Then the query `noted` is asked, on the same connection.

        None: the server, or a proxy, takes one statement at a time, and nothing was sent. Raises DatabaseError: nothing
        was committed, unless it has `outcome_unknown`. Then the server may still run it, for `LATEST` seconds, or has
        committed it, and the answer to `noted` was lost.
        """
        with self._borrow(None) as loan:
            wire = loan.wire
            if not wire.takes_packets():
                return None
            wire.check_locks()
            *_, last, _commit = wire.commit_with(statements)
            return last or _ask_noted(wire, noted)

    @contextmanager
    def snapshot(self, *, wait: float | None = None) -> Iterator[Executor]:
        """An Executor whose queries all see the database at the moment of the first. It cannot write.

        For a few quick queries that must agree. While it is open, the server keeps all rows that others delete.
        """
        with self.transaction(wait=wait, locks=False) as transaction:
            for statement in _SNAPSHOT:
                transaction.execute(statement)
            yield transaction

    @contextmanager
    def autocommit(self, *, wait: float | None = None) -> Iterator[Executor]:
        """An Executor on a pooled connection that commits every statement by itself.

        `wait`: seconds until a connection is free (default: publish_timeout). 0.0: the caller can do without.
        """
        with self._borrow(wait) as loan:
            yield _Autocommit(loan.pooled)

    def session(self, purpose: str) -> Session:
        """A connection for one thread alone, made at its first use. The caller closes it."""

        def connected(facts: ServerFacts) -> None:
            self._saw(facts)
            if purpose in ORDER:  # a loop; it has a thread anyway
                self._stopped_packets.start()

        return Session(purpose, Wire(self._driver, autocommit=True), connected, self._priority, self.close_idle)

    @property
    def reached(self) -> bool:
        """Whether a server has ever answered. If not, wrong settings are likelier than a server that is down."""
        return self._driver.greeted

    @property
    def short(self) -> bool:
        """Whether the server refused a connection lately."""
        return self._priority.short()

    @property
    def tried(self) -> bool:
        """Whether a connection was ever tried."""
        return self._driver.tried

    def holder(self, lock: Callable[[Executor], object], *, seconds: float) -> LockHolder | None:
        """Return the session that holds what `lock` waits for, within `seconds`, if this account may see it."""
        return holder(self._driver, lock, seconds=seconds) if self.reached and not self._closed else None

    def facts(self) -> ServerFacts:
        """The server, as the last new connection saw it. Connects if there was none, for `publish_timeout` at most."""
        if self._facts is None:
            deadline = time.monotonic() + self.config.publish_timeout
            self.retry(self._connect, deadline=deadline, what="connecting")
        assert self._facts is not None  # noqa: S101 - for the type checker: it has connected
        return self._facts

    def max_packet(self) -> int:
        """Bytes of the longest statement the server accepts, as the last new connection saw it."""
        return self.facts().max_allowed_packet

    def retry(
        self,
        op: Callable[[], T],
        *,
        deadline: float,
        what: str,
        unless: Collection[int] = (),
        stopping: threading.Event | None = None,
    ) -> T:
        """As `with_retries`. Does not repeat after a code of `unless`, or if no server has ever answered."""
        return with_retries(
            op,
            deadline=deadline,
            what=what,
            give_up=lambda error: not self.reached or error.code in unless,
            stopping=stopping,
        )

    def deadline(self) -> float:
        """Return when (monotonic) a publish of this thread that begins now, or has begun, gives up."""
        return deadline(self.config.publish_timeout)

    def limited(self) -> Limit:
        """Let this thread wait for the server and for connections until `deadline`, within the block, which gets it."""
        return Limit(self.config.publish_timeout)

    @property
    def lock_wait(self) -> int:
        """Seconds for which the server lets a statement wait for a row lock."""
        return self._driver.lock_wait

    def close(self) -> None:
        """Close all pooled connections, those in use when they come back. Does not close sessions."""
        self._closed = True
        self._wires.close_idle(lambda: True)
        self._stopped_packets.stop()

    def _borrow(self, wait: float | None, *, lent: bool = False, hasty: bool = False) -> Loan:
        """Wait for a wire, and make sure that it is connected. `lent`: user code gets it. `hasty`: as above."""
        if self._closed:
            raise ClosedError
        wires = self._wires
        loan = wires.loan(lambda loan, error: self._finish(loan, wires, error, lent=lent, hasty=hasty))
        try:
            if not loan.take():
                self._wait(loan, at_most(self.config.publish_timeout if wait is None else wait))
            self._ensure_fresh(loan.wire, spare=wait == 0.0)
        except BaseException:
            loan.give_back()
            raise
        return loan

    def _wait(self, loan: Loan, seconds: float) -> None:
        self.waits += 1  # two threads at once may count one wait
        if not self._crowd.wait(loan, seconds):
            raise DatabaseError(
                f"all {self.config.pool_size} connections of the pool were in use for {seconds:g} s: "
                "raise pool_size, or shorten the transactions",
                retriable=True,
            )

    def _ensure_fresh(self, wire: Wire, *, spare: bool) -> None:
        """`spare`: the caller can do without, so no loop gives its connection up for that."""
        before = wire.generation
        try:
            wire.ensure_fresh()
        except LanelogError as exc:
            if not spare:
                self._priority.refused(_PURPOSE, exc)
            raise
        self._priority.connected(_PURPOSE)
        if wire.generation != before and wire.facts is not None:
            self._saw(wire.facts)

    def _finish(self, loan: Loan, wires: SharedWires, error: BaseException | None, *, lent: bool, hasty: bool) -> None:
        """Make a wire ready for the next one, or close it. `error`: an exception that has passed through the block.

        It may have come between a statement and its answer, unless it is that answer: an error of ours, where user code
        had no part. So the wire goes back only if it answers a question that was never asked.
        """
        wire = loan.wire
        if error is not None:
            loan.pooled.rollback()
        if (self._closed and wires is self._wires) or self._priority.lacking(_PURPOSE):
            wire.close()
        elif lent:
            wire.restore()
        elif hasty and wire.raw is not None:
            _be_patient(wire)
        if error is not None and (lent or not isinstance(error, LanelogError)):
            _prove(wire)

    def close_idle(self) -> None:
        """Close idle connections while any session lacks one: a session has a higher priority. Never waits."""
        self._wires.close_idle(self._priority.short)

    def _connect(self) -> None:
        with self.autocommit():
            pass

    def _saw(self, facts: ServerFacts) -> None:
        self._facts = facts
        if self.config.driver == "mysqlclient":  # PyMySQL bounds the wait itself: who only publishes has no thread
            self._stopped_packets.start()

    def abandon(self) -> None:
        """In a forked child: the connections are the parent's, and threads that are gone may hold the locks."""
        self._driver.choice.abandon()
        self._stopped_packets.abandon()
        self._wires.abandon()
        self._wires = SharedWires(self._driver)


def _be_patient(wire: Wire) -> None:
    try:
        wire.execute(_PATIENT)
    except DatabaseError:
        wire.close()  # the next use connects anew


def _prove(wire: Wire) -> None:
    """Close the connection unless it answers the next question, and no other. Never fails."""
    if wire.raw is None:
        return
    number = int.from_bytes(os.urandom(7))
    try:
        proven = wire.one(f"SELECT {number}") == (number,)
    except LanelogError:
        proven = False
    if not proven:
        wire.drop()


def _ask_noted(wire: Wire, noted: str) -> int:
    """Ask for a value that the committed transaction has noted in its session."""
    try:
        row = wire.one(noted)
    except DatabaseError as exc:
        exc.outcome_unknown = True  # to the caller, who does not know the value
        raise
    wire.rollback()  # the query has begun a transaction
    assert row is not None  # noqa: S101 - for the type checker: a query without a table has one row
    return int(row[0])


class _Autocommit:
    """An Executor that commits each statement, on a wire whose autocommit is off."""

    def __init__(self, pooled: Any) -> None:
        self._pooled = pooled

    def execute(self, sql: str, args: Sequence[object] = ()) -> int:
        return self._committed(lambda wire: wire.execute(sql, args))

    def query(self, sql: str, args: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self._committed(lambda wire: wire.query(sql, args))

    def one(self, sql: str, args: Sequence[object] = ()) -> tuple[Any, ...] | None:
        return self._committed(lambda wire: wire.one(sql, args))

    def _committed(self, run: Callable[[Wire], T]) -> T:
        self._pooled.begin(proven=False)
        try:
            found = run(self._pooled.dbapi_connection)
            self._pooled.commit()
        except BaseException:
            self._pooled.rollback()
            raise
        return found
