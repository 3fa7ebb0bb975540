"""The README's grants, for a user of each role on a real server: enough for its work, and for nothing else."""

import logging
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pymysql
import pytest

import lanelog
from lanelog._hints.host import own_host
from lanelog.dashboard.changes.actions import ACTIONS, Doer
from lanelog.devserver import DevServer
from lanelog.migrations.steps import added
from support.accounts import as_user
from support.cli import TABLES
from support.old_tables import set_back
from support.pace import paced
from support.readme import sql
from support.sql import connect, one, rows
from support.turns import collecting_turns
from support.waiting import Record, accept, events, eventually

ROLES = ("owner", "reader", "publisher", "consumer", "janitor", "dashboard", "admin")
DENIED = (1044, 1045, 1142, 1227, 1419)  # on a database, a file, a table, for the whole server, a trigger

EVERY = " ".join(table.removeprefix("queue_") for table in TABLES)
OF_A_LANE = "offsets delivery_state partition_leases"
OF_A_MEMBER = f"{OF_A_LANE} subscriber_heartbeats"


def may(**tables: str) -> set[tuple[str, str]]:
    """Each verb and the tables that it may change."""
    return {(verb, f"queue_{table}") for verb, names in tables.items() for table in names.split()}


# What each role may do to rows besides reading them; every statement that is not here must be refused.
MAY = {
    "reader": may(),
    "owner": may(INSERT=EVERY, UPDATE="schema"),
    "publisher": may(
        INSERT="partitions messages offsets scheduled schedules audit",
        UPDATE="partitions schedules",
        DELETE="scheduled",
    ),
    "consumer": may(
        INSERT=f"{OF_A_MEMBER} partitions messages groups history scheduled schedules audit",
        UPDATE=f"{OF_A_MEMBER} partitions groups history schedules",
        DELETE=f"{OF_A_MEMBER} scheduled",
    ),
    "dashboard": may(
        INSERT=f"{OF_A_LANE} partitions messages history audit",
        UPDATE=f"{OF_A_LANE} partitions groups history schedules",
        DELETE=f"{OF_A_LANE} messages subscriber_heartbeats groups schedules",
    ),
}
MAY["janitor"] = MAY["consumer"] | may(DELETE="messages partitions history")
MAY["admin"] = MAY["janitor"] | may(DELETE="groups schedules audit")

STATEMENTS = {
    "INSERT": "INSERT INTO {table} SELECT * FROM {table} WHERE 1 = 0",
    "UPDATE": "UPDATE {table} SET {column} = {column} WHERE 1 = 0",
    "DELETE": "DELETE FROM {table} WHERE 1 = 0",
}
COLUMN = {
    "queue_messages": "payload",
    "queue_schema": "checksum",
    "queue_groups": "retention_ms",
    "queue_history": "id",
    "queue_schedules": "fired",
    "queue_audit": "reason",
}
# Nobody but the owner changes tables, and nobody at all what is not a row or a table of lanelog.
TABLE_STATEMENTS = {
    "DROP TABLE queue_delivery_state",
    "TRUNCATE TABLE queue_delivery_state",
    "ALTER TABLE queue_delivery_state COMMENT = 'x'",
    "CREATE TABLE mine (n INT)",
    "CREATE INDEX mine ON queue_groups (created_at)",
}
NOBODYS_STATEMENTS = {
    "CREATE TRIGGER mine AFTER INSERT ON queue_messages FOR EACH ROW SET @x = 1",
    "CREATE PROCEDURE mine() SELECT 1",
    "CREATE VIEW mine AS SELECT 1",
    "CREATE EVENT mine ON SCHEDULE EVERY 1 DAY DO SELECT 1",
    "LOCK TABLES queue_messages WRITE",
    "GRANT SELECT ON {database}.* TO CURRENT_USER",
    "CREATE USER 'mine'@'%'",
    "CREATE DATABASE mine_too",
    "SELECT * FROM mysql.user",
    "SELECT '' INTO OUTFILE '/tmp/mine'",
    "SET GLOBAL max_connections = 1",
    "FLUSH TABLES",
}


