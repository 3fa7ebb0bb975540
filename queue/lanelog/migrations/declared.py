"""The declarations in `schema/*.sql`, parsed into values, and their differences from the tables of a database.

Never talks to a database or alters anything. Parses only the form in which our own files are written.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Final

from attrs import field, frozen

ENGINE: Final = "InnoDB"
COLLATION: Final = "utf8mb4_bin"

_TABLE = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+) \(")
_COLUMN = re.compile(
    r"^\s+`?(?P<name>[a-z_]+)`?\s+(?P<type>[A-Z]+(?:\(\d+\))?(?: UNSIGNED)?)\s+(?P<null>NOT NULL|NULL)"
    r"(?:\s+DEFAULT (?P<default>\S+))?\s+COMMENT '(?:[^']|'')*'",
    re.MULTILINE,
)
_INDEX = re.compile(r"^\s+(?P<kind>PRIMARY KEY|UNIQUE KEY|KEY)(?: (?P<name>\w+))? \((?P<columns>[^)]+)\)", re.MULTILINE)
_DISPLAY_WIDTH = re.compile(r"^(tinyint|smallint|mediumint|int|bigint)\(\d+\)")
_TEXT = ("varchar", "char", "text")


@frozen(kw_only=True)
class ColumnShape:
    """A column, in a form that the catalogues of both server families can be brought to."""

    name: str
    type: str
    nullable: bool
    default: str | None
    collation: str | None

    @classmethod
    def of(cls, *, name: str, kind: str, nullable: bool, default: str | None, collation: str | None) -> ColumnShape:
        """Bring a declared or reported column to that form: no display widths, and JSON as MariaDB stores it."""
        kind = _DISPLAY_WIDTH.sub(r"\1", kind.lower())
        if default is not None:
            default = None if default.upper() == "NULL" else default.strip("'")
        return cls(
            name=name,
            type="longtext" if kind == "json" else kind,
            nullable=nullable,
            default=default,
            collation=collation if kind.startswith(_TEXT) else None,
        )

    def __str__(self) -> str:
        default = "" if self.default is None else f" DEFAULT '{self.default}'"
        collation = f" COLLATE {self.collation}" if self.collation else ""
        return f"{self.type.upper()}{collation} {'NULL' if self.nullable else 'NOT NULL'}{default}"


@frozen(kw_only=True)
class Index:
    """An index; `PRIMARY` is the primary key."""

    name: str
    columns: tuple[str, ...]
    unique: bool

    def __str__(self) -> str:
        columns = ", ".join(f"`{column}`" for column in self.columns)
        if self.name == "PRIMARY":
            return f"PRIMARY KEY ({columns})"
        return f"{'UNIQUE ' if self.unique else ''}KEY {self.name} ({columns})"


@frozen(kw_only=True)
class TableShape:
    """A table, declared or found."""

    name: str
    engine: str
    columns: Mapping[str, ColumnShape]
    indexes: Mapping[str, Index]
    statement: str = ""
    """The statement that creates it; empty for a table that was found."""
    definitions: Mapping[str, str] = field(factory=dict)
    """The text of each column in `statement`; empty for a table that was found."""


@frozen(kw_only=True)
class Difference:
    """One difference, and the statement that repairs it. An empty remedy: `lanelog migrate` repairs it."""

    text: str
    remedy: str = ""


@cache
def declared_tables() -> Mapping[str, TableShape]:
    """Return the tables of `schema/*.sql` by name."""
    files = resources.files("lanelog").joinpath("_schema").iterdir()
    tables = [parse(file.read_text(encoding="utf-8")) for file in files if file.name.endswith(".sql")]
    return {table.name: table for table in sorted(tables, key=lambda table: table.name)}


def checksum(tables: Iterable[TableShape]) -> str:
    """Return the SHA-256 of the statements that create the tables."""
    return hashlib.sha256("\n".join(table.statement for table in tables).encode()).hexdigest()


def parse(statement: str) -> TableShape:
    """Parse one of our own CREATE TABLE statements."""
    found = _TABLE.search(statement)
    if found is None:
        raise ValueError(f"no CREATE TABLE in {statement[:80]!r}")
    matches = [*_COLUMN.finditer(statement)]
    columns = [
        ColumnShape.of(
            name=match["name"],
            kind=match["type"],
            nullable=match["null"] == "NULL",
            default=match["default"],
            collation=COLLATION,
        )
        for match in matches
    ]
    indexes = [
        Index(
            name=match["name"] or "PRIMARY",
            columns=tuple(part.strip(" `") for part in match["columns"].split(",")),
            unique=match["kind"] != "KEY",
        )
        for match in _INDEX.finditer(statement)
    ]
    return TableShape(
        name=found[1],
        engine=ENGINE,
        columns={column.name: column for column in columns},
        indexes={index.name: index for index in indexes},
        statement=statement,
        definitions={match["name"]: " ".join(match[0].split()) for match in matches},
    )


def compare(declared: TableShape, found: TableShape | None, *, addable: Collection[str] = ()) -> list[Difference]:
    """Return what `found` lacks of `declared`, or has differently.

    Additions to `found` are ignored: they are the owner's.

    `addable`: columns that `lanelog migrate` adds if they are missing.
    """
    name = declared.name
    if found is None:
        return [Difference(text=f"table {name} is missing")]
    differences = []
    if found.engine.lower() != declared.engine.lower():
        differences.append(
            Difference(
                text=f"table {name} has the engine {found.engine}",
                remedy=f"ALTER TABLE {name} ENGINE = {declared.engine}",
            )
        )
    for column in declared.columns.values():
        other = found.columns.get(column.name)
        if other is None:
            text, verb = f"column {name}.{column.name} is missing", "ADD"
        elif other != column:
            text, verb = f"column {name}.{column.name} is {other}, not {column}", "MODIFY"
        else:
            continue
        by_hand = f"ALTER TABLE {name} {verb} COLUMN `{column.name}` {column}"
        differences.append(Difference(text=text, remedy="" if other is None and column.name in addable else by_hand))
    for index in declared.indexes.values():
        present = found.indexes.get(index.name)
        if present == index:
            continue
        if present is None:
            text, drop = f"index {name}.{index.name} is missing", ""
        else:
            text = f"index {name}.{index.name} is {present}, not {index}"
            drop = "DROP PRIMARY KEY, " if index.name == "PRIMARY" else f"DROP KEY {index.name}, "
        differences.append(Difference(text=text, remedy=f"ALTER TABLE {name} {drop}ADD {index}"))
    return differences
