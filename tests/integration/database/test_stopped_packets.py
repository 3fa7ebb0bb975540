"""Packets that the server runs in part, as after KILL QUERY between two statements: it waits for its client, silent."""

import logging
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from importlib.util import find_spec
from typing import Any, Literal

import pytest
from attrs import evolve

import lanelog
from lanelog._database import Database
from lanelog._database.connection.stopped_packets import LONG, StoppedPackets
from lanelog.config import ConnectConfig
from lanelog.devserver import start
from lanelog.errors import DatabaseError
from support.proxy import Proxy, proxy_to
from support.sql import connect, rows, watermark
from support.waiting import Record, events, eventually

Driver = Literal["pymysql", "mysqlclient"]
DRIVERS: list[Driver] = ["pymysql", "mysqlclient"] if find_spec("MySQLdb") else ["pymysql"]
BOTH_DRIVERS = pytest.mark.parametrize("driver", DRIVERS)
AT_MOST = 6.0
"""Seconds."""


@pytest.fixture
def database(proxy: Proxy, driver: Driver) -> Iterator[Database]:
    """By way of the proxy. No time-out of the client's ends a packet soon enough."""
    database = Database(evolve(ConnectConfig.from_url(proxy.url), driver=driver, read_timeout=30.0))
    yield database
    database.close()


