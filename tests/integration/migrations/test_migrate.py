"""Making the tables, upgrading and checking them, on a real server."""

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy.pool import NullPool

import lanelog
from lanelog._database import Database
from lanelog.config import ConnectConfig
from lanelog.devserver import DevServer, _programs, start
from lanelog.devserver._local import OPTIONS
from lanelog.errors import ConfigurationError, DatabaseError, SchemaError
from lanelog.migrations import VERSION, check, migrate, script
from lanelog.migrations.catalogue import add_column
from lanelog.migrations.declared import checksum, declared_tables
from lanelog.migrations.steps import STEPS, added
from support.accounts import account
from support.old_tables import set_back
from support.readme import Example, example
from support.sql import connect
from support.waiting import Record, events, eventually

MIGRATE = """
import sys
import lanelog
from lanelog._database import Database
from lanelog.config import ConnectConfig
from lanelog.migrations import migrate

database = Database(ConnectConfig.from_url(sys.argv[1], liveness=sys.argv[2]))
print("ready", flush=True)
sys.stdin.read(1)
migrate(database)
"""


@pytest.fixture
def empty(empty_url: str) -> Iterator[Database]:
    """A database without tables, opened."""
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
    recorded = run(empty, "SELECT version, checksum, oldest_code FROM queue_schema ORDER BY version")
    declared = checksum(declared_tables().values())
    assert recorded == [(step.version, declared, step.oldest_code) for step in STEPS]


def test_migrate_again_changes_nothing(empty: Database) -> None:
    """A migration is idempotent: rows stay, and the version is recorded once."""
    assert migrate(empty)[-1] == f"recorded version {VERSION}"
    run(empty, "INSERT INTO queue_partitions (topic, partition_key, head_offset) VALUES ('t', 'k', 7)")
    before = run(empty, "SELECT * FROM queue_schema")
    assert migrate(empty) == []
    assert run(empty, "SELECT head_offset FROM queue_partitions") == [(7,)]
    assert run(empty, "SELECT * FROM queue_schema") == before


@pytest.mark.parametrize("applied", range(VERSION + 1))
def test_the_script_leaves_nothing_to_migrate(empty: Database, empty_url: str, applied: int) -> None:
    """Another tool runs the statements of `lanelog migrate --sql`, from any version: the tables are as if migrated."""
    if applied:
        migrate(empty)
        with connect(empty_url) as raw:
            set_back(raw, applied)
    run(empty, *(statement.text for statement in map(sqlalchemy.text, script(applied))))
    check(empty)
    assert migrate(empty) == []
    recorded = run(empty, "SELECT version, oldest_code FROM queue_schema ORDER BY version")
    assert recorded == [(step.version, step.oldest_code) for step in STEPS]


@pytest.mark.parametrize("wrong", [-1, VERSION + 1, "5", True])
def test_a_script_from_an_unknown_version_is_refused(wrong: Any) -> None:
    """A newer library made those tables, or nobody did."""
    with pytest.raises(ConfigurationError, match=f"must be 0 \\(none\\) to {VERSION}, not"):
        script(wrong)


def test_alembic_makes_the_tables_and_leaves_them_alone(empty: Database, empty_url: str) -> None:
    """By the page's revision and its `include_object`. Without that, autogenerate would drop every table of lanelog."""
    engine = sqlalchemy.create_engine("mysql+pymysql://", creator=lambda: connect(empty_url), poolclass=NullPool)
    revision: dict[str, Any] = {}
    exec(example(Example.ALEMBIC_REVISION).text, revision)  # noqa: S102 - the page's example
    options: dict[str, Any] = {}
    env = {"context": SimpleNamespace(configure=lambda **given: options.update(given)), "connection": 0, "metadata": 0}
    exec(example(Example.ALEMBIC_ENV).text, env)  # noqa: S102 - the page's example
    with engine.connect() as connection:
        with Operations.context(MigrationContext.configure(connection)):
            revision["upgrade"]()
        check(empty)
        run(empty, "CREATE TABLE orders (id INT PRIMARY KEY)")
        for excluded, tables in ((True, {"orders"}), (False, {"orders", *declared_tables()})):
            opts = {"include_object": options["include_object"]} if excluded else {}
            found = compare_metadata(MigrationContext.configure(connection, opts=opts), sqlalchemy.MetaData())
            assert {each[1].name for each in found if each[0] == "remove_table"} == tables
            assert excluded is all(each[0] == "remove_table" for each in found)


