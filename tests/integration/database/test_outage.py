"""The database restarts or drops its connections, or workers come and go, while messages are published and consumed."""

import logging
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from typing import Any

import pymysql
import pytest
from attrs import define

import lanelog
from lanelog import Client, Message
from lanelog.devserver import DevServer
from support.sql import connect, leases, rows, sessions
from support.traffic import Traffic, shares, steady_load
from support.waiting import Record, events, eventually

KEYS = [f"repo-{number}" for number in range(6)]
COPIES = "SELECT COUNT(*), COUNT(DISTINCT partition_key, id) FROM queue_messages"


@define
class Handled:
    """One handler's work on one message, by the monotonic clock."""

    key: str
    offset: int
    attempt: int
    began: float
    ended: float


class Workers:
    """Members of a group, with a client each."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.handled = Record()

    def join(self, name: str) -> Client:
        """One more."""
        client = lanelog.connect(self.url)
        client.subscribe("t", "g", self._handle, name=name)
        return client

    def _handle(self, message: Message) -> None:
        began = time.monotonic()
        threading.Event().wait(0.005)
        self.handled(Handled(message.key, message.offset, message.attempt, began, time.monotonic()))

    def go_on(self) -> None:
        """Wait until some messages of every key were begun from now on."""
        now = time.monotonic()

        def enough(items: list[Handled]) -> bool:
            keys = [item.key for item in items if item.began > now]
            return all(keys.count(key) >= 5 for key in KEYS)

        self.handled.until(enough, within=30, what="every key going on")

    def wait_for_all(self, traffic: Traffic) -> list[Handled]:
        """Wait until each message was handled; they were in order, when first they were."""
        wanted = len(KEYS) * traffic.each
        items = self.handled.until(lambda items: len({(item.key, item.offset) for item in items}) == wanted, within=30)
        for key in KEYS:
            first = dict.fromkeys(item.offset for item in items if item.key == key)
            assert list(first) == list(range(1, traffic.each + 1))
        return items


@pytest.mark.thorough
def test_a_server_that_crashes_and_comes_back_costs_no_lane_and_no_message(
    private_server: DevServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Publishers, keepers and workers go on by themselves; nobody steals, nothing is lost, nothing is there twice."""
    url = private_server.url
    with ExitStack() as stack:
        client = stack.enter_context(lanelog.connect(url))
        client.migrate()
        workers = Workers(url)
        for name in ("w1", "w2"):
            stack.enter_context(workers.join(name))
        with steady_load(client, "t", KEYS, pause=0.02) as traffic:
            with closing(connect(url, autocommit=True)) as raw:
                eventually(lambda: shares(raw) == {"w1": 3, "w2": 3})
                # a start less than 2 s after the one before would count as the same: uptime is known to a second
                eventually(lambda: int(rows(raw, "SHOW GLOBAL STATUS LIKE 'Uptime'")[0][1]) >= 4)
                workers.go_on()
                before = leases(raw)
            crashed = time.monotonic()
            private_server.kill()
            private_server.restart()
            workers.go_on()
            more = traffic.rounds + 20
            eventually(lambda: traffic.rounds >= more, within=30, what="publishing going on")
            with closing(connect(url, autocommit=True)) as raw:
                assert leases(raw) == before
        items = workers.wait_for_all(traffic)
        with closing(connect(url, autocommit=True)) as raw:
            assert rows(raw, COPIES) == [(len(KEYS) * traffic.rounds,) * 2]
    # What was in a handler's hands then, or just before and not written down yet, and nothing else comes again.
    again = {(item.key, item.offset) for item in items if item.attempt > 1}
    running = {(item.key, item.offset) for item in items if item.began < crashed + 0.5 and item.ended > crashed - 0.5}
    times = Counter((item.key, item.offset) for item in items)
    assert again | {message for message, count in times.items() if count > 1} <= running
    for name in ("lanes.taken_over", "lane.lost"):
        assert events(caplog, name, logging.WARNING) == []


@pytest.mark.thorough
@pytest.mark.parametrize("times", [1, 3])
def test_connections_that_are_killed_again_and_again_cost_nothing(
    lanelog_url: str, raw: Any, caplog: pytest.LogCaptureFixture, times: int
) -> None:
    """All sessions of publisher and workers die under load: nothing is lost, doubled or counted."""
    with ExitStack() as stack:
        client = stack.enter_context(lanelog.connect(lanelog_url))
        workers = Workers(lanelog_url)
        for name in ("w1", "w2"):
            stack.enter_context(workers.join(name))
        with steady_load(client, "t", KEYS, pause=0.01) as traffic:
            eventually(lambda: shares(raw) == {"w1": 3, "w2": 3})
            before = leases(raw)
            for _ in range(times):
                for number in sessions(raw):
                    with suppress(pymysql.err.OperationalError):  # it has ended by itself
                        rows(raw, f"KILL CONNECTION {number}")
                workers.go_on()
            assert leases(raw) == before
        items = workers.wait_for_all(traffic)
    assert rows(raw, COPIES) == [(len(KEYS) * traffic.rounds,) * 2]
    assert len(items) == len(KEYS) * traffic.rounds
    assert {item.attempt for item in items} == {1}
    assert events(caplog, "lanes.taken_over", logging.WARNING) == []


@pytest.mark.thorough
def test_rolling_restarts_repeat_nothing(lanelog_url: str) -> None:
    """Under load, twenty times, one of three drains while its successor comes: every attempt is 1, nothing is lost."""
    workers = Workers(lanelog_url)
    with ExitStack() as stack:
        client = stack.enter_context(lanelog.connect(lanelog_url))
        pool = stack.enter_context(ThreadPoolExecutor(1))
        running = [stack.enter_context(workers.join(f"w{number}")) for number in range(3)]
        with steady_load(client, "t", KEYS, pause=0.05, burst=5) as traffic:
            for number in range(3, 23):
                workers.handled.wait(len(workers.handled) + 20, within=30)
                leaving = pool.submit(running.pop(0).close)
                running.append(stack.enter_context(workers.join(f"w{number}")))
                assert leaving.result(30) is True
        items = workers.wait_for_all(traffic)
    assert len(items) == len(KEYS) * traffic.each
    assert {item.attempt for item in items} == {1}
