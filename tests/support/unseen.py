"""Transactions that end without a word: ROLLBACK is sent on a session before one of its statements, past the library.

Or the session is reset, which turns autocommit on. Owns that, for both drivers. What a proxy does that connects again
looks the same to a client.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
from attrs import define, field
from pymysql.connections import Connection
from pymysql.constants import COMMAND

_COM_RESET_CONNECTION = 0x1F
DRIVERS = ["pymysql", *(["mysqlclient"] if find_spec("MySQLdb") else [])]


@define(eq=False)
class Ending:
    """Ends the transaction before the statement that comes `after` so many others of one thread."""

    after: int
    thread: str = ""
    """A part of the thread's name."""
    reset: bool = False
    """Whether the session is reset, too."""
    sent: list[str] = field(factory=list)
    """What the thread has sent since `begin`."""
    ended: bool = False
    _begun: bool = False

    def begin(self) -> None:
        """Count from here."""
        self._begun = True

    def now(self, text: object) -> bool:
        """Whether the transaction ends before this statement of the current thread."""
        if self.ended or not self._begun or self.thread not in threading.current_thread().name:
            return False
        self.sent.append(text.decode(errors="replace") if isinstance(text, bytes | bytearray) else str(text))
        self.ended = len(self.sent) > self.after
        return self.ended


@contextmanager
def ending(after: int, thread: str = "", *, reset: bool = False) -> Iterator[Ending]:
    """End a transaction unseen, once, within the block."""
    at = Ending(after, thread or threading.current_thread().name, reset)
    with pytest.MonkeyPatch.context() as patch:
        _watch_pymysql(patch, at)
        if len(DRIVERS) > 1:
            _watch_mysqlclient(patch, at)
        yield at


def _watch_pymysql(patch: pytest.MonkeyPatch, at: Ending) -> None:
    execute: Any = Connection._execute_command

    def executed(raw: Any, command: int, sql: Any) -> None:
        if command == COMMAND.COM_QUERY and at.now(sql):
            if at.reset:
                execute(raw, _COM_RESET_CONNECTION, b"")
            else:
                execute(raw, command, "ROLLBACK")
            raw._read_ok_packet()
        execute(raw, command, sql)

    patch.setattr(Connection, "_execute_command", executed)


def _watch_mysqlclient(patch: pytest.MonkeyPatch, at: Ending) -> None:
    connection: Any = import_module("MySQLdb.connections").Connection
    query, commit = connection.query, connection.commit

    def queried(raw: Any, sql: Any) -> None:
        if at.now(sql):
            query(raw, b"ROLLBACK")
            if at.reset:  # the driver has no reset: what matters of it
                query(raw, b"SET autocommit = 1")
        query(raw, sql)

    def committed(raw: Any) -> None:
        if at.now("COMMIT"):
            query(raw, b"ROLLBACK")
        commit(raw)

    patch.setattr(connection, "query", queried)
    patch.setattr(connection, "commit", committed)
