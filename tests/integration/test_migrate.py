"""Making the tables and checking them, on a real server."""

import secrets
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from lanelog._database import Database
from lanelog.config import ConnectConfig
from lanelog.devserver import DevServer, _programs, start
from lanelog.devserver._local import OPTIONS
from lanelog.errors import DatabaseError, SchemaError
from lanelog.migrations import VERSION, check, migrate
from lanelog.migrations.declared import checksum, declared_tables
from support.accounts import account
from support.sql import connect

MIGRATE = """
import sys
from lanelog._database import Database
from lanelog.config import ConnectConfig
from lanelog.migrations import migrate

database = Database(ConnectConfig.from_url(sys.argv[1]))
print("ready", flush=True)
sys.stdin.read(1)
migrate(database)
"""


@pytest.fixture
def empty_url(lanelog_server: DevServer) -> Iterator[str]:
    """A database without tables."""
    name = f"lanelog_test_{secrets.token_hex(6)}"
    yield lanelog_server.create_database(name)
    lanelog_server.drop_database(name)


@pytest.fixture
def empty(empty_url: str) -> Iterator[Database]:
    """The same, opened."""
    database = Database(ConnectConfig.from_url(empty_url))
    yield database
    database.close()


def run(database: Database, *statements: str) -> list[tuple[Any, ...]]:
    rows = []
    with database.autocommit() as cx:
        for statement in statements:
            rows = cx.query(statement)
    return rows


def test_migrate_makes_every_declared_table(empty: Database) -> None:
    """An empty database has all tables afterwards, of the declared version."""
    with pytest.raises(SchemaError):
        check(empty)
    migrate(empty)
    check(empty)
    recorded = run(empty, "SELECT version, checksum FROM queue_schema")
    assert recorded == [(VERSION, checksum(declared_tables().values()))]


def test_migrate_again_changes_nothing(empty: Database) -> None:
    """It is idempotent: rows stay, and the version is recorded once."""
    migrate(empty)
    run(empty, "INSERT INTO queue_partitions (topic, partition_key, head_offset) VALUES ('t', 'k', 7)")
    before = run(empty, "SELECT * FROM queue_schema")
    migrate(empty)
    assert run(empty, "SELECT head_offset FROM queue_partitions") == [(7,)]
    assert run(empty, "SELECT * FROM queue_schema") == before


def test_an_interrupted_migration_is_finished(empty: Database) -> None:
    """DDL commits statement by statement: what is missing is made, what is there is kept."""
    migrate(empty)
    run(empty, "DROP TABLE queue_offsets", "DELETE FROM queue_schema")
    migrate(empty)
    check(empty)


