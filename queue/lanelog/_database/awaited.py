"""The packets whose answers connections await: since when, and how such a connection is cut off.

Asks nothing and decides nothing: `stopped_packets` does.
"""

from __future__ import annotations

import os
import socket
import threading
import weakref
from contextlib import closing, suppress
from typing import Any

from attrs import define, field

from lanelog._database.fork import Descriptor


@define(eq=False)
class Awaited:
    """The packet whose answers a connection awaits. The connection's thread writes it, and another one reads it."""

    number: int
    """The connection's number at the server."""
    _descriptor: Descriptor
    since: float = field(default=0.0, init=False)
    """When (monotonic) the packet was sent. 0: none is awaited."""

    def cut_off(self) -> None:
        """End the connection below its driver, whose thread reads from it. If it was closed meanwhile, do nothing."""
        with suppress(OSError):
            number = os.dup(self._descriptor.number)  # from here on it leads to no other file
            if not self._descriptor.is_file_of(number):
                os.close(number)
                return
            with closing(socket.socket(fileno=number)) as copy:
                copy.shutdown(socket.SHUT_RDWR)


@define(eq=False)
class AwaitedPackets:
    """Those of all connections of one `Driver`. Thread-safe."""

    _of_connections: weakref.WeakSet[Awaited] = field(factory=weakref.WeakSet, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def connected(self, raw: Any, number: int) -> Awaited:
        """Return what a new connection awaits: nothing yet."""
        awaited = Awaited(number, Descriptor.noted(raw))
        with self._lock:
            self._of_connections.add(awaited)
        return awaited

    def before(self, latest: float) -> dict[Awaited, float]:
        """Return the packets that were sent before `latest` (monotonic) and are still awaited, and when they were."""
        with self._lock:
            sent = {awaited: awaited.since for awaited in self._of_connections}
        return {awaited: since for awaited, since in sent.items() if 0 < since < latest}

    def abandon(self) -> None:
        """In a forked child: another thread may have held the lock, and the connections are the parent's."""
        self._of_connections = weakref.WeakSet()
        self._lock = threading.Lock()
