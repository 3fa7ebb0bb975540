"""Makes lanelog's tables and upgrades them, and says how those of a database differ from what this library needs.

It alters a table that exists only by the numbered steps, which add columns. About any other difference the operator
decides, with the statement that the error gives him. The client, the command line and Spark call it.

Code and tables of neighbouring versions work together. Code that finds older tables works without what later versions
added, and says so once. Code that finds newer tables works on them if they record that they admit it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import Final

from lanelog._database import Database, Executor, Session, codes
from lanelog._telemetry import get_logger
from lanelog.errors import DatabaseError, SchemaError
from lanelog.migrations.catalogue import add_column, applied_version, found_tables, oldest_code, record_version
from lanelog.migrations.declared import Difference, TableShape, checksum, compare, declared_tables
from lanelog.migrations.steps import STEPS, VERSION, added, shape

__all__ = ["VERSION", "NotAdmitted", "admit", "check", "migrate"]

PATIENCE: Final = 60.0
"""Seconds that `migrate` waits for another process that migrates, or for a table that is in use."""

_SHOWN: Final = 5
_LEAST_PAGE: Final = 16_384
_COMMAND: Final = "lanelog migrate"

# One migration at a time in a database; waited for in slices below any read time-out.
_LOCK = "SELECT GET_LOCK(%s, 5)"
_UNLOCK = "SELECT RELEASE_LOCK(%s)"
_PAGE_SIZE = "SELECT @@innodb_page_size"
# A statement that alters a table would otherwise wait for its readers for a day (MariaDB) or a year (MySQL). While it
# waits all others wait behind it, and no heartbeat is written: it gives up long before a lease ends, and tries again.
_LOCK_WAIT = "SET SESSION lock_wait_timeout = 3"


log = get_logger("database")


class NotAdmitted(SchemaError):
    """The tables are newer, and need a newer library: no migration helps."""


def migrate(database: Database) -> list[str]:
    """Create and add what is missing; what was done, in words: nothing if everything is there.

    Any number of processes may call it at once, while others work. DDL commits by itself, statement by statement: one
    that was interrupted is finished by the next call, and the version is recorded last. Raises SchemaError if a table
    is there but different, or newer than this library, and DatabaseError.
    """
    deadline = time.monotonic() + PATIENCE
    what = f"migrating {database.config.database}"
    version, left = database.retry(lambda: _look(database), deadline=deadline, what=what)
    done: list[str] = []
    if version <= VERSION and (left or version < VERSION):
        database.retry(lambda: _migrate(database, deadline, done), deadline=deadline, what=what)
        version = VERSION
    elif left:
        raise _error(database, left)
    database.tables_version = version  # no need to start again to use what was added
    return done


def check(database: Database) -> int:
    """The version of the tables, which may be older or newer than this library's, if it can work on them.

    Otherwise it raises SchemaError, naming the first differences and what mends them.
    """
    deadline = time.monotonic() + database.config.publish_timeout
    version, found = database.retry(lambda: _look(database), deadline=deadline, what="checking the tables")
    if found:
        raise _error(database, found)
    _note(database, version)
    return version


def admit(database: Database) -> None:
    """Raise SchemaError unless the tables' version is one that this library works on; looks only once.

    For those who begin to work, and have no time to compare the tables. It is not repeated after an error.
    """
    if database.tables_version:
        return
    with database.autocommit() as cx:
        version = _version(database, cx)
    if not version:
        raise _error(database, [_unrecorded()])
    _note(database, version)


def _note(database: Database, version: int) -> None:
    """Remember the version that was found first: what it lacks is not used before the process starts again."""
    if database.tables_version:
        return
    database.tables_version = version
    if version < VERSION:
        log.warning(
            "tables.older",
            database=database.config.database,
            version=version,
            known=VERSION,
            remedy=f"{_COMMAND}, then start again; until then this process works without what is new",
        )


def _migrate(database: Database, deadline: float, done: list[str]) -> None:
    session = database.session("migrate")
    try:
        name = "lanelog.migrate." + hashlib.sha256(database.config.database.encode()).hexdigest()[:32]
        _lock(session, name, deadline)
        session.execute(_LOCK_WAIT)
        before = found_tables(session, declared_tables())
        applied = _version(database, session) if "queue_schema" in before else 0
        if applied > VERSION:
            return  # a newer library was faster: what is missing now is its own to make
        for table in declared_tables().values():
            if table.name not in before:
                _create(session, table.statement)
                done.append(f"created table {table.name}")
        _add_columns(session, before, done)
        left = _differences(found_tables(session, declared_tables()), VERSION)
        if left:
            raise _error(database, left)
        # From the oldest on: when the first version was recorded is when the tables were born.
        for step in STEPS[applied:]:
            record_version(session, step.version, checksum(declared_tables().values()), step.oldest_code)
        if applied < VERSION:
            done.append(f"recorded version {VERSION}" + (f", after {applied}" if applied else ""))
        session.execute(_UNLOCK, (name,))
    finally:
        session.close()  # which frees the lock, too


def _add_columns(session: Session, before: dict[str, TableShape], done: list[str]) -> None:
    """Add what steps brought to tables that were there before."""
    for table, column in added():
        if table not in before or column in before[table].columns:
            continue
        if add_column(session, table, declared_tables()[table].definitions[column]):
            done.append(f"added column {table}.{column}")


def _create(session: Session, statement: str) -> None:
    try:
        session.execute(statement)
    except DatabaseError as exc:
        if exc.code != codes.KEY_TOO_LONG:
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


def _look(database: Database) -> tuple[int, list[Difference]]:
    """The version of the tables, 0 if there is none, and how they differ from what this library needs at it."""
    with database.autocommit() as cx:
        found = found_tables(cx, declared_tables())
        version = _version(database, cx) if "queue_schema" in found else 0
    left = _differences(found, version or VERSION)
    return version, left if version or left else [_unrecorded()]


def _version(database: Database, cx: Executor) -> int:
    """The version of the tables, 0 if none is recorded; raises SchemaError if they do not admit this library."""
    version = applied_version(cx)
    if version > VERSION:
        oldest = oldest_code(cx)
        if oldest > VERSION:
            raise NotAdmitted(
                f"the tables in {database.config.database} are of version {version}, which needs a lanelog that knows "
                f"version {oldest}; this one knows them up to version {VERSION}: upgrade lanelog in this process"
            )
    return version


def _unrecorded() -> Difference:
    return Difference(text=f"version {VERSION} is not recorded in queue_schema")


def _differences(found: Mapping[str, TableShape], version: int) -> list[Difference]:
    """How tables differ from those of a version, or of this library's if that is newer."""
    mended = added()
    return [
        difference
        for name, table in shape(min(version, VERSION)).items()
        for difference in compare(table, found.get(name), mended=[column for each, column in mended if each == name])
    ]


def _error(database: Database, differences: list[Difference]) -> SchemaError:
    more = len(differences) - _SHOWN
    texts = [difference.text for difference in differences[:_SHOWN]] + ([f"and {more} more"] if more > 0 else [])
    remedies = [difference.remedy for difference in differences[:_SHOWN] if difference.remedy]
    if len(remedies) < len(differences[:_SHOWN]):
        remedies.append(f"`{_COMMAND}` or `client.migrate()` (and grant the user the tables, if they are there)")
    return SchemaError(
        f"the tables in {database.config.database} do not fit this lanelog: {'; '.join(texts)}. "
        f"To mend it, run {'; '.join(remedies)}"
    )