@pytest.mark.thorough
@BOTH_DRIVERS
@pytest.mark.parametrize("behind", [b"SET autocommit = IF", b"SET autocommit = 1", b"SET autocommit = 0"])
def test_a_loop_goes_on_after_a_packet_was_stopped(
    database: Database, proxy: Proxy, behind: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The statement fails within six seconds with a retriable error, and the next one has another connection."""
    session = database.session("settler")
    for _ in range(2):
        with session.transaction() as cx:
            cx.execute("DO 1")
    proxy.end_behind, proxy.end_early = behind, True
    began = time.monotonic()
    with pytest.raises(DatabaseError) as caught:
        for _ in range(2):
            with session.transaction() as cx:
                cx.execute("DO 1")
            session.execute("DO 1")
    assert LONG < time.monotonic() - began < AT_MOST
    assert caught.value.retriable
    assert session.one("SELECT 1") == (1,)
    assert len(events(caplog, "packet.stopped", logging.WARNING)) == 1
    session.close()


@pytest.mark.thorough
@BOTH_DRIVERS
def test_a_slow_statement_of_a_packet_is_not_cut_off(database: Database, proxy: Proxy) -> None:
    """The server is asked about it, and works on it."""
    session = database.session("settler")
    session.ensure()
    before = proxy.connections
    with session.transaction() as cx:
        assert cx.one("SELECT SLEEP(%s)", (LONG + 3,)) == (0,)
    assert proxy.connections > before
    session.close()


@pytest.mark.thorough
@BOTH_DRIVERS
def test_a_lock_wait_in_a_packet_is_not_cut_off(
    database: Database, proxy: Proxy, lanelog_client: Any, open_raw: Any
) -> None:
    """The server is asked about it, and it ends as the server ends it."""
    lanelog_client.publish("t", "k", b"x")
    holder = open_raw()
    holder.begin()
    rows(holder, "SELECT * FROM queue_partitions FOR UPDATE")
    session = database.session("settler")
    session.ensure()
    before = proxy.connections
    with pytest.raises(DatabaseError) as caught, session.transaction() as cx:
        cx.query("SELECT * FROM queue_partitions FOR UPDATE")
    assert proxy.connections > before
    assert caught.value.code == 1205
    session.close()


@pytest.mark.thorough
@BOTH_DRIVERS
@pytest.mark.parametrize("way", ["upload", "download"])
def test_a_packet_on_a_slow_network_is_not_cut_off(database: Database, proxy: Proxy, way: str) -> None:
    """The server waits for the rest of the packet, or has sent all its answers, and its session shows nothing."""
    session = database.session("settler")
    session.ensure()
    size = 2_000_000
    setattr(proxy, way, size / 6)
    began = time.monotonic()
    with session.transaction() as cx:
        if way == "upload":
            assert cx.one("SELECT LENGTH(%s)", ("x" * size,)) == (size,)
        else:
            [(text,)] = cx.query("SELECT REPEAT('x', %s)", (size,))
            assert len(text) == size
    assert time.monotonic() - began > 5
    setattr(proxy, way, 0.0)
    session.close()


def stop_a_packet(database: Database, proxy: Proxy) -> float:
    """Let the server stop in a packet. Return the seconds until its statement failed."""
    session = database.session("settler")
    session.ensure()
    proxy.end_behind, proxy.end_early = b"SET autocommit = 0", True
    began = time.monotonic()
    with pytest.raises(DatabaseError), session.transaction() as cx:
        cx.execute("DO 1")
    session.close()
    return time.monotonic() - began


@pytest.mark.thorough
@BOTH_DRIVERS
@pytest.mark.parametrize("text", [b"'\xf0\x9f\x98\x80'", b"_binary'\xff\xfe'"])
def test_a_packet_is_found_beside_any_text(database: Database, proxy: Proxy, open_raw: Any, text: bytes) -> None:
    """The server is asked although a statement that runs has a character of four bytes, or bytes that are no text."""
    other = open_raw()
    with ThreadPoolExecutor(1) as threads:
        sleeping = threads.submit(other.cursor().execute, b"SELECT SLEEP(7), " + text)
        assert stop_a_packet(database, proxy) < AT_MOST
        sleeping.result()


@pytest.mark.thorough
@BOTH_DRIVERS
def test_packets_are_found_after_an_unexpected_error(
    database: Database, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that finds them goes on."""
    failed = threading.Event()
    turn = StoppedPackets.turn

    def fail_once(packets: StoppedPackets) -> None:
        if not failed.is_set():
            failed.set()
            raise MemoryError
        turn(packets)

    monkeypatch.setattr(StoppedPackets, "turn", fail_once)
    database.session("settler").ensure()
    assert failed.wait(5)
    assert stop_a_packet(database, proxy) < AT_MOST


@pytest.mark.thorough
def test_a_number_of_another_server_cuts_nothing_off(request: pytest.FixtureRequest) -> None:
    """Behind a balancer the question reaches a server where a session of the same number is idle."""
    kind = request.config.getoption("--server")
    with start(kind) as here, start(kind) as there, ExitStack() as idle:
        for server in (here, there):
            with connect(server.url) as root:
                rows(root, "CREATE USER 'both'@'%' IDENTIFIED BY 'both'")
                rows(root, "GRANT ALL ON *.* TO 'both'@'%'")
        for _ in range(30):  # its numbers are greater
            idle.enter_context(closing(connect(here.url)))
        with proxy_to(here.url) as proxy:
            config = ConnectConfig.from_url(proxy.url)
            database = Database(evolve(config, user="both", password="both", driver="pymysql", read_timeout=30.0))
            session = database.session("settler")
            session.ensure()
            ours, theirs = session.connection_id or 0, 0
            while theirs < ours:
                theirs = idle.enter_context(closing(connect(there.url, user="both", password="both"))).thread_id()
            assert theirs == ours
            proxy.target = ConnectConfig.from_url(there.url)
            before = proxy.connections
            with session.transaction() as cx:
                assert cx.one("SELECT SLEEP(%s)", (LONG + 3,)) == (0,)
            assert proxy.connections > before
            session.close()
            database.close()


@pytest.mark.thorough
@BOTH_DRIVERS
def test_a_message_is_settled_although_its_flush_was_stopped(proxy: Proxy, raw: Any, driver: Driver) -> None:
    """The flush of one lane shares a packet with what ends the transaction before it."""
    handled = Record()
    with lanelog.connect(proxy.url, driver=driver) as client:
        client.publish("t", "k", b"first")
        proxy.end_behind, proxy.end_early = b"SET autocommit = 1;\n\nINSERT INTO queue_offsets", True
        with client.subscribe("t", "g", handled):
            eventually(lambda: not proxy.end_early, within=20)
            eventually(lambda: watermark(raw, "g", "t", "k") == 1, within=AT_MOST)
        assert len(handled) == 1


@pytest.mark.thorough
@BOTH_DRIVERS
def test_kill_query_at_any_moment_holds_a_session_for_six_seconds_at_most(
    lanelog_client: Any, lanelog_url: str, open_raw: Any, driver: Driver
) -> None:
    """Until one has come between two statements of a packet. The row that it had locked is free then."""
    lanelog_client.publish("t", "k", b"x")
    database = Database(evolve(ConnectConfig.from_url(lanelog_url), driver=driver, read_timeout=30.0))
    session = database.session("settler")
    killer, over = open_raw(), threading.Event()

    def kill() -> None:
        chance = random.Random(1)
        while not over.wait(chance.random() * 0.002):
            if number := session.connection_id:
                with suppress(Exception):  # it has just ended
                    rows(killer, f"KILL QUERY {number}")

    with ThreadPoolExecutor(1) as threads:
        killing = threads.submit(kill)
        longest, until = 0.0, time.monotonic() + 120
        while longest < LONG and time.monotonic() < until:
            began = time.monotonic()
            with suppress(DatabaseError), session.transaction() as cx:
                cx.execute("UPDATE queue_partitions SET head_offset = head_offset")
            with suppress(DatabaseError):
                session.execute("DO 1")
            longest = max(longest, time.monotonic() - began)
        over.set()
        killing.result()
    assert LONG < longest < AT_MOST
    session.close()
    database.close()
