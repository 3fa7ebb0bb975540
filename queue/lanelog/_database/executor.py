"""The interface by which stores run statements, the modes in which these lock rows, and the one clock.

Never opens, commits or retries anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, Protocol

NOW_MS: Final = "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6)) DIV 1000"
"""The database's clock in epoch milliseconds, as SQL. It is the start of the statement, in UTC in every session."""

SERVER_MARK: Final = "CRC32(CONCAT_WS('\\n', @@server_id, @@hostname, @@port, @@datadir))"
"""A mark of the server that answers, as SQL. It shows that a proxy has changed the server."""


class Lock(StrEnum):
    """How a SELECT locks the rows that it finds, as the end of its text: `{lock}` in a statement."""

    NONE = ""
    SHARE = " LOCK IN SHARE MODE"
    UPDATE = " FOR UPDATE"
    FREE = " FOR UPDATE SKIP LOCKED"
    """As UPDATE, without waiting: rows that another transaction has locked are left out."""


class Executor(Protocol):
    """Runs statements with `%s` parameters. In the stores its name is always `cx`.

    Every method raises only errors of lanelog's tree. Not for two threads at once.
    """

    def execute(self, sql: str, args: Sequence[object] = ()) -> int:
        """Run a statement; return how many rows it matched (an upsert: 2 for each row that it changed, else 1)."""
        ...

    def query(self, sql: str, args: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a query; return all its rows."""
        ...

    def one(self, sql: str, args: Sequence[object] = ()) -> tuple[Any, ...] | None:
        """Run a query; return its first row, or None."""
        ...
