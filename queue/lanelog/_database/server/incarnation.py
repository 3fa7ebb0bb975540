"""One life of one server: the questions that identify it, and the comparison of two.

Never decides what follows from a difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final, Protocol

from attrs import field, frozen

from lanelog._database.executor import NOW_MS, SERVER_MARK


class Asks(Protocol):
    """What can be asked: an Executor, or a cursor."""

    def one(self, sql: str, args: Sequence[object] = ()) -> tuple[Any, ...] | None:
        """Run a query; return its first row, or None."""


START_TOLERANCE_MS: Final = 2000
"""Two readings of one server's start differ by less. Each is late by the fraction of a second that `Uptime` leaves out,
and by less than `_STALL_MS`."""

_READINGS = 5
_STALL_MS = 1000
_WRAP: Final = 2**64

# The database's clock, and the server's uptime (no table, no privilege needed).
_NOW = f"SELECT {NOW_MS}"
_UPTIME = "SHOW GLOBAL STATUS LIKE 'Uptime'"
# The identity of a server: no two servers with different data agree in all of these. MariaDB has no server_uuid.
_VALUES_MARIADB = "@@server_id, @@hostname, @@port, @@datadir"
_VALUES_MYSQL = f"{_VALUES_MARIADB}, @@server_uuid"
_IDENTITY_MARIADB = f"SELECT {SERVER_MARK}, {_VALUES_MARIADB}"
_IDENTITY_MYSQL = f"SELECT {SERVER_MARK}, {_VALUES_MYSQL}"


@frozen
class Incarnation:
    """One life of one server: its start, by its own clock in epoch milliseconds, and a digest of its identity.

    The start is exact to two seconds. It may be negative or far away, if the clock was set after the boot.
    """

    started_ms: int
    identity: str
    """SHA-256 of server id, host name, port, data directory and, on MySQL, server_uuid. Empty: not known."""
    mark: int = field(default=0, eq=False)
    """The server's SERVER_MARK. 0: not known."""
    name: str = field(default="", eq=False)
    """The server for an operator: its own host name and port, and its id. Empty: not known."""

    def same(self, other: Incarnation) -> bool:
        """Whether both name one life of one server. An older version of the tables knows the start alone."""
        if self.identity and other.identity and self.identity != other.identity:
            return False
        return abs(self.started_ms - other.started_ms) <= START_TOLERANCE_MS

    @staticmethod
    def identity_in_sql(*, mariadb: bool | None) -> str:
        """Return an expression for the identity of the server that runs the statement.

        It takes no round trip, and no proxy can change the server between question and answer. `mariadb`: None where
        the family is not known. MariaDB skips such a comment.
        """
        parts = {True: _VALUES_MARIADB, False: _VALUES_MYSQL, None: f"{_VALUES_MARIADB} /*!80000 , @@server_uuid */"}
        return f"SHA2(CONCAT_WS(CHAR(10), {parts[mariadb]}), 256)"


@frozen
class _Cursor:
    """A driver's cursor, as what can be asked."""

    _cursor: Any

    def one(self, sql: str, args: Sequence[object] = ()) -> tuple[Any, ...] | None:
        self._cursor.execute(sql, args or None)
        rows = self._cursor.fetchall()
        return rows[0] if rows else None


def incarnation_of(cursor: Any, *, mariadb: bool) -> Incarnation:
    """Read the incarnation of a server by a driver's cursor. Raises the driver's errors."""
    return read_incarnation(_Cursor(cursor), mariadb=mariadb)


def read_incarnation(cx: Asks, *, mariadb: bool) -> Incarnation:
    """Read the incarnation of a server. Raises DatabaseError."""
    row = cx.one(_IDENTITY_MARIADB if mariadb else _IDENTITY_MYSQL)
    mark, *parts = row or (0,)
    text = "\n".join(str(part) for part in parts)
    server_id, host, port, *_ = parts or ("", "", "")
    return Incarnation(
        server_start(cx),
        hashlib.sha256(text.encode()).hexdigest(),
        int(mark),
        f"{host}:{port} (server_id {server_id})",
    )


def server_start(cx: Asks) -> int:
    """Return the server's start, by its own clock in epoch milliseconds. 0: not known. Raises DatabaseError."""
    # Uptime is read between two readings of the clock. After a stall between them it is read again.
    for _ in range(_READINGS):
        before, uptime, now = cx.one(_NOW), cx.one(_UPTIME), cx.one(_NOW)
        if before and now and int(now[0]) - int(before[0]) < _STALL_MS:
            break
    return int(now[0]) - signed(int(uptime[1])) * 1000 if now and uptime else 0


def signed(uptime: int) -> int:
    """Return the uptime in seconds. It is negative, and wraps, if the clock was set back after the server's start."""
    return uptime - _WRAP if uptime >= _WRAP // 2 else uptime
