"""Transactions that end without a word to their client: no success is told of what is not there.

ROLLBACK comes on the same session before the first, the second, … statement of each operation. A proxy that connects
again behind a living connection does the same.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from tenacity import stop_after_attempt, wait_fixed

import lanelog
from lanelog import Client, Message, Outgoing, Reject, RetryPolicy
from lanelog._database.connection import savepoint
from lanelog._database.connection.packet import permit
from lanelog.errors import DatabaseError, SchemaError
from support.proxy import SET_OPTION, Proxy, proxy_to
from support.settling import create_effects, effects, have_effect
from support.sql import connect, one, rows, watermark
from support.unseen import DRIVERS, Ending, ending
from support.waiting import eventually, raising

QUICK = RetryPolicy(stop=stop_after_attempt(5), wait=wait_fixed(0.01))


@pytest.fixture(params=DRIVERS)
def client(request: pytest.FixtureRequest, lanelog_url: str) -> Iterator[Client]:
    """A client with one connection at a time, made by each of the drivers."""
    with lanelog.connect(lanelog_url, driver=request.param, pool_size=2) as client:
        yield client


def each_statement(run: Callable[[int, Ending], object], *, thread: str = "", least: int) -> None:
    """Call `run` with the transaction ending before each of its statements in turn, until it has no more of them."""
    after = 0
    while True:
        with ending(after, thread) as at:
            run(after, at)
        if not at.ended:
            break
        after += 1
    assert after >= least, at.sent


def log_of(raw: Any, topic: str) -> list[tuple[str, str]]:
    """Keys and ids of a topic's messages. Its lanes have no holes, and no message is above its head."""
    heads = "SELECT partition_key, head_offset FROM queue_partitions WHERE topic = %s AND partition_key <> ''"
    for key, head in rows(raw, heads, topic):
        sql = "SELECT `offset` FROM queue_messages WHERE topic = %s AND partition_key = %s ORDER BY 1"
        assert [offset for (offset,) in rows(raw, sql, topic, key)] == list(range(1, head + 1))
    return rows(raw, "SELECT partition_key, id FROM queue_messages WHERE topic = %s ORDER BY 1, 2", topic)


def published(client: Client, raw: Any, publish: Callable[[str], list[str]], *, least: int) -> None:
    """Publish so that the transaction ends: what was acknowledged is there once, what was refused is not.

    It is an error of the database, never one of how the library is used.
    """

    def run(after: int, at: Ending) -> None:
        topic = f"t{after}"
        client.publish_many(topic, [("a", b"first"), ("b", b"first")])
        before = log_of(raw, topic)
        at.begin()
        try:
            ids = publish(topic)
        except DatabaseError:
            ids = []
        assert sorted(set(log_of(raw, topic)) - set(before)) == sorted((name[0], name) for name in ids), at.sent
        client.publish_many(topic, [("a", b"last"), ("b", b"last")])
        log_of(raw, topic)

    each_statement(run, least=least)


def test_a_publish_alone(client: Client, raw: Any) -> None:
    """In one packet, and with an id that is looked up."""

    def publish(topic: str) -> list[str]:
        ids = [client.publish(topic, "a", b"x", id="a1").id, client.publish(topic, "b", b"x").id]
        rows(raw, "UPDATE queue_messages SET id = 'b1' WHERE id = %s", ids[1])
        return ["a1", "b1"]

    published(client, raw, publish, least=3)


def test_a_publish_of_many(client: Client, raw: Any) -> None:
    """Of two lanes, in two round trips."""

    def publish(topic: str) -> list[str]:
        return [
            receipt.id
            for receipt in client.publish_many(topic, [Outgoing("a", b"", id="a1"), Outgoing("b", b"", id="b1")])
        ]

    published(client, raw, publish, least=2)


@pytest.mark.thorough
def test_a_publish_that_fits_in_no_packet(client: Client, raw: Any) -> None:
    """The heads move by one statement, and the rows come by others."""
    many = [Outgoing("a", b"", id=f"a{n}") for n in range(1001)]
    published(client, raw, lambda topic: [receipt.id for receipt in client.publish_many(topic, many)], least=5)


def test_a_publish_in_a_block(client: Client, raw: Any) -> None:
    """Of the client: together with the caller's row, or neither."""
    published_in_a_block(client, raw)


