"""`message.ack(connection=)`: the ack is written in a transaction of the handler's own, and committed with it."""

import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pymysql
import pytest
from pymysql.constants import CLIENT
from tenacity import stop_after_attempt, wait_fixed

from lanelog import (
    AckPolicy,
    AlreadySettled,
    Client,
    ConfigurationError,
    LeaseLost,
    Message,
    RetryPolicy,
)
from lanelog.admin import Problem
from lanelog.devserver import DevServer
from support.drivers import DRIVERS, Driver
from support.settling import create_effects, effects, have_effect
from support.sql import connect, delivery_rows, one, rows, watermark
from support.stage import thorough
from support.waiting import Record, eventually, never

QUICK = RetryPolicy(stop=stop_after_attempt(5), wait=wait_fixed(0.05))
LEVEL = "SET SESSION TRANSACTION ISOLATION LEVEL "
ISOLATION = {
    "read-committed": f"{LEVEL}READ COMMITTED",
    "repeatable-read": f"{LEVEL}REPEATABLE READ",
    "serializable": f"{LEVEL}SERIALIZABLE",
    # A locking read fails where a row has changed since the snapshot. MySQL has no such setting.
    "snapshot": "SET @set = 1 /*M!100618 , SESSION innodb_snapshot_isolation = ON */",
}


@pytest.fixture(autouse=True)
def _effects(raw: Any) -> None:
    create_effects(raw)


def quietly_rolled_back(connection: Any) -> None:
    with suppress(Exception):
        connection.rollback()


@pytest.mark.parametrize("order", ["strict", *thorough("serial", "concurrent")])
@pytest.mark.parametrize("driver", sorted(DRIVERS))
def test_effects_happen_once(lanelog_client: Client, lanelog_url: str, raw: Any, order: str, driver: str) -> None:
    """Every third message is rolled back after its ack at first: in the end each has exactly one effect."""

    def handle(message: Message) -> None:
        connection = Driver(driver, lanelog_url).open()
        try:
            have_effect(connection, message)
            message.ack(connection=connection)
            if message.offset % 3 == 0 and message.attempt == 1:
                raise ValueError("after the ack")
            connection.commit()
        finally:
            connection.close()

    lanelog_client.publish_many("t", [("a", b"x")] * 15)
    subscription = lanelog_client.subscribe("t", "g", handle, order=order, retry=QUICK)
    eventually(lambda: subscription.stats().acked == 15)
    assert sorted(effects(raw, "o, attempt")) == [(n, 2 if n % 3 == 0 else 1) for n in range(1, 16)]
    eventually(lambda: watermark(raw, "g", "t", "a") == 15)
    eventually(lambda: not delivery_rows(raw, "g", "t"))


def committed(connection: Any) -> None:
    connection.commit()


def committed_and_raised(connection: Any) -> None:
    connection.commit()
    raise ValueError("after the commit")


def committed_late(connection: Any) -> None:
    threading.Timer(0.5, connection.commit).start()


def raised_and_committed_late(connection: Any) -> None:
    threading.Timer(0.5, connection.commit).start()
    raise ValueError("before the commit")


def rolled_back(connection: Any) -> None:
    connection.rollback()


def rolled_back_late(connection: Any) -> None:
    threading.Timer(0.5, connection.rollback).start()


def closed(connection: Any) -> None:
    connection.close()