@pytest.mark.thorough
def test_twenty_processes_migrate_at_once(empty: Database, empty_url: str) -> None:
    """Deploying a service with many workers makes the tables once, and nobody fails."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", MIGRATE, empty_url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(20)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("!")
        process.stdin.flush()
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    check(empty)
    assert run(empty, "SELECT COUNT(*) FROM queue_schema") == [(1,)]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("DROP TABLE queue_groups", "table queue_groups is missing. To mend it, run `lanelog migrate`"),
        (
            "ALTER TABLE queue_messages MODIFY payload BLOB NOT NULL",
            (
                "column queue_messages.payload is BLOB NOT NULL, not LONGBLOB NOT NULL. "
                "To mend it, run ALTER TABLE queue_messages MODIFY COLUMN `payload` LONGBLOB NOT NULL"
            ),
        ),
        (
            "ALTER TABLE queue_offsets DROP COLUMN paused_at",
            (
                "column queue_offsets.paused_at is missing. "
                "To mend it, run ALTER TABLE queue_offsets ADD COLUMN `paused_at` BIGINT UNSIGNED NOT NULL DEFAULT '0'"
            ),
        ),
        (
            "ALTER TABLE queue_messages DROP KEY by_id",
            (
                "index queue_messages.by_id is missing. "
                "To mend it, run ALTER TABLE queue_messages ADD UNIQUE KEY by_id (`topic`, `partition_key`, `id`)"
            ),
        ),
        (
            "ALTER TABLE queue_partitions DROP PRIMARY KEY, ADD PRIMARY KEY (partition_key, topic)",
            "ALTER TABLE queue_partitions DROP PRIMARY KEY, ADD PRIMARY KEY (`topic`, `partition_key`)",
        ),
        (
            (
                "ALTER TABLE queue_partitions MODIFY topic "
                "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL"
            ),
            "MODIFY COLUMN `topic` VARCHAR(255) COLLATE utf8mb4_bin NOT NULL",
        ),
        ("ALTER TABLE queue_schema ENGINE = MyISAM", "ALTER TABLE queue_schema ENGINE = InnoDB"),
        ("DELETE FROM queue_schema", "version 1 is not recorded in queue_schema"),
    ],
)
def test_a_difference_is_named_with_what_mends_it(empty: Database, change: str, says: str) -> None:
    """The error is enough to repair the database by: it quotes the statement, which then works."""
    migrate(empty)
    run(empty, change)
    with pytest.raises(SchemaError) as caught:
        check(empty)
    assert says in str(caught.value)
    remedy = str(caught.value).partition("To mend it, run ")[2]
    if remedy.startswith("ALTER"):
        with pytest.raises(SchemaError):  # it does not alter tables that may be large by itself
            migrate(empty)
        run(empty, remedy)
    else:
        migrate(empty)
    check(empty)


def test_only_the_first_differences_are_shown(empty: Database) -> None:
    """A database without tables is one short sentence, not a page."""
    with pytest.raises(SchemaError, match="and 6 more"):
        check(empty)


def test_additions_of_the_owner_are_tolerated(empty: Database) -> None:
    """A further index or column, and another comment, are no difference."""
    migrate(empty)
    run(
        empty,
        "ALTER TABLE queue_messages ADD COLUMN note VARCHAR(10) NULL, ADD KEY mine (created_at)",
        "ALTER TABLE queue_messages MODIFY failed_at BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'x'",
    )
    check(empty)


def test_a_newer_schema_is_refused(empty: Database) -> None:
    """An old library on new tables says that it must be upgraded, and changes nothing."""
    migrate(empty)
    run(empty, "INSERT INTO queue_schema (version, checksum) VALUES (2, 'x')")
    for call in (check, migrate):
        with pytest.raises(SchemaError, match=r"version 2.*upgrade lanelog"):
            call(empty)


def test_a_user_without_rights_reads_what_to_grant(empty: Database, empty_url: str) -> None:
    """Missing privileges are an error that is not retried, and names the remedy."""
    with connect(empty_url) as root, account(root, empty_url, {"*": "SELECT"}) as url:
        poor = Database(ConnectConfig.from_url(url))
        with pytest.raises(DatabaseError, match="grant") as caught:
            migrate(poor)
        assert (caught.value.code, caught.value.retriable) == (1142, False)
        poor.close()


@pytest.mark.parametrize(("view", "of"), [("columns", "column"), ("statistics", "index")])
def test_columns_and_indexes_are_commented(empty: Database, view: str, of: str) -> None:
    """Whoever looks at a table reads what each column means and which query each index serves."""
    migrate(empty)
    bare = f"SELECT table_name, {of}_name FROM information_schema.{view} WHERE table_schema = DATABASE()"
    assert run(empty, f"{bare} AND {of}_comment = ''") == []
    assert len(run(empty, bare)) > 20


@pytest.mark.local_server
@pytest.mark.thorough
def test_a_server_with_small_pages_is_explained(local_kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys are too short for the tables: the error names the server's page size and the one that is needed."""
    small = ("--innodb-page-size=8k",)
    for name in ("MARIADB_INSTALL", "MYSQL_INSTALL"):
        monkeypatch.setattr(_programs, name, getattr(_programs, name) + small)
    for family, options in OPTIONS.items():
        monkeypatch.setitem(OPTIONS, family, options + small)
    with start(local_kind) as server:
        database = Database(ConnectConfig.from_url(server.url))
        with pytest.raises(SchemaError, match=r"innodb_page_size is 8192.* need pages of at least 16384"):
            migrate(database)
        database.close()
