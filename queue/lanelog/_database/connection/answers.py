"""PyMySQL's connection that never takes the answer to one statement for the answer to another.

An exception can come at any moment: a signal handler that raises, Ctrl-C, a time limit, `gevent.Timeout`. If it comes
between a statement and the end of its answer, PyMySQL goes on, and each later statement gets the answer to the one
before. This connection notes that an answer is pending before it sends, and forgets it after the whole answer was read.
While one is pending, the next statement closes the connection and fails with "commands out of sync", as mysqlclient's
connections do by themselves. Costs no round trip. Never decides what an answer means.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pymysql import connections, err
from pymysql.constants import CR

if TYPE_CHECKING:
    _PyMySQLs = connections.Connection[Any]
else:
    _PyMySQLs = connections.Connection


class AnsweringConnection(_PyMySQLs):
    """As PyMySQL's. The attributes that begin with one underscore are its own, but for those that say so."""

    _pending: bool = False
    """Ours. Set before the first byte is sent, and unset after the last one was read."""
    commands: int = 0
    """How many commands were sent."""
    _result_type: Any = connections.MySQLResult
    """Ours. What reads an answer whole."""
    _sock: Any
    _result: Any
    _read_packet: Any
    server_status: Any

    def connect(self, sock: Any = None) -> None:
        """As PyMySQL's. No answer is pending on a new connection."""
        self._pending = False
        super().connect(sock)

    def command(self, number: int, argument: bytes) -> None:
        """Send a command that PyMySQL has no method for, and that is answered in one packet."""
        with self._answered():
            self._execute_command(number, argument)
            self._read_packet()

    def set_character_set(self, charset: str, collation: str | None = None) -> None:
        """As PyMySQL's."""
        with self._answered():
            super().set_character_set(charset, collation)

    def show_warnings(self) -> Any:
        """As PyMySQL's."""
        with self._answered():
            return super().show_warnings()  # type: ignore[no-untyped-call]

    def _request_authentication(self) -> None:
        with self._answered():
            super()._request_authentication()  # type: ignore[misc]

    @property
    def answer_pending(self) -> bool:
        """Whether something was sent, and its answer was not read whole."""
        return self._pending

    @contextmanager
    def answer_awaited(self) -> Iterator[None]:
        """Around the reading of a part of an answer that was not asked for in the block."""
        self._pending = True
        with self._answered():
            yield

    @contextmanager
    def _answered(self) -> Iterator[None]:
        """Around the reading of a whole answer. For what is rare: `_read_query_result` does the same, and faster."""
        try:
            yield
        except err.MySQLError as exc:
            self._pending = _pending_after(exc)
            raise
        self._pending = False

    def _execute_command(self, command: int, sql: str | bytes) -> None:
        if self._pending and self._sock is not None:
            self._force_close()  # type: ignore[attr-defined]
            raise err.OperationalError(
                CR.CR_COMMANDS_OUT_OF_SYNC,
                "an exception came before the answer to the statement before was read, so the connection was closed "
                "and its transaction is rolled back",
            )
        self.commands += 1
        super()._execute_command(command, sql)  # type: ignore[misc]

    def _write_bytes(self, data: bytes) -> None:
        self._pending = True
        super()._write_bytes(data)  # type: ignore[misc]

    def _read_ok_packet(self) -> Any:
        try:
            answer = super()._read_ok_packet()  # type: ignore[misc]
        except err.MySQLError as exc:
            self._pending = _pending_after(exc)
            raise
        self._pending = False
        return answer

    def _read_query_result(self, unbuffered: bool = False) -> Any:  # noqa: FBT001, FBT002 - PyMySQL's signature
        self._pending = True  # the next one of several results was not asked for here
        self._result = None
        result = _Unbuffered(self) if unbuffered else self._result_type(self)
        try:
            result.init_unbuffered_query() if unbuffered else result.read()
        except BaseException as exc:
            result.unbuffered_active, result.connection = False, None  # collected, it would read on
            if isinstance(exc, err.MySQLError):
                self._pending = _pending_after(exc)
            raise
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
        self._pending = False
        return result.affected_rows


class _Unbuffered(connections.MySQLResult):
    """An answer whose rows are read one by one. Between two rows the rest of the answer is pending."""

    connection: Any
    unbuffered_active: bool

    def _read_rowdata_packet_unbuffered(self) -> Any:
        if self.connection is None:
            return None
        with self.connection.answer_awaited():
            return super()._read_rowdata_packet_unbuffered()  # type: ignore[misc]

    def _finish_unbuffered_query(self) -> None:
        if self.connection is None or self.connection.answer_pending:
            return  # an exception came in the middle of a row: the next statement closes the connection
        with self.connection.answer_awaited():
            super()._finish_unbuffered_query()  # type: ignore[misc]


def _pending_after(error: err.MySQLError) -> bool:
    """Whether an answer is pending after an error of PyMySQL.

    It closes the connection itself when that is lost. Any other error is the server's, and ends its answer. One is not:
    that of an answer of another kind than expected.
    """
    return bool(error.args) and error.args[0] == CR.CR_COMMANDS_OUT_OF_SYNC