def published_in_a_block(client: Client, raw: Any) -> None:
    """Publish in blocks that end: each has its row and its message, or neither."""
    rows(raw, "CREATE TABLE own (topic VARCHAR(9) PRIMARY KEY)")

    def publish(topic: str) -> list[str]:
        with client.transaction() as connection:
            rows(connection, "INSERT INTO own VALUES (%s)", topic)
            return [client.publish(topic, "a", b"x", id="a1", connection=connection).id]

    published(client, raw, publish, least=6)
    joined = "SELECT COUNT(*) FROM own JOIN queue_messages AS m USING (topic) WHERE id = 'a1'"
    assert one(raw, "SELECT COUNT(*) FROM own") == one(raw, joined)


def test_a_block_with_the_callers_row_alone(client: Client, raw: Any) -> None:
    """The row is there if and only if the block left without an error."""
    written_in_a_block(client, raw)


def written_in_a_block(client: Client, raw: Any) -> None:
    """Write a row in blocks that end, and nothing of the library's."""
    rows(raw, "CREATE TABLE written (n INT PRIMARY KEY)")

    def run(after: int, at: Ending) -> None:
        at.begin()
        done = True
        try:
            with client.transaction() as connection:
                rows(connection, "INSERT INTO written VALUES (%s)", after)
        except DatabaseError:
            done = False
        assert one(raw, "SELECT COUNT(*) FROM written WHERE n = %s", after) == done, at.sent

    each_statement(run, least=3)


@pytest.mark.thorough
def test_a_publish_in_a_transaction_of_the_callers(client: Client, lanelog_url: str, raw: Any) -> None:
    """On a connection of the caller's: after an error nothing of it is there, and its lane goes on."""

    def run(after: int, at: Ending) -> None:
        topic = f"t{after}"
        client.publish(topic, "a", b"first")
        connection = connect(lanelog_url, autocommit=False)
        refused = False
        at.begin()
        try:
            client.publish(topic, "a", b"x", connection=connection)
        except DatabaseError:
            refused = True
        ended = at.ended
        at.ended = True  # the COMMIT is the caller's
        connection.commit()
        connection.close()
        assert len(log_of(raw, topic)) == (1 if refused else 2), at.sent
        client.publish(topic, "a", b"last")
        log_of(raw, topic)
        at.ended = ended

    each_statement(run, least=5)


def settled_with_its_rows(url: str, raw: Any, driver: str) -> None:
    """Handle messages in transactions that end, until each is settled."""
    create_effects(raw)

    def run(after: int, at: Ending) -> None:
        topic = f"t{after}"

        def handle(message: Message) -> None:
            at.begin()
            with message.transaction() as connection:
                have_effect(connection, message)

        with lanelog.connect(url, driver=driver, pool_size=2) as client:
            client.publish(topic, "k", str(after))
            with client.subscribe(topic, "g", handle, retry=QUICK) as subscription:
                eventually(lambda: subscription.stats().acked == 1, what=f"{after} of {at.sent}")
        assert len(effects(raw)) == after + 1, at.sent

    each_statement(run, thread="lanelog-worker", least=6)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_transaction_of_a_message(lanelog_url: str, raw: Any, driver: str) -> None:
    """There is never an ack without the handler's rows, nor rows twice."""
    settled_with_its_rows(lanelog_url, raw, driver)


@pytest.mark.thorough
@pytest.mark.parametrize("driver", DRIVERS)
def test_a_dead_letter(lanelog_url: str, raw: Any, driver: str) -> None:
    """A message that is given up is there as a dead letter, once."""
    given_up(lanelog_url, raw, driver)


def given_up(url: str, raw: Any, driver: str) -> None:
    """Reject messages, and let the transaction end that writes their dead letters."""

    def run(after: int, at: Ending) -> None:
        topic = f"t{after}"

        def handle(message: Message) -> None:
            at.begin()
            raise Reject("no")

        with lanelog.connect(url, driver=driver, pool_size=2) as client:
            client.publish(topic, "k", b"x")
            with client.subscribe(topic, "g", handle):
                eventually(lambda: watermark(raw, "g", topic, "k") == 1, what=f"{after} of {at.sent}")
        assert len(log_of(raw, f"{topic}_dlq")) == 1, at.sent

    each_statement(run, thread="lanelog-settler", least=6)