@pytest.fixture(scope="module")
def role_server(lanelog_server: DevServer) -> Iterator[dict[str, str]]:
    """A database with the tables that its owner made, and the URL of a user for each role with the README's grants."""
    mark = secrets.token_hex(4)
    database, password = f"roles_{mark}", secrets.token_hex(12)
    url = lanelog_server.create_database(database)
    users = {role: f"{role}_{mark}" for role in ROLES}
    with connect(lanelog_server.url) as root:
        for user in users.values():
            rows(root, f"CREATE USER '{user}'@'%%' IDENTIFIED BY %s", password)
        # Grants on single tables need the tables, which the owner makes: his come first.
        statements = [line.rstrip(";") for line in sql("GRANT").splitlines() if line.startswith("GRANT")]
        for role in ROLES:
            if role == "reader":
                with lanelog.connect(as_user(url, users["owner"], password)) as owner:
                    owner.migrate()
            for line in statements:
                if f"'{role}'@" in line:
                    rows(root, line.replace(" jobs.", f" `{database}`.").replace(f"'{role}'@", f"'{users[role]}'@"))
        yield {role: as_user(url, user, password) for role, user in users.items()}
        for user in users.values():
            rows(root, f"DROP USER '{user}'@'%'")
    lanelog_server.drop_database(database)


@pytest.fixture
def role_urls(role_server: dict[str, str], lanelog_server: DevServer) -> dict[str, str]:
    """The same, with empty tables."""
    with connect(lanelog_server.root_url(urlsplit(role_server["owner"]).path[1:])) as root:
        for table in {*TABLES} - {"queue_schema"}:
            rows(root, f"DELETE FROM {table}")
    return role_server


def refused(connection: Any, statement: str) -> bool:
    """Whether the server denies a statement to the user of a connection."""
    try:
        rows(connection, statement.replace("{database}", connection.db.decode()))
    except pymysql.err.MySQLError as exc:
        if exc.args[0] not in DENIED:
            raise
        return True
    return False


def count(url: str, table: str, topic: str) -> int:
    """How many rows of lanes of a topic there are."""
    with connect(url) as connection:
        found = one(connection, f"SELECT COUNT(*) FROM {table} WHERE topic = %s AND partition_key <> ''", topic)
        return int(found)


# -- what each may do --------------------------------------------------------------------------------------------------


def test_every_role_of_the_readme_is_tested() -> None:
    """Each role that is granted something in the README has a line in this test."""
    granted = {line.split("'")[1] for line in sql("GRANT").splitlines() if line.startswith("GRANT")}
    assert granted == {*ROLES} == {*MAY}


@pytest.mark.parametrize("role", ROLES)
def test_each_may_change_its_rows_and_no_others(role: str, role_urls: dict[str, str]) -> None:
    """Every way to change every table, and to change what is no row: allowed if listed, else denied."""
    with connect(role_urls[role]) as connection:
        allowed = {
            (verb, table)
            for verb, table in may(INSERT=EVERY, UPDATE=EVERY, DELETE=EVERY)
            if not refused(connection, STATEMENTS[verb].format(table=table, column=COLUMN.get(table, "topic")))
        }
        assert allowed == MAY[role]
        assert [text for text in NOBODYS_STATEMENTS if not refused(connection, text)] == []
        if role != "owner":
            assert [text for text in TABLE_STATEMENTS if not refused(connection, text)] == []
        assert not refused(connection, sql("AS behind"))


@pytest.mark.parametrize("role", ROLES)
def test_nobody_changes_a_message(role: str, role_urls: dict[str, str]) -> None:
    """The log is immutable for every role, column by column and by way of an upsert."""
    with connect(role_urls[role]) as connection:
        for column in ("payload", "metadata", "topic", "`offset`", "id", "failed_group", "target_group"):
            assert refused(connection, f"UPDATE queue_messages SET {column} = {column}")
        row = "(topic, partition_key, `offset`, id, payload, payload_bytes) VALUES ('t', 'k', 1, 'i', '', 0)"
        assert refused(connection, f"INSERT INTO queue_messages {row} ON DUPLICATE KEY UPDATE payload = ''")
        may_delete = ("DELETE", "queue_messages") in MAY[role]
        assert refused(connection, "REPLACE INTO queue_messages SELECT * FROM queue_messages") is not may_delete


# -- and does ----------------------------------------------------------------------------------------------------------


def test_the_owner_migrates_again(role_urls: dict[str, str]) -> None:
    """His grants are enough when there is nothing to do, too."""
    with lanelog.connect(role_urls["owner"]) as client:
        client.migrate()
        client.ping()


