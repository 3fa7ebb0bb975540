"""The database restarts, or drops its connections, while processes publish and consume."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pymysql
import pytest

import lanelog
from lanelog.config import ConnectConfig
from lanelog.devserver import DevServer
from support.processes import Fleet, Line
from support.sql import rows
from support.traffic import repeated, shares, steady_load, wait_until_all_handled
from support.waiting import eventually

KEYS = [f"repo-{number}" for number in range(6)]
NO_SUCH_CONNECTION = 1094
WORK = {"sleep": 0.005, "starts": True}


def raw_connection(url: str) -> "pymysql.Connection[Any]":
    config = ConnectConfig.from_url(url)
    return pymysql.connect(
        host=config.host,
        port=config.port,
        user=config.user,
        password=config.password,
        database=config.database,
        autocommit=True,
    )


def leases(url: str) -> list[tuple[Any, ...]]:
    """(key, owner, epoch) of every lane."""
    with closing(raw_connection(url)) as raw:
        return rows(raw, "SELECT partition_key, leased_by, lease_epoch FROM queue_partition_leases ORDER BY 1")


def started_before(lines: list[Line], moment: float) -> set[tuple[str, int]]:
    """Messages that were in a handler's hands at that moment, or just before."""
    ended = {(line["key"], line["offset"]): line.at for line in lines if line.event == "handled"}
    return {
        (line["key"], line["offset"])
        for line in lines
        if line.event == "started"
        and line.at < moment
        and ended.get((line["key"], line["offset"]), moment) > moment - 0.5
    }


@pytest.fixture
def private_fleet(private_server: DevServer) -> Iterator[Fleet]:
    """Processes on a server of this test alone."""
    with lanelog.connect(private_server.url) as client:
        client.migrate()
    fleet = Fleet(private_server.url)
    yield fleet
    fleet.close()


def test_a_server_that_crashes_and_comes_back_costs_no_lane_and_no_message(
    private_server: DevServer, private_fleet: Fleet
) -> None:
    """Publishers, keepers and workers go on by themselves; nobody steals, nothing is lost, nothing is there twice."""
    fleet, url = private_fleet, private_server.url
    for name in ("w1", "w2"):
        fleet.worker(name, **WORK)
    with lanelog.connect(url) as client, steady_load(client, "t", KEYS, pause=0.02) as traffic:
        with closing(raw_connection(url)) as raw:
            eventually(lambda: shares(raw) == {"w1": 3, "w2": 3})
            # a start less than 2 s after the one before would count as the same: uptime is known to a second
            eventually(lambda: int(rows(raw, "SHOW GLOBAL STATUS LIKE 'Uptime'")[0][1]) >= 4, within=10)
        fleet.journal.until(lambda lines: sum(line.event == "handled" for line in lines) > 100, within=15)
        before = leases(url)
        crashed = time.monotonic()
        private_server.kill()
        private_server.restart()
        back = time.monotonic()
        for key in KEYS:
            fleet.journal.until(
                lambda lines, key=key: any(
                    line.event == "started" and line.at > back and line["key"] == key for line in lines
                ),
                within=20,
                what=f"{key} going on",
            )
        more = traffic.rounds + 20
        eventually(lambda: traffic.rounds >= more, within=20, what="publishing going on")
        assert leases(url) == before
    done = wait_until_all_handled(fleet, traffic)
    assert done == traffic.offsets()
    with closing(raw_connection(url)) as raw:
        assert rows(raw, "SELECT COUNT(*), COUNT(DISTINCT partition_key, id) FROM queue_messages") == [
            (len(KEYS) * traffic.rounds,) * 2
        ]
    running = started_before(fleet.journal.items, crashed + 0.5)
    assert set(repeated(fleet.journal.items)) <= running
    assert {(line["key"], line["offset"]) for line in fleet.heard("started") if line["attempt"] > 1} <= running
    assert fleet.logged("lanes.taken_over") == []
    assert fleet.logged("lane.lost") == []
    for running_worker in fleet.programs:
        running_worker.terminate()
        assert running_worker.ended() == 0


def test_connections_that_are_killed_again_and_again_cost_nothing(fleet: Fleet, lanelog_url: str, raw: Any) -> None:
    """All sessions of publisher and workers die, three times, under load: nothing is lost, doubled or counted."""
    fleet.worker("w1", **WORK)
    fleet.worker("w2", **WORK)
    kills: list[float] = []
    pause = threading.Event()
    with lanelog.connect(lanelog_url) as client, steady_load(client, "t", KEYS, pause=0.01) as traffic:
        eventually(lambda: shares(raw) == {"w1": 3, "w2": 3})
        before = leases(lanelog_url)
        for _ in range(3):
            kills.append(time.monotonic())
            for connection in rows(
                raw, "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
            ):
                kill(raw, connection[0])
            at = time.monotonic()
            for key in KEYS:
                fleet.journal.until(
                    lambda lines, key=key, at=at: (
                        sum(line.event == "started" and line.at > at and line["key"] == key for line in lines) >= 5
                    ),
                    within=20,
                    what=f"{key} going on",
                )
            pause.wait(0.3)
        assert leases(lanelog_url) == before
    assert wait_until_all_handled(fleet, traffic) == traffic.offsets()
    assert rows(raw, "SELECT COUNT(*), COUNT(DISTINCT partition_key, id) FROM queue_messages") == [
        (len(KEYS) * traffic.rounds,) * 2
    ]
    assert {line["attempt"] for line in fleet.heard("started")} == {1}
    assert repeated(fleet.journal.items) == []
    assert fleet.logged("lanes.taken_over") == []


def kill(raw: Any, number: int) -> None:
    try:
        rows(raw, f"KILL CONNECTION {number}")
    except pymysql.err.OperationalError as error:
        if error.args[0] != NO_SUCH_CONNECTION:  # else it has ended by itself
            raise