@pytest.mark.thorough
@pytest.mark.parametrize("driver", DRIVERS)
def test_a_message_with_a_delay(lanelog_url: str, raw: Any, driver: str) -> None:
    """The message is appended once, and waits no more."""
    delayed(lanelog_url, raw, driver)


def delayed(url: str, raw: Any, driver: str) -> None:
    """Publish messages with a delay, and let the transaction end that appends them."""

    def run(after: int, at: Ending) -> None:
        topic = f"t{after}"
        with lanelog.connect(url, driver=driver, pool_size=2) as client:
            client.publish(topic, "k", b"first")
            at.begin()
            client.publish(topic, "k", b"x", delay=0.1, id="k1")
            with client.subscribe(topic, "g", lambda _: None):
                eventually(lambda: not one(raw, "SELECT COUNT(*) FROM queue_scheduled"), what=f"{after} of {at.sent}")
        assert ("k", "k1") in log_of(raw, topic), at.sent

    each_statement(run, thread="lanelog-scheduler", least=4)


@pytest.mark.thorough
def test_a_redrive(client: Client, raw: Any) -> None:
    """The redriven message is there again, and the dead letter is settled."""
    redriven(client, raw)


def redriven(client: Client, raw: Any) -> None:
    """Redrive dead letters in transactions that end."""

    def run(after: int, at: Ending) -> None:
        topic = f"t{after}"
        client.publish(topic, "k", b"x")
        with client.subscribe(topic, "g", raising(Reject, "no")):
            eventually(lambda: watermark(raw, "g", topic, "k") == 1)
        at.begin()
        assert client.admin.redrive(topic, "g", all=True, dry_run=False).messages == 1, at.sent
        assert len(log_of(raw, topic)) == 2, at.sent
        assert client.admin.redrive(topic, "g", all=True, dry_run=False).messages == 0, at.sent

    each_statement(run, least=8)


def one_alone(client: Client, topic: str) -> None:
    """In one packet."""
    client.publish(topic, "a", b"new")


def many(client: Client, topic: str) -> None:
    """In two packets."""
    client.publish_many(topic, [("a", b"new"), ("b", b"new")])


def a_block(client: Client, topic: str) -> None:
    """Behind a savepoint that stands before user code gets the connection. The block fails."""
    with suppress(ZeroDivisionError), client.transaction() as connection:
        client.publish(topic, "a", b"new", connection=connection)
        raise ZeroDivisionError


@pytest.mark.parametrize("operate", [one_alone, many, a_block])
def test_a_session_that_was_reset_before_is_replaced(
    client: Client, raw: Any, operate: Callable[[Client, str], None]
) -> None:
    """Autocommit is on in it: nothing is sent there that would be committed, and the operation succeeds at once."""
    client.publish_many("t", [("a", b"first"), ("b", b"first")])
    with client.transaction() as connection:
        rows(connection, "DO 1")
    client.publish_many("t", [("a", b"second"), ("b", b"second")])
    before, began = log_of(raw, "t"), time.monotonic()
    with ending(0, reset=True) as at:
        at.begin()
        operate(client, "t")
        assert at.ended
    assert time.monotonic() - began < 3
    new = len(log_of(raw, "t")) - len(before)
    assert new == {one_alone: 1, many: 2, a_block: 0}[operate]
    with client._database.transaction() as cx:
        assert cx.one("SELECT @@autocommit") == (0,)


@pytest.mark.thorough
def test_a_publish_whose_session_is_reset_in_the_middle(client: Client, raw: Any) -> None:
    """The publish is repeated on another connection, which is given back: each message is there once."""
    for after in (1, 2):
        topic = f"t{after}"
        client.publish_many(topic, [("a", b"first"), ("b", b"first")])
        with ending(after, reset=True) as at:
            at.begin()
            client.publish_many(topic, [Outgoing("a", b"", id="a1"), Outgoing("b", b"", id="b1")])
            client.publish(topic, "a", b"", id="a2")
            assert at.ended
        assert {("a", "a1"), ("a", "a2"), ("b", "b1")} < set(log_of(raw, topic))
        assert len(log_of(raw, topic)) == 5


@pytest.fixture
def narrow(lanelog_url: str) -> Iterator[Proxy]:
    """A proxy that takes one statement at a time."""
    with proxy_to(lanelog_url) as proxy:
        proxy.refuse = SET_OPTION
        yield proxy