ENDINGS = {
    committed: 1,
    committed_and_raised: 1,
    committed_late: 1,
    raised_and_committed_late: 1,
    rolled_back: 2,
    rolled_back_late: 2,
    closed: 2,
}
"""How a transaction may end, and how many attempts the message then has."""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("end", "isolation", "history"),
    [
        *((end, "repeatable-read", False) for end in ENDINGS),
        *((end, level, True) for end in (committed_late, rolled_back) for level in ISOLATION),
    ],
)
def test_the_end_of_the_transaction_decides(
    lanelog_client: Client,
    open_raw: Any,
    raw: Any,
    end: Callable[[Any], None],
    isolation: str,
    history: bool,
) -> None:
    """Committed, also late: the message is done, whatever the handler raises. Else it has failed, and comes again."""
    attempts = Record()

    def handle(message: Message) -> None:
        attempts(message.attempt)
        connection = open_raw()
        rows(connection, ISOLATION[isolation])
        rows(connection, "SELECT COUNT(*) FROM queue_partition_leases")  # so there is a snapshot, and an old one
        have_effect(connection, message)
        message.ack(connection=connection)
        (end if message.attempt == 1 else committed)(connection)

    lanelog_client.publish("t", "a", b"x")
    options = {"history": True} if history else {}
    subscription = lanelog_client.subscribe("t", "g", handle, retry=QUICK, visibility_timeout=0.3, **options)
    eventually(lambda: watermark(raw, "g", "t", "a") == 1)
    assert attempts.items == list(range(1, ENDINGS[end] + 1))
    assert effects(raw, "o, attempt") == [(1, ENDINGS[end])]
    assert subscription.stats().acked == 1
    assert one(raw, "SELECT COUNT(*) FROM queue_messages WHERE topic LIKE '%dlq'") == 0


def test_an_open_transaction_holds_its_own_message_alone(lanelog_client: Client, open_raw: Any, raw: Any) -> None:
    """No time-out ends it, and other lanes go on. When its connection is gone, the message is delivered again."""
    holder, started, done = open_raw(), Record(), Record()

    def handle(message: Message) -> None:
        if message.payload == b"x" and message.key == "held" and message.attempt == 1:
            message.ack(connection=holder)
            started(message.attempt)
        else:
            done((message.key, message.attempt))

    lanelog_client.publish("t", "held", b"x")
    lanelog_client.subscribe("t", "g", handle, retry=QUICK, visibility_timeout=0.2, workers=2)
    started.wait(1)
    lanelog_client.publish_many("t", [("free", b"x"), ("held", b"y")])
    assert done.wait(1) == [("free", 1)]
    eventually(lambda: watermark(raw, "g", "t", "free") == 1)
    never(lambda: len(done.items) > 1, during=1.0)
    rows(raw, f"KILL {one(holder, 'SELECT CONNECTION_ID()')}")
    assert done.wait(3)[1:] == [("held", 2), ("held", 1)]


@pytest.mark.parametrize("pulled", thorough(False, True), ids=lambda value: "pulled" if value else "handled")
def test_status_names_the_connection_that_nobody_ends(lanelog_client: Client, open_raw: Any, pulled: bool) -> None:
    """Within 15 s of the ack, with its number, its account and the way out; when it has ended, nothing is said."""
    holder, acked = open_raw(), Record()

    def handle(message: Message) -> None:
        message.ack(connection=holder)
        acked(time.monotonic())

    def shown() -> list[Problem]:
        return [each for each in lanelog_client.admin.status().problems if each.what == "ack open"]

    number = one(holder, "SELECT CONNECTION_ID()")
    lanelog_client.publish("t", "a", b"x")
    if pulled:
        handle(next(iter(lanelog_client.deliveries("t", "g", timeout=10))))
    else:
        lanelog_client.subscribe("t", "g", handle)
    (began,) = acked.wait(1)
    (found,) = eventually(shown, every=0.2)
    assert time.monotonic() - began < 15
    assert (found.topic, found.group, found.key, found.offset) == ("t", "g", "a", 1)
    account = one(holder, "SELECT USER()").partition("@")[0]
    assert re.match(rf"Connection {number} \({account}@\S+\) has acked it", found.detail)
    assert f"`KILL {number}`" in found.detail
    holder.commit()
    eventually(lambda: not shown(), every=0.2)


@pytest.mark.parametrize("end", ["commit", *thorough("rollback")])
def test_a_stopped_subscription_leaves_the_decision_to_the_server(
    lanelog_client: Client, open_raw: Any, raw: Any, end: str
) -> None:
    """A transaction that is committed after the stop has settled its message; else the next owner gets it."""
    holder, started, after = open_raw(), Record(), Record()

    def handle(message: Message) -> None:
        have_effect(holder, message)
        message.ack(connection=holder)
        started(message.attempt)

    lanelog_client.publish("t", "a", b"x")
    subscription = lanelog_client.subscribe("t", "g", handle, lease_duration=2.0, lease_renewal=0.2)
    started.wait(1)
    subscription.stop(0.5)
    lanelog_client.subscribe("t", "g", lambda m: after(m.offset), lease_duration=2.0, lease_renewal=0.2)
    never(lambda: after.items, during=0.5)
    getattr(holder, end)()
    lanelog_client.publish("t", "a", b"y")
    assert after.wait(1 if end == "commit" else 2) == ([2] if end == "commit" else [1, 2])
    assert len(effects(raw)) == (1 if end == "commit" else 0)


