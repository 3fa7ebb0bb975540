"""Which privileges of each role an account has, tried by the server itself.

Owns the trials. EXPLAIN needs the same privileges as its statement, and executes nothing.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

from lanelog._base.roles import ALL_TABLES, ROLES
from lanelog._database import codes
from lanelog.errors import DatabaseError, SchemaError
from lanelog.migrations.declared import declared_tables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lanelog._database import Database, Executor

# Statements that would change no row: EXPLAIN needs their privilege and executes nothing.
TRIALS: Final = {
    "SELECT": "EXPLAIN SELECT 1 FROM {table} WHERE 1 = 0",
    "INSERT": "EXPLAIN INSERT INTO {table} SELECT * FROM {table} WHERE 1 = 0",
    "UPDATE": "EXPLAIN UPDATE {table} SET {column} = {column} WHERE 1 = 0",
    "DELETE": "EXPLAIN DELETE FROM {table} WHERE 1 = 0",
}
HURRY: Final = "SET SESSION lock_wait_timeout = 1"
"""Under a global read lock, a server lets a trial wait."""
NO_WRITES: Final = codes.READ_ONLY | {codes.LOCK_WAIT_TIMEOUT}
"""Error numbers of a server that takes no writes now. They say nothing about privileges."""
_COLUMN: Final = {"queue_schema": "checksum"}


def lacking(database: Database) -> dict[str, list[str]]:
    """Return the privileges that the account lacks, by role. Raises DatabaseError, one of `NO_WRITES` among others."""
    # the answer that the server is read-only ends the connection
    with closing(database.session("doctor")) as session:
        session.execute(HURRY)
        return {name: _lacking(session, role.privileges) for name, role in ROLES.items() if name != "owner"}


def _lacking(cx: Executor, privileges: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the privileges of a role that the account does not have."""
    tables = [*declared_tables()]
    missing: list[str] = []
    for target, verbs in privileges.items():
        for table in tables if target == ALL_TABLES else [target]:
            missing += [f"{verb} on {table}" for verb in verbs if not _may(cx, verb, table)]
    return missing


def _may(cx: Executor, verb: str, table: str) -> bool:
    try:
        cx.query(TRIALS[verb].format(table=table, column=_COLUMN.get(table, "topic")))
    except DatabaseError as error:
        if error.code not in codes.DENIED_ANYWHERE:
            raise
        return False
    except SchemaError:  # no such table: `_schema` reports it
        return True
    return True
