"""A TCP proxy between the library and its server, to cut the network at a chosen moment."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from urllib.parse import quote

from attrs import define, field

from lanelog.config import ConnectConfig

DOOM = "SET @doomed = 1"
"""A connection that executed this never hears what became of its next COMMIT."""
UNKNOWN_COMMAND = b"\x18\x00\x00\x01\xff" + (1047).to_bytes(2, "little") + b"#08S01Unknown command"
"""What a server says to a command that it does not know."""
REFUSED_COMMIT = b"\xff" + (1180).to_bytes(2, "little") + b"#HY000Got error 28 during COMMIT"
"""What a server says of a COMMIT that failed, without the header of the packet."""
_HEADER = 4
"""Bytes before each packet: three of its length, and its number."""
SET_OPTION = b"\x1b"
"""The command that permits several statements in a packet."""
_SEPARATOR = b";\n"
"""Between two statements of a packet."""
_BLOCK_ENDS = b"; END"
"""What may stand behind a COMMIT: it is the last in a block, which MariaDB runs as one statement."""
_MORE = 0x0008
"""The flag of an answer that another one follows."""


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port at which each connection is served in turn, until the block ends."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    serve(connection)

    thread = threading.Thread(target=accept, name="listening")
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()


@define(eq=False)
class Proxy:
    """Forwards connections to the server, and cuts them at certain statements."""

    target: ConnectConfig
    cut_at: bytes = b""
    """The next request, of any connection, that ends with this is the last one of its connection."""
    deliver: bool = True
    """Whether the last request of a connection still reaches the server, which then answers nobody."""
    keep: bool = False
    """Whether the last request of a connection is kept instead, on its way, until `arrive`."""
    refuse: bytes = b""
    """Requests that begin with this command are unknown to the server."""
    fail_after: bytes = b""
    """The next request that ends with this is run, and the last thing that the server says of it becomes an error."""
    other: ConnectConfig | None = None
    """Where every second new connection goes."""
    connections: int = 0
    """How many were made."""
    end_early: bool = False
    """Whether the next packet with a COMMIT ends after the first statement, as by KILL QUERY between two of them: the
    answer says that another one follows, and the server waits for its client."""
    end_behind: bytes = b""
    """What a packet begins with that ends so instead of one with a COMMIT."""
    requests: int = 0
    """How many there were, of all connections."""
    instead: Mapping[bytes, bytes] = field(factory=dict)
    """Texts of requests, and what reaches the server instead: as many bytes."""
    told_instead: Mapping[bytes, bytes] = field(factory=dict)
    """The same for answers."""
    silent: bool = False
    """The host is gone: nothing is forwarded, and the server does not learn that its connections have ended."""
    upload: float = 0.0
    """Bytes per second of requests. 0: as fast as it can."""
    download: float = 0.0
    """The same for answers."""
    cuts: int = 0
    _kept: list[tuple[socket.socket, bytes]] = field(factory=list, init=False)
    _listener: socket.socket = field(init=False)
    _open: list[socket.socket] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    @property
    def port(self) -> int:
        """Where it listens, on the loopback interface."""
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        """The target's URL, by way of this proxy."""
        return f"mysql://{self.target.user}:{quote(self.target.password)}@127.0.0.1:{self.port}/{self.target.database}"

    def close(self) -> None:
        """Cut everything, and listen no more."""
        _end(self._listener)
        self.cut_all()

    def arrive(self) -> None:
        """What was kept reaches the server now; returns when it has ended the connection over it."""
        while self._kept:
            server, data = self._kept.pop()
            server.sendall(data)
            server.shutdown(socket.SHUT_WR)
            while server.recv(65536):
                pass

    def cut_all(self) -> None:
        """Cut every connection there is; new ones go to the target of this moment."""
        while self._open:
            _end(self._open.pop())

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    self.connections += 1
                    there = self.other if self.other is not None and self.connections % 2 else self.target
                    server = connected(there)
                except OSError:  # nobody is there just now
                    client.close()
                    continue
                self._open += [client, server]
                events = threading.Event(), threading.Event()
                threading.Thread(target=self._requests, args=(client, server, *events), daemon=True).start()
                threading.Thread(target=self._answers, args=(server, client, *events), daemon=True).start()

    def _requests(
        self, client: socket.socket, server: socket.socket, fails: threading.Event, ends: threading.Event
    ) -> None:
        ends_at = b""
        with suppress(OSError):
            while data := client.recv(65536):
                if self.silent:
                    continue
                _delay(data, self.upload)
                self.requests += 1
                data = _replaced(data, self.instead)
                if self.refuse and data[4:].startswith(self.refuse):
                    client.sendall(UNKNOWN_COMMAND)
                    continue
                self._arm(data, fails)
                data = self._shortened(data, ends)
                if data.endswith(DOOM.encode()):
                    ends_at = b"COMMIT"
                if self.cut_at and data.removesuffix(_BLOCK_ENDS).endswith(self.cut_at):
                    ends_at, self.cut_at = self.cut_at, b""
                if ends_at and data.removesuffix(_BLOCK_ENDS).endswith(ends_at):
                    self.cuts += 1
                    client.shutdown(socket.SHUT_WR)  # what the server answers gets nowhere
                    if self.keep:
                        self._kept.append((server, data))
                        return
                    if self.deliver:
                        server.sendall(data)
                    break
                server.sendall(data)
        if not self.silent:
            with suppress(OSError):
                server.shutdown(socket.SHUT_WR)

    def _shortened(self, request: bytes, ends: threading.Event) -> bytes:
        text = request[_HEADER + 1 :]
        meant = text.startswith(self.end_behind) if self.end_behind else text.endswith(_SEPARATOR + b"COMMIT")
        if not (self.end_early and meant):
            return request
        self.end_early = False
        ends.set()
        first = request[_HEADER:].partition(_SEPARATOR)[0]
        return len(first).to_bytes(3, "little") + request[3:_HEADER] + first

    def _arm(self, request: bytes, fails: threading.Event) -> None:
        if self.fail_after and request.endswith(self.fail_after):
            self.fail_after = b""
            fails.set()

    def _answers(
        self, server: socket.socket, client: socket.socket, fails: threading.Event, ends: threading.Event
    ) -> None:
        answer = b""
        with suppress(OSError):
            while data := server.recv(65536):
                _delay(data, self.download)
                if fails.is_set():
                    answer += data
                    last = _last_packet(answer)
                    if last is None:
                        continue
                    error = len(REFUSED_COMMIT).to_bytes(3, "little") + answer[last + 3 : last + _HEADER]
                    data, answer = answer[:last] + error + REFUSED_COMMIT, b""
                    fails.clear()
                if ends.is_set():
                    ends.clear()
                    flags = _HEADER + 3  # of a success, of small numbers
                    data = data[:flags] + bytes([data[flags] | _MORE]) + data[flags + 1 :]
                client.sendall(_replaced(data, self.told_instead))
            client.shutdown(socket.SHUT_RDWR)


