"""Creates missing tables, and takes older ones to this library's version, one process at a time.

Owns every statement that changes a table. An existing table with other differences is left as it is.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from lanelog._database import codes
from lanelog.errors import DatabaseError, SchemaError
from lanelog.migrations import routines
from lanelog.migrations.catalogue import add_column, found_tables, record_version
from lanelog.migrations.checking import differences, examine, locks_rows, misfit, version_of
from lanelog.migrations.declared import checksum, declared_tables
from lanelog.migrations.steps import STEPS, VERSION, added

if TYPE_CHECKING:
    from lanelog._database import Database, Session
    from lanelog.migrations.declared import TableShape

PATIENCE: Final = 60.0
"""Seconds that `migrate` waits for another process that migrates, or for a table that is in use."""

_LEAST_PAGE: Final = 16_384

# One migration at a time in a database. We wait in slices that are shorter than the read time-out.
_LOCK = "SELECT GET_LOCK(%s, %s)"
_SLICE: Final = 5.0
_UNLOCK = "SELECT RELEASE_LOCK(%s)"
_PAGE_SIZE = "SELECT @@innodb_page_size"
# Without it, a statement that alters a table would wait for open transactions for a day (MariaDB) or a year (MySQL).
# While it waits, all other statements on the table wait behind it, also heartbeats. So it ends long before
# `lease_duration` is over, and is tried again.
_LOCK_WAIT = "SET SESSION lock_wait_timeout = 3"


def migrate(database: Database, *, procedures: bool = False) -> list[str]:
    """Create missing tables and add missing columns.

    Return what was done, in words; an empty list if nothing was missing. `procedures`: create the stored routines for
    publishing by plain SQL, too. Those that are there are renewed anyway.

    Any number of processes may call it at once, while others work. DDL commits by itself, statement by statement. An
    interrupted migration is finished by the next call; the version is recorded last.

    Raises SchemaError if a table exists with other differences, or is newer than this library, ConfigurationError if
    the server locks no rows, and DatabaseError.
    """
    deadline = time.monotonic() + PATIENCE
    what = f"migrating {database.config.database}"
    version, left = database.retry(lambda: examine(database), deadline=deadline, what=what)
    done: list[str] = []
    if version <= VERSION and (left or version < VERSION):
        database.retry(lambda: _migrate(database, deadline, done), deadline=deadline, what=what)
        version = VERSION
    elif left:
        raise misfit(database, left)
    database.tables_version = version  # this process uses the new columns from now on
    database.retry(lambda: _install(database, deadline, done, wanted=procedures), deadline=deadline, what=what)
    _prove_locks(database)
    return done


def _install(database: Database, deadline: float, done: list[str], *, wanted: bool) -> None:
    session = database.session("migrate")
    try:
        if routines.outdated(session, wanted=wanted):
            with _alone(database, session, deadline):
                session.execute(_LOCK_WAIT)  # a routine is in use until the transactions of its callers end
                names = routines.outdated(session, wanted=wanted)
                if names:
                    done += routines.install(session, names, mariadb=database.facts().mariadb)
    finally:
        session.close()


def _prove_locks(database: Database) -> None:
    """Refuse a server that locks no rows. The account may lack the privilege, and a server a connection."""
    session = database.session("migrate")
    try:
        with suppress(DatabaseError), database.autocommit(wait=0.0) as other:
            locks_rows(session, other, database.facts())
    finally:
        session.close()


def _migrate(database: Database, deadline: float, done: list[str]) -> None:
    session = database.session("migrate")
    try:
        with _alone(database, session, deadline):
            _create_all(database, session, done)
    finally:
        session.close()


@contextmanager
def _alone(database: Database, session: Session, deadline: float) -> Iterator[None]:
    """Keep other migrations of this database away, on one connection. Without locks each of two makes what is missing.

    The connection ends with the migration, and that frees the lock, too.
    """
    name = "lanelog.migrate." + hashlib.sha256(database.config.database.encode()).hexdigest()[:32]
    session.ensure()
    with session.pinned():
        if database.config.by_lock:
            _lock(session, name, deadline, min(_SLICE, database.config.read_timeout / 2))
        yield
        if database.config.by_lock:
            session.execute(_UNLOCK, (name,))


def _create_all(database: Database, session: Session, done: list[str]) -> None:
    session.execute(_LOCK_WAIT)
    before = found_tables(session, declared_tables())
    applied = version_of(database, session) if "queue_schema" in before else 0
    if applied > VERSION:
        return  # a newer library was faster, and makes the missing tables
    for table in declared_tables().values():
        if table.name not in before:
            _create(session, table.statement)
            done.append(f"created table {table.name}")
    _add_columns(session, before, done)
    left = differences(found_tables(session, declared_tables()), VERSION)
    if left:
        raise misfit(database, left)
    # The oldest version first: its time says when the tables were created.
    for step in STEPS[applied:]:
        record_version(session, step.version, checksum(declared_tables().values()), step.oldest_code)
    if applied < VERSION:
        done.append(f"recorded version {VERSION}" + (f", after {applied}" if applied else ""))


def _add_columns(session: Session, before: dict[str, TableShape], done: list[str]) -> None:
    """Add the columns of all steps to tables that existed before."""
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


def _lock(session: Session, name: str, deadline: float, seconds: float) -> None:
    while True:
        row = session.one(_LOCK, (name, int(seconds)))
        if row is not None and row[0] == 1:
            return
        if time.monotonic() >= deadline:
            raise DatabaseError(f"another process has been migrating this database for {PATIENCE:g} s: wait for it")
