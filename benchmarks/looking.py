"""How long `lanelog status`, a scrape and pages of the dashboard take with a large backlog behind them.

A worker stopped in the middle: every lane has a watermark, some have a message that fails. The command runs in this
process, from its arguments to its JSON, because starting Python is not what is measured.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import ExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from benchmarks.bench import PAYLOAD, TOPIC
from click.testing import CliRunner

import lanelog
from lanelog.cli._main import cli
from lanelog.dashboard import dashboard
from lanelog.metrics import LogCollector

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.bench import Bench
    from starlette.types import ASGIApp, Message

LANES = 10_000
GROUPS = 20
FEWEST_LANES = 100
FEWEST_GROUPS = 3
"""A trial at a small scale has fewer lanes and groups, but no fewer than these."""
LANES_A_STATEMENT = 500
PATIENCE = 600.0
FRONT = "/"
SCRAPED_EVERY = 15.0
"""Seconds between two scrapes, as Prometheus makes them by default."""
LOOKED_EVERY = 5.0
"""Seconds between two reads of a page that stays open."""
SETTLED = 3
"""Messages of each lane behind which its group is."""

DIGITS = " UNION ALL ".join(f"SELECT {digit} AS n" for digit in range(10))
NUMBERS = f"""
INSERT INTO bench_numbers SELECT a.n + 10 * b.n + 100 * c.n + 1000 * d.n
FROM ({DIGITS}) a, ({DIGITS}) b, ({DIGITS}) c, ({DIGITS}) d
"""
# The lanes were written one after the other in the last hours, so that every lane has an age of its own.
MESSAGES = """
INSERT INTO queue_messages (topic, partition_key, `offset`, id, payload, payload_bytes, created_at, published_at)
SELECT %s, CONCAT('key-', LPAD(lane.n, 5, '0')), message.n + 1, CONCAT('id-', message.n), %s, %s,
       @now - (lane.n * 7919) %% 10000000 + message.n, @now
FROM bench_numbers lane, bench_numbers message
WHERE lane.n >= %s AND lane.n < %s AND message.n < %s ORDER BY lane.n, message.n
"""
HEADS = """
INSERT INTO queue_partitions (topic, partition_key, head_offset, created_at)
SELECT %s, CONCAT('key-', LPAD(n, 5, '0')), %s, @now - 20000000 FROM bench_numbers WHERE n < %s
"""
OFFSETS = """
INSERT INTO queue_offsets (consumer_group, topic, partition_key, offset_acked, marked_through, updated_at)
SELECT %s, %s, CONCAT('key-', LPAD(n, 5, '0')), %s, %s, @now - (n * 104729) %% 100000 FROM bench_numbers WHERE n < %s
"""
FAILING = """
INSERT INTO queue_delivery_state (consumer_group, topic, partition_key, message_offset, through_offset, retry_count,
       invisible_until, first_attempt_at, last_attempt_at, last_error)
