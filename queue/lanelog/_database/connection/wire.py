"""One connection that knows whether it is alive. It connects when needed, and closes after an error in mid-statement.

Never repeats a statement. Not for two threads at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from attrs import define, field

from lanelog._database import fork
from lanelog._database.connection import packet, savepoint
from lanelog._database.connection.awaited import Awaited
from lanelog._database.connection.driver import Driver, OwnState
from lanelog._database.connection.savepoint import TransactionProof
from lanelog._database.server.incarnation import Incarnation, read_incarnation
from lanelog._database.server.server_facts import ServerFacts
from lanelog._database.time_left import at_most
from lanelog._database.translation import (
    breaks_connection,
    breaks_transaction,
    comes_from_driver,
    translate,
    unreachable,
)
from lanelog._process.pulse import calling
from lanelog.errors import DatabaseError, LanelogError

FRESH: Final = 5.0
"""Seconds of silence after which a connection is tested: a third of the silence that the server allows."""

STALL: Final = 2.0
"""Seconds. A server that takes longer for one statement may have stood still, and others may have lost connections."""


@define(eq=False, repr=False)
class Wire:
    """A connection and its state. An Executor. `raw` is the driver's connection, None while there is none."""

    _driver: Driver
    _autocommit: bool
    raw: Any = field(default=None, init=False, repr=False)
    facts: ServerFacts | None = field(default=None, init=False)
    generation: int = field(default=0, init=False)
    """The number of connections made. A change means that locks, session variables and GET_LOCKs are gone."""
    doomed: LanelogError | None = field(default=None, init=False)
    """Why the transaction in progress must not be committed."""
    connected_at: float = field(default=0.0, init=False)
    """The time (monotonic) at which it was made."""
    steady_since: float = field(default=0.0, init=False)
    """The time (monotonic) at which it was made, or at which the last statement ended that took longer than `STALL`."""
    _used: float = field(default=0.0, init=False)
    _incarnation: Incarnation | None = field(default=None, init=False)
    _several: bool | None = field(default=False, init=False)
    """Whether the server takes several statements in a packet now. None: it never does."""
    _committed: bool = field(default=False, init=False)  # by a packet, and nothing was sent after it
    proof: TransactionProof = field(factory=TransactionProof, init=False, repr=False)
    """Whether a transaction has begun that proves at its COMMIT that it has not ended before."""
    _mariadb: bool = field(default=False, init=False)
    _state: OwnState = field(init=False)  # while there is a connection
    _descriptor: fork.Descriptor | None = field(default=None, init=False)
    _awaited: Awaited = field(init=False)  # while there is a connection

    def __repr__(self) -> str:
        number = self.facts.connection_id if self.facts and self.raw is not None else None
        return f"<Wire {f'connection {number}' if number else 'not connected'}>"

    def ensure(self) -> bool:
        """Connect if there is no connection. Return whether it is a new one."""
        if self.raw is not None and self._driver.choice.stands(self.facts):
            return False
        self.close()  # another host was chosen, if there is a connection
        try:
            with calling:
                raw, self.facts = self._driver.open(autocommit=self._autocommit)
        except Exception as exc:
            if not comes_from_driver(exc):
                raise
            raise unreachable(translate(exc), self._driver.config.address(), before=self._driver.opened) from exc
        self._descriptor = fork.Descriptor.of(raw)
        fork.register_wire(self)
        self._state = OwnState.of(raw)
        self._awaited = self._driver.awaited.connected(raw, self.facts.connection_id, self.facts.identity)
        self.doomed = None
        self._incarnation = None
        self._several = False
        self._mariadb = self.facts.mariadb
        self.proof.connected(autocommit=self._autocommit, mariadb=self._mariadb)
        self._used = self.connected_at = self.steady_since = time.monotonic()
        self.generation += 1
        self.raw = raw  # the last: an interrupt leaves a whole connection, or none
        return True

    def check_locks(self) -> None:
        """Raise ConfigurationError if the last connection made must hold no lock."""
        if self.facts is not None:
            self.facts.check_locks()

    @property
    def incarnation(self) -> Incarnation:
        """The server that it is connected to, read once for each connection. Raises DatabaseError."""
        return self._incarnation or self.ask_incarnation()

    def ask_incarnation(self) -> Incarnation:
        """Ask again which server answers: a proxy may have changed it. Raises DatabaseError."""
        self._live()
        self._incarnation = read_incarnation(self, mariadb=self._mariadb)
        return self._incarnation

    def ensure_fresh(self, seconds: float = FRESH) -> None:
        """Connect if there is no connection, or if it was silent for `seconds` and has died."""
        if self.raw is not None and self.idle() >= seconds:
            with suppress(DatabaseError):
                self.ping()
        self.ensure()

    def ping(self) -> None:
        """Ask the server for a sign of life. Raises DatabaseError, and the connection is closed."""
        raw = self._live()
        try:
            with calling:
                self._driver.ping(raw)
        except Exception as exc:
            self.drop()
            raise self._driver.translate(exc, self.facts) from exc
        self._used = time.monotonic()

    def idle(self) -> float:
        """Seconds since the server last answered."""
        return time.monotonic() - self._used

    def execute(self, sql: str, args: Sequence[object] = ()) -> int:
        """Run a statement; return the number of rows it matched."""
        return int(self._run(sql, args).rowcount)

    def query(self, sql: str, args: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a query; return all its rows."""
        return list(self._run(sql, args).fetchall())

    def one(self, sql: str, args: Sequence[object] = ()) -> tuple[Any, ...] | None:
        """Run a query; return its first row, or None."""
        rows = self._run(sql, args).fetchall()
        return rows[0] if rows else None

    def begin(self, *, proven: bool = True) -> None:
        """Send nothing: the first statement begins the transaction.

        `proven`: behind a savepoint, by which COMMIT proves that the transaction has not ended unseen.
        """
        self._committed = False
        self.proof.begin(proven=proven)
        self.doomed = None  # a statement before it, outside of a transaction, may have met a deadlock

    def lend(self) -> None:
        """Set the savepoint before user code gets the connection, and allow one statement in a packet only.

        A connection that died while idle is replaced.
        """
        self.proof.lent = True
        for again in (False, True):
            try:
                *before, last = self.proof.before(several=self._several is True)
                self._run(last, (), before)
                self.proof.sent([*before, last])
                if self._several:
                    self._permit(several=False)
                break
            except DatabaseError:
                if again or self.raw is not None:
                    raise
                self.doomed, self.proof.stands = None, False
                self.ensure()
        self.proof.lent_at = self._driver.commands(self.raw)

    def commit(self) -> None:
        """COMMIT, if `commit_with` did not. When the connection is lost, the error says that the outcome is unknown.

        If the transaction has ended unseen, nothing is committed, and DatabaseError says so.
        """
        proof = self.proof
        if self._committed or (proof.begun and not proof.stands):
            proof.end()  # nothing was sent, or nothing since
            return
        if self.doomed is not None:
            raise self.doomed
        if proof.lent_at is not None and proof.lent_at == self._driver.commands(self.raw):
            self.rollback()
            proof.unused = True
            return
        if proof.stands:
            if not self._mariadb:
                self.takes_packets(begun=True)
            self.commit_with(())
            proof.end()
            return
        raw = self._live()
        try:
            with calling:
                raw.commit()
        except BaseException as exc:
            self.drop()
            if not comes_from_driver(exc):
                raise
            raise self._driver.translate(exc, self.facts, committing=True) from exc
        self._used = time.monotonic()
        proof.end()

    def takes_packets(self, *, begun: bool = False) -> bool:
        """Let the server take several statements in a packet. Return whether it does. Raises DatabaseError.

        A packet to a connection that the server has closed would have an unknown outcome. So it is replaced before. If
        a transaction has `begun` there, that is lost, and DatabaseError says so.
        """
        if self.raw is not None and packet.hung_up(self.raw):
            self.drop()
        if self.raw is None:
            if begun:
                self._live()  # raises: the transaction is lost
            self.ensure()
        if self._several is False:
            self._permit(several=True)
        return self._several is True

    def commit_with(self, statements: Sequence[packet.Statement]) -> list[int]:
        """Run statements and COMMIT in one packet, after `takes_packets`. Return their insert ids.

        Raises DatabaseError. If one of the statements was refused, or the transaction had ended unseen, none was
        committed. If the connection is lost, the outcome is unknown, and the error says so. The caller rolls back then.
        """
        if self.doomed is not None:
            raise self.doomed
        raw = self._live()
        insert_ids: list[int] = []
        sent = [packet.Statement(savepoint.RELEASE, ()), *statements] if self.proof.stands else statements
        pause = at_most(packet.patience(self._driver.config.read_timeout, statements))

        def begun() -> None:
            self._driver.limit(raw, pause)
            self._awaited.begin()

        try:
            with calling:
                cursor = raw.cursor(self._state.cursorclass)
                if self._several:
                    packet.send(cursor, sent, insert_ids, begun)
                else:
                    packet.commit_singly(cursor, insert_ids, mariadb=self._mariadb)
        except BaseException as exc:
            if not comes_from_driver(exc):
                self.drop()  # its state is unknown
                raise
            error = self._driver.translate(exc, self.facts)
            error = packet.explained(error, several=self._several is True and not insert_ids)
            if self.proof.stands and savepoint.is_gone(error):
                self.drop()  # the session may be another one
                error = self.proof.explained(error)
            elif len(insert_ids) >= len(sent) or not self._several or breaks_connection(error):
                self.drop()
                # A packet or a block may have been run to its end, whatever was answered first.
                if insert_ids or ((self._several or self._mariadb) and not packet.was_not_run(error)):
                    error = translate(exc, committing=True)
            if breaks_transaction(error):
                self.doomed = error
            raise error from exc
        finally:
            self._awaited.since = 0.0
            self._used = time.monotonic()
        self._committed = True
        self.proof.stands = False
        return insert_ids

    def _permit(self, *, several: bool) -> None:
        try:
            raw = self._live()
            with calling:
                packet.permit(raw, several=several)
        except BaseException as exc:
            error = self._driver.translate(exc, self.facts) if comes_from_driver(exc) else None
            if several and isinstance(error, DatabaseError) and not breaks_connection(error):
                self._several = None  # a proxy that does not know the command
                return
            self.drop()
            if error is None:
                raise
            raise error from exc
        self._several = several

    def rollback(self) -> None:
        """ROLLBACK. Never fails: otherwise the connection is closed, which rolls back, too."""
        self.doomed = None
        self.proof.end()
        if self.raw is None:
            return
        try:
            with calling:
                self.raw.rollback()
        except Exception:  # noqa: BLE001 - the caller shows the error before this one
            self.drop()
        except BaseException:
            self.drop()
            raise

    def reclaim(self) -> None:
        """Undo what user code has set, before our last statements in its transaction. COMMIT proves that it stands."""
        if self.doomed is not None:
            raise self.doomed
        raw = self._live()
        try:
            with calling:
                self._driver.reclaim(raw, self._state)
        except BaseException as exc:
            self.drop()  # its settings are unknown
            if not comes_from_driver(exc):
                raise
            raise self._driver.translate(exc, self.facts) from exc
        self._used = time.monotonic()

    def restore(self) -> None:
        """After user code had the connection, outside of a transaction: make it as new, or close it."""
        if self.raw is None:
            return
        assert self.facts is not None  # noqa: S101 - for the type checker: it has connected
        try:
            with calling:
                self._driver.restore(
                    self.raw, self.facts, self._state, autocommit=self._autocommit, unused=self.proof.unused
                )
        except Exception:  # noqa: BLE001 - the next use connects anew
            self.drop()
        except BaseException:
            self.drop()
            raise
        else:
            self._used = time.monotonic()

    def close(self) -> None:
        """Close with a farewell to the server."""
        raw, self.raw = self.raw, None
        if raw is not None:
            with suppress(Exception):
                raw.close()

    def drop(self) -> None:
        """Close without a word to the server: the connection is broken, or in the middle of an answer."""
        raw, self.raw = self.raw, None
        if raw is None:
            return
        with suppress(Exception):
            # PyMySQL's close() would send a farewell into a stream of unknown state, and might wait.
            getattr(raw, "_force_close", raw.close)()

    def abandon(self) -> None:
        """Forget the connection, in a forked child."""
        raw, self.raw = self.raw, None
        if raw is not None:
            fork.keep(raw)  # collected, it would take leave of the server
            fork.keep(fork.silence(raw, self._descriptor))

    def _run(self, sql: str, args: Sequence[object], before: Sequence[str] | None = None) -> Any:
        self._committed = False
        raw = self._live()
        if before is None:
            if self.proof.opens and self._several is False:
                self._permit(several=True)
            before = self.proof.before(several=self._several is True)
        began = time.monotonic()
        try:
            # User code may have set another class.
            cursor = raw.cursor(self._state.cursorclass)
            with calling:
                packet.run(cursor, before, sql, args, several=self._several is True, begun=self._awaited.begin)
        except BaseException as exc:
            if not comes_from_driver(exc):
                self.drop()  # its state is unknown
                raise
            error = self._driver.translate(exc, self.facts)
            error = packet.explained(error, several=self._several is True and bool(before), opening=True)
            if breaks_connection(error):
                self.drop()
            if breaks_transaction(error):
                self.doomed = error
            raise error from exc
        finally:
            self._awaited.since = 0.0
            self._used = time.monotonic()
            if self._used - began > STALL:
                self.steady_since = self._used
        self.proof.sent(before)
        return cursor

    def _live(self) -> Any:
        """The connection, whose answers this thread awaits for as long as it may."""
        if self.raw is None:
            raise self.doomed or DatabaseError("the connection was closed before", code=0, retriable=True)
        self._driver.limit(self.raw, at_most(self._driver.config.read_timeout))
        return self.raw