def test_the_owner_upgrades_and_the_others_work_before_and_after(
    role_urls: dict[str, str], lanelog_server: DevServer
) -> None:
    """His grants are enough for that, and nobody else's; theirs stay enough for what is new."""
    with connect(lanelog_server.root_url(urlsplit(role_urls["owner"]).path[1:])) as root:
        set_back(root)
    with lanelog.connect(role_urls["owner"]) as owner:
        try:
            for version in (1, 2):
                with (
                    lanelog.connect(role_urls["publisher"]) as publisher,
                    lanelog.connect(role_urls["consumer"]) as consumer,
                ):
                    publisher.publish("merge", "repo-1", b"good")
                    seen = Record()
                    consumer.subscribe("merge", f"builders-{version}", handle_some(consumer, seen))
                    seen.wait(version)
                    if version == 1:
                        with pytest.raises(lanelog.DatabaseError, match=r"CREATE.*queue_audit"):
                            consumer.migrate()
                        assert len(owner.migrate()) == len(added()) + 2  # with a table, and the version
                    assert consumer.migrate() == []
        finally:
            owner.migrate()


def test_the_publisher_publishes_and_no_more(role_urls: dict[str, str]) -> None:
    """Every way to publish works with its grants, into lanes old and new; it cannot consume."""
    with lanelog.connect(role_urls["publisher"]) as client:
        client.ping()
        assert client.publish("merge", "repo-1", b"a", id="x").offset == 1
        assert client.publish("merge", "repo-1", b"a", id="x").duplicate
        client.publish_many("merge", [("repo-1", b"b"), ("repo-2", b"c")])
        with client.transaction() as connection:
            assert client.publish("merge", "repo-1", b"a", id="x", connection=connection).duplicate
            assert client.publish("merge", "repo-3", b"d", connection=connection).offset == 1
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: client.publish("merge", "repo-1", b"e", id=f"group {n}"), range(8)))
        with pytest.raises(lanelog.DatabaseError, match="queue_groups") as caught:
            client.subscribe("merge", "builders", accept)
        assert not caught.value.retriable
    assert count(role_urls["reader"], "queue_messages", "merge") == 12


@pytest.mark.skipif(not own_host(), reason="hints need Linux")
def test_the_publisher_may_notify_subscribers(role_urls: dict[str, str]) -> None:
    """The publisher's grants are enough to read the addresses at which subscribers listen."""
    with lanelog.connect(role_urls["consumer"]) as consumer, lanelog.connect(role_urls["publisher"]) as publisher:
        subscription = consumer.subscribe("merge", "builders", accept)

        def told() -> bool:
            publisher.publish("merge", "repo-1", b"x")
            return subscription.stats().hints > 0

        eventually(told)


def handle_some(client: lanelog.Client, record: Record) -> Callable[[lanelog.Message], None]:
    """A handler that ends in every way there is, by what the payload says."""

    def handle(message: lanelog.Message) -> None:
        if message.payload == b"bad":
            raise lanelog.Reject("bad")
        if message.payload == b"weak" and message.attempt == 1:
            raise lanelog.Retry(delay=0)
        if message.payload == b"late" and not record.items.count("late"):
            record("late")
            raise lanelog.Postpone(0.05)
        with message.transaction() as connection:
            client.publish("notify", message.key, b"done", connection=connection)
        record(message.payload)

    return handle


WORK = [(f"repo-{n}", payload) for n in range(3) for payload in (b"good", b"bad", b"weak", b"late", b"good")]