SELECT %s, %s, CONCAT('key-', LPAD(n, 5, '0')), %s, %s, 3, @now, @now - 60000, @now, 'no such branch'
FROM bench_numbers WHERE n %% 100 = 0 AND n < %s
"""


def backlog(bench: Bench, messages: int) -> int:
    """Write so many messages over all lanes, and a group that has settled the first of each lane; the lag."""
    lanes = _lanes(bench)
    each = max(SETTLED + 1, messages // lanes)
    bench.client.subscribe(TOPIC, "group", _never).stop()
    with bench.raw() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE bench_numbers (n INT PRIMARY KEY)")
        cursor.execute(NUMBERS)
        cursor.execute("SET @now = ROUND(UNIX_TIMESTAMP(NOW(3)) * 1000)")
        for start in range(0, lanes, LANES_A_STATEMENT):
            end = min(lanes, start + LANES_A_STATEMENT)
            cursor.execute(MESSAGES, (TOPIC, PAYLOAD, len(PAYLOAD), start, end, each))
        cursor.execute(HEADS, (TOPIC, each, lanes))
        cursor.execute(OFFSETS, ("", TOPIC, 0, 0, lanes))
        cursor.execute(OFFSETS, ("group", TOPIC, SETTLED, SETTLED, lanes))
        cursor.execute(FAILING, ("group", TOPIC, SETTLED + 1, SETTLED + 1, lanes))
    return (each - SETTLED) * lanes


def more_groups(bench: Bench) -> None:
    """Add groups that stand where the first one does, up to `GROUPS`, scaled."""
    lanes = _lanes(bench)
    for group in _groups(bench)[1:]:
        bench.client.subscribe(TOPIC, group, _never).stop()
        with bench.raw() as connection, connection.cursor() as cursor:
            cursor.execute("SET @now = ROUND(UNIX_TIMESTAMP(NOW(3)) * 1000)")
            cursor.execute(OFFSETS, (group, TOPIC, SETTLED, SETTLED, lanes))
            cursor.execute(FAILING, (group, TOPIC, SETTLED + 1, SETTLED + 1, lanes))


def scrape(bench: Bench) -> float:
    """Milliseconds that the figures of a scrape take."""
    began = time.perf_counter()
    list(LogCollector(bench.client.admin).collect())
    return 1000 * (time.perf_counter() - began)


def status(bench: Bench) -> float:
    """Milliseconds that the command takes."""
    began = time.perf_counter()
    result = CliRunner().invoke(cli, ["status", "--json", "--url", bench.url], catch_exceptions=False)
    if result.exit_code:
        raise RuntimeError(result.output)
    return 1000 * (time.perf_counter() - began)


def front_page(bench: Bench) -> float:
    """Milliseconds until the dashboard's first page is there, asked for in this process as a browser does.

    Each call makes a dashboard anew, because one that lives would show the answer of the call before.
    """
    return _page(bench, FRONT)


def lanes_page(bench: Bench, by: str) -> float:
    """The same of the lanes of one group, in an order."""
    return _page(bench, "/lanes", urlencode({"topic": TOPIC, "group": "group", "by": by}))


def _page(bench: Bench, path: str, query: str = "") -> float:
    with lanelog.connect(bench.url) as client:  # closed afterwards: until then a dashboard takes samples
        page = dashboard(client)
        if path != FRONT:  # its query for the charts, which any first page begins, must not run beside the page
            asyncio.run(_get(page, FRONT, ""))
        began = time.perf_counter()
        status, length = asyncio.run(_get(page, path, query))
        ended = time.perf_counter()
    if status != HTTPStatus.OK or not length:
        raise RuntimeError(f"the page has status {status} and {length} bytes")
    return 1000 * (ended - began)


async def _get(page: ASGIApp, path: str, query: str) -> tuple[int, int]:
    """Ask an application for a page; the status, and the bytes that it had."""
    status, length = 0, 0

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, length
        status = message.get("status", status)
        length += len(message.get("body", b""))

    scope: dict[str, Any] = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET"}
    scope["scheme"] = "http"
    scope |= {"path": path, "raw_path": path.encode(), "root_path": "", "query_string": query.encode()}
    scope |= {"headers": [(b"host", b"127.0.0.1")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}
    await page(scope, receive, send)
    return status, length


def statements(bench: Bench, look: Callable[[Bench], float]) -> int:
    """Statements that a call sends to the server, with those that the counting itself sends."""
    before = bench.statements()
    look(bench)
    return bench.statements() - before


def watched(bench: Bench) -> float:
    """Statements a second of a scrape as often as Prometheus makes one, and of a page that stays open."""
    with lanelog.connect(bench.url) as client:
        page = dashboard(client)
        asyncio.run(_get(page, FRONT, ""))  # what only a first page asks
        before, began = bench.statements(), time.monotonic()
        scrape(bench)
        for number in range(1, round(SCRAPED_EVERY / LOOKED_EVERY) + 1):
            asyncio.run(_get(page, FRONT, ""))
            time.sleep(max(0.0, began + number * _shortened(bench, LOOKED_EVERY) - time.monotonic()))
        return (bench.statements() - before) / (time.monotonic() - began)


def workers(bench: Bench) -> float:
    """Statements a second of a worker for each group, which holds all lanes, and whose handlers do not end."""
    release = threading.Event()
    with ExitStack() as stack, bench.raw() as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL max_connections = 1000")
        subscriptions = []
        for group in _groups(bench):
            client = stack.enter_context(lanelog.connect(bench.url))
            subscriptions.append(client.subscribe(TOPIC, group, lambda _message: release.wait()))
        stack.callback(release.set)
        for each in subscriptions:
            # Without a pause, released handlers could handle the whole backlog, on which the next step counts.
            stack.callback(each.pause)
        until = time.monotonic() + PATIENCE
        while any(each.stats().lanes < _lanes(bench) for each in subscriptions):
            if time.monotonic() > until:
                raise TimeoutError(f"{len(subscriptions)} workers do not hold all lanes after {PATIENCE:g} s")
            time.sleep(1.0)
        before, began = bench.statements(), time.monotonic()
        time.sleep(2 * _shortened(bench, SCRAPED_EVERY))
        return (bench.statements() - before) / (time.monotonic() - began)


def _shortened(bench: Bench, seconds: float) -> float:
    """A trial at a small scale, whose figures say nothing, does not wait for them."""
    return seconds * min(1.0, bench.scale)


def _groups(bench: Bench) -> list[str]:
    return ["group", *(f"group-{number:02}" for number in range(_scaled(bench, GROUPS, FEWEST_GROUPS) - 1))]


def _lanes(bench: Bench) -> int:
    return _scaled(bench, LANES, FEWEST_LANES)


def _scaled(bench: Bench, most: int, fewest: int) -> int:
    return min(most, max(fewest, round(most * bench.scale)))


def _never(message: object) -> None:
    raise RuntimeError(f"nothing is published yet, and yet there is {message!r}")
