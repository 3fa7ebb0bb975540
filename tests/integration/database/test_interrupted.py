"""Exceptions that come between a statement and its answer: nobody gets the answer to another statement.

A signal handler that raises, Ctrl-C, a time limit, `gevent.Timeout`: here the exception comes from the driver's own
method, right behind the bytes that it has sent.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

import pymysql
import pytest
from pymysql.constants import COMMAND
from pymysql.cursors import SSCursor

import lanelog
from lanelog import Client
from lanelog.errors import DatabaseError
from support.commands import commands_sent
from support.processes import Fleet
from support.sql import connect, one, rows, run
from support.unseen import DRIVERS

BY_CALLERS = {
    "insert": "INSERT INTO own (id) VALUES (2)",
    "update": "UPDATE own SET n = 1",
    "delete": "DELETE FROM own WHERE id = 1",
    "set": "SET @own = 1",
    "savepoint": "SAVEPOINT own",
    "select": "SELECT 'stale'",
    "fails": "INSERT INTO own (id) VALUES (1)",
}


class InterruptError(Exception):
    """An Exception, as Celery's soft time limit is."""


SERVERS = (pymysql.err.IntegrityError, *([import_module("MySQLdb").IntegrityError] if "mysqlclient" in DRIVERS else []))
"""What a statement of `BY_CALLERS` may be answered with."""


@pytest.fixture(params=DRIVERS)
def client(request: pytest.FixtureRequest, lanelog_url: str) -> Iterator[Client]:
    """A client, which needs one connection at a time, made by each of the drivers."""
    with lanelog.connect(lanelog_url, driver=request.param, pool_size=2) as client:
        client.publish("t", "k", b"x")
        yield client


@pytest.fixture(autouse=True)
def table(raw: Any) -> None:
    rows(raw, "CREATE TABLE own (id INT PRIMARY KEY, n INT NOT NULL DEFAULT 0) ENGINE=InnoDB")
    rows(raw, "INSERT INTO own (id) VALUES (1)")


@contextmanager
def interrupted(connection: Any, after: int = 0, error: type[Exception] = InterruptError) -> Iterator[list[object]]:
    """Raise `error` once, right behind the sending of a statement: that which comes `after` so many others.

    Yields a list that has an item as soon as it was raised.
    """
    name = "_write_bytes" if hasattr(connection, "_write_bytes") else "query"  # mysqlclient's sends in C
    send, left, raised = getattr(connection, name), [None] * after, list[object]()

    def sends(data: Any) -> None:
        send(data)
        if left:
            left.pop()
        elif not raised:
            raised.append(data)
            raise error

    setattr(connection, name, sends)
    try:
        yield raised
    finally:
        setattr(connection, name, send)


def answers_itself(client: Client) -> None:
    """Two blocks, so that an answer that is one behind shows."""
    for text in ("a", "b"):
        with client.transaction() as connection:
            assert run(connection, f"SELECT '{text}'") == [(text,)]


@pytest.mark.parametrize("statement", BY_CALLERS)
def test_an_interrupted_statement_of_the_caller_leaves_no_answer_behind(client: Client, statement: str) -> None:
    """The next to be lent the connection gets the answers to its own statements."""
    with suppress(InterruptError, *SERVERS), client.transaction() as connection, interrupted(connection):
        run(connection, BY_CALLERS[statement])
    answers_itself(client)


@pytest.mark.parametrize("statement", BY_CALLERS)
def test_a_block_that_swallows_an_interrupt_commits_all_of_it_or_raises(
    client: Client, raw: Any, statement: str
) -> None:
    """A COMMIT is reported only if it was answered; where the driver lost step, nothing is committed, for certain."""
    raised: list[object] = []

    def swallow() -> None:
        nonlocal raised
        with client.transaction() as connection:
            run(connection, "INSERT INTO own (id) VALUES (77)")
            with suppress(InterruptError, *SERVERS), interrupted(connection) as raised:
                run(connection, BY_CALLERS[statement])

    # mysqlclient reads an answer without rows in one call of C, so that nothing comes between.
    in_step = client.config.driver == "mysqlclient" and statement != "select"
    if in_step:
        swallow()
    else:
        with pytest.raises(DatabaseError) as error:
            swallow()
        assert (error.value.outcome_unknown, error.value.retriable) == (False, True)
    assert raised or statement == "fails"  # mysqlclient raises the server's error itself
    assert rows(raw, "SELECT COUNT(*) FROM own WHERE id = 77") == [(int(in_step),)]
    answers_itself(client)