def test_nobody_takes_the_lane_from_an_open_transaction(lanelog_client: Client, open_raw: Any, raw: Any) -> None:
    """The lease is locked until the transaction has ended."""
    holder, acked = open_raw(), Record()
    lease = "SELECT 1 FROM queue_partition_leases WHERE partition_key = 'a' FOR UPDATE NOWAIT"

    def handle(message: Message) -> None:
        message.ack(connection=holder)
        acked(message.offset)

    lanelog_client.publish("t", "a", b"x")
    lanelog_client.subscribe("t", "g", handle)
    acked.wait(1)
    with pytest.raises(pymysql.err.OperationalError):
        rows(raw, lease)
    holder.commit()
    eventually(lambda: watermark(raw, "g", "t", "a") == 1)
    assert rows(raw, lease) == [(1,)]


def test_what_is_settled_already_is_not_settled_once_more(lanelog_client: Client, open_raw: Any, raw: Any) -> None:
    """Also where the driver counts found rows, as SQLAlchemy and Django let it: effects must not be committed twice."""
    connection, done = open_raw(client_flag=CLIENT.FOUND_ROWS), Record()

    def handle(message: Message) -> None:
        columns = "(consumer_group, topic, partition_key, message_offset, through_offset, acked)"
        rows(raw, f"INSERT INTO queue_delivery_state {columns} VALUES ('g', 't', 'a', 1, 1, 1)")
        have_effect(connection, message)
        with pytest.raises(LeaseLost, match="is settled"):
            message.ack(connection=connection)
        connection.rollback()
        done(int(one(connection, "SELECT @@wait_timeout")))

    lanelog_client.publish("t", "a", b"x")
    lanelog_client.subscribe("t", "g", handle, lease_duration=7.0)
    assert done.wait(1) == [one(raw, "SELECT @@wait_timeout")]
    assert effects(raw) == []


def test_a_rolled_back_ack_may_be_written_once_more(lanelog_client: Client, open_raw: Any, raw: Any) -> None:
    """As an application does that repeats its transaction after a deadlock."""
    done = Record()

    def handle(message: Message) -> None:
        connection = open_raw()
        for end in ("rollback", "commit"):
            have_effect(connection, message)
            message.ack(connection=connection)
            with pytest.raises(AlreadySettled, match="still open"):
                message.ack(connection=open_raw())
            getattr(connection, end)()
        with pytest.raises(AlreadySettled):
            message.ack(connection=connection)
        done(message.attempt)

    lanelog_client.publish("t", "a", b"x")
    lanelog_client.subscribe("t", "g", handle)
    assert done.wait(1) == [1]
    eventually(lambda: watermark(raw, "g", "t", "a") == 1)
    assert len(effects(raw)) == 1


def test_what_no_ack_can_be_part_of_is_refused(lanelog_client: Client, open_raw: Any) -> None:
    """In one sentence each, before anything is written; the message may be acked as ever."""
    refused = Record()

    def handle(message: Message) -> None:
        with pytest.raises(ConfigurationError) as caught:
            message.ack(connection=open_raw(autocommit=True))
        refused(str(caught.value))
        with lanelog_client.transaction() as own, pytest.raises(ConfigurationError) as caught:
            message.ack(connection=own)
        refused(str(caught.value))
        distributed = open_raw()
        rows(distributed, "XA START 'x'")
        with pytest.raises(ConfigurationError) as caught:
            message.ack(connection=distributed)
        refused(str(caught.value))
        with pytest.raises(ConfigurationError) as caught:
            message.ack(connection="mysql://app@db/shop")
        refused(str(caught.value))
        message.ack()

    lanelog_client.publish("t", "a", b"x")
    subscription = lanelog_client.subscribe("t", "g", handle)
    autocommit, own, distributed, text = refused.wait(4)
    assert "autocommit" in autocommit
    assert "lanelog's own" in own
    assert "XA" in distributed
    assert "not str" in text
    eventually(lambda: subscription.stats().acked == 1)


