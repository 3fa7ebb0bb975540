"""The HTTP server of the probes: /livez and /readyz, for Kubernetes, load balancers and `lanelog health`.

Owns the socket, its threads and the form of an answer. Asks what to answer, and knows no client. The answer to 200 is
`ok`; that to 503 has one reason on each line.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final

from lanelog._base.text import shown
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Reasons = Callable[[], Sequence[str]]
    """Returns why the answer is no. Nothing: it is yes."""

LIVE: Final = "/livez"
READY: Final = "/readyz"

SILENCE: Final = 5.0
"""Seconds after which a connection without a whole request is closed."""
_ROOM: Final = 1.0
"""Seconds until the thread of a connection that was ended has surely gone."""
AT_ONCE: Final = 16
"""Requests at the same time. Others who reach the address must not be able to start threads without end."""
_LONGEST: Final = 500
"""Characters of a reason."""
_PORT_MAX: Final = 65_535


class BoundedThreads(ThreadingMixIn, TCPServer):
    """For a server of `Punctual` requests: a thread for each one, and not too many of them.

    A request must arrive within `SILENCE`, however slowly its bytes come. With all threads taken, the oldest connection
    whose request has not arrived makes room: sixteen slow peers must not displace the probes.
    """

    daemon_threads = True
    block_on_close = False
    patience = SILENCE

    def __init__(self, *args: Any) -> None:
        self._free = threading.Semaphore(AT_ONCE)
        self._lock = threading.Lock()
        self._awaited: dict[Any, float] = {}  # connections whose request has not arrived, the oldest first
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a request. Refuse it only if all threads are busy with answers."""
        if not self._free.acquire(blocking=False) and not self._make_room():
            self.shutdown_request(request)
            return
        with self._lock:
            self._awaited[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:  # the system has no thread left
            self.arrived(request)
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer in the request's own thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.arrived(request)
            self._free.release()

    def arrived(self, request: Any) -> bool:
        """Note that a request is there, or that its connection has ended. False: it was cut off, and gets no answer."""
        with self._lock:
            return self._awaited.pop(request, None) is not None

    def service_actions(self) -> None:
        """Close the connections whose time is up. The server calls it twice a second."""
        late = time.monotonic() - self.patience
        with self._lock:
            for request in [request for request, since in self._awaited.items() if since < late]:
                self._end(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print no traceback: a peer that has gone away is no news."""

    def _make_room(self) -> bool:
        with self._lock:
            if not self._awaited:
                return False
            self._end(next(iter(self._awaited)))
        return self._free.acquire(timeout=_ROOM)

    def _end(self, request: Any) -> None:
        """Let a thread that reads from the connection find its end. The thread closes it. The lock is held."""
        del self._awaited[request]
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)


class Punctual(BaseHTTPRequestHandler):
    """A request to a `BoundedThreads`, which learns when it has arrived."""

    server: BoundedThreads
    timeout = SILENCE  # for each receive and send

    def parse_request(self) -> bool:
        """Read the headers, behind the first line. The end of a cut-off connection reads as the end of them."""
        parsed = super().parse_request()
        return self.server.arrived(self.request) and parsed


class _Asked(Punctual):
    server: _Listener
    server_version = "lanelog"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a probe."""
        ask = self.server.paths.get(self.path.partition("?")[0])
        if ask is None:
            self._answer(HTTPStatus.NOT_FOUND, [f"ask {' or '.join(self.server.paths)}"])
            return
        reasons = ask()
        self._answer(HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK, reasons or ["ok"])

    do_HEAD = do_GET  # noqa: N815 - as above

    def _answer(self, status: HTTPStatus, lines: Sequence[str]) -> None:
        body = "".join(f"{shown(line, _LONGEST)}\n" for line in lines).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is http.server's
        """Log nothing: a probe comes every few seconds."""


class _Listener(BoundedThreads, HTTPServer):
    def __init__(self, host: str, port: int, paths: Mapping[str, Reasons]) -> None:
        self.paths = paths
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Asked)

    def server_bind(self) -> None:
        """Bind without http.server's look-up of the host's name, which may take seconds."""
        TCPServer.server_bind(self)


@contextmanager
def serving(address: str | None, live: Reasons, ready: Reasons) -> Iterator[str]:
    """Serve the probes within the block. Gives the URL, with the real port.

    Args:
        address: `HOST:PORT`. Port 0: any that is free. None: nothing is served, and the URL is empty.
        live: Why the process should be replaced.
        ready: Why it cannot work now.

    Raises:
        ConfigurationError: The address is none, or cannot be listened at.
    """
    if address is None:
        yield ""
        return
    found = host_and_port(address)
    if found is None:
        raise ConfigurationError(f"health {address!r} is no HOST:PORT: write 127.0.0.1:8081")
    host, port = found
    try:
        listener = _Listener(host, port, {LIVE: live, READY: ready})
    except OSError as exc:
        raise ConfigurationError(f"health: cannot listen at {address}: {exc.strerror or exc}") from exc
    thread = threading.Thread(target=listener.serve_forever, name="lanelog-probes", daemon=True)
    thread.start()
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{listener.server_address[1]}"
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()


def host_and_port(address: str) -> tuple[str, int] | None:
    """Return the parts of an address to listen at. Port 0: any that is free. None: it is no `HOST:PORT`."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]").lower()
    if not host or "/" in host or "@" in host or not port.isdecimal() or int(port) > _PORT_MAX:
        return None
    return host, int(port)