def test_statements_behind_a_swallowed_interrupt_get_no_answer_of_another(client: Client) -> None:
    """Inside the same block, too."""
    with suppress(DatabaseError), client.transaction() as connection:
        with suppress(InterruptError), interrupted(connection):
            run(connection, "SELECT 'stale'")
        with suppress(Exception):
            assert run(connection, "SELECT 'fresh'") == [("fresh",)]
    answers_itself(client)


def test_an_interrupted_publish_in_a_lent_transaction_leaves_nothing(client: Client, raw: Any) -> None:
    """At any of its statements: neither half of it in a block that goes on, nor an answer for the next one."""
    after, raised = 0, [object()]
    while raised:
        with suppress(InterruptError, DatabaseError), client.transaction() as connection:
            with suppress(InterruptError), interrupted(connection, after) as raised:
                client.publish("t", "k", b"x", connection=connection)
            if not raised:
                run(connection, "ROLLBACK")
        after += 1
        answers_itself(client)
        assert one(raw, "SELECT COUNT(*) FROM queue_messages") == after, "half of it was committed"
        assert client.publish("t", "k", b"x").offset == after + 1
    assert after > 4, "it has more statements than that"


def own_pymysql(url: str) -> Any:
    return connect(url, autocommit=False, charset="utf8mb4")


def own_mysqlclient(url: str) -> Any:
    module: Any = import_module("MySQLdb")
    config = lanelog.config.ConnectConfig.from_url(url)
    where = {"unix_socket": config.unix_socket} if config.unix_socket else {"host": config.host, "port": config.port}
    return module.connect(
        user=config.user, password=config.password, database=config.database, charset="utf8mb4", **where
    )


OWN: dict[str, Callable[[str], Any]] = {"pymysql": own_pymysql, "mysqlclient": own_mysqlclient}


@pytest.mark.parametrize("error", [InterruptError, TimeoutError])
@pytest.mark.parametrize("driver", DRIVERS)
def test_an_interrupted_publish_on_a_connection_of_the_callers_leaves_nothing(
    lanelog_url: str, raw: Any, driver: str, error: type[Exception]
) -> None:
    """At any of its statements: the caller that swallows the interrupt and commits has no half of it in the log.

    PyMySQL raises TimeoutError itself, so that one of a signal handler passes for an error of the connection.
    """
    with lanelog.connect(lanelog_url) as client:
        client.publish("t", "k", b"x")
        after, raised = 0, [object()]
        while raised:
            connection = OWN[driver](lanelog_url)
            with suppress(error, DatabaseError), interrupted(connection, after, error) as raised:
                client.publish("t", "k", b"x", connection=connection)
            with suppress(Exception):  # it is closed where its answers are in doubt
                connection.commit() if raised else connection.rollback()
                assert run(connection, "SELECT 'own'") == [("own",)]
            with suppress(Exception):
                connection.close()
            after += 1
            assert one(raw, "SELECT COUNT(*) FROM queue_messages") == after, "half of it was committed"
            assert client.publish("t", "k", b"x").offset == after + 1
        assert after > 4, "it has more statements than that"


def test_a_row_that_was_interrupted_half_way_is_read_by_nobody(lanelog_url: str) -> None:
    """The interrupt strikes an unbuffered cursor of PyMySQL between the header of a row and the row."""
    with lanelog.connect(lanelog_url, driver="pymysql", pool_size=2) as client:
        with suppress(InterruptError, DatabaseError), client.transaction() as connection:
            cursor = connection.cursor(SSCursor)
            cursor.execute("SELECT 1 UNION SELECT 2 UNION SELECT 3")
            assert cursor.fetchone() == (1,)
            read = connection._read_bytes

            def header(size: int) -> Any:
                connection._read_bytes = read
                read(size)
                raise InterruptError

            connection._read_bytes = header
            with suppress(InterruptError):
                cursor.fetchone()
            with pytest.raises(pymysql.err.OperationalError, match="2014"):
                run(connection, "SELECT 'fresh'")
        answers_itself(client)