@pytest.mark.thorough
def test_the_consumer_consumes_and_deletes_nothing(
    role_urls: dict[str, str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handling, failing, postponing, dead letters, transactions and publishing work without the right to delete.

    The client says once that it does not collect, and goes on.
    """
    turns = collecting_turns(monkeypatch)
    with lanelog.connect(role_urls["publisher"]) as client:
        client.publish_many("merge", WORK)
    record = Record()
    with lanelog.connect(role_urls["consumer"], lane_idle_purge=0) as client:
        paced(client, janitor={"turn_seconds": 0.05}).ping()
        with client.subscribe("merge", "builders", handle_some(client, record), retention=0) as subscription:
            eventually(lambda: count(role_urls["reader"], "queue_messages", "notify") == 12)
            eventually(lambda: count(role_urls["reader"], "queue_messages", "merge_dlq") == 3)
            eventually(lambda: events(caplog, "deletion.denied", logging.WARNING))
            # More turns than a faulty subscription lives for, with more to collect.
            client.publish("merge", "repo-1", b"more")
            eventually(lambda: record.items.count(b"more") == 1)
            turns.wait(len(turns) + 10)
            assert subscription.state == "running"
            assert len(events(caplog, "deletion.denied")) == 1
        with client.deliveries("merge_dlq", "alerts", timeout=20.0) as deliveries:
            for _ in range(3):
                next(deliveries).ack()
    assert count(role_urls["reader"], "queue_messages", "merge") == len(WORK) + 1
    assert not events(caplog, "membership.faulty")


@pytest.mark.thorough
def test_one_janitor_collects_for_a_group_that_may_not(role_urls: dict[str, str]) -> None:
    """A member with the grants deletes what the consumer's group has acked, too; then the drained lanes go."""
    with lanelog.connect(role_urls["publisher"]) as client:
        client.publish_many("merge", WORK)
    reader = role_urls["reader"]
    with (
        lanelog.connect(role_urls["consumer"], lane_idle_purge=0) as consumer,
        lanelog.connect(role_urls["janitor"], lane_idle_purge=0) as tidy,
        consumer.subscribe("merge", "builders", handle_some(consumer, Record()), retention=0) as builders,
        tidy.subscribe("merge", "tidy", handle_some(tidy, Record()), retention=0),
    ):
        tidy.ping()
        eventually(lambda: count(reader, "queue_messages", "notify") == 24, within=30)
        eventually(lambda: count(reader, "queue_messages", "merge_dlq") == 6, within=30)
        eventually(lambda: count(reader, "queue_messages", "merge") == 0, what="collected", within=30)
        eventually(lambda: count(reader, "queue_partitions", "merge") == 0, what="purged", within=30)
        assert builders.state == "running"


def test_the_reader_reads_and_no_more(role_urls: dict[str, str]) -> None:
    """The reader may read everything, and neither publish nor subscribe."""
    with lanelog.connect(role_urls["reader"]) as client:
        client.ping()
        client.migrate()  # nothing to do
        for attempt in (lambda: client.publish("merge", "a", b""), lambda: client.subscribe("merge", "g", accept)):
            with pytest.raises(lanelog.DatabaseError) as caught:
                attempt()
            assert not caught.value.retriable


def test_the_dashboard_shows_its_pages_and_does_each_of_its_actions(role_urls: dict[str, str]) -> None:
    """The dashboard's grants are enough for every page, action and preview; it does not publish."""
    lane = {"topic": "merge", "group": "builders", "key": "repo-2"}
    group = {"topic": "merge", "group": "builders"}
    letters = {**group, "letters": "bad"}
    acts: list[tuple[str, dict[str, str]]] = [
        ("retry", lane),
        ("skip", {**lane, "offset": "1"}),
        ("release", lane),
        ("pause", lane),
        ("resume", lane),
        ("pause", group),
        ("resume", group),
        ("seek", {**lane, "to": "2"}),
        ("seek", {**group, "to": "earliest"}),
        ("redrive", letters),
        ("delete-letters", letters),
        ("run-schedule", {"name": "nightly"}),
        ("pause-schedule", {"name": "nightly"}),
        ("resume-schedule", {"name": "nightly"}),
        ("remove-schedule", {"name": "nightly"}),
        ("delete-group", group),
    ]
    assert {name for name, _ in acts} == {*ACTIONS}
    with lanelog.connect(role_urls["publisher"]) as client:
        client.publish_many("merge", [("repo-1", b"bad"), ("repo-1", b"good"), ("repo-2", b"wait"), ("repo-2", b"x")])

        client.schedule("nightly", "0 3 29 2 *", "merge", "repo-1", b"")

    def handle(message: lanelog.Message) -> None:
        if message.payload == b"bad":
            raise lanelog.Reject("bad")
        if message.payload == b"wait":
            raise lanelog.Retry(delay=3600)

    reader = role_urls["reader"]
    with lanelog.connect(role_urls["consumer"]) as consumer, lanelog.connect(role_urls["dashboard"]) as dashboard:
        consumer.subscribe("merge", "builders", handle, retention=3600, history=True)
        eventually(lambda: count(reader, "queue_messages", "merge_dlq") == 1, within=30)
        eventually(lambda: count(reader, "queue_delivery_state", "merge") >= 1, within=30)
        assert dashboard.admin.status().problems
        for name, fields in acts:
            if name == "delete-group":
                consumer.close()
            if name == "delete-letters":  # the redriven one was rejected once more
                eventually(lambda: dashboard.admin.dead_letters("merge", "builders"), within=30)
            for dry_run in (True, False):
                doer = Doer(by="somebody", why="a test", dry_run=dry_run)
                ACTIONS[name].verb(dashboard.admin, ACTIONS[name].chosen(fields), doer)
        assert dashboard.admin.groups("merge") == []
        with pytest.raises(lanelog.DatabaseError):
            dashboard.admin.delete_topic("merge", dry_run=False)