def _delay(data: bytes, rate: float) -> None:
    """Take as long as a network of so many bytes per second does."""
    if rate:
        time.sleep(len(data) / rate)  # the time of the network is what is staged: there is nothing to wait for


def _replaced(data: bytes, texts: Mapping[bytes, bytes]) -> bytes:
    for text, other in texts.items():
        assert len(text) == len(other)  # the header of the packet stays true
        data = data.replace(text, other)
    return data


def _last_packet(answer: bytes) -> int | None:
    """Where the last packet of a whole answer begins. All its packets are plain successes, of small numbers."""
    at = 0
    while at + _HEADER < len(answer):
        end = at + _HEADER + int.from_bytes(answer[at : at + 3], "little")
        if end > len(answer):
            return None
        kind, *_, low, high = answer[at + _HEADER : at + _HEADER + 5]
        assert kind == 0
        if not (low | high << 8) & _MORE:
            return at
        at = end
    return None


def _end(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@contextmanager
def proxy_to(url: str) -> Iterator[Proxy]:
    """A proxy to the server of a URL, until the end of the block."""
    with closing(Proxy(ConnectConfig.from_url(url))) as proxy:
        yield proxy


def connected(target: ConnectConfig) -> socket.socket:
    """A connection to a server, as its URL says."""
    if not target.unix_socket:
        return socket.create_connection((target.host, target.port))
    server = socket.socket(socket.AF_UNIX)
    server.connect(target.unix_socket)
    return server
