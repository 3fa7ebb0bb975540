"""A server that refuses a running client for a while: its users, one of its statements, its tables."""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest
from attrs import frozen

import lanelog
from lanelog import Client, DatabaseError, SchemaError
from lanelog.config import ConnectConfig
from lanelog.devserver import DevServer
from support.accounts import PASSWORD, account
from support.sql import connect, one, rows, sessions, watermark
from support.waiting import Record, accept, events, eventually

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("logged")]

MANY = 6
"""More turns in a row than a loop may fail for a fault of its own."""

LEASE = 4.0
"""Seconds. A loop has failed for a fault of its own after two."""

ALL = {"*": "ALL"}


@frozen
class Refusal:
    """How an operator shuts an account or a server, and opens it again."""

    shut: str
    open: str


OF_ACCOUNTS = {
    "locked": Refusal("ALTER USER {user} ACCOUNT LOCK", "ALTER USER {user} ACCOUNT UNLOCK"),
    "another password": Refusal(
        "ALTER USER {user} IDENTIFIED BY 'another'", f"ALTER USER {{user}} IDENTIFIED BY '{PASSWORD}'"
    ),
    "no grant at all": Refusal("REVOKE ALL ON {database}.* FROM {user}", "GRANT ALL ON {database}.* TO {user}"),
}
OF_SERVERS = {
    "offline": Refusal("SET GLOBAL offline_mode = ON", "SET GLOBAL offline_mode = OFF"),
    "without TLS": Refusal("SET GLOBAL require_secure_transport = ON", "SET GLOBAL require_secure_transport = OFF"),
}


def turns(client: Client, loop: str) -> int:
    """How many turns a loop has taken."""
    return next(each.turns for each in client._engine.measures() if each.name == loop)


def fails_often(client: Client, loop: str) -> None:
    """Wait until a loop has failed more often in a row than for a fault of its own it may."""
    eventually(lambda: _failing(client, loop), what=f"the {loop} failing")
    before = turns(client, loop)
    eventually(lambda: turns(client, loop) > before + MANY, within=30, what="turns that fail")


def _failing(client: Client, loop: str) -> bool:
    return any(each.name == loop and each.why for each in client.health().loops)


def bears(url: str, raw: Any, how: Refusal, caplog: pytest.LogCaptureFixture) -> None:
    """A running client of this account is refused, and is there again afterwards."""
    config = ConnectConfig.from_url(url)
    names = {"user": f"'{config.user}'@'%'", "database": f"`{config.database}`"}
    record = Record()
    with (
        lanelog.connect(url) as client,
        lanelog.connect(url, publish_timeout=0.5) as hasty,
        ThreadPoolExecutor(1) as pool,
    ):
        hasty.ping()
        subscription = client.subscribe("t", "g", lambda message: record(message.payload))
        client.publish("t", "k", b"1")
        record.wait(1)
        eventually(lambda: client.health().ready)
        rows(raw, how.shut.format(**names))
        for number in sessions(raw):
            rows(raw, f"KILL {number}")
        fails_often(client, "keeper")
        with pytest.raises(DatabaseError) as refused:
            hasty.publish("t", "k", b"never")
        assert refused.value.retriable
        assert "tried" in str(refused.value.__notes__)
        published = pool.submit(client.publish, "t", "k", b"2")
        assert not client.health().ready
        assert client.health().live
        rows(raw, how.open.format(**names))
        published.result(30)
        client.publish("t", "k", b"3")
        assert record.wait(3) == [b"1", b"2", b"3"]
        eventually(lambda: client.health().ready)
        assert subscription.state == "running"
    told = [line for line in events(caplog, "loop.failed", logging.WARNING) if "loop=keeper" in line]
    assert len(told) == 1
    assert events(caplog, "loop.failed", logging.ERROR) == []


