"""The event that the fetcher's loop waits on: it is set by other threads, and by a hint that comes in.

Owns the wait. Never decides what a hint means: it calls `_received`. Only one thread waits.
"""

from __future__ import annotations

import math
import os
import select
import time
from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._database import register_shared
from lanelog._process.ending import quiet_at_the_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from lanelog._hints.datagram import Hint
    from lanelog._hints.receiver import Receiver

_LONGEST_SECONDS = 3600.0
_DRAINED_BYTES = 4096


@define(eq=False)
class Doorbell:
    """As `threading.Event`, for a loop."""

    _receiver: Receiver
    _received: Callable[[Hint], None]
    """Called in the waiting thread with each hint; it may call `set`."""
    _rung: bool = field(default=False, init=False)
    _waiting: bool = field(default=False, init=False)
    _pipe: tuple[int, int] = field(init=False)  # a byte in it ends the wait

    def __attrs_post_init__(self) -> None:
        self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        register_shared(self)

    def is_set(self) -> bool:
        """Whether it was set since it was last cleared."""
        return self._rung

    def set(self) -> None:
        """End the wait, or the next one."""
        self._rung = True
        if self._waiting:  # else the waiting thread reads `_rung` before it waits
            self._ring()

    def clear(self) -> None:
        """Forget that it was set. For the waiting thread."""
        self._rung = False

    def wait(self, timeout: float) -> bool:
        """Wait until it is set, for `timeout` seconds at most. True: it was set."""
        until = time.monotonic() + timeout
        while not self._rung:
            now = time.monotonic()
            if now >= until:
                return False
            self._wait_once(now, until)
        return True

    def _wait_once(self, now: float, until: float) -> None:
        """Wait for a byte in the pipe, and for a datagram unless the receiver is deaf."""
        poll = select.poll()
        poll.register(self._pipe[0], select.POLLIN)
        sockets = self._receiver.filenos()
        if sockets:
            if self._receiver.deaf_until > now:
                until = min(until, self._receiver.deaf_until)
            else:
                for socket in sockets:
                    poll.register(socket, select.POLLIN)
        self._waiting = True
        try:
            if self._rung:
                return
            ready = {fd for fd, _ in poll.poll(math.ceil(min(until - now, _LONGEST_SECONDS) * 1000))}
        finally:
            self._waiting = False
        if self._pipe[0] in ready:
            os.read(self._pipe[0], _DRAINED_BYTES)
        if not ready.isdisjoint(sockets):
            began = time.monotonic()
            for hint in self._receiver.receive():
                self._received(hint)
            self._receiver.rest(began)

    def _ring(self) -> None:
        try:
            os.write(self._pipe[1], b"\0")
        except OSError:  # it is full, so that the wait ends anyway; or it was closed, and no thread waits
            return

    def close(self) -> None:
        """Close the pipe. No thread may wait any more."""
        pipe, self._pipe = self._pipe, (-1, -1)
        for fd in pipe:
            if fd >= 0:
                os.close(fd)

    def abandon(self) -> None:
        """In a forked child: no thread waits there."""
        self.close()

    @quiet_at_the_end
    def __del__(self) -> None:
        self.close()
