"""Publishing as part of somebody else's transaction: visible if and only if that commits."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymysql.cursors
import pytest

import lanelog
from lanelog.devserver import DevServer
from lanelog.errors import ConfigurationError, DatabaseError, LanelogError
from lanelog.message import Outgoing, Receipt
from lanelog.publisher import Publisher
from support.publishing import REFUSED, ensure_lanes, publisher_at
from support.sql import connect, one, rows

ISOLATIONS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


def stored(raw: Any, key: str = "k") -> list[tuple[Any, ...]]:
    return rows(raw, "SELECT `offset`, payload FROM queue_messages WHERE partition_key = %s ORDER BY `offset`", key)


@pytest.fixture
def orders(raw: Any) -> str:
    rows(raw, "CREATE TABLE orders (id INT PRIMARY KEY, paid INT NOT NULL) ENGINE=InnoDB")
    rows(raw, "INSERT INTO orders VALUES (7, 0), (8, 0)")
    return "orders"


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_message_and_writes_commit_together(
    publisher: Publisher, open_raw: Any, raw: Any, orders: str, isolation: str
) -> None:
    """Nothing is visible before the caller commits, all of it after; whatever the caller's isolation level is."""
    mine = open_raw()
    rows(mine, f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}")
    rows(mine, f"SELECT * FROM {orders}")  # an old snapshot, from before the lane exists
    mine.rollback()
    rows(mine, f"UPDATE {orders} SET paid = 1 WHERE id = 7")
    assert publisher.publish("t", Outgoing("k", b"paid"), mine) == Receipt(1, stored_id(mine), duplicate=False)
    assert publisher.publish_many("t", [("k", b"2"), ("j", b"3")], connection=mine)[0].offset == 2
    assert stored(raw) == []
    mine.commit()
    assert stored(raw) == [(1, b"paid"), (2, b"2")]
    assert rows(raw, f"SELECT paid FROM {orders} WHERE id = 7") == [(1,)]


def stored_id(raw: Any) -> str:
    return str(rows(raw, "SELECT id FROM queue_messages WHERE `offset` = 1")[0][0])


def test_a_limit_of_the_callers_session_is_named(publisher: Publisher, open_raw: Any, raw: Any) -> None:
    """With sql_select_limit a query for several heads returns fewer; nothing is published. One key needs one row."""
    mine = open_raw()
    rows(mine, "SET sql_select_limit = 1")
    with pytest.raises(ConfigurationError, match="SET sql_select_limit = DEFAULT"):
        publisher.publish_many("t", [("k", b"1"), ("j", b"2"), ("i", b"3")], connection=mine)
    assert publisher.publish("t", Outgoing("k", b"1"), connection=mine).offset == 1
    mine.commit()
    assert stored(raw) == [(1, b"1")]


class Asynchronous:
    """A connection as that of aiomysql or asyncmy."""

    def cursor(self) -> None:
        raise AssertionError

    async def commit(self) -> None:
        """Commit."""


def test_a_connection_of_an_asynchronous_driver_is_refused(publisher: Publisher) -> None:
    """The calls of such a driver return before anything has happened."""
    with pytest.raises(ConfigurationError, match=r"synchronous driver, as PyMySQL or mysqlclient, not .*Asynchronous"):
        publisher.publish("t", Outgoing("k", b"1"), connection=Asynchronous())


def test_rollback_leaves_no_hole(publisher: Publisher, open_raw: Any, raw: Any) -> None:
    """An offset that nobody ever saw is given out again."""
    publisher.publish("t", Outgoing("k", b"1"))
    mine = open_raw()
    assert publisher.publish("t", Outgoing("k", b"never"), connection=mine).offset == 2
    mine.rollback()
    assert publisher.publish("t", Outgoing("k", b"2")).offset == 2
    assert stored(raw) == [(1, b"1"), (2, b"2")]


def test_a_connection_with_autocommit_is_refused(publisher: Publisher, raw: Any, open_raw: Any) -> None:
    """The head lock would end with each statement, and nothing is written; with an open transaction it is accepted."""
    with pytest.raises(ConfigurationError, match="autocommit"):
        publisher.publish("t", Outgoing("k", b"x"), connection=raw)
    assert rows(raw, "SELECT COUNT(*) FROM queue_partitions") == [(0,)]
    raw.begin()
    publisher.publish("t", Outgoing("k", b"x"), connection=raw)
    assert stored(open_raw()) == []
    raw.commit()
    assert stored(open_raw()) == [(1, b"x")]