def by_one_client(operate: Callable[[Client, Any], None]) -> Callable[[str, Any, str], None]:
    """Do it with one client, made by the driver."""

    def run(url: str, raw: Any, driver: str) -> None:
        with lanelog.connect(url, driver=driver, pool_size=2) as client:
            operate(client, raw)

    return run


def published_one_by_one(client: Client, raw: Any) -> None:
    """Publish statement by statement."""
    published(client, raw, lambda topic: [client.publish(topic, "a", b"x", id="a1").id], least=5)


BEHIND_A_PROXY = {
    "publish": by_one_client(published_one_by_one),
    "block": by_one_client(published_in_a_block),
    "own row": by_one_client(written_in_a_block),
    "message.transaction": settled_with_its_rows,
    "dead letter": given_up,
    "delay": delayed,
    "redrive": by_one_client(redriven),
}


@pytest.mark.thorough
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("operation", BEHIND_A_PROXY)
def test_behind_a_proxy_that_takes_one_statement_at_a_time(
    narrow: Proxy, raw: Any, operation: str, driver: str
) -> None:
    """The same, with something between RELEASE and COMMIT: MariaDB commits in a block, MySQL by a condition."""
    BEHIND_A_PROXY[operation](narrow.url, raw, driver)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_proxy_that_answers_set_itself_does_not_swallow_a_commit(narrow: Proxy, raw: Any, driver: str) -> None:
    """An acknowledged message is there, though the statement that commits on MySQL does not reach it."""
    begins, ends = b"SET autocommit = IF(CONCAT(", b", 1, 2), autocommit = 0"
    assert savepoint.COMMIT_IN_STATE.encode().startswith(begins)
    assert savepoint.COMMIT_IN_STATE.encode().endswith(ends)
    narrow.instead = {begins: b"DO IF(CONCAT(".rjust(len(begins)), ends: b", 1, 2)".ljust(len(ends))}
    with lanelog.connect(narrow.url, driver=driver, pool_size=2) as client:
        client.publish("t", "k", b"x", id="k1")
        with client.transaction() as connection:
            client.publish("t", "k", b"x", id="k2", connection=connection)
    assert log_of(raw, "t") == [("k", "k1"), ("k", "k2")]


@pytest.mark.parametrize("where", ["alone", "first", "second"])
def test_a_statement_that_is_refused_leaves_the_next_transaction_whole(client: Client, raw: Any, where: str) -> None:
    """Nobody knows how far the packet came, and whether autocommit is on: the next one sets it again."""
    client.publish("t", "k", b"x")
    with closing(client._database.session("keeper")) as session:
        with session.transaction() as cx:
            cx.one("SELECT 1")
        with suppress(SchemaError):
            if where == "alone":
                session.one("SELECT * FROM nowhere")
            with session.transaction() as cx:
                if where == "second":
                    cx.one("SELECT 1")
                cx.one("SELECT * FROM nowhere")
        with suppress(ZeroDivisionError), session.transaction() as cx:
            cx.execute("UPDATE queue_partitions SET head_offset = 7 WHERE topic = 't' AND partition_key = 'k'")
            raise ZeroDivisionError
        assert one(raw, "SELECT head_offset FROM queue_partitions WHERE topic = 't' AND partition_key = 'k'") == 1
        with session.transaction() as cx:
            cx.execute("UPDATE queue_partitions SET head_offset = 7 WHERE topic = 't' AND partition_key = 'k'")
        assert session.one("SELECT @@autocommit") == (1,)
        assert one(raw, "SELECT head_offset FROM queue_partitions WHERE topic = 't' AND partition_key = 'k'") == 7


def test_a_session_that_takes_no_packets_any_more(client: Client, raw: Any) -> None:
    """Another session behind the proxy was never permitted to: nothing of the packet ran, and a new one is made."""
    client.publish("t", "k", b"x", id="k1")
    for n in range(2):
        with client._database.autocommit() as cx:
            permit(cx._pooled.dbapi_connection.raw, several=False)
        if n:
            client.publish_many("t", [Outgoing("k", b"", id="k2"), Outgoing("k", b"", id="k3")])
        else:
            rows(raw, "UPDATE queue_messages SET id = 'k4' WHERE id = %s", client.publish("t", "k", b"x").id)
    assert log_of(raw, "t") == [("k", f"k{n}") for n in range(1, 5)]
