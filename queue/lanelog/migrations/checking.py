"""Compares a database's tables with those that this library needs, and decides whether it can work on them.

Owns that comparison, and the error that says how to repair a difference. Changes nothing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from lanelog._database import row_locks
from lanelog._facts import database as facts
from lanelog.errors import SchemaError
from lanelog.migrations import catalogue
from lanelog.migrations.catalogue import applied_version, found_tables, oldest_code
from lanelog.migrations.declared import Difference, TableShape, compare, declared_tables
from lanelog.migrations.steps import VERSION, added, shape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lanelog._database import Database, Executor, ServerFacts, Session

_SHOWN: Final = 5
_COMMAND: Final = "lanelog migrate"


class NotAdmitted(SchemaError):
    """The tables are newer, and need a newer library. No migration helps."""


def check(database: Database) -> int:
    """Return the version of the tables, older or newer than this library's, if it can work on them.

    Otherwise raises SchemaError, which names the first differences and how to repair them.
    """
    deadline = time.monotonic() + database.config.publish_timeout
    version, found = database.retry(lambda: examine(database), deadline=deadline, what="checking the tables")
    if found:
        raise misfit(database, found)
    _note(database, version)
    return version


def admit(database: Database) -> None:
    """Raise SchemaError unless the tables have a version that this library works on.

    Checks only once for each database object.

    It does not compare the tables, and is not repeated after an error, because work waits for it.
    """
    if database.tables_version:
        return
    with database.autocommit() as cx:
        version = version_of(database, cx)
    if not version:
        raise misfit(database, [_unrecorded()])
    _note(database, version)


def _note(database: Database, version: int) -> None:
    """Remember the version that was found first. Columns that it lacks are not used until the process starts again."""
    if database.tables_version:
        return
    database.tables_version = version
    if version < VERSION:
        facts.tables_older(
            database=database.config.database,
            version=version,
            known=VERSION,
            remedy=f"{_COMMAND}, then start again; until then this process works without what is new",
        )


def examine(database: Database) -> tuple[int, list[Difference]]:
    """Return the version of the tables, 0 if none is recorded, and their differences from what this library needs."""
    with database.autocommit() as cx:
        found = found_tables(cx, declared_tables())
        version = version_of(database, cx) if "queue_schema" in found else 0
    left = differences(found, version or VERSION)
    return version, left if version or left else [_unrecorded()]


def version_of(database: Database, cx: Executor) -> int:
    """Return the version of the tables, 0 if none is recorded. Raises SchemaError if they do not admit this library."""
    version = applied_version(cx)
    if version > VERSION:
        oldest = oldest_code(cx)
        if oldest > VERSION:
            raise NotAdmitted(
                f"the tables in {database.config.database} are of version {version}, which needs a lanelog that knows "
                f"version {oldest}; this one knows them up to version {VERSION}: upgrade lanelog in this process"
            )
    return version


def locks_rows(session: Session, other: Executor, server: ServerFacts) -> bool:
    """Return whether the server is proven to lock rows, on the row of the tables' version: only `migrate` writes it.

    False: not known. Raises ConfigurationError if the server locks none, and DatabaseError.
    """
    return row_locks.prove(session, other, catalogue.ROW, (catalogue.applied_version(other),), server=server)


def _unrecorded() -> Difference:
    return Difference(text=f"version {VERSION} is not recorded in queue_schema")


def differences(found: Mapping[str, TableShape], version: int) -> list[Difference]:
    """Return how tables differ from those of a version; if that is newer than this library's, from this library's."""
    addable = added()
    return [
        difference
        for name, table in shape(min(version, VERSION)).items()
        for difference in compare(table, found.get(name), addable=[column for each, column in addable if each == name])
    ]


def misfit(database: Database, found: list[Difference]) -> SchemaError:
    """Return the error that names the first differences, and how to repair them."""
    more = len(found) - _SHOWN
    texts = [difference.text for difference in found[:_SHOWN]] + ([f"and {more} more"] if more > 0 else [])
    remedies = [difference.remedy for difference in found[:_SHOWN] if difference.remedy]
    if len(remedies) < len(found[:_SHOWN]):
        remedies.append(f"`{_COMMAND}` or `client.migrate()` (and grant the user the tables, if they are there)")
    return SchemaError(
        f"the tables in {database.config.database} do not fit this lanelog: {'; '.join(texts)}. "
        f"To repair it, run {'; '.join(remedies)}"
    )