@pytest.mark.parametrize("kind", ["Cursor", "DictCursor", "SSCursor", "SSDictCursor"])
def test_any_kind_of_cursor_will_do(publisher: Publisher, open_raw: Any, raw: Any, kind: str) -> None:
    """Applications set the cursor class of their connections as they like."""
    mine = open_raw(cursorclass=getattr(pymysql.cursors, kind))
    publisher.publish("t", Outgoing("k", b"1", id="a"), connection=mine)
    assert publisher.publish("t", Outgoing("k", b"2", id="a"), connection=mine).duplicate
    mine.commit()
    assert stored(raw) == [(1, b"1")]


def test_what_is_no_connection_is_refused(publisher: Publisher) -> None:
    """A wrong argument says what a right one is."""
    for wrong in (7, "mysql://root@localhost/q", object()):
        with pytest.raises(ConfigurationError, match="DB-API connection"):
            publisher.publish("t", Outgoing("k", b"x"), connection=wrong)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_duplicate_in_a_callers_transaction(
    publisher: Publisher, open_raw: Any, raw: Any, orders: str, isolation: str
) -> None:
    """The receipt names the stored one, even one newer than the caller's snapshot, and the caller's writes stay."""
    mine = open_raw()
    rows(mine, f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}")
    rows(mine, f"SELECT * FROM {orders} WHERE id = 8")  # the snapshot, from before the message is there
    publisher.publish("t", Outgoing("k", b"1", id="a"))
    rows(mine, f"UPDATE {orders} SET paid = 1 WHERE id = 7")
    assert publisher.publish("t", Outgoing("k", b"2", id="a"), connection=mine) == Receipt(1, "a", duplicate=True)
    receipts = publisher.publish_many(
        "t", [("k", b"3"), Outgoing("k", b"4", id="a"), Outgoing("k", b"5", id="b"), ("k", b"6")], connection=mine
    )
    found = [(receipt.offset, receipt.duplicate) for receipt in receipts]
    assert found == [(2, False), (1, True), (3, False), (4, False)]
    assert publisher.publish("t", Outgoing("k", b"7", id="b"), connection=mine) == Receipt(3, "b", duplicate=True)
    mine.commit()
    assert stored(raw) == [(1, b"1"), (2, b"3"), (3, b"5"), (4, b"6")]
    assert rows(raw, f"SELECT paid FROM {orders} WHERE id = 7") == [(1,)]


def test_an_error_that_is_caught_leaves_no_hole(publisher: Publisher, open_raw: Any, raw: Any, orders: str) -> None:
    """After a failed publish the caller goes on: head and log are as before, his own writes too."""
    publisher.publish("t", Outgoing("k", b"1"))
    rows(raw, REFUSED)
    mine = open_raw()
    rows(mine, f"UPDATE {orders} SET paid = 1 WHERE id = 7")
    with pytest.raises(DatabaseError, match="refused"):
        publisher.publish_many("t", [("k", b"2"), Outgoing("k", b"3", id="bad")], connection=mine)
    assert publisher.publish("t", Outgoing("k", b"4"), connection=mine).offset == 2
    mine.commit()
    assert stored(raw) == [(1, b"1"), (2, b"4")]
    assert rows(raw, f"SELECT paid FROM {orders} WHERE id = 7") == [(1,)]


@pytest.mark.thorough
def test_a_lock_timeout_in_a_callers_transaction(publisher: Publisher, open_raw: Any, raw: Any, orders: str) -> None:
    """Waiting for a locked lane ends with the caller's own lock time-out; his transaction may go on."""
    publisher.publish("t", Outgoing("k", b"1"))
    holder, mine = open_raw(), open_raw()
    publisher.publish("t", Outgoing("k", b"2"), connection=holder)
    rows(mine, "SET SESSION innodb_lock_wait_timeout = 1")
    rows(mine, f"UPDATE {orders} SET paid = 1 WHERE id = 7")
    with pytest.raises(DatabaseError) as caught:
        publisher.publish("t", Outgoing("k", b"3"), connection=mine)
    assert (caught.value.code, caught.value.retriable) == (1205, True)
    holder.commit()
    assert publisher.publish("t", Outgoing("k", b"3"), connection=mine).offset == 3
    mine.commit()
    assert stored(raw) == [(1, b"1"), (2, b"2"), (3, b"3")]
    assert rows(raw, f"SELECT paid FROM {orders} WHERE id = 7") == [(1,)]


def deadlock(publisher: Publisher, mine: Any, other: Any, orders: str) -> DatabaseError:
    """Two callers who locked an order and a lane each want the other's; `mine`, who wrote less, is rolled back."""
    for number in range(2000, 2050):
        rows(other, f"INSERT INTO {orders} VALUES (%s, 0)", number)
    publisher.publish("t", Outgoing("k", b"other"), connection=other)
    rows(mine, f"UPDATE {orders} SET paid = 1 WHERE id = 7")
    waiting = threading.Thread(target=rows, args=(other, f"UPDATE {orders} SET paid = 2 WHERE id = 7"))
    waiting.start()
    try:
        publisher.publish("t", Outgoing("k", b"mine"), connection=mine)
    except DatabaseError as exc:
        return exc
    finally:
        waiting.join()
    pytest.fail("there was no deadlock")


