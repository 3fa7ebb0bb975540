"""What a store is given to talk to the database with, and the one clock.

It never opens, commits or retries anything. Every store takes an `Executor`; transactions, sessions and wires are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

NOW_MS: Final = "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6)) DIV 1000"
"""The database's clock in epoch milliseconds, as SQL: the start of the statement, in no session's time zone."""

SERVER_MARK: Final = "CRC32(CONCAT_WS('\\n', @@server_id, @@hostname, @@port, @@datadir))"
"""Who answers, as SQL: for what no other server may answer, behind a proxy that changes them."""


class Executor(Protocol):
    """Runs statements with `%s` parameters; the first parameter of every store method, always named `cx`.

    Every method raises only errors of lanelog's tree. Not for use by two threads at once.
    """

    def execute(self, sql: str, args: Sequence[object] = ()) -> int:
        """Run a statement; return how many rows it matched (an upsert counts 1 for inserted, 2 for changed)."""
        ...

    def query(self, sql: str, args: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a query; return all its rows."""
        ...

    def one(self, sql: str, args: Sequence[object] = ()) -> tuple[Any, ...] | None:
        """Run a query; return its first row, or None."""
        ...
