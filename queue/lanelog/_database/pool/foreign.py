"""Statements on a connection that belongs to the caller: any DB-API connection with `%s` parameters.

Never commits. Rolls back to its own savepoint. If the savepoint is gone with the caller's transaction, it rolls back
what is left. Closes its own cursors only. It closes the connection itself in one case: an interrupt came between a
statement and its answer, and half of what was written could be committed there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from weakref import WeakSet

from lanelog._database import codes
from lanelog._database.connection.unwrap import innermost
from lanelog._database.pool.naming import named
from lanelog._database.server.incarnation import Incarnation
from lanelog._database.translation import comes_from_driver, translate
from lanelog.errors import ConfigurationError, DatabaseError, LanelogError

# The server that runs a statement: its identity as a number, which every driver gives back alike, and its name for
# people. (No table.)
SERVER: Final = (
    f"SELECT CAST(CONV(LEFT({Incarnation.identity_in_sql(mariadb=None)}, 15), 16, 10) AS UNSIGNED), "
    "@@hostname, @@port, @@server_id"
)


# Stands behind the ack in a transaction: the ack is its last statement of ours. It ends with the transaction, so a
# connection that is used again does not seem to have acked.
_ACKED: Final = "lanelog_acked"
_ack_connections: WeakSet[Any] = WeakSet()
"""The drivers' connections on which there was an ack. Others are not asked."""


