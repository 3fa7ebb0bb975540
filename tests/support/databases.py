"""Databases with lanelog's tables for the tests of one run, used again.

Making twelve tables and dropping them takes longer than most tests do: half a second on MySQL. So a test leaves its
database to a later one, emptied. Nobody gets a database that anybody still uses, or whose tables are not as they were
made: it is dropped, and another one is made.
"""

import secrets
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import pymysql
from attrs import define, field, frozen
from pymysql.constants import CLIENT

from lanelog import connect as connect_client
from lanelog.devserver import DevServer
from support.sql import connect, sessions
from support.waiting import eventually

RESTING = 3
"""So many databases rest until one is used again: sessions of killed processes end, deleted rows are purged."""
PARTING_SECONDS = 0.2
"""So long the server may need to notice that a client has closed its connections, or was killed."""
TABLES = sorted(path.stem for path in (Path(__file__).parents[2] / "schema").glob("*.sql"))
VERSIONS = "queue_schema"
"""The only table with rows when a database is new."""
SIZES = {"mariadb": "innodb_sys_tablespaces", "mysql": "innodb_tablespaces"}


@frozen
class Found:
    """A database as it is now."""

    form: Any
    """Everything but the rows: definitions, the tables' version.

    Sizes, too: a table that has grown keeps what deletions leave in its pages and statistics.
    """
    filled: list[str]
    """The tables that have rows."""


@define(eq=False)
class Databases:
    """Lends databases of one server."""

    server: DevServer
    _made: dict[str, Found] = field(factory=dict)
    """Each database as it was made."""
    _resting: deque[str] = field(factory=deque)

    def take(self) -> str:
        """Return the name of a database that has lanelog's tables, all of them empty."""
        while len(self._resting) > RESTING:
            name = self._resting.popleft()
            with self._connect(name) as cx:
                if not sessions(cx) and self._found(name, cx) == self._made[name]:
                    return name
            self._drop(name)
        name = f"lanelog_test_{secrets.token_hex(6)}"
        with connect_client(self.server.create_database(name)) as client:
            client.migrate()
        with self._connect(name) as cx:
            self._made[name] = self._found(name, cx)
        return name

    def give_back(self, name: str) -> None:
        """Empty a database, so that it may be used again, or drop it."""
        with self._connect(name) as cx:
            with suppress(AssertionError):
                eventually(lambda: not sessions(cx), within=PARTING_SECONDS)
            found = self._found(name, cx)
            usable = not sessions(cx) and found.form == self._made[name].form
            if usable and found.filled:
                _answers(cx, ["BEGIN", *(f"DELETE FROM {table}" for table in found.filled), "COMMIT"])
        if usable:
            self._resting.append(name)
        else:
            self._drop(name)

    def close(self) -> None:
        """Drop those that rest."""
        while self._resting:
            self._drop(self._resting.popleft())

    def _found(self, name: str, cx: Any) -> Found:
        asked = [
            f"SHOW CREATE DATABASE {name}",
            "SHOW TABLES",
            "SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = DATABASE()",
            f"SELECT name, file_size FROM information_schema.{SIZES[self.server.family]} WHERE name LIKE '{name}/%'",
            f"SELECT * FROM {VERSIONS}",
            *(f"SHOW CREATE TABLE {table}" for table in TABLES),
            *(f"SELECT EXISTS (SELECT 1 FROM {table})" for table in TABLES),
        ]
        try:
            answers = _answers(cx, asked)
        except pymysql.Error as exc:  # a table is missing
            return Found(repr(exc), [])
        filled = [table for table, ((has,),) in zip(TABLES, answers[-len(TABLES) :], strict=True) if has]
        return Found([sorted(each) for each in answers[: -len(TABLES)]], [each for each in filled if each != VERSIONS])

    def _connect(self, name: str) -> Any:
        return connect(self.server.root_url(name), client_flag=CLIENT.MULTI_STATEMENTS)

    def _drop(self, name: str) -> None:
        del self._made[name]
        self.server.drop_database(name)


def _answers(cx: Any, statements: list[str]) -> list[tuple[Any, ...]]:
    """Send statements in one packet, and return the rows of each."""
    with cx.cursor() as cursor:
        cursor.execute("; ".join(statements))
        answers = [cursor.fetchall()]
        while cursor.nextset():
            answers.append(cursor.fetchall())
    return answers
