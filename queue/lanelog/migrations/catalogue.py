"""The tables that a database holds, read from its catalogue, and the versions that were applied to it.

Changes only `queue_schema`, and adds columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from lanelog._database import NOW_MS, Executor, codes
from lanelog.errors import DatabaseError, SchemaError
from lanelog.migrations.declared import ColumnShape, Index, TableShape

# The catalogue of the current database: only tables on which the user has a privilege are shown.
TABLES = """SELECT table_name AS name, engine AS kind FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_name IN ({names})"""
COLUMNS = """SELECT table_name AS t, column_name AS c, column_type AS k, is_nullable AS n, column_default AS d,
collation_name AS o FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name IN ({names})"""
INDEXES = """SELECT table_name AS t, index_name AS i, non_unique AS u, column_name AS c
FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name IN ({names})
ORDER BY table_name, index_name, seq_in_index"""

# The highest version applied (PRIMARY).
VERSION = "SELECT MAX(version) FROM queue_schema"
# The oldest code that the highest version admits; the column is there from version 2 on (PRIMARY).
OLDEST_CODE = """SELECT oldest_code FROM queue_schema FORCE INDEX (PRIMARY)
WHERE version > 0 ORDER BY version DESC LIMIT 1"""
# The row of a version, to prove that the server locks it (PRIMARY).
ROW = "SELECT applied_at FROM queue_schema FORCE INDEX (PRIMARY) WHERE version = %s"
# Record that a version was applied; a repetition changes only its checksum and the oldest code (PRIMARY).
RECORD = f"""INSERT INTO queue_schema (version, checksum, applied_at, oldest_code) VALUES (%s, %s, {NOW_MS}, %s)
ON DUPLICATE KEY UPDATE checksum = VALUES(checksum), oldest_code = VALUES(oldest_code)"""

# Changes the table's definition alone, so that the number of its rows does not matter.
ADD_COLUMN = "ALTER TABLE {table} ADD COLUMN {definition}, ALGORITHM=INSTANT"


def found_tables(cx: Executor, names: Iterable[str]) -> dict[str, TableShape]:
    """Read the tables of these names that exist and are visible."""
    wanted = tuple(names)
    marks = ",".join(["%s"] * len(wanted))
    columns: dict[str, dict[str, ColumnShape]] = defaultdict(dict)
    for table, name, kind, nullable, default, collation in cx.query(COLUMNS.format(names=marks), wanted):
        columns[table][name] = ColumnShape.of(
            name=name, kind=_text(kind), nullable=nullable == "YES", default=_text(default), collation=collation
        )
    parts: dict[str, dict[tuple[str, bool], list[str]]] = defaultdict(lambda: defaultdict(list))
    for table, name, non_unique, column in cx.query(INDEXES.format(names=marks), wanted):
        parts[table][name, not non_unique].append(column)
    return {
        table: TableShape(
            name=table,
            engine=engine or "none",
            columns=columns[table],
            indexes={
                name: Index(name=name, columns=tuple(members), unique=unique)
                for (name, unique), members in parts[table].items()
            },
        )
        for table, engine in cx.query(TABLES.format(names=marks), wanted)
    }


def applied_version(cx: Executor) -> int:
    """Return the version of the database; 0: none is recorded. Raises SchemaError if there is no such table."""
    row = cx.one(VERSION)
    return int(row[0]) if row and row[0] is not None else 0


def oldest_code(cx: Executor) -> int:
    """Return the oldest code that tables of version 2 or newer admit."""
    row = cx.one(OLDEST_CODE)
    return int(row[0]) if row else 0


def record_version(cx: Executor, version: int, checksum: str, oldest: int) -> None:
    """Record that a version is applied, and the oldest code that it admits."""
    cx.execute(RECORD, (version, checksum, oldest))


def add_column(cx: Executor, table: str, definition: str) -> bool:
    """Add a column at the end of a table without rebuilding it. False: the column existed.

    It may exist although a query just before did not find it: a statement goes on at the server after its client died.
    Raises SchemaError if the server would have to rebuild the table.
    """
    try:
        cx.execute(ADD_COLUMN.format(table=table, definition=definition))
    except DatabaseError as error:
        if error.code in codes.NOT_AT_ONCE:
            raise SchemaError(
                f"the server adds no column to {table} without rebuilding it ({error}): run ALTER TABLE {table} ADD "
                f"COLUMN {definition}, during which others may have to wait for the table; then `lanelog migrate`"
            ) from error
        if error.code != codes.DUPLICATE_COLUMN:
            raise
        return False
    return True


def _text(value: str | bytes | None) -> str:
    """Decode what MySQL's catalogue reports as bytes. No default and the default NULL are the same here."""
    if value is None:
        return "NULL"
    return value.decode() if isinstance(value, bytes) else value