class ForeignExecutor:
    """An Executor on a caller's connection. Its cursors may return tuples or dictionaries, buffered or not.

    Its statements name lanelog's `database`, because the connection's current one may be another.
    """

    def __init__(self, connection: Any, database: str, *, ours: bool) -> None:
        self._connection = connection
        self._database = database
        self.ours = ours
        """Whether the connection is one of this client's pool, in the hands of user code."""
        self.raw = innermost(connection)
        """The driver's own connection, without a tracer's proxy."""

    @property
    def session(self) -> int | None:
        """The session's number at the server, as the driver knows it without asking. None: the driver does not say."""
        number = getattr(self.raw, "thread_id", None)
        return int(number()) if callable(number) and type(self.raw).__weakrefoffset__ else None

    def execute(self, sql: str, args: Sequence[object] = ()) -> int:
        """Run a statement. Return the number of rows that it changed or, with CLIENT.FOUND_ROWS, matched."""
        return int(self._run(sql, args)[0])

    def query(self, sql: str, args: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a query. Return all its rows."""
        return self._run(sql, args)[1]

    def one(self, sql: str, args: Sequence[object] = ()) -> tuple[Any, ...] | None:
        """Run a query. Return its first row, or None."""
        rows = self.query(sql, args)
        return rows[0] if rows else None

    def begin(self) -> None:
        """Set a savepoint. If it does not last, no transaction is open: raise ConfigurationError.

        With autocommit on and no transaction, the head's lock would end with each statement. With autocommit off, the
        transaction ended unseen between the two statements: raise TransactionGone.
        """
        try:
            self.execute("SAVEPOINT lanelog_caller")
            self.execute("ROLLBACK TO SAVEPOINT lanelog_caller")
        except DatabaseError as exc:
            if exc.code != codes.NO_SUCH_SAVEPOINT:
                raise
            if self.one("SELECT @@autocommit") == (0,):
                raise _gone(exc) from exc
            raise ConfigurationError(
                "connection has autocommit on and no transaction open, so that nothing would hold the message and your "
                "own writes together: call connection.begin(), or turn autocommit off"
            ) from exc

    def check_texts(self, texts: Iterable[str]) -> None:
        """Raise ConfigurationError if the server would change one of the texts.

        A driver sends the same bytes for both of MySQL's UTF-8 character sets. With utf8mb3 the server turns characters
        of four bytes into question marks. Where the session's mode is not strict, that is no error.
        """
        if all(text.isascii() or max(text) <= "\uffff" for text in texts):
            return
        row = self.one("SELECT CONVERT(@@character_set_client USING utf8mb4) IN ('utf8', 'utf8mb3')")
        if row is not None and row[0]:
            raise ConfigurationError(
                "the connection's character set is utf8mb3, which cannot carry this text: open it with utf8mb4"
            )

    def check_limit(self, wanted: int) -> None:
        """Raise ConfigurationError if the session lets a query return fewer rows than `wanted`."""
        row = self.one("SELECT @@sql_select_limit")
        if row is not None and int(row[0]) < wanted:
            raise ConfigurationError(
                f"the connection has sql_select_limit = {row[0]}, so that a query for {wanted} lanes returns fewer: "
                "SET sql_select_limit = DEFAULT"
            )

    def undo(self, exc: DatabaseError) -> DatabaseError:
        """Undo the writes since `begin`, so that the caller may go on. Return the error to raise."""
        if exc.code is None and self.undo_interrupted():
            return exc  # it may be an interrupt that the driver takes for an error of its own, as a TimeoutError
        if exc.code is not None and exc.code not in codes.TRANSACTION_GONE - {codes.LOCK_WAIT_TIMEOUT}:
            try:
                self.execute("ROLLBACK TO SAVEPOINT lanelog_caller")
            except DatabaseError as gone:
                if gone.code == codes.NO_SUCH_SAVEPOINT:
                    # The caller's transaction ended unseen. What is open now has nothing but a part of this publish.
                    with suppress(DatabaseError):
                        self.execute("ROLLBACK")
            else:
                return exc
        return _gone(exc)

    def undo_quietly(self) -> None:
        """Undo the writes since `begin`, after an error that did not come from the server."""
        with suppress(DatabaseError):
            self.execute("ROLLBACK TO SAVEPOINT lanelog_caller")

    def undo_interrupted(self) -> bool:
        """Undo the writes since `begin`, after an exception that may have come between a statement and its answer.

        The driver may be out of step, and return the answer to the statement before. So a query for a random number is
        sent first. If its answer is another, or if the savepoint is released already, the connection is closed, which
        rolls the caller's transaction back. Then this returns False.
        """
        undone = False
        try:
            number = str(int.from_bytes(os.urandom(7)))
            row = self.one(f"SELECT {number}")
            if row is not None and str(row[0]) == number:
                self.execute("ROLLBACK TO SAVEPOINT lanelog_caller")
                undone = True
        except LanelogError:
            pass  # the first exception is raised
        finally:
            if not undone:
                with suppress(Exception):
                    self._connection.close()
        return undone

    def finish(self) -> None:
        """Release the savepoint. The writes stay in the caller's transaction."""
        self.execute("RELEASE SAVEPOINT lanelog_caller")

    def finish_ack(self) -> None:
        """The same, after an ack: nothing of ours may follow in this transaction."""
        if type(self.raw).__weakrefoffset__:
            _ack_connections.add(self.raw)
        self.execute(f"SAVEPOINT {_ACKED}")

    def check_not_acked(self) -> None:
        """Raise ConfigurationError if a message was acked in the open transaction. To be called before `begin`.

        The ack has locked a lease, and heads are locked before leases: a later publish could wait in a circle.
        """
        if type(self.raw).__weakrefoffset__ and self.raw not in _ack_connections:
            return
        try:
            self.execute(f"RELEASE SAVEPOINT {_ACKED}")
        except DatabaseError as exc:
            if exc.code != codes.NO_SUCH_SAVEPOINT:
                raise
            return
        self.execute(f"SAVEPOINT {_ACKED}")
        raise ConfigurationError(
            "a message was acked in this transaction, and the ack must be its last statement of lanelog: publish "
            "before it, and ack one message in a transaction"
        )

    def _run(self, sql: str, args: Sequence[object]) -> tuple[int, list[tuple[Any, ...]]]:
        sql = named(sql, self._database, args)
        try:
            cursor = self._connection.cursor()
            try:
                cursor.execute(sql, tuple(args)) if args else cursor.execute(sql)
                columns = [column[0] for column in cursor.description or ()]
                rows = cursor.fetchall() if columns else ()
                found = cursor.rowcount, [_plain(row, columns) for row in rows]
            except BaseException:
                with suppress(Exception):  # this error would hide the first one, which may be an interrupt
                    cursor.close()
                raise
            else:
                cursor.close()
                return found
        except Exception as exc:
            if not comes_from_driver(exc):
                raise
            raise translate(exc) from exc


class TransactionGone(DatabaseError):
    """The server has rolled back the caller's whole transaction: repeat all of it."""


def _gone(exc: DatabaseError) -> TransactionGone:
    return TransactionGone(
        f"the server has rolled back the whole transaction, your own writes included: repeat all of it ({exc})",
        code=exc.code,
        retriable=True,
    )


def _plain(row: Any, columns: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row[column] for column in columns) if isinstance(row, Mapping) else tuple(row)