def test_our_transaction_refuses_to_go_on_after_a_deadlock(
    publisher: Publisher, open_raw: Any, raw: Any, orders: str, published: list[str]
) -> None:
    """A block of client.transaction() that swallows the deadlock can neither publish more nor commit the rest."""
    ensure_lanes(publisher, "t", ["k"])
    other = open_raw()
    with pytest.raises(DatabaseError, match="whole transaction"), publisher.transaction() as connection:
        error = deadlock(publisher, connection, other, orders)
        assert (error.code, error.retriable) == (1213, True)
        assert "whole transaction" in str(error)
        with pytest.raises(DatabaseError, match="this transaction is over") as caught:
            publisher.publish("t", Outgoing("j", b"more"), connection=connection)
        rows(connection, f"UPDATE {orders} SET paid = 3 WHERE id = 8")
    assert caught.value.retriable
    other.commit()
    assert rows(raw, f"SELECT paid FROM {orders} WHERE id = 8") == [(0,)]
    assert stored(raw, "j") == []
    assert published == []


def test_our_transaction_announces_after_its_commit(publisher: Publisher, published: list[str]) -> None:
    """Local subscribers are woken when there is something to see, once for each topic; not after a rollback."""
    with publisher.transaction() as connection:
        publisher.publish("a", Outgoing("k", b"x"), connection=connection)
        publisher.publish("a", Outgoing("k", b"x"), connection=connection)
        publisher.publish("b", Outgoing("k", b"x"), connection=connection)
        assert published == []
    assert sorted(published) == ["a", "b"]
    with pytest.raises(ZeroDivisionError), publisher.transaction() as connection:
        publisher.publish("c", Outgoing("k", b"x"), connection=connection)
        _ = 1 // 0
    assert "c" not in published


def test_publishing_beside_our_own_transaction_is_refused(publisher: Publisher, raw: Any) -> None:
    """Without connection= it would wait for a lane that the thread itself has locked; other threads may."""
    with publisher.transaction() as connection:
        publisher.publish("t", Outgoing("k", b"1"), connection=connection)
        with pytest.raises(ConfigurationError, match="connection="):
            publisher.publish("t", Outgoing("k", b"2"))
        with pytest.raises(ConfigurationError, match="connection="):
            publisher.publish_many("t", [("k", b"2")])
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(publisher.publish, "t", Outgoing("j", b"x")).result().offset == 1
    assert publisher.publish("t", Outgoing("k", b"3")).offset == 2
    assert stored(raw) == [(1, b"1"), (2, b"3")]


def test_a_full_pool_of_our_transactions_can_publish(lanelog_url: str) -> None:
    """Looking for lanes and creating them needs no pooled connection: transactions that hold them all do not wait."""
    barrier = threading.Barrier(4)

    def publish(number: int) -> int:
        with publisher.transaction() as connection:
            barrier.wait()
            return publisher.publish("t", Outgoing(f"k{number}", b"x"), connection=connection).offset

    with publisher_at(lanelog_url, pool_size=4, publish_timeout=15.0) as publisher, ThreadPoolExecutor(4) as threads:
        assert list(threads.map(publish, range(4))) == [1] * 4


def test_callers_on_neighbouring_new_lanes_do_not_deadlock(publisher: Publisher, open_raw: Any, raw: Any) -> None:
    """Under REPEATABLE READ, ids that are not stored leave no gap locks: transactions open side by side do not meet."""
    callers = [open_raw() for _ in range(6)]
    for number, mine in enumerate(callers):
        rows(mine, "SET SESSION innodb_lock_wait_timeout = 2")
        publisher.publish("t", Outgoing(f"k{number}", b"1", id=f"a{number}"), connection=mine)
    for number, mine in enumerate(callers):
        publisher.publish("t", Outgoing(f"k{number}", b"2", id=f"b{number}"), connection=mine)
    for mine in callers:
        mine.commit()
    assert rows(raw, "SELECT COUNT(*) FROM queue_messages") == [(12,)]