def test_an_interrupted_migration_is_finished(empty: Database) -> None:
    """DDL commits statement by statement: what is missing is made, what is there is kept."""
    migrate(empty)
    run(empty, "DROP TABLE queue_offsets", "DELETE FROM queue_schema")
    migrate(empty)
    check(empty)


@pytest.mark.thorough
@pytest.mark.parametrize("liveness", ["lock", "lease"])
@pytest.mark.parametrize("tables", ["none", "of version 1"])
def test_twenty_processes_migrate_at_once(empty: Database, empty_url: str, tables: str, liveness: str) -> None:
    """Deploying a service with many workers makes the tables, or adds to them, once; nobody fails.

    With `liveness="lease"` no lock of the server keeps them apart.
    """
    if tables == "of version 1":
        migrate(empty)
        with connect(empty_url) as raw:
            set_back(raw)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", MIGRATE, empty_url, liveness],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(20)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("!")
        process.stdin.flush()
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    check(empty)
    assert run(empty, "SELECT COUNT(*) FROM queue_schema") == [(VERSION,)]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("DROP TABLE queue_groups", "table queue_groups is missing. To repair it, run `lanelog migrate`"),
        (
            "ALTER TABLE queue_messages MODIFY payload BLOB NOT NULL",
            (
                "column queue_messages.payload is BLOB NOT NULL, not LONGBLOB NOT NULL. "
                "To repair it, run ALTER TABLE queue_messages MODIFY COLUMN `payload` LONGBLOB NOT NULL"
            ),
        ),
        (
            "ALTER TABLE queue_offsets DROP COLUMN paused_at",
            (
                "column queue_offsets.paused_at is missing. "
                "To repair it, run "
                "ALTER TABLE queue_offsets ADD COLUMN `paused_at` BIGINT UNSIGNED NOT NULL DEFAULT '0'"
            ),
        ),
        (
            "ALTER TABLE queue_messages DROP KEY by_id",
            (
                "index queue_messages.by_id is missing. "
                "To repair it, run ALTER TABLE queue_messages ADD UNIQUE KEY by_id (`topic`, `partition_key`, `id`)"
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
        ("DELETE FROM queue_schema", f"version {VERSION} is not recorded in queue_schema"),
    ],
)
def test_a_difference_is_named_with_what_repairs_it(empty: Database, change: str, says: str) -> None:
    """The error is enough to repair the database by: it quotes the statement, which then works."""
    migrate(empty)
    run(empty, change)
    with pytest.raises(SchemaError) as caught:
        check(empty)
    assert says in str(caught.value)
    remedy = str(caught.value).partition("To repair it, run ")[2]
    if remedy.startswith("ALTER"):
        with pytest.raises(SchemaError):  # it does not alter tables that may be large by itself
            migrate(empty)
        run(empty, remedy)
    else:
        migrate(empty)
    check(empty)


def test_only_the_first_differences_are_shown(empty: Database) -> None:
    """A database without tables is one short sentence, not a page."""
    with pytest.raises(SchemaError, match="and 7 more"):
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


NEWER = f"INSERT INTO queue_schema (version, checksum, oldest_code) VALUES ({VERSION + 1}, 'x', {{}})"


def in_block(client: lanelog.Client) -> None:
    with client.transaction() as connection:
        client.publish("t", "k", b"1", connection=connection)


@pytest.mark.parametrize(
    "begin",
    [
        lambda client: client.ping(),
        lambda client: client.migrate(),
        lambda client: client.publish("t", "k", b"1"),
        lambda client: client.publish_many("t", [("k", b"1")]),
        in_block,
        lambda client: client.subscribe("t", "g", Record()),
        lambda client: next(client.deliveries("t", "g", timeout=1.0)),
        lambda client: client.admin.topics(),
        lambda client: client.schedule("s", "* * * * *", "t", "k", b"1"),
    ],
    ids=["ping", "migrate", "publish", "publish_many", "transaction", "subscribe", "deliveries", "admin", "schedule"],
)
def test_newer_tables_that_do_not_admit_this_library_are_refused(
    empty: Database, empty_url: str, begin: Callable[[lanelog.Client], object]
) -> None:
    """However a process begins, its error names the tables and asks for an upgrade, and changes nothing."""
    migrate(empty)
    run(empty, NEWER.format(VERSION + 1), "DROP TABLE queue_history")
    said = rf"version {VERSION + 1}, which needs.*upgrade lanelog"
    with lanelog.connect(empty_url) as client, pytest.raises(SchemaError, match=said):
        begin(client)
    assert run(empty, "SELECT * FROM queue_partitions") == []
    assert run(empty, "SHOW TABLES LIKE 'queue_history'") == []