@pytest.mark.thorough
def test_another_server_is_refused(lanelog_client: Client, private_server: DevServer) -> None:
    """Before anything is written there; the engine goes on where it is."""
    refused = Record()

    def handle(message: Message) -> None:
        with (
            connect(private_server.create_database("elsewhere"), autocommit=False) as elsewhere,
            pytest.raises(ConfigurationError) as caught,
        ):
            message.ack(connection=elsewhere)
        refused(str(caught.value))

    lanelog_client.publish("t", "a", b"x")
    subscription = lanelog_client.subscribe("t", "g", handle)
    (text,) = refused.wait(1)
    assert "another server" in text
    eventually(lambda: subscription.stats().acked == 1)


def test_nothing_of_ours_follows_the_ack(lanelog_client: Client, open_raw: Any, raw: Any) -> None:
    """A publish and another ack are refused until the transaction has ended, and the same connection serves again."""
    connection, done = open_raw(), Record()

    def handle(message: Message) -> None:
        lanelog_client.publish("next", "a", b"before", connection=connection)
        message.ack(connection=connection)
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="last statement"):
                lanelog_client.publish("next", "a", b"after", connection=connection)
        connection.commit()
        lanelog_client.publish("next", "a", b"another", connection=connection)
        connection.commit()
        done(message.offset)

    lanelog_client.publish_many("t", [("a", b"x"), ("a", b"y")])
    lanelog_client.subscribe("t", "g", handle)
    assert done.wait(2) == [1, 2]
    assert one(raw, "SELECT COUNT(*) FROM queue_messages WHERE topic = 'next'") == 4


class Stubborn:
    """A connection whose cursors keep settings of the session from the server, as some proxies do."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def cursor(self) -> Any:
        cursor = self._inner.cursor()
        execute = cursor.execute
        cursor.execute = lambda sql, args=None: 0 if "SET SESSION" in sql else execute(sql, args)
        return cursor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_a_stopped_process_holds_its_lane_no_longer_than_the_lease(lanelog_client: Client, open_raw: Any) -> None:
    """The session's wait_timeout is lowered to the lease. Where that is ignored, the ack is refused."""
    connection, done = open_raw(), Record()

    def handle(message: Message) -> None:
        with pytest.raises(ConfigurationError, match="wait_timeout"):
            message.ack(connection=Stubborn(connection))
        message.ack(connection=connection)
        done(int(one(connection, "SELECT @@wait_timeout")))
        connection.commit()

    lanelog_client.publish("t", "a", b"x")
    lanelog_client.subscribe("t", "g", handle, lease_duration=7.0)
    assert done.wait(1) == [7]


@pytest.mark.parametrize("pulled", [True, *thorough(False)])
def test_messages_in_the_users_hands_are_acked_so_too(
    lanelog_client: Client, open_raw: Any, raw: Any, pulled: bool
) -> None:
    """Pulled messages, and those of a handler that settles by hand, are settled by the commit."""
    connection = open_raw()

    def bill(message: Message) -> None:
        have_effect(connection, message)
        message.ack(connection=connection)
        if message.attempt == 1 and message.offset == 1:
            connection.rollback()
            message.nack(0)
        else:
            connection.commit()

    lanelog_client.publish_many("t", [("a", b"x"), ("a", b"y")])
    if pulled:
        with lanelog_client.deliveries("t", "g", timeout=2.0) as deliveries:
            for message in deliveries:
                bill(message)
    else:
        lanelog_client.subscribe("t", "g", bill, ack_policy=AckPolicy.MANUAL, retry=QUICK)
    eventually(lambda: watermark(raw, "g", "t", "a") == 2)
    assert effects(raw, "o, attempt") == [(1, 2), (2, 1)]
