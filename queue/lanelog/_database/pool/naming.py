"""Statements that name their database, for connections that user code has: it may have sent USE.

Never asks for the current database: that costs a round trip, and the next statement may change it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from attrs import define

from lanelog._database.executor import Executor

# The tables of lanelog, without a database before them. The statements have no such word anywhere else. The text
# comes first and what is before it second, because a search for a text is fast in long statements.
_TABLE: Final = re.compile(r"queue_(?<![\w.`]queue_)\w+")


def named(sql: str, database: str, args: Sequence[object]) -> str:
    """Return the statement with the database before each of lanelog's tables."""
    quoted = database.replace("`", "``")
    if args:
        quoted = quoted.replace("%", "%%")  # the driver formats it
    return _TABLE.sub(lambda table: f"`{quoted}`.{table[0]}", sql)


@define
class Naming:
    """An Executor whose statements go to one database, not to the current one."""

    _cx: Executor
    _database: str

    def execute(self, sql: str, args: Sequence[object] = ()) -> int:
        """Run a statement; return the number of rows it matched."""
        return self._cx.execute(named(sql, self._database, args), args)

    def query(self, sql: str, args: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a query; return all its rows."""
        return self._cx.query(named(sql, self._database, args), args)

    def one(self, sql: str, args: Sequence[object] = ()) -> tuple[Any, ...] | None:
        """Run a query; return its first row, or None."""
        return self._cx.one(named(sql, self._database, args), args)
