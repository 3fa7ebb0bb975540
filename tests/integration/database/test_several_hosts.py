"""A client whose URL names several hosts, on two real servers of which one is the primary."""

import logging
import time
from contextlib import closing
from urllib.parse import quote

import pytest

import lanelog
from lanelog.devserver import DevServer
from lanelog.devserver._server import DATABASE
from lanelog.errors import DatabaseError
from support.drivers import DRIVERS
from support.promotion import Pair
from support.sql import rows
from support.waiting import Record, events, eventually

USER, PASSWORD = "lanelog_ordinary", "of both"
WITHIN = 20.0
"""Seconds after a change of the primary within which publishing and handling go on."""
FOLLOWS = {
    "mariadb": ("CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = 1, MASTER_USER = 'nobody'", "START SLAVE"),
    "mysql": (
        "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = 1, SOURCE_USER = 'nobody'",
        "START REPLICA",
    ),
}


def tell(pair: Pair, server: DevServer, *statements: str) -> None:
    with closing(pair.open(server)) as raw:
        for statement in statements:
            rows(raw, statement)


def protect(pair: Pair, server: DevServer, value: int) -> None:
    """Make a server read-only for everybody but its administrator, or writable."""
    tell(pair, server, f"SET GLOBAL read_only = {value}")


@pytest.fixture
def url(pair: Pair) -> str:
    """The URL of both, for an account that no server exempts from being read-only; the second one is read-only."""
    for server in (pair.primary, pair.replica):
        tell(
            pair,
            server,
            f"CREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}'",
            f"GRANT ALL ON `{DATABASE}`.* TO '{USER}'@'%'",
        )
    protect(pair, pair.replica, 1)
    hosts = ",".join(f"127.0.0.1:{pair.target(server).port}" for server in (pair.replica, pair.primary))
    return f"mysql://{USER}:{quote(PASSWORD)}@{hosts}/{DATABASE}"


@pytest.mark.thorough
@pytest.mark.parametrize("driver", DRIVERS)
def test_publishing_and_handling_follow_the_primary(
    pair: Pair, url: str, driver: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that turns read-only under open connections is left at its first error, for the one that takes writes.

    Everything that was published is handled, on the one or the other.
    """
    caplog.set_level(logging.INFO, logger="lanelog")
    seen = Record()
    with lanelog.connect(url, driver=driver) as client:
        client.subscribe("t", "g", lambda message: seen(message.payload))
        client.publish("t", "k", b"before")
        seen.wait(1)
        protect(pair, pair.primary, 1)
        pair.copy()
        protect(pair, pair.replica, 0)
        changed = time.monotonic()
        client.publish("t", "k", b"after")
        seen.until(lambda items: b"after" in items, within=WITHIN)
        assert time.monotonic() - changed < WITHIN
    chosen = events(caplog, "host.chosen", logging.INFO)
    assert f":{pair.target(pair.primary).port}" in chosen[0]
    assert f":{pair.target(pair.replica).port}" in chosen[-1]


@pytest.mark.thorough
def test_a_primary_that_dies_is_left_and_refused_when_it_is_back(pair: Pair, url: str) -> None:
    """The other one is promoted, and a client that was open goes on there.

    The dead one is started again, and takes writes, as one that nobody told: from then on a new client takes none.
    """
    seen = Record()
    with lanelog.connect(url) as client:
        client.subscribe("t", "g", lambda message: seen(message.payload))
        client.publish("t", "k", b"before")
        seen.wait(1)
        pair.copy()
        pair.primary.kill()
        protect(pair, pair.replica, 0)
        client.publish("t", "k", b"after")
        seen.until(lambda items: b"after" in items, within=WITHIN)
        pair.primary.restart()
        client.publish("t", "k", b"last")
        seen.until(lambda items: b"last" in items, within=WITHIN)
    with closing(pair.open(pair.primary)) as raw:
        assert rows(raw, "SELECT payload FROM queue_messages") == [(b"before",)]
    alone = lanelog.connect(url, publish_timeout=1.0)
    with alone as client, pytest.raises(DatabaseError, match="are both a primary"):
        client.publish("t", "k", b"x")


@pytest.mark.thorough
def test_an_idle_client_does_not_return_to_a_primary_that_crashed(pair: Pair, url: str) -> None:
    """While the client sends nothing, the primary dies, the other is promoted, and the first one is back, writable."""
    with lanelog.connect(url, publish_timeout=1.0) as client:
        client.publish("t", "k", b"before")
        pair.copy()
        pair.primary.kill()
        protect(pair, pair.replica, 0)
        pair.primary.restart()
        with pytest.raises(DatabaseError, match="are both a primary"):
            client.publish("t", "k", b"x")
        protect(pair, pair.primary, 1)
        client.publish("t", "k", b"after")
    with closing(pair.open(pair.replica)) as raw:
        assert rows(raw, "SELECT payload FROM queue_messages ORDER BY `offset`") == [(b"before",), (b"after",)]


@pytest.mark.thorough
def test_two_primaries_are_refused_and_named(pair: Pair, url: str, caplog: pytest.LogCaptureFixture) -> None:
    """None of the two is used until one is read-only: what is written on the wrong one is lost."""
    protect(pair, pair.replica, 0)
    with lanelog.connect(url, publish_timeout=1.0) as client:
        with pytest.raises(DatabaseError, match="are both a primary, so none is used"):
            client.publish("t", "k", b"x")
        (told,) = events(caplog, "hosts.two_primaries", logging.ERROR)
        assert all(str(address) in told for address in client.config.addresses)
        protect(pair, pair.primary, 1)
        client.publish("t", "k", b"x")


@pytest.mark.thorough
def test_a_server_that_follows_another_is_no_primary(pair: Pair, url: str) -> None:
    """A replica that somebody forgot to make read-only is not taken, if the account may see that it follows."""
    protect(pair, pair.replica, 0)
    tell(pair, pair.replica, *FOLLOWS[pair.replica.family])
    sees = "REPLICATION CLIENT" if pair.replica.family == "mysql" else "SLAVE MONITOR"
    for server in (pair.primary, pair.replica):
        tell(pair, server, f"GRANT {sees} ON *.* TO '{USER}'@'%'")
    with lanelog.connect(url) as client:
        client.publish("t", "k", b"x")
        with closing(pair.open(pair.primary)) as raw:
            eventually(lambda: rows(raw, "SELECT COUNT(*) FROM queue_messages") == [(1,)])
    pair.primary.kill()
    alone = lanelog.connect(url, publish_timeout=1.0)
    with alone as client, pytest.raises(DatabaseError, match="it follows another server"):
        client.publish("t", "k", b"x")
