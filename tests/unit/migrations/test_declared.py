"""The tables as `schema/*.sql` declares them, and differences to them."""

from attrs import evolve

from lanelog.migrations.declared import ColumnShape, checksum, compare, declared_tables, parse
from lanelog.migrations.steps import STEPS, VERSION, added, shape
from support.readme import ROOT


def test_every_table_has_a_file() -> None:
    """The files are found inside the package, and each declares the table it is named after."""
    assert set(declared_tables()) == {path.stem for path in (ROOT / "schema").glob("*.sql")}


def test_every_column_and_index_is_read() -> None:
    """The reader understands each line of our files: none is lost, and no table differs from itself."""
    for table in declared_tables().values():
        body = table.statement.partition("(\n")[2].rpartition("\n)")[0]
        declared = [line for line in body.splitlines() if line.startswith("  ") and not line.startswith("    ")]
        assert len(declared) == len(table.columns) + len(table.indexes), table.name
        assert "PRIMARY" in table.indexes
        for index in table.indexes.values():
            assert set(index.columns) <= table.columns.keys()
        assert compare(table, table) == []


def test_families_report_the_same_column_differently() -> None:
    """Display widths, JSON as LONGTEXT, quoted and missing defaults: all of it is the same column."""
    mysql = ColumnShape.of(name="c", kind="bigint unsigned", nullable=False, default="0", collation=None)
    mariadb = ColumnShape.of(name="c", kind="bigint(20) unsigned", nullable=False, default="'0'", collation=None)
    assert mysql == mariadb
    json = ColumnShape.of(name="c", kind="json", nullable=True, default="NULL", collation=None)
    longtext = ColumnShape.of(name="c", kind="longtext", nullable=True, default=None, collation="utf8mb4_bin")
    assert json == longtext


def test_a_comment_with_a_quote_is_read() -> None:
    """Comments are prose."""
    table = parse(
        "CREATE TABLE IF NOT EXISTS x (\n  a INT NOT NULL COMMENT 'the owner''s, (really)',\n  PRIMARY KEY (a)\n)"
    )
    assert list(table.columns) == ["a"]


def test_every_difference_names_its_table_and_its_remedy() -> None:
    """Missing or different, column or index: the text names it, the remedy is a statement about that table."""
    table = declared_tables()["queue_messages"]
    columns = dict(table.columns)
    columns["payload"] = evolve(columns["payload"], type="blob")
    del columns["id"]
    indexes = {"PRIMARY": evolve(table.indexes["PRIMARY"], columns=("topic",))}
    found = compare(table, evolve(table, columns=columns, indexes=indexes, engine="MyISAM"))
    assert [difference.remedy.split()[:5] for difference in found] == [
        ["ALTER", "TABLE", "queue_messages", "ENGINE", "="],
        ["ALTER", "TABLE", "queue_messages", "ADD", "COLUMN"],
        ["ALTER", "TABLE", "queue_messages", "MODIFY", "COLUMN"],
        ["ALTER", "TABLE", "queue_messages", "DROP", "PRIMARY"],
        ["ALTER", "TABLE", "queue_messages", "ADD", "UNIQUE"],
    ]
    assert compare(table, None)[0].text == "table queue_messages is missing"


def test_the_checksum_covers_every_statement() -> None:
    """Any edit of any file changes it."""
    tables = list(declared_tables().values())
    changed = [*tables[:-1], evolve(tables[-1], statement=tables[-1].statement + " ")]
    assert checksum(tables) != checksum(changed)
    assert len(checksum(tables)) == 64


def test_steps_are_numbered_and_only_add_columns_with_defaults() -> None:
    """Code of the version before writes rows without them; none is there twice, and all are declared."""
    assert [step.version for step in STEPS] == list(range(1, VERSION + 1))
    assert all(1 <= step.oldest_code <= step.version for step in STEPS)
    assert len({*added()}) == len(added())
    for table, column in added():
        declared = declared_tables()[table]
        assert declared.columns[column].nullable or declared.columns[column].default is not None
        assert all(column not in index.columns for index in declared.indexes.values())
        assert declared.definitions[column].startswith(f"{column} ")
        assert declared.definitions[column].endswith("'")


def test_an_older_shape_lacks_what_came_later() -> None:
    """An older shape lacks nothing else; the newest shape is what is declared."""
    assert shape(VERSION) == declared_tables()
    lacking = [
        (name, column)
        for name, table in shape(1).items()
        for column in declared_tables()[name].columns
        if column not in table.columns
    ]
    assert sorted(lacking) == sorted(added())
    assert declared_tables().keys() - shape(1).keys() == {table for step in STEPS for table in step.tables}
    assert all(table.indexes == declared_tables()[name].indexes for name, table in shape(1).items())
