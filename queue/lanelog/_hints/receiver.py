"""The subscriber's socket: one for each engine, open while it has subscriptions.

Owns the socket, its token and how often it is read. It believes nothing of a datagram but "look now". Reading takes no
more than a share of the time: after each read it is deaf for a while. What comes in meanwhile waits in the socket, and
the kernel refuses what does not fit. A forked child closes its copy.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time

from attrs import define, field

from lanelog._database.fork import register_shared
from lanelog._hints.allowance import SHARE
from lanelog._hints.datagram import SIZE, Hint, unpack
from lanelog._hints.host import own_host
from lanelog._stores.heartbeats import NOWHERE, WakePlace
from lanelog._telemetry import get_logger

BATCH = 64
"""Datagrams that are read at once."""

DEAF = 0.005
"""Seconds until the socket is read again, at least."""

log = get_logger("hints")


@define(eq=False)
class Receiver:
    """Hears hints. Its socket is a Unix datagram socket with an abstract name, which no file stands for."""

    place: WakePlace = field(default=NOWHERE, init=False)
    """What the heartbeat rows say; NOWHERE while it is closed."""
    heard: int = field(default=0, init=False)
    """Hints that were believed."""
    ignored: int = field(default=0, init=False)
    """Datagrams that were not: another token, or no hint at all."""
    deaf_until: float = field(default=0.0, init=False)
    """When (monotonic) the socket may be read again."""
    _socket: socket.socket | None = field(default=None, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def __attrs_post_init__(self) -> None:
        register_shared(self)

    def open(self) -> None:
        """Open the socket, where the system has such ones. Without it everything works, and takes until the next look.

        It is not for a second call with another thread waiting on the first socket: an open receiver stays as it is.
        """
        with self._lock:
            if self._socket is not None or not own_host():
                return
            name = f"lanelog-{secrets.token_hex(16)}"
            try:
                made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            except OSError as error:
                log.warning("hints.no_socket", error=error)
                return
            try:
                made.bind(f"\0{name}")
            except OSError as error:
                made.close()
                log.warning("hints.no_socket", error=error)
                return
            self._socket = made
            self.place = WakePlace(own_host(), name, secrets.randbits(63))

    def fileno(self) -> int | None:
        """What to wait for; None: closed."""
        return None if self._socket is None else self._socket.fileno()

    def receive(self) -> set[Hint]:
        """Read what has come in, at most `BATCH` datagrams, and be deaf for a while."""
        began = time.monotonic()
        hints: set[Hint] = set()
        if self._socket is not None:
            for _ in range(BATCH):
                try:
                    datagram = self._socket.recv(SIZE + 1)
                except OSError:  # nothing is left, or it was closed
                    break
                hint = unpack(datagram, self.place.token)
                if hint is None:
                    self.ignored += 1
                else:
                    self.heard += 1
                    hints.add(hint)
        ended = time.monotonic()
        self.deaf_until = ended + max(DEAF, (ended - began) / SHARE)
        return hints

    def close(self) -> None:
        """Close the socket."""
        with self._lock:
            made, self._socket, self.place = self._socket, None, NOWHERE
        if made is not None:
            made.close()

    def abandon(self) -> None:
        """In a forked child: the hints are the parent's."""
        self._lock = threading.Lock()
        self.close()
