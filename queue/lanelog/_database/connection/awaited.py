"""The packets whose answers connections await: since when, and how such a connection is cut off.

Asks nothing and decides nothing: `stopped_packets` does.
"""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import struct
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, Final

from attrs import define, field

from lanelog._database.fork import Descriptor

_SILENT: Final = 1.5
"""Seconds without data after which an answer is not on its way any more."""
_LAST_RECEIVED: Final = 52
"""Where Linux's `tcp_info` has the milliseconds since data last arrived, a number of four bytes."""


@define(eq=False)
class Awaited:
    """The packet whose answers a connection awaits. The connection's thread writes it, and another one reads it."""

    number: int
    """The connection's number at the server."""
    server: str
    """Which server that is."""
    _descriptor: Descriptor
    since: float = field(default=0.0, init=False)
    """When (monotonic) the first answer to the packet was read. 0: no other is awaited.

    Before that the packet may still be on its way, and the server can stop only between two statements.
    """

    def begin(self) -> None:
        """The first answer to a packet was read, and others are awaited."""
        self.since = time.monotonic()

    def is_silent(self) -> bool:
        """Whether nothing has arrived lately that the connection's thread may be reading. False: it was closed."""
        with suppress(OSError), self._copy() as copy:
            asked = select.poll()
            asked.register(copy, select.POLLIN)
            return not asked.poll(0) and _silence(copy) >= _SILENT
        return False

    def cut_off(self) -> None:
        """End the connection below its driver, whose thread reads from it. If it was closed meanwhile, do nothing."""
        with suppress(OSError), self._copy() as copy:
            copy.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _copy(self) -> Iterator[socket.socket]:
        """The connection's socket under a number of our own. Raises OSError if it was closed."""
        number = os.dup(self._descriptor.number)  # from here on it leads to no other file
        if not self._descriptor.is_file_of(number):
            os.close(number)
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        with closing(socket.socket(fileno=number)) as copy:
            yield copy


@define(eq=False)
class AwaitedPackets:
    """Those of all connections of one `Driver`. Thread-safe."""

    _of_connections: weakref.WeakSet[Awaited] = field(factory=weakref.WeakSet, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def connected(self, raw: Any, number: int, server: str) -> Awaited:
        """Return what a new connection awaits: nothing yet."""
        awaited = Awaited(number, server, Descriptor.noted(raw))
        with self._lock:
            self._of_connections.add(awaited)
        return awaited

    def before(self, latest: float) -> dict[Awaited, float]:
        """Return the packets whose first answer came before `latest` (monotonic), and when, while others are due."""
        with self._lock:
            sent = {awaited: awaited.since for awaited in self._of_connections}
        return {awaited: since for awaited, since in sent.items() if 0 < since < latest}

    def abandon(self) -> None:
        """In a forked child: another thread may have held the lock, and the connections are the parent's."""
        self._of_connections = weakref.WeakSet()
        self._lock = threading.Lock()


def _silence(connection: socket.socket) -> float:
    """Seconds since data last arrived. Infinite where the system does not report it, as for a unix socket."""
    if sys.platform != "linux":
        return math.inf
    try:
        found = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_RECEIVED + 4)
    except OSError:
        return math.inf
    return struct.unpack_from("=I", found, _LAST_RECEIVED)[0] / 1000 if len(found) == _LAST_RECEIVED + 4 else math.inf
