"""Isolation: messages are handled together, and a quarantined message is handled alone.

Owns the number of stays in this process, but not their messages. Workers and pulled deliveries enter and leave. A
message that may have killed a process runs its last attempt alone. If the process dies again, that message has
crashed it, and no other one. So all clients of a process share one isolation.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Final

from lanelog._base.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable

HOLD: Final = Backoff(first=10.0, most=80.0)
"""Seconds for which a quarantined message holds others back. Then the others run for as long: one handler that runs for
an hour must not stop all. Each hold in which the process did not drain doubles the next one, so that long handlers do
not starve a quarantined message. Handlers that run longer than the longest hold can still starve it."""


class Isolation:
    """Many at once, or one alone. Every method may be called from any thread."""

    def __init__(self, *, hold: Backoff = HOLD, check_seconds: float = 0.25) -> None:
        """`check_seconds`: between two checks whether the message that waits is still wanted."""
        self._hold, self._check_seconds = hold, check_seconds
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0
        self._alone = False
        self._held_back = False
        self._pass_until = 0.0  # monotonic; before this time no quarantined message holds others back
        self._failed_holds = 0  # holds since a quarantined message last ran

    def __repr__(self) -> str:
        return f"Isolation(inside={self._inside}, alone={self._alone}, held_back={self._held_back})"

    def enter(self, wanted: Callable[[], bool] | None = None) -> bool:
        """Wait while a quarantined message runs alone or is about to. False when this one is not `wanted` any more."""
        with self._changed:
            while self._alone or self._held_back:
                if wanted is not None and not wanted():
                    return False
                self._changed.wait(None if wanted is None else self._check_seconds)
            self._inside += 1
            return True

    def leave(self) -> None:
        """End the stay of a message that entered."""
        with self._changed:
            self._inside -= 1
            self._alone = False
            self._changed.notify_all()

    def enter_alone(self, wanted: Callable[[], bool]) -> bool:
        """Wait until no message is inside, and keep the others out. False when this one is not `wanted` any more."""
        with self._changed:
            holding, turn_ends = False, 0.0
            try:
                while wanted():
                    now = time.monotonic()
                    if not (holding or self._alone or self._held_back) and now >= self._pass_until:
                        holding = self._held_back = True
                        turn_ends = now + self._hold.longest(self._failed_holds + 1)
                    if self._inside == 0 and (holding or not self._held_back):
                        self._inside, self._alone = 1, True
                        self._failed_holds = 0
                        return True
                    if holding and now >= turn_ends:
                        # Until `_pass_until`, no quarantined message may hold the others back, be it this or another.
                        holding = self._held_back = False
                        self._pass_until = now + self._hold.longest(self._failed_holds + 1)
                        self._failed_holds += 1
                        self._changed.notify_all()
                    self._changed.wait(self._check_seconds)
                self._failed_holds = 0  # this message waits no more: the next one begins with the shortest hold
                return False
            finally:
                if holding:
                    self._held_back = False
                    self._changed.notify_all()


class Passage:
    """The stay of one message, or of one run, in the isolation. The first call to `leave` ends it."""

    __slots__ = ("_isolation", "_left", "_lock")

    def __init__(self, isolation: Isolation) -> None:
        self._isolation = isolation
        self._left = False
        self._lock = threading.Lock()

    def leave(self) -> None:
        """End the stay; idempotent."""
        with self._lock:
            if self._left:
                return
            self._left = True
        self._isolation.leave()


_process: list[Isolation] = [Isolation()]


def process_isolation() -> Isolation:
    """The isolation of this process."""
    return _process[0]


def _after_fork() -> None:
    _process[0] = Isolation()  # the parent's threads, and so its handlers, do not exist in the child


os.register_at_fork(after_in_child=_after_fork)
