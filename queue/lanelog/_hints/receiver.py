"""The subscriber's sockets: a Unix one for each engine, and with `wake_address` a UDP one, open while it subscribes.

Owns the sockets, their token and how often they are read. It believes nothing of a datagram but "poll now", and answers
none. Reading takes no more than a share of the time: after each read it is deaf for a while. What comes in meanwhile
waits in the sockets, and the kernel refuses what does not fit. A forked child closes its copies.
"""

from __future__ import annotations

import errno
import secrets
import socket
import threading
import time

from attrs import define, evolve, field

from lanelog._base.addresses import UdpAddress
from lanelog._database import register_shared
from lanelog._facts.engine import hints as facts
from lanelog._hints.allowance import OF_HINTS
from lanelog._hints.datagram import SIZE, Hint, unpack
from lanelog._hints.host import own_host
from lanelog._hints.route import ACROSS, PREFIX, family_of
from lanelog._process.ending import quiet_at_the_end
from lanelog._stores.members.heartbeats import NOWHERE, WakeEndpoint


@define(eq=False)
class Receiver:
    """Receives hints. Its Unix datagram socket has an abstract name, so there is no file for it."""

    endpoint: WakeEndpoint = field(default=NOWHERE, init=False)
    """What the heartbeat rows say; NOWHERE while it is closed."""
    received: int = field(default=0, init=False)
    """Hints that were believed."""
    ignored: int = field(default=0, init=False)
    """Datagrams that were not believed: they had another token, or were no hints."""
    deaf_until: float = field(default=0.0, init=False)
    """When (monotonic) the sockets may be read again."""
    batch_datagrams: int = field(default=64, kw_only=True)
    """Datagrams of one socket that are read at once."""
    least_deaf_seconds: float = field(default=0.005, kw_only=True)
    _sockets: tuple[socket.socket, ...] = field(default=(), init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def __attrs_post_init__(self) -> None:
        register_shared(self)

    def open(self, across: UdpAddress | None = None) -> None:
        """Open the sockets, where the system has such ones. `across`: the address at which other hosts reach this one.

        Without a socket everything works, but waits for the next poll. An open receiver stays as
        it is, because another thread may wait on its sockets.
        """
        with self._lock:
            if self._sockets or not own_host():
                return
            name, sockets = f"{PREFIX}{secrets.token_hex(16)}", []
            if across is not None and (udp := _udp(across)) is not None:
                sockets.append(udp)
                name += f"{ACROSS}{evolve(across, port=udp.getsockname()[1])}"
            if (unix := _unix(name)) is not None:
                sockets.append(unix)
            if sockets:
                self.endpoint = WakeEndpoint(own_host(), name, secrets.randbits(63))
                self._sockets = tuple(sockets)  # from here on, the token is asked for

    def filenos(self) -> tuple[int, ...]:
        """What to wait for; nothing while it is closed."""
        return tuple(each.fileno() for each in self._sockets)

    def receive(self) -> set[Hint]:
        """Read what has come in, at most `batch_datagrams` of each socket. Call `rest` when they are passed on."""
        hints: set[Hint] = set()
        for each in self._sockets:
            self._read(each, hints)
        return hints

    def rest(self, began: float) -> None:
        """Be deaf for a while. `began`: when (monotonic) the last reading began."""
        ended = time.monotonic()
        self.deaf_until = ended + max(self.least_deaf_seconds, OF_HINTS.rest(ended - began))

    def _read(self, line: socket.socket, hints: set[Hint]) -> None:
        for _ in range(self.batch_datagrams):
            try:
                datagram = line.recv(SIZE + 1)
            except OSError:  # nothing is left, or it was closed
                return
            hint = unpack(datagram, self.endpoint.token)
            if hint is None:
                self.ignored += 1
            else:
                self.received += 1
                hints.add(hint)

    def close(self) -> None:
        """Close the sockets."""
        with self._lock:
            made, self._sockets, self.endpoint = self._sockets, (), NOWHERE
        for each in made:
            each.close()

    def abandon(self) -> None:
        """In a forked child: the hints are the parent's."""
        self._lock = threading.Lock()
        self.close()

    @quiet_at_the_end
    def __del__(self) -> None:
        self.close()  # of a client that was never closed, which says so itself


def _unix(name: str) -> socket.socket | None:
    return _bound(socket.AF_UNIX, f"\0{name}")


def _udp(across: UdpAddress) -> socket.socket | None:
    """Open a socket at this address.

    Behind NAT, say in a container with a published port, publishers see an address that this machine does not have.
    Then the socket receives at the same port of every address here.
    """
    family = family_of(across)
    anywhere = ("", across.port) if across.port else None
    return _bound(family, (str(across.ip), across.port), instead=anywhere)


def _bound(
    family: int, address: str | tuple[str, int], *, instead: tuple[str, int] | None = None
) -> socket.socket | None:
    """Return a new socket at an address, or at another one if this machine does not have it. None: the log says why."""
    try:
        made = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    except OSError as error:
        facts.hints_no_socket(error=error)
        return None
    try:
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # at all addresses: not at those of IPv4
        try:
            made.bind(address)
        except OSError as error:
            if instead is None or error.errno != errno.EADDRNOTAVAIL:
                raise
            made.bind(instead)
    except OSError as error:
        made.close()
        facts.hints_no_socket(error=error)
        return None
    return made
