"""The dashboard, served for a browser; and a browser's requests to it, without a server and without a browser."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from attrs import field, frozen
from starlette.types import ASGIApp

from lanelog import Client
from lanelog.dashboard import Access, WebPace, dashboard

HOST = "127.0.0.1"
SAME_SITE = {"sec-fetch-site": "same-origin", "origin": f"http://{HOST}"}


@frozen
class Visitor:
    """Sends requests as a browser of this machine does, with these headers besides."""

    app: ASGIApp
    headers: dict[str, str] = field(factory=dict)
    address: str = "127.0.0.1"
    root: str = ""

    def get(self, path: str, **parameters: Any) -> httpx.Response:
        """A page, by a link or by its address."""
        return self.send("GET", path, params=parameters)

    def post(self, path: str, **form: Any) -> httpx.Response:
        """A form of the dashboard's own."""
        return self.send("POST", path, data=form)

    def send(self, method: str, path: str, *, headers: dict[str, str] | None = None, **options: Any) -> httpx.Response:
        """Any request; headers that are empty are left out."""
        usual = SAME_SITE if method == "POST" else {}
        sent = {name: value for name, value in {**usual, **self.headers, **(headers or {})}.items() if value}

        async def request() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, client=(self.address, 50_000), root_path=self.root)
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as client:
                return await client.request(method, path, headers=sent, **options)

        return asyncio.run(request())


@contextmanager
def served(client: Client, pace: WebPace) -> Iterator[str]:
    """The dashboard with its actions, on a port of this machine; its address."""
    app = dashboard(client, Access(allow_actions=True), pace=pace)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=3))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join(20)