def test_a_connection_in_another_database_publishes_into_the_clients(
    publisher: Publisher, raw: Any, open_raw: Any, other_database: str
) -> None:
    """The statements name the client's database: what is current at the caller's connection diverts nothing."""
    mine = open_raw()
    mine.select_db(other_database)
    rows(mine, "CREATE TABLE orders (id INT PRIMARY KEY)")
    rows(mine, "INSERT INTO orders VALUES (7)")
    assert publisher.publish("t", Outgoing("k", b"x", id="a"), connection=mine).offset == 1
    assert publisher.publish("t", Outgoing("k", b"x", id="a"), connection=mine).duplicate
    publisher.publish("t", Outgoing("k", b"x", delay=60.0), connection=mine)
    mine.commit()
    assert rows(mine, "SELECT (SELECT COUNT(*) FROM orders), (SELECT COUNT(*) FROM queue_messages)") == [(1, 0)]
    mine.rollback()
    assert stored(raw) == [(1, b"x")]
    assert one(raw, "SELECT COUNT(*) FROM queue_scheduled") == 1


@pytest.mark.thorough
@pytest.mark.local_server
def test_a_connection_to_another_server_is_explained(publisher: Publisher, raw: Any, private_server: DevServer) -> None:
    """Lanes are looked for and created at the client's server. A copy of the tables elsewhere is another log."""
    with connect(private_server.url, autocommit=False) as mine:
        with pytest.raises(ConfigurationError, match="connect to the server of this client"):
            publisher.publish("t", Outgoing("k", b"x"), connection=mine)
        name = one(raw, "SELECT DATABASE()")
        rows(mine, f"CREATE DATABASE {name}")
        with lanelog.connect(private_server.root_url(name)) as client:
            client.migrate()
            elsewhere = r"to another server than this client: to .*, not to .*:\d+"
            for found in (b"no lane", b"a lane"):
                with pytest.raises(ConfigurationError, match=elsewhere):
                    publisher.publish("t", Outgoing("k", b"x"), connection=mine)
                mine.rollback()
                client.publish("t", "k", found)
            client.publish("t", "k", b"3", connection=mine)
            mine.commit()
            assert [each.offset for each in client.admin.messages("t", "k")] == [1, 2, 3]


@pytest.mark.parametrize("payload", [b"x", b""])
def test_a_mode_that_makes_null_of_empty_texts_changes_nothing(
    publisher: Publisher, raw: Any, open_raw: Any, lanelog_server: DevServer, payload: bytes
) -> None:
    """MariaDB's EMPTY_STRING_IS_NULL in the caller's session: the message is as any other. MySQL has no such mode."""
    mine = open_raw()
    if lanelog_server.family == "mariadb":
        rows(mine, "SET SESSION sql_mode = CONCAT(@@sql_mode, ',EMPTY_STRING_IS_NULL')")
    publisher.publish("t", Outgoing("k", payload, id="a"), connection=mine)
    assert publisher.publish("t", Outgoing("k", payload, id="a"), connection=mine).duplicate
    publisher.publish("t", Outgoing("k", payload, ttl=60.0, metadata={"a": ""}), connection=mine)
    publisher.publish("t", Outgoing("k", payload, delay=60.0), connection=mine)
    mine.commit()
    assert stored(raw) == [(1, payload), (2, payload)]
    assert rows(raw, "SELECT target_group FROM queue_messages") == [("",), ("",)]
    assert rows(raw, "SELECT payload, target_group FROM queue_scheduled") == [(payload, "")]


def by_the_driver(connection: Any) -> None:
    connection.autocommit(True)


def by_statement(connection: Any) -> None:
    rows(connection, "SET autocommit = 1")


@pytest.mark.parametrize("switch", [by_the_driver, by_statement])
@pytest.mark.parametrize("raises", [True, False], ids=["raises", "ends"])
def test_a_connection_that_commits_by_itself_is_not_lent_again(
    lanelog_url: str, raw: Any, switch: Callable[[Any], None], *, raises: bool
) -> None:
    """User code switched autocommit on: a batch that is refused in the middle still leaves its lane as it was."""
    with publisher_at(lanelog_url, pool_size=2) as publisher:
        publisher.publish("t", Outgoing("k", b"first"))
        refused = pytest.raises((ZeroDivisionError, LanelogError))
        with refused, publisher.transaction() as one_of_two, publisher.transaction() as other:
            switch(one_of_two)
            switch(other)
            if raises:
                raise ZeroDivisionError
        rows(raw, REFUSED)
        with pytest.raises(DatabaseError, match="refused"):
            publisher.publish_many("t", [("k", b"x"), Outgoing("k", b"y", id="bad")])
        assert one(raw, "SELECT head_offset FROM queue_partitions WHERE partition_key = 'k'") == 1
        with publisher.transaction() as connection:
            assert not connection.get_autocommit()
            publisher.publish("t", Outgoing("k", b"second"), connection=connection)
    assert stored(raw) == [(1, b"first"), (2, b"second")]