def test_newer_tables_that_admit_this_library_are_worked_on(empty: Database, empty_url: str) -> None:
    """A version neither reads nor writes the next one's additions, and makes nothing of an older shape."""
    migrate(empty)
    run(empty, NEWER.format(VERSION), "ALTER TABLE queue_offsets ADD COLUMN later INT NOT NULL DEFAULT 7")
    assert check(Database(empty.config)) == VERSION + 1
    assert migrate(empty) == []
    seen = Record()
    with lanelog.connect(empty_url) as client:
        client.publish("t", "k", b"1")
        client.subscribe("t", "g", seen)
        seen.wait(1)
    run(empty, "DROP TABLE queue_history")
    with pytest.raises(SchemaError, match="queue_history is missing"):
        migrate(empty)
    assert run(empty, "SHOW TABLES LIKE 'queue_history'") == []


@pytest.fixture
def old(empty: Database, empty_url: str) -> Database:
    """Tables of version 1 with something in them, for a process that has not looked at them yet."""
    migrate(empty)
    with connect(empty_url) as raw:
        set_back(raw)
    insert = "INSERT INTO queue_subscriber_heartbeats (consumer_group, topic, subscriber_name) VALUES ('g', 't', 'o')"
    run(empty, insert, "UPDATE queue_schema SET checksum = 'of old', applied_at = 5")
    empty.tables_version = 0
    return empty


