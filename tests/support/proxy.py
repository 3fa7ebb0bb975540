"""A TCP proxy between the library and its server, to cut the network at a chosen moment."""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from lanelog.config import ConnectConfig

COM_QUERY = b"\x03"
DOOM = "SET @doomed = 1"
"""A connection that executed this never hears what became of its next COMMIT."""


class Proxy:
    """Forwards connections to the server; one that executed `DOOM` is cut when the server has answered its COMMIT.

    A context manager; `port` is where it listens on the loopback interface, `cut` is set after such a cut.
    """

    def __init__(self, target: ConnectConfig) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cut = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _close(self._listener)
        self.cut_all()

    def cut_all(self) -> None:
        """Cut every connection there is; new ones are accepted."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for each in sockets:
            _close(each)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._target.unix_socket:
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._target.unix_socket)
            else:
                server = socket.create_connection((self._target.host, self._target.port))
            with self._lock:
                self._sockets += [client, server]
            deaf = threading.Event()
            threading.Thread(target=self._up, args=(client, server, deaf), daemon=True).start()
            threading.Thread(target=self._down, args=(client, server, deaf), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket, deaf: threading.Event) -> None:
        doomed = False
        while data := _receive(client):
            # A short statement is one packet: length, number, command, text.
            doomed = doomed or data[4:] == COM_QUERY + DOOM.encode()
            if doomed and data[4:] == COM_QUERY + b"COMMIT":
                deaf.set()
            if not _send(server, data):
                break
        if not deaf.is_set():
            _close(server)

    def _down(self, client: socket.socket, server: socket.socket, deaf: threading.Event) -> None:
        while data := _receive(server):
            if deaf.is_set():  # the server has answered: it has decided
                _close(client)
                _close(server)
                self.cut.set()
                return
            if not _send(client, data):
                break
        _close(client)


def _receive(source: socket.socket) -> bytes:
    try:
        return source.recv(65536)
    except OSError:
        return b""


def _send(target: socket.socket, data: bytes) -> bool:
    try:
        target.sendall(data)
    except OSError:
        return False
    return True


def _close(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
