"""The applications of docs/howto/applications.md, in real processes: a shop that is billed, and web hooks in order."""

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import pytest
from attrs import frozen

from lanelog import Client
from support.readme import ROOT
from support.scripts import Script
from support.sql import one, rows, running, stored
from support.waiting import Record, eventually

CUSTOMERS, ORDERS = 4, 20
CHANGES = 6
REFUSED = ("product-2", 3)
"""Key and change that the other system never accepts."""
SAVES = f"""
products = [Product(name=f"tea {{number}}") for number in range(3)]
for cents in range({CHANGES}):
    for product in products:
        product.cents = cents
        product.save()
"""
Start = Callable[..., Script]


@pytest.fixture
def start(lanelog_url: str) -> Iterator[Start]:
    """Start a program of Python in a folder of the examples; it ends with the test."""
    with ExitStack() as stack:

        def begin(folder: str, *arguments: str, **environment: str) -> Script:
            known = {**os.environ, "LANELOG_URL": lanelog_url, **environment}
            return stack.enter_context(Script.start([sys.executable, *arguments], known, ROOT / "examples" / folder))

        yield begin


def ended(script: Script, expected: int = 0) -> str:
    """What a program printed, after it has ended with this status."""
    status = script.process.wait(60)
    script._reader.join(10)
    printed = "\n".join(script.lines.items)
    assert status == expected, printed
    return printed


def stop(script: Script, expected: int = 0) -> str:
    """SIGTERM, at which it drains and ends."""
    script.process.send_signal(signal.SIGTERM)
    return ended(script, expected)


def children(script: Script) -> list[int]:
    """The processes that a program has started and that run."""
    pid = script.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.thorough
def test_the_shop_bills_each_order_once_and_in_order(start: Start, open_raw: Callable[..., Any], raw: Any) -> None:
    """A worker process that is killed between four invoices and their acks leaves no order out and bills none twice."""
    web = start("", "-m", "uvicorn", "shop.web:app", "--port", "0")
    serves = re.compile(r"running on (http://[\d.:]+)")
    lines = web.lines.until(lambda lines: any(map(serves.search, lines)), within=40, what="the address")
    (address,) = filter(None, map(serves.search, lines))
    with httpx.Client(base_url=address[1], timeout=30) as http:
        orders = []
        for number in range(ORDERS):
            answer = http.post("/orders", json={"customer": number % CUSTOMERS + 1, "cents": 100 + number})
            assert answer.status_code == 201
            orders.append(answer.json()["id"])
        assert http.get(f"/orders/{orders[0]}").json() == {"id": orders[0], "customer": 1, "cents": 100, "state": "new"}
        assert http.get("/orders/0").status_code == 404
        assert http.post("/orders", json={"customer": 0, "cents": 1}).status_code == 422

        third, acks = open_raw(), open_raw()  # what holds each customer's third order, and its ack
        for order in orders[2 * CUSTOMERS : 3 * CUSTOMERS]:
            rows(third, "SELECT id FROM orders WHERE id = %s FOR UPDATE", order)
        worker = start("", "-m", "lanelog", "worker", "shop.invoices:client", "--processes", "1")
        eventually(lambda: (billed(raw), waiting(raw, "orders")) == (2 * CUSTOMERS, CUSTOMERS), within=40)
        rows(acks, "SELECT leased_by FROM queue_partition_leases WHERE consumer_group = 'invoices' FOR UPDATE")
        third.rollback()
        eventually(lambda: waiting(raw, "queue_partition_leases") >= CUSTOMERS, within=20, what="four acks")
        (killed,) = children(worker)
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: children(worker) not in ([], [killed]), within=30, what="another process")
        assert billed(raw) == 2 * CUSTOMERS
        acks.rollback()
        eventually(lambda: billed(raw) >= ORDERS, within=60)
        assert {http.get(f"/orders/{number}").json()["state"] for number in orders} == {"billed"}
    stop(worker)
    assert "Application shutdown complete" in stop(web, -signal.SIGTERM)  # the signal comes again after the shutdown
    invoices = rows(raw, "SELECT customer, order_id FROM invoices i JOIN orders o ON o.id = order_id ORDER BY i.id")
    for customer in range(CUSTOMERS):
        assert [order for of, order in invoices if of == customer + 1] == orders[customer::CUSTOMERS]
    assert stored(raw, "orders_dlq") == 0


def billed(raw: Any) -> int:
    """How many invoices there are."""
    return int(one(raw, "SELECT COUNT(*) FROM invoices"))


def waiting(raw: Any, table: str) -> int:
    """How many sessions of the test's database read a table at this moment, or wait to."""
    database = one(raw, "SELECT DATABASE()")
    return sum(each.database == database and f"{table} " in each.sql for each in running(raw))


@frozen
class Request:
    """What the other system was sent, and what it has answered."""

    lane: str
    cents: int
    id: str
    status: int


class Hook(ThreadingHTTPServer):
    """The other system: it fails the first request of every second change, and refuses one change."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests = Record()

    def answer(self, lane: str, change: dict[str, Any], message: str) -> int:
        """Decide, and note the request."""
        first = all(each.id != message for each in self.requests.items)
        status = 422 if (lane, change["cents"]) == REFUSED else 503 if first and change["cents"] % 2 else 204
        self.requests(Request(lane, change["cents"], message, status))
        return status


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        change = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(self.server.answer(self.headers["X-Lane"], change, self.headers["Idempotency-Key"]))
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving() -> Iterator[Hook]:
    """The other system, until the end of the block."""
    with Hook() as hook:
        threading.Thread(target=hook.serve_forever, daemon=True).start()
        try:
            yield hook
        finally:
            hook.shutdown()


@pytest.mark.thorough
def test_web_hooks_arrive_in_the_order_of_the_changes(start: Start, lanelog_client: Client, raw: Any) -> None:
    """Each change arrives after the one before was accepted or refused. The refused one is a dead letter."""
    for command in (["lanelog_migrate"], ["migrate"], ["makemigrations", "--check", "--dry-run"]):
        ended(start("webhooks", "manage.py", *command))
    with serving() as hook:
        address = f"http://127.0.0.1:{hook.server_port}/products"
        worker = start("webhooks", "manage.py", "lanelog_worker", WEBHOOK_URL=address)
        ended(start("webhooks", "manage.py", "shell", "-c", SAVES))
        keys = [f"product-{number}" for (number,) in rows(raw, "SELECT id FROM catalog_product ORDER BY id")]
        assert keys == ["product-1", "product-2", "product-3"]
        hook.requests.until(lambda requests: settled(requests) == len(keys) * CHANGES, within=60)
        eventually(lambda: lanelog_client.admin.dead_letters("products"), within=20)
        stop(worker)
    for key in keys:
        sent = [each for each in hook.requests.items if each.lane == key]
        assert [cents for cents, _ in groupby(each.cents for each in sent)] == [*range(CHANGES)]
        assert len({each.id for each in sent}) == CHANGES
        failed = [each.cents for each in sent if each.status == 503]
        assert failed == [cents for cents in range(1, CHANGES, 2) if (key, cents) != REFUSED]
    (letter,) = lanelog_client.admin.dead_letters("products")
    assert letter.key == REFUSED[0]
    assert {letter.original_id} == {each.id for each in hook.requests.items if each.status == 422}
    assert letter.last_error.endswith("has answered 422")


def settled(requests: list[Request]) -> int:
    """How many changes were accepted or refused."""
    return len({each.id for each in requests if each.status != 503})
