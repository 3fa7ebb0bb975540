"""A connection that was lent to user code: what that did to the session reaches neither our statements nor the next."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pymysql.cursors
import pytest

import lanelog
from lanelog import Client
from support.sql import connect, one, rows, run
from support.unseen import DRIVERS
from support.waiting import eventually

# What a session is: the variables that our greeting sets, others, and what only a reset of the session takes away.
SEEN = """SELECT CONNECTION_ID(), DATABASE(), @@character_set_client, @@character_set_results, @@collation_connection,
@@sql_mode, @@autocommit, @@time_zone, @@wait_timeout, @@net_read_timeout, @@innodb_lock_wait_timeout,
@@sql_safe_updates, @@sql_select_limit, @@unique_checks, @@foreign_key_checks, @@completion_type, @@max_sort_length,
@@group_concat_max_len, @@{access}_isolation, @@{access}_read_only, @own IS NULL, IS_USED_LOCK('lent') IS NULL,
ABS(UNIX_TIMESTAMP() - UNIX_TIMESTAMP(SYSDATE())) < 5"""


@pytest.fixture(params=DRIVERS)
def client(request: pytest.FixtureRequest, lanelog_url: str) -> Iterator[Client]:
    """A client with two connections, made by each of the drivers."""
    with lanelog.connect(lanelog_url, driver=request.param, pool_size=2) as client:
        yield client


def seen(connection: Any) -> tuple[Any, ...]:
    """What the session is."""
    mariadb = "MariaDB" in run(connection, "SELECT VERSION()")[0][0]
    return run(connection, SEEN.format(access="tx" if mariadb else "transaction"))[0]


CHANGES = {
    "character set": ["SET NAMES latin1"],
    "mode": ["SET SESSION sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'"],
    "isolation": ["SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY"],
    "time": ["SET SESSION time_zone = '+05:00', timestamp = 86400"],
    "time-outs": ["SET SESSION wait_timeout = 28800, innodb_lock_wait_timeout = 50, net_read_timeout = 3"],
    "meaning": [
        "SET SESSION sql_safe_updates = 1, sql_select_limit = 1, unique_checks = 0, foreign_key_checks = 0",
        "SET SESSION max_sort_length = 64, group_concat_max_len = 77",
    ],
    "variable": ["SET @own = 1"],
    "temporary table": ["CREATE TEMPORARY TABLE own_table (id INT)"],
    "user lock": ["SELECT GET_LOCK('lent', 0)"],
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("raises", [False, True], ids=["commits", "raises"])
def test_a_lent_connection_comes_back_as_it_was(client: Client, raw: Any, name: str, *, raises: bool) -> None:
    """Settings, tables and locks of user code are gone when the connection is lent again; the session goes on."""
    with client.transaction() as connection:
        before = seen(connection)
    with suppress(ZeroDivisionError), client.transaction() as connection:
        assert seen(connection) == before, "the pool has given another connection"
        for statement in CHANGES[name]:
            run(connection, statement)
        _ = 1 // (0 if raises else 1)
    assert one(raw, "SELECT IS_USED_LOCK('lent')") is None
    with client.transaction() as connection:
        assert seen(connection) == before
        with pytest.raises(Exception, match="1146"):
            run(connection, "SELECT * FROM own_table")


def use(connection: Any, database: str) -> None:
    run(connection, f"USE {database}")


def select_db(connection: Any, database: str) -> None:
    connection.select_db(database)


@pytest.mark.parametrize("switch", [use, select_db])
def test_another_database_diverts_nothing(
    client: Client, raw: Any, other_database: str, switch: Callable[[Any, str], None]
) -> None:
    """Publishes inside the lent transaction and after it, on any connection of the pool, reach lanelog's database."""
    with client.transaction() as first, client.transaction() as second:
        for key, connection in (("first", first), ("second", second)):
            switch(connection, other_database)
            client.publish("t", key, b"x", connection=connection)
    for number in range(3):
        assert client.publish("t", "after", b"x").offset == number + 1
    assert one(raw, "SELECT COUNT(*) FROM queue_messages") == 5
    assert one(raw, f"SELECT COUNT(*) FROM {other_database}.queue_messages") == 0
    with client.transaction() as connection:
        assert run(connection, "SELECT DATABASE()")[0][0] != other_database


def driver_charset(connection: Any) -> None:
    connection.set_character_set("latin1")


def driver_cursor(connection: Any) -> None:
    connection.cursorclass = pymysql.cursors.DictCursor


def driver_autocommit(connection: Any) -> None:
    run(connection, "ROLLBACK")
    connection.autocommit(True)


def reconnected(connection: Any) -> None:
    run(connection, "ROLLBACK")
    connection.close()
    if isinstance(connection, pymysql.connections.Connection):
        connection.connect()


def locked(connection: Any) -> None:
    run(connection, "LOCK TABLES queue_groups WRITE")


@pytest.mark.parametrize("change", [driver_charset, driver_cursor, driver_autocommit, reconnected, locked])
def test_what_user_code_does_to_the_drivers_connection_stays_with_it(
    client: Client, raw: Any, change: Callable[[Any], None]
) -> None:
    """The next to be lent one has plain cursors, no autocommit, utf8mb4, and no table is locked."""
    with pytest.raises(ZeroDivisionError), client.transaction() as connection:
        change(connection)
        raise ZeroDivisionError
    rows(raw, "SET SESSION lock_wait_timeout = 2")
    rows(raw, "SELECT * FROM queue_groups")
    with client.transaction() as connection:
        assert run(connection, "SELECT @@autocommit, @@character_set_client, 'ü'") == [(0, "utf8mb4", "ü")]
        client.publish("t", "ü", b"x", connection=connection)
    assert one(raw, "SELECT partition_key FROM queue_messages") == "ü"


BY_HANDLERS: dict[str, Callable[[Any], object]] = {
    "mode": lambda connection: run(connection, "SET SESSION sql_mode = 'ANSI_QUOTES', sql_safe_updates = 1"),
    "limit": lambda connection: run(connection, "SET SESSION sql_select_limit = 0"),
    "names": lambda connection: run(connection, "SET NAMES latin1"),
    "charset": driver_charset,
    "cursor": driver_cursor,
}


@pytest.mark.parametrize("name", [*BY_HANDLERS, "use"])
def test_what_a_handler_sets_changes_no_ack(
    client: Client, raw: Any, lanelog_url: str, other_database: str, name: str
) -> None:
    """The ack is ours: it goes into our tables and means what it always means, whatever the block has set."""
    errors: list[BaseException] = []

    def handle(message: lanelog.Message) -> None:
        try:
            with message.transaction() as connection:
                run(connection, "INSERT INTO effects VALUES (1)")
                use(connection, other_database) if name == "use" else BY_HANDLERS[name](connection)
        except BaseException as error:
            errors.append(error)
            raise

    rows(raw, "CREATE TABLE effects (n INT)")
    client.publish("t", "kü", b"x")
    subscription = client.subscribe("t", "g", handle, history=True)
    eventually(lambda: errors or one(raw, "SELECT offset_acked FROM queue_offsets WHERE consumer_group = 'g'") == 1)
    subscription.stop()
    assert errors == []
    assert rows(raw, "SELECT n FROM effects") == [(1,)]
    assert one(raw, "SELECT COUNT(*) FROM queue_history") == 1
    with connect(lanelog_url, database=other_database) as other:
        assert one(other, "SELECT COUNT(*) FROM queue_delivery_state") == 0
