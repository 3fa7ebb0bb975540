"""Makes lanelog's tables, and says how those of a database differ from what this version of the library needs.

It never alters a table that exists: an operator decides about that, with the statement the error gives him. The client
and the command line call it.
"""

from __future__ import annotations

import hashlib
import time
from typing import Final

from lanelog._database import Database, Executor, Session
from lanelog.errors import DatabaseError, SchemaError
from lanelog.migrations.catalogue import applied_version, found_tables, record_version
from lanelog.migrations.declared import Difference, checksum, compare, declared_tables

__all__ = ["VERSION", "check", "migrate"]

VERSION: Final = 1
"""The version of the tables that this library works with."""

PATIENCE: Final = 60.0
"""Seconds that `migrate` waits for another process that migrates, or for a table that is in use."""

_SHOWN: Final = 5
_KEY_TOO_LONG: Final = 1071
_LEAST_PAGE: Final = 16_384
_COMMAND: Final = "lanelog migrate"

# One migration at a time in a database; waited for in slices below any read time-out.
_LOCK = "SELECT GET_LOCK(%s, 5)"
_UNLOCK = "SELECT RELEASE_LOCK(%s)"
_PAGE_SIZE = "SELECT @@innodb_page_size"
# A statement that alters a table would otherwise wait for its readers for a day (MariaDB) or a year (MySQL).
_LOCK_WAIT = "SET SESSION lock_wait_timeout = 10"


def migrate(database: Database) -> None:
    """Create what is missing; do nothing if everything is there. Any number of processes may call it at once.

    DDL commits by itself, statement by statement: one that was interrupted is finished by the next call. Raises
    SchemaError if a table is there but different, or newer than this library, and DatabaseError.
    """
    deadline = time.monotonic() + PATIENCE
    with_database = f"migrating {database.config.database}"
    if database.retry(lambda: _differences(database), deadline=deadline, what=with_database):
        database.retry(lambda: _migrate(database, deadline), deadline=deadline, what=with_database)


def check(database: Database) -> None:
    """Raise SchemaError, naming the first differences and what mends them, unless the tables fit this library."""
    deadline = time.monotonic() + database.config.publish_timeout
    found = database.retry(lambda: _differences(database), deadline=deadline, what="checking the tables")
    if found:
        raise _error(database, found)


def _migrate(database: Database, deadline: float) -> None:
    session = database.session("migrate")
    try:
        name = "lanelog.migrate." + hashlib.sha256(database.config.database.encode()).hexdigest()[:32]
        _lock(session, name, deadline)
        session.execute(_LOCK_WAIT)
        for table in declared_tables().values():
            _create(session, table.statement)
        left = _compare(session)
        if left:
            raise _error(database, left)
        record_version(session, VERSION, checksum(declared_tables().values()))
        session.execute(_UNLOCK, (name,))
    finally:
        session.close()  # which frees the lock, too


def _create(session: Session, statement: str) -> None:
    try:
        session.execute(statement)
    except DatabaseError as exc:
        if exc.code != _KEY_TOO_LONG:
            raise
        size = int((session.one(_PAGE_SIZE) or (0,))[0])
        raise SchemaError(
            f"the server's innodb_page_size is {size}, and the keys of lanelog's tables need pages of at least "
            f"{_LEAST_PAGE}: it is chosen when a data directory is made, so use a server made with innodb_page_size="
            f"{_LEAST_PAGE // 1024}k, the default ({exc})"
        ) from exc


def _lock(session: Session, name: str, deadline: float) -> None:
    while True:
        row = session.one(_LOCK, (name,))
        if row is not None and row[0] == 1:
            return
        if time.monotonic() >= deadline:
            raise DatabaseError(f"another process has been migrating this database for {PATIENCE:g} s: wait for it")


def _differences(database: Database) -> list[Difference]:
    with database.autocommit() as cx:
        found = _compare(cx)
        if any(difference.text == "table queue_schema is missing" for difference in found):
            return found
        version = applied_version(cx)
    if version > VERSION:
        raise SchemaError(
            f"the tables in {database.config.database} are of version {version}, this lanelog knows them up to version "
            f"{VERSION}: upgrade lanelog in this process"
        )
    if version < VERSION and not found:
        return [Difference(text=f"version {VERSION} is not recorded in queue_schema")]
    return found


def _compare(cx: Executor) -> list[Difference]:
    declared = declared_tables()
    found = found_tables(cx, declared)
    return [difference for name, table in declared.items() for difference in compare(table, found.get(name))]


def _error(database: Database, differences: list[Difference]) -> SchemaError:
    more = len(differences) - _SHOWN
    texts = [difference.text for difference in differences[:_SHOWN]] + ([f"and {more} more"] if more > 0 else [])
    remedies = [difference.remedy for difference in differences[:_SHOWN] if difference.remedy]
    if len(remedies) < len(differences[:_SHOWN]):
        remedies.append(f"`{_COMMAND}` (and grant the user the tables, if they are there)")
    return SchemaError(
        f"the tables in {database.config.database} do not fit this lanelog: {'; '.join(texts)}. "
        f"To mend it, run {'; '.join(remedies)}"
    )
