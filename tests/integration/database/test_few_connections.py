"""A server with too few connections: who gets one, and what is said."""

import itertools
import logging
import threading
import time
from contextlib import ExitStack, closing, suppress
from typing import Any

import pymysql
import pytest

import lanelog
from lanelog._database.pool.connection_priority import ORDER
from lanelog._database.pool.pool import Database
from lanelog.admin.totals import topics
from lanelog.admin.totals.ages import Breadth
from lanelog.devserver import DevServer
from lanelog.errors import DatabaseError
from support.accounts import account
from support.sql import connect, one, rows, running, watermark
from support.traffic import shares
from support.waiting import Record, events, eventually, never


def purposes(raw: Any, user: str) -> int:
    return sum(each.user == user for each in running(raw))


@pytest.mark.thorough
@pytest.mark.usefixtures("logged")
@pytest.mark.parametrize("most", [3, 4])
def test_what_there_is_goes_to_the_loops_that_matter(
    lanelog_url: str, raw: Any, caplog: pytest.LogCaptureFixture, most: int
) -> None:
    """With one for keeper, settler and fetcher each, messages are handled and acked. One ERROR says how many lack."""
    with lanelog.connect(lanelog_url) as other:
        other.publish_many("t", [("k", b"x")] * 3)
    with account(raw, lanelog_url, {"*": "ALL"}) as url:
        user = lanelog.config.ConnectConfig.from_url(url).user
        rows(raw, f"ALTER USER '{user}'@'%' WITH MAX_USER_CONNECTIONS {most}")
        with lanelog.connect(url, pool_size=2) as client:
            client.subscribe("t", "g", lambda _message: None)
            eventually(lambda: watermark(raw, "g", "t", "k") == 3, within=20)
            (said,) = eventually(lambda: events(caplog, "connections.missing", logging.ERROR), within=20)
            lacking = {3: "[janitor,scheduler]", 4: "[scheduler]"}[most]
            assert f"missing={lacking.count(',') + 1}" in said
            assert f"of={len(ORDER)}" in said
            assert f"without={lacking}" in said
            assert "this account's own limit" in said
            assert "raise the server's" not in said
            with connect(lanelog_url) as late:
                rows(late, f"ALTER USER '{user}'@'%' WITH MAX_USER_CONNECTIONS 20")
            eventually(lambda: purposes(raw, user) >= len(ORDER) - 1, within=20)
            assert len(events(caplog, "connections.missing", logging.ERROR)) == 1


def test_a_connection_that_nobody_uses_is_closed_for_any_loop(lanelog_url: str, raw: Any) -> None:
    """A loop that is worth less than publishing, refused once, gets the connection that lies idle in the pool."""
    with account(raw, lanelog_url, {"*": "ALL"}) as url:
        config = lanelog.config.ConnectConfig.from_url(url)
        rows(raw, f"ALTER USER '{config.user}'@'%' WITH MAX_USER_CONNECTIONS 2")
        with closing(Database(config)) as database, closing(database.session("keeper")) as keeper:
            with database.autocommit() as pooled:
                pooled.one("SELECT 1")
            keeper.ensure()
            with closing(database.session("janitor")) as janitor:
                with pytest.raises(DatabaseError, match="max_user_connections"):
                    janitor.ensure()
                eventually(lambda: purposes(raw, config.user) == 1)
                assert janitor.ensure()


@pytest.mark.thorough
@pytest.mark.parametrize("most", [1, 2])
def test_status_does_with_the_connections_there_are(lanelog_url: str, raw: Any, most: int) -> None:
    """Looks that are meant to be taken at once wait for each other."""
    with lanelog.connect(lanelog_url) as other:
        other.subscribe("t", "g", lambda _message: None).stop()
        other.publish_many("t", [(f"k{number}", b"x") for number in range(12)])
    with account(raw, lanelog_url, {"*": "ALL"}) as url:
        user = lanelog.config.ConnectConfig.from_url(url).user
        rows(raw, f"ALTER USER '{user}'@'%' WITH MAX_USER_CONNECTIONS {most}")
        for pool_size in (2, 8):
            with lanelog.connect(url, pool_size=pool_size) as client:
                found = client.admin.status()
                assert (found.lag, found.oldest_age_exact, found.topics) == (12, True, 1)
                (group,) = topics.groups(client._database, "t", Breadth(candidates=2))
                assert (group.lag, group.oldest_age is None) == (12, False)