def test_older_tables_are_worked_on_with_one_warning(
    old: Database, empty_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that finds tables of version 1 says once what to run, publishes and subscribes, and adds nothing."""
    before = run(old, "SELECT * FROM queue_schema")
    seen = Record()
    with lanelog.connect(empty_url) as client:
        client.ping()
        client.publish("t", "k", b"1")
        for group in ("g", "h"):
            client.subscribe("t", group, seen)
        seen.wait(2)
        client.ping()
        assert client._database.tables_version == 1
    (said,) = events(caplog, "tables.older", logging.WARNING)
    assert "lanelog migrate" in said
    assert run(old, "SELECT * FROM queue_schema") == before


def test_older_tables_that_differ_from_their_own_version_are_refused(old: Database) -> None:
    """Only the additions of later versions may be missing."""
    run(old, "ALTER TABLE queue_subscriber_heartbeats DROP COLUMN liveness_lock")
    with pytest.raises(SchemaError, match=r"liveness_lock is missing. To repair it, run ALTER TABLE") as caught:
        check(old)
    assert "incarnation" not in str(caught.value)


def test_migrate_adds_what_later_versions_brought(old: Database) -> None:
    """Columns with defaults, to rows that stay; when the tables were born stays, too. It says what it did."""
    assert check(old) == 1
    assert migrate(old) == [
        "created table queue_audit",
        "added column queue_schema.oldest_code",
        "added column queue_subscriber_heartbeats.incarnation",
        "added column queue_partitions.open_lanes",
        "added column queue_groups.dead_letter_topic",
        "added column queue_subscriber_heartbeats.wake_host",
        "added column queue_subscriber_heartbeats.wake_address",
        "added column queue_subscriber_heartbeats.wake_token",
        "added column queue_schedules.next_local",
        "added column queue_schedules.fired_local",
        "added column queue_schedules.fired_again",
        "added column queue_schedules.tzdata",
        "added column queue_subscriber_heartbeats.workload",
        f"recorded version {VERSION}, after 1",
    ]
    assert (check(old), old.tables_version) == (VERSION, VERSION)
    assert run(old, "SELECT subscriber_name, incarnation FROM queue_subscriber_heartbeats") == [("o", "")]
    first, *others = run(old, "SELECT version, checksum, applied_at, oldest_code FROM queue_schema ORDER BY version")
    assert first == (1, "of old", 5, 1)
    declared = checksum(declared_tables().values())
    assert [(version, found, oldest) for version, found, _, oldest in others] == [
        (step.version, declared, step.oldest_code) for step in STEPS[1:]
    ]
    assert all(applied_at > first[2] for _, _, applied_at, _ in others)


@pytest.mark.parametrize("done", range(1, len(added()) + 1))
def test_an_interrupted_upgrade_is_finished(old: Database, done: int) -> None:
    """One that died after some of its statements leaves tables of version 1 that work; the next call does the rest."""
    for table, column in added()[:done]:
        run(old, f"ALTER TABLE {table} ADD COLUMN {declared_tables()[table].definitions[column]}")
    assert check(old) == 1
    assert len(migrate(old)) == len(added()) - done + 2  # with the table, and the version
    assert check(old) == VERSION


def test_a_column_that_came_meanwhile_is_no_error(old: Database) -> None:
    """A statement goes on at the server after its client died: the next one finds done what it had seen missing."""
    definition = declared_tables()["queue_subscriber_heartbeats"].definitions["incarnation"]
    with old.autocommit() as cx:
        assert add_column(cx, "queue_subscriber_heartbeats", definition)
        assert not add_column(cx, "queue_subscriber_heartbeats", definition)


def test_an_added_column_that_was_lost_is_added_again(empty: Database) -> None:
    """A table of version 1 that was restored beside newer ones: `lanelog migrate` is the remedy, and works."""
    migrate(empty)
    run(empty, "ALTER TABLE queue_subscriber_heartbeats DROP COLUMN incarnation")
    with pytest.raises(SchemaError, match=r"incarnation is missing. To repair it, run `lanelog migrate`"):
        check(empty)
    assert migrate(empty) == ["added column queue_subscriber_heartbeats.incarnation"]
    check(empty)


@pytest.mark.thorough
def test_a_server_that_forces_another_engine_is_named_by_its_setting(private_server: DevServer) -> None:
    """MariaDB names the mode by which it refuses InnoDB. The error names the setting, and is not retried."""
    private_server.create_database("lanelog_test_engine")
    database = Database(ConnectConfig.from_url(private_server.root_url("lanelog_test_engine")))
    if database.facts().mariadb:  # MySQL has no such setting
        run(database, "SET GLOBAL enforce_storage_engine = 'MyISAM'")
        other = Database(database.config)
        with pytest.raises(ConfigurationError, match="the server's enforce_storage_engine refuses InnoDB"):
            migrate(other)
        other.close()
        run(database, "SET GLOBAL enforce_storage_engine = NULL")
    assert migrate(database)
    database.close()


@pytest.mark.thorough
def test_a_server_that_would_rebuild_a_table_is_not_asked_to(private_server: DevServer) -> None:
    """By a setting, or after very many additions to it: the error has the statement, which the operator runs."""
    with connect(private_server.create_database("lanelog_test_rebuild")) as raw:
        database = Database(ConnectConfig.from_url(private_server.root_url("lanelog_test_rebuild")))
        migrate(database)
        set_back(raw)
        if database.facts().mariadb:
            run(database, "SET GLOBAL innodb_instant_alter_column_allowed = 'never'")
        else:
            with pytest.raises(DatabaseError) as refused:
                for n in range(300):
                    run(database, f"ALTER TABLE queue_schema ADD COLUMN c{n} INT, ALGORITHM=INSTANT")
            assert refused.value.code == 4092
        with pytest.raises(SchemaError, match="run ALTER TABLE queue_schema ADD COLUMN oldest_code") as caught:
            migrate(database)
        assert check(database) == 1
        run(database, str(caught.value).partition(": run ")[2].partition(", during which")[0])
        database.close()


@pytest.mark.thorough
def test_an_upgrade_lets_heartbeats_pass_while_it_waits(old: Database, empty_url: str) -> None:
    """A transaction that holds the table delays it: meanwhile it gives up again and again, and others get through."""
    beat = "UPDATE queue_subscriber_heartbeats SET heartbeat_at = heartbeat_at + 1"
    waiting = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'ALTER%%'"
    with connect(empty_url, autocommit=False) as holder, connect(empty_url, read_timeout=6) as other:
        holder.cursor().execute("SELECT * FROM queue_subscriber_heartbeats")
        thread = threading.Thread(target=migrate, args=(old,))
        thread.start()
        eventually(lambda: run(old, waiting) == [(1,)])
        assert other.cursor().execute(beat) == 1  # after at most three seconds
        holder.rollback()
        thread.join()
    assert check(old) == VERSION


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
    """Each table says what each column means and which query each index serves."""
    migrate(empty)
    bare = f"SELECT table_name, {of}_name FROM information_schema.{view} WHERE table_schema = DATABASE()"
    assert run(empty, f"{bare} AND {of}_comment = ''") == []
    assert len(run(empty, bare)) > 20


@pytest.mark.local_server
@pytest.mark.thorough
def test_a_server_with_small_pages_is_explained(local_kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's keys are too short for the tables: the error names its page size and the one that is needed."""
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
