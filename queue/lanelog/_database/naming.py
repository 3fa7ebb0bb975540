"""Statements that name their database, for connections that user code has in its hands: it may have said USE.

It never asks which database is the current one, which would cost a round trip and be old by the next statement. The
pool's lent transactions and publishing on a caller's connection go through it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from attrs import define

from lanelog._database.executor import Executor

# All of lanelog's tables, where no database stands before them; its statements have no such word in any other place.
_TABLE: Final = re.compile(r"(?<![\w.`])queue_\w+")


def named(sql: str, database: str, args: Sequence[object]) -> str:
    """The statement with the database before each of lanelog's tables."""
    quoted = database.replace("`", "``")
    if args:
        quoted = quoted.replace("%", "%%")  # the driver formats it
    return _TABLE.sub(lambda table: f"`{quoted}`.{table[0]}", sql)


@define
class Naming:
    """An Executor whose statements go to one database, whichever is the current one."""

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