def end_all(raw: Any, user: str) -> None:
    """End all connections of an account, as a restart of the server does."""
    for each in running(raw):
        with suppress(pymysql.err.OperationalError):  # it may have ended meanwhile
            if each.user == user:
                rows(raw, f"KILL {each.number}")


def free_for(raw: Any, user: str, most: int) -> None:
    rows(raw, f"ALTER USER '{user}'@'%' WITH MAX_USER_CONNECTIONS {most}")


@pytest.mark.thorough
@pytest.mark.usefixtures("logged")
def test_a_client_without_a_fetcher_leaves_its_lanes_to_others(
    lanelog_url: str, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Two clients, connections for one and a half: the one without a fetcher is not ready, and gives its lanes away.

    Its heartbeat says that it left, so that a member of any version leaves it out of the plan. `status` counts it all
    the same. When there are connections again, it is ready and gets its share back.
    """
    keys = [f"k{number}" for number in range(40)]
    with account(raw, lanelog_url, {"*": "ALL"}) as url, lanelog.connect(lanelog_url) as other:
        other.publish_many("t", [(key, b"x") for key in keys])
        user = lanelog.config.ConnectConfig.from_url(url).user
        free_for(raw, user, 30)  # MariaDB counts the connections of an account that has a bound
        with lanelog.connect(url, pool_size=2) as whole, lanelog.connect(url, pool_size=2) as out:
            whole.subscribe("t", "g", lambda _message: None)
            # The five loops, each past its first turn, and one of the pool: nothing is refused to it from here on.
            eventually(lambda: all(each.turned and each.waits is None for each in whole.health().loops))
            eventually(lambda: purposes(raw, user) >= 6)
            free_for(raw, user, purposes(raw, user) + 2)
            out.subscribe("t", "g", lambda _message: None)
            eventually(lambda: sorted(held(raw).values()) == [20, 20])
            eventually(lambda: sorted(held(raw).values()) == [40], within=20)
            lacking = eventually(lambda: out.health().connections, within=20)
            assert "max_user_connections" in lacking[0].why
            assert not out.health().ready
            assert any("fetcher" in each for each in out.health().lacking)
            other.publish_many("t", [(key, b"y") for key in keys])
            settled = "SELECT COUNT(*) FROM queue_offsets WHERE consumer_group = 'g' AND offset_acked = 2"
            eventually(lambda: one(raw, settled) == 40, within=10)
            assert whole.health().ready
            states = sorted(str(member.state) for member in other.admin.members("t", "g"))
            assert states == ["alive", "aside"]
            left = "SELECT COUNT(*) FROM queue_subscriber_heartbeats WHERE deregistered_at > 0"
            assert one(raw, left) == 1
            assert [group.members for group in other.admin.status().groups] == [2]
            (said,) = events(caplog, "keeper.stood_aside", logging.WARNING)
            assert "max_user_connections" in said
            free_for(raw, user, 30)
            eventually(lambda: sorted(held(raw).values()) == [20, 20], within=30)
            eventually(lambda: out.health().ready)
            assert one(raw, left) == 0


HELD = "SELECT leased_by, COUNT(*) FROM queue_partition_leases WHERE leased_by <> '' GROUP BY leased_by"


def held(raw: Any) -> dict[str, int]:
    """How many lanes each owner has."""
    return {owner: int(lanes) for owner, lanes in rows(raw, HELD)}


@pytest.mark.thorough
@pytest.mark.usefixtures("logged")
def test_what_runs_is_finished_and_settled_before_its_lane_goes(
    lanelog_url: str, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A client loses its fetcher under a running handler: it gives the idle lanes, and this one after its outcome."""
    ran, others, going = Record(), Record(), threading.Event()

    def run(message: lanelog.Message) -> None:
        ran(message.key)
        going.wait(60)

    with account(raw, lanelog_url, {"*": "ALL"}) as url, lanelog.connect(lanelog_url) as other:
        other.publish("t", "busy", b"x")
        user = lanelog.config.ConnectConfig.from_url(url).user
        with lanelog.connect(url, pool_size=2) as client:
            client.subscribe("t", "g", run, name="lacking")
            ran.wait(1)
            other.publish_many("t", [(f"k{number}", b"x") for number in range(5)])
            ran.wait(6)
            going.set()
            eventually(lambda: one(raw, "SELECT SUM(offset_acked) FROM queue_offsets WHERE consumer_group = 'g'") == 6)
            going.clear()
            other.publish("t", "busy", b"y")
            ran.wait(7)
            free_for(raw, user, 2)
            end_all(raw, user)
            other.subscribe("t", "g", lambda message: others((message.key, message.offset, message.attempt)), name="w")
            eventually(lambda: shares(raw) == {"lacking": 1, "w": 5}, within=30)
            assert not client.health().ready
            assert events(caplog, "keeper.stood_aside", logging.WARNING)
            going.set()
            eventually(lambda: shares(raw) == {"w": 6}, within=20)
            other.publish("t", "busy", b"z")
            assert others.wait(1) == [("busy", 3, 1)]
            assert len(ran.items) == 7


@pytest.mark.thorough
@pytest.mark.usefixtures("logged")
def test_a_server_that_is_away_moves_no_lane(private_server: DevServer, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody stands aside when no member can connect: after seven seconds the same members go on with their lanes."""
    epochs = "SELECT partition_key, leased_by, lease_epoch FROM queue_partition_leases ORDER BY 1"
    seen = Record()
    with lanelog.connect(private_server.url) as client:
        client.migrate()
        client.subscribe("t", "g", lambda message: seen(message.offset))
        client.publish("t", "k", b"x")
        seen.wait(1)
        with connect(private_server.url) as raw:
            before = rows(raw, epochs)
        private_server.kill()
        never(lambda: client.health().connections, during=7.0)
        private_server.restart()
        client.publish("t", "k", b"y")
        assert seen.wait(2) == [1, 2]
        with connect(private_server.url) as raw:
            assert rows(raw, epochs) == before
    assert not events(caplog, "keeper.stood_aside", logging.WARNING)


@pytest.mark.thorough
@pytest.mark.usefixtures("logged")
def test_a_tenth_of_the_servers_connections_is_left_to_others(
    private_server: DevServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Loops that want more than the server has do not take the last ones, and their error names its limit."""
    with ExitStack() as stack:
        root = stack.enter_context(connect(private_server.url))
        with lanelog.connect(private_server.url) as client:
            client.migrate()
        url = stack.enter_context(account(root, private_server.url, {"*": "ALL"}))
        for _ in range(8):
            client = stack.enter_context(lanelog.connect(url, pool_size=2))
            client.subscribe("t", "g", lambda _message: None)
        user = lanelog.config.ConnectConfig.from_url(url).user
        eventually(lambda: purposes(root, user) >= 40)
        rows(root, "SET GLOBAL max_connections = 30")
        end_all(root, user)
        said = eventually(lambda: events(caplog, "connections.missing", logging.ERROR), within=20)
        assert "raise the server's max_connections" in said[0]
        assert "this account's own limit" not in said[0]
        others = [eventually(lambda: connected(url), what="a connection for another program") for _ in range(2)]
        assert [one(each, "SELECT 1") for each in others] == [1, 1]
        for each in others:
            each.close()


def connected(url: str) -> Any:
    """A connection, or None if the server has none left."""
    try:
        return connect(url)
    except pymysql.err.OperationalError:
        return None


@pytest.mark.thorough
def test_a_crowd_that_connects_anew_leaves_room_for_others_and_works(private_server: DevServer) -> None:
    """24 clients, 60 connections, all ended at once: another program connects within 10 s, all is handled in 60 s."""
    count, keys = 2138, 200
    settled = "SELECT COALESCE(SUM(offset_acked), 0) FROM queue_offsets WHERE consumer_group = 'g'"
    with ExitStack() as stack:
        root = stack.enter_context(connect(private_server.url))
        client = stack.enter_context(lanelog.connect(private_server.url, pool_size=2))
        client.migrate()
        client.publish_many("t", [(f"k{number}", b"x") for number in range(keys)])
        url = stack.enter_context(account(root, private_server.url, {"*": "ALL"}))
        user = lanelog.config.ConnectConfig.from_url(url).user
        going = threading.Event()
        stack.callback(going.set)
        for _ in range(24):
            worker = stack.enter_context(lanelog.connect(url, pool_size=2))
            worker.subscribe("t", "g", lambda _message: going.wait(60), workers=2)
        eventually(lambda: purposes(root, user) >= 24 * 5, within=60)
        rows(root, "SET GLOBAL max_connections = 60")
        client.publish_many("t", [(f"k{number % keys}", b"x") for number in range(count)])
        end_all(root, user)
        going.set()
        connected_at = [time.monotonic()]

        def handled() -> bool:
            if (other := connected(url)) is not None:
                other.close()
                connected_at.append(time.monotonic())
            return bool(one(root, settled) == keys + count)

        eventually(handled, within=60)
        assert max(after - before for before, after in itertools.pairwise(connected_at)) < 10
