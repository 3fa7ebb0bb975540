"""The web hook of docs/howto/relay.md, run as it is against a real HTTP server that fails in every way."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from attrs import define, field

from lanelog import Client
from support.readme import Example, example
from support.sql import rows, stored, watermark
from support.waiting import eventually

pytestmark = pytest.mark.one_family("mariadb")

KEYS, EACH = ("repo-1", "repo-2", "repo-3"), 6
FAULTS = ["503", "429", "dropped", "closed", "moved", "good"]
"""What the hook does with a message at its first request, by its number in its lane."""


@define
class Hook:
    """The other system. It keeps what it has accepted, once for each idempotency key."""

    accepted: list[tuple[str, str]] = field(factory=list)
    """Key and body, in order."""
    requests: list[str] = field(factory=list)
    """The idempotency key of each request."""
    lock: threading.Lock = field(factory=threading.Lock)

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Take a message, or fail as its number says."""
        headers, body = request.headers, request.rfile.read(int(request.headers["Content-Length"])).decode()
        key, idempotency = headers["X-Lane"], headers["Idempotency-Key"]
        with self.lock:
            first = idempotency not in self.requests
            self.requests.append(idempotency)
        fault = FAULTS[int(body) % len(FAULTS)] if first else "good"
        if body == "99":
            request.send_error(422)
        elif fault == "503":
            request.send_error(503)
        elif fault == "429":
            request.send_response(429)
            request.send_header("Retry-After", "1")
            request.end_headers()
        elif fault == "closed":
            request.connection.close()
        elif fault == "moved":
            request.send_response(302)
            request.send_header("Location", "/login")
            request.end_headers()
        else:
            with self.lock:
                if (key, body) not in self.accepted:
                    self.accepted.append((key, body))
            if fault == "dropped":  # accepted, and nobody learns of it
                request.connection.close()
                return
            request.send_response(204)
            request.end_headers()


@contextmanager
def serving(hook: Hook, port: int = 0) -> Iterator[int]:
    """The hook at a port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            hook.answer(self)

        def do_GET(self) -> None:
            self.send_response(200)  # a page for people: who follows the redirection takes it for an acceptance
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """A connection was closed on purpose."""

    with Server(("127.0.0.1", port), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


@pytest.mark.thorough
def test_a_relay_keeps_order_and_repeats_under_one_key(lanelog_client: Client, raw: Any) -> None:
    """Through errors, lost answers and an outage: each message once and in order, and a hopeless one is given up."""
    hook = Hook()
    with serving(hook) as port:
        names = {"client": lanelog_client, "hook": f"http://127.0.0.1:{port}/orders"}
        exec(example(Example.RELAY).text, names)  # noqa: S102 - the page's example
        lanelog_client.publish_many("orders", [(key, str(number)) for number in range(EACH) for key in KEYS])
        lanelog_client.publish("orders", KEYS[0], "99")
        eventually(lambda: len(hook.accepted) == EACH * len(KEYS), within=40)
        eventually(lambda: stored(raw, "orders_dlq") == 1, within=20)
    lanelog_client.publish_many("orders", [(key, "100") for key in KEYS])
    eventually(lambda: rows(raw, "SELECT 1 FROM queue_delivery_state WHERE retry_count > 0"))
    with serving(hook, port):
        for key in KEYS:
            eventually(lambda: (key, "100") in hook.accepted, within=40)  # noqa: B023 - called here
            total = EACH + 1 + (key == KEYS[0])
            eventually(lambda: watermark(raw, "order-hook", "orders", key) == total)  # noqa: B023 - called here
    for key in KEYS:
        assert [body for of, body in hook.accepted if of == key] == [*map(str, range(EACH)), "100"]
    assert len(hook.requests) > len(set(hook.requests))
