"""A proxy that understands MySQL: it moves connections that live to another server, without a word to the client.

Owns the connections it passes on; a test says when. As such proxies do, it makes a session of its own on the other
server and gives it what a session of lanelog has set; locks and transactions are not there.
"""

import socket
import threading
import time
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from attrs import define, field

from lanelog._database.connection.driver import Driver
from lanelog.config import ConnectConfig
from support.proxy import connected

WHOLE = 0.02
"""Seconds of silence after which an answer is whole: it may come in several pieces."""


@define(eq=False)
class Link:
    """One client's connection, and the server's that answers it at present."""

    client: socket.socket
    server: socket.socket
    lock: threading.Lock = field(factory=threading.Lock)
    answered: threading.Condition = field(init=False)
    asked: bool = True  # the server speaks first
    heard_at: float = 0.0  # (monotonic)
    session: Any = None  # keeps the driver's connection alive whose socket `server` is

    def __attrs_post_init__(self) -> None:
        self.answered = threading.Condition(self.lock)
        for forward in (self._requests, self._answers):
            threading.Thread(target=forward, daemon=True).start()

    def move(self, session: Any) -> None:
        """Let another server's session answer from the next statement on."""
        with self.answered:
            while self.asked or time.monotonic() - self.heard_at < WHOLE:
                self.answered.wait(WHOLE)
            session._sock.settimeout(None)
            old, self.server, self.session = self.server, session._sock, session
        old.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """End both sides."""
        for side in (self.client, self.server):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()
        if self.session is not None:
            self.session._force_close()

    def _requests(self) -> None:
        with suppress(OSError):
            while data := self.client.recv(65536):
                with self.answered:
                    self.asked = True
                    self.server.sendall(data)
        self.end()

    def _answers(self) -> None:
        with suppress(OSError):
            while True:
                server = self.server
                data = _heard(server)
                if data:
                    self.client.sendall(data)
                with self.answered:
                    if data:
                        self.asked, self.heard_at = False, time.monotonic()
                        self.answered.notify_all()
                    elif server is self.server:
                        break
                    else:
                        server.close()
        self.end()


def _heard(server: socket.socket) -> bytes:
    """What it says; nothing when it has ended, also in the middle of something."""
    try:
        return server.recv(65536)
    except OSError:
        return b""


@define(eq=False)
class Switch:
    """Listens for the one server, and moves to the other."""

    target: ConnectConfig
    links: list[Link] = field(factory=list)
    _listener: socket.socket = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, name="switch", daemon=True).start()

    @property
    def url(self) -> str:
        """Where it listens."""
        port = self._listener.getsockname()[1]
        return f"mysql://{self.target.user}:{quote(self.target.password)}@127.0.0.1:{port}/{self.target.database}"

    def switch(self, target: ConnectConfig) -> None:
        """Every connection that lives goes on at another server, and whoever comes from now on."""
        self.target = target
        driver = Driver(target)
        for link in self.links:
            raw, _ = driver.open(autocommit=True)
            link.move(raw)

    def close(self) -> None:
        """End everything, and listen no more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for link in self.links:
            link.end()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.links.append(Link(client, connected(self.target)))