def test_rows_that_nobody_wanted_are_passed_over(lanelog_url: str) -> None:
    """An unbuffered cursor that is left before its end, and an error in its midst, cost the connection nothing."""
    with lanelog.connect(lanelog_url, driver="pymysql", pool_size=2) as client, client.transaction() as connection:
        cursor = connection.cursor(SSCursor)
        cursor.execute("SELECT 1 UNION SELECT 2 UNION SELECT 3")
        assert cursor.fetchone() == (1,)
        cursor.close()
        assert run(connection, "SELECT 'a'") == [("a",)]
        with pytest.raises(pymysql.err.ProgrammingError):
            run(connection, "SELECT nonsense FROM nowhere")
        with pytest.raises(pymysql.err.OperationalError):
            connection.select_db("lanelog_no_such")
        connection.set_character_set("utf8mb4", "utf8mb4_bin")
        connection.show_warnings()
        connection.ping()
        assert run(connection, "SELECT 'b'") == [("b",)]


def test_a_connection_with_an_answer_that_the_driver_knows_nothing_of_is_closed(client: Client) -> None:
    """After an exception, the connection goes back only if it answers a question that nobody has asked before."""
    packet = b"DO 1"
    with suppress(InterruptError), client.transaction() as connection:
        descriptor = (getattr(connection, "_sock", None) or connection).fileno()
        os.write(descriptor, (len(packet) + 1).to_bytes(4, "little") + bytes([COMMAND.COM_QUERY]) + packet)
        raise InterruptError
    answers_itself(client)


def words(sent: list[str]) -> list[str]:
    """The first word of each statement, and the numbers of other commands."""
    return [(re.findall(r"[A-Z]{2,}", line) or [line.partition(":")[0]])[0] for line in sent]


def test_a_block_without_an_exception_asks_nothing_more(lanelog_url: str, raw: Any) -> None:
    """The proof costs a lent connection a round trip only after an exception."""
    with lanelog.connect(lanelog_url, driver="pymysql", pool_size=2) as client:
        client.ping()
        answers_itself(client)
        with commands_sent() as sent, client.transaction() as connection:
            run(connection, "DO 1")
        with commands_sent() as with_question, suppress(InterruptError), client.transaction():
            raise InterruptError
    # MariaDB begins and commits in blocks of statements. MySQL needs the permission for packets, which user code must
    # not have.
    option, reset = "27", "31"
    mariadb = "MariaDB" in one(raw, "SELECT VERSION()")
    first = ["BEGIN"] if mariadb else ["SET", option]
    assert words(sent) == [*first, "DO", *(["BEGIN"] if mariadb else [option, "RELEASE"]), reset, "SET"]
    assert words(with_question) == [*first, "ROLLBACK", reset, "SET", "SELECT"]


def test_a_block_that_sends_nothing_needs_no_commit(lanelog_url: str, raw: Any) -> None:
    """The session is unchanged. Packets stay refused, so that the next block need not refuse them."""
    with lanelog.connect(lanelog_url, driver="pymysql", pool_size=2) as client:
        client.publish("t", "k", b"x")
        with client.transaction():
            pass
        with commands_sent() as sent, client.transaction() as connection:
            connection.cursorclass = SSCursor
        assert words(sent) == ["BEGIN" if "MariaDB" in one(raw, "SELECT VERSION()") else "SAVEPOINT", "ROLLBACK"]
        with client.transaction() as connection:
            assert connection.cursorclass is not SSCursor
        client.publish("t", "k", b"x")


@pytest.mark.thorough
@pytest.mark.parametrize("driver", DRIVERS)
def test_a_bombardment_by_a_signal_handler_leaves_the_process_whole(fleet: Fleet, raw: Any, driver: str) -> None:
    """No answer of another statement, no place of the pool lost, nobody hangs, and the log holds what was acknowledged.

    The main thread publishes and has transactions, some of which swallow the exception, while others publish.
    """
    fleet.start("bombarded", "bombarded.py", driver=driver, seconds=12).said("bombarded", within=90)
    said = fleet.heard("bombarded")[0].fields
    assert said["caught"] > 500, "too few interrupts to tell"
    assert said["wrong"] == []
    assert (said["places"], said["marked"]) == (3, False)
    assert (said["going_on"], said["alive"]) == ([True] * 3, [False] * 3)
    shared = rows(raw, "SELECT `offset` FROM queue_messages WHERE partition_key = 'shared'")
    assert set(said["offsets"]) <= {offset for (offset,) in shared}
    for key in ("mine", "shared"):
        where = "FROM queue_messages WHERE topic = 't' AND partition_key = %s"
        assert rows(raw, f"SELECT MAX(`offset`) = COUNT(*) {where}", key) == [(1,)], "an offset was given and not used"
