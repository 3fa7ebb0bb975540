"""Two servers behind one address, by turns: a proxy that balances a primary and its replica."""

import logging
from contextlib import closing

import pytest

import lanelog
from lanelog._engine.fetching.fetcher import Fetcher
from support.promotion import PASSWORD, USER, Pair
from support.sql import rows
from support.waiting import Record, events, eventually, never

QUIET = 3.0
"""Seconds in which next to no connection is made."""
FEW = 20
"""Connections that a client may make in that time. A storm has some hundred."""


def fetchers_connection(client: lanelog.Client) -> int:
    """The number of the fetcher's connection at the server."""
    (session,) = (
        part.session
        for loop in client._engine._loops
        if isinstance(part := loop._turn.__self__, Fetcher)  # type: ignore[attr-defined]
    )
    return int(session.connection_id)


@pytest.mark.thorough
def test_a_client_settles_on_one_of_two_servers_and_names_both(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """The fetcher comes to a replica that takes no writes: messages are handled, and few connections are made."""
    for server in (pair.primary, pair.replica):
        with closing(pair.open(server)) as root:
            database = rows(root, "SELECT DATABASE()")[0][0]
            rows(root, f"DROP USER '{USER}'@'%'")  # it has the privilege to write in spite of read_only
            rows(root, f"CREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}'")
            rows(root, f"GRANT ALL ON `{database}`.* TO '{USER}'@'%'")
            rows(root, f"SET GLOBAL read_only = {int(server is pair.replica)}")
    record = Record()
    with lanelog.connect(pair.primary.url) as direct, lanelog.connect(pair.url) as client:
        subscription = client.subscribe("t", "g", lambda message: record(message.offset))
        direct.publish_many("t", [("k", b"x")] * 3)
        record.wait(3)
        pair.copy()
        eventually(lambda: client.health().ready)
        pair.proxy.other, pair.proxy.connections = pair.target(pair.replica), 0  # the next one goes to the replica
        with closing(pair.open(pair.primary)) as root:
            rows(root, f"KILL {fetchers_connection(client)}")
        direct.publish_many("t", [("k", b"x")] * 3)
        never(lambda: pair.proxy.connections > FEW, during=QUIET, what="a storm of connections")
        record.until(lambda items: {*items} == {1, 2, 3, 4, 5, 6})
        (told,) = eventually(lambda: events(caplog, "servers.alternate", logging.WARNING))
        eventually(lambda: client.health().ready)
        assert subscription.state == "running"
    for server in (pair.primary, pair.replica):
        assert f":{pair.target(server).port} " in told