@pytest.mark.parametrize("how", OF_ACCOUNTS)
def test_an_account_that_is_shut_for_a_while_costs_nothing(
    lanelog_url: str, raw: Any, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """Each new connection is refused: the process is unready, says so once, and goes on; a publish waits."""
    with account(raw, lanelog_url, ALL) as url:
        bears(url, raw, OF_ACCOUNTS[how], caplog)


@pytest.mark.parametrize("how", OF_SERVERS)
def test_a_server_that_is_shut_for_a_while_costs_nothing(
    private_server: DevServer, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """Maintenance by a setting of the server."""
    if how == "offline" and private_server.family == "mariadb":
        pytest.skip("MariaDB has no offline mode")
    with lanelog.connect(private_server.url) as client:
        client.migrate()
    with closing(connect(private_server.url)) as root, account(root, private_server.url, ALL) as url:
        bears(url, root, OF_SERVERS[how], caplog)


def test_a_statement_that_is_refused_ends_nothing(lanelog_client: Client, raw: Any) -> None:
    """With any error number, the settler tries on, the process is unready, and nothing is handled twice."""
    record = Record()
    subscription = lanelog_client.subscribe("t", "g", lambda message: record(message.payload))
    lanelog_client.publish("t", "k", b"1")
    eventually(lambda: watermark(raw, "g", "t", "k") == 1)
    refuse = "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not now'"
    rows(raw, f"CREATE TRIGGER refuse BEFORE UPDATE ON queue_offsets FOR EACH ROW {refuse}")
    lanelog_client.publish("t", "k", b"2")
    fails_often(lanelog_client, "settler")
    assert any("loop settler" in why and "not now" in why for why in lanelog_client.health().lacking)
    rows(raw, "DROP TRIGGER refuse")
    eventually(lambda: watermark(raw, "g", "t", "k") == 2)
    eventually(lambda: lanelog_client.health().ready)
    assert record.items == [b"1", b"2"]
    assert subscription.state == "running"


@contextmanager
def renamed(raw: Any, table: str) -> Iterator[None]:
    rows(raw, f"ALTER TABLE {table} RENAME TO elsewhere")
    try:
        yield
    finally:
        rows(raw, f"ALTER TABLE elsewhere RENAME TO {table}")


def test_a_table_that_is_missing_for_less_than_a_lease_ends_nothing(
    lanelog_client: Client, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A table is missing for a moment while somebody swaps it for a copy."""
    record = Record()
    subscription = lanelog_client.subscribe("t", "g", lambda message: record(message.payload))
    lanelog_client.publish("t", "k", b"1")
    record.wait(1)
    with renamed(raw, "queue_partition_leases"):
        eventually(lambda: events(caplog, "membership.faulty", logging.ERROR))
        before = turns(lanelog_client, "keeper")
        eventually(lambda: turns(lanelog_client, "keeper") > before + MANY)
    lanelog_client.publish("t", "k", b"2")
    record.wait(2)
    assert subscription.state == "running"


def test_a_table_that_is_missing_for_a_lease_ends_the_subscription(
    lanelog_client: Client, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The subscription does not end before that."""
    subscription = lanelog_client.subscribe("t", "g", accept, lease_duration=LEASE, lease_renewal=0.5)
    eventually(lambda: lanelog_client.health().ready)
    with renamed(raw, "queue_partition_leases"):
        eventually(lambda: subscription.state == "failed")
    assert isinstance(subscription.failure, SchemaError)
    assert _seconds(caplog, "membership.faulty", "membership.failed") > LEASE - 0.5


def test_a_database_that_is_dropped_ends_the_subscription_after_a_lease(
    lanelog_server: DevServer, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """No connection can be made to it any more, which is refused like nothing else."""
    name = str(one(raw, "SELECT CONCAT(DATABASE(), '_gone')"))
    client = lanelog.connect(lanelog_server.create_database(name))
    try:
        client.migrate()
        subscription = client.subscribe("t", "g", accept, lease_duration=LEASE, lease_renewal=0.5)
        eventually(lambda: client.health().ready)
        with connect(lanelog_server.root_url(name)) as there:
            numbers = sessions(there)
        lanelog_server.drop_database(name)
        for number in numbers:
            rows(raw, f"KILL {number}")
        eventually(lambda: subscription.state == "failed")
        assert isinstance(subscription.failure, DatabaseError)
        assert subscription.failure.code == 1049
        assert _seconds(caplog, "loop.failed", "membership.failed") > LEASE - 0.5
    finally:
        lanelog_server.create_database(name)  # for want of it, the loops would try on until the process ends
        client.migrate()
        assert client.close()
        lanelog_server.drop_database(name)


def _seconds(caplog: pytest.LogCaptureFixture, first: str, last: str) -> float:
    """The seconds between the first of one event and the first of another."""
    records = [(record.created, record.getMessage().split(" ")[0]) for record in list(caplog.records)]
    return min(at for at, name in records if name == last) - min(at for at, name in records if name == first)
