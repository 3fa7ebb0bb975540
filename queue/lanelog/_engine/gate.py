"""The process's gate: messages pass it together, a suspect passes it alone.

Owns the count of messages being handled in this process; never knows which. Workers and pulled deliveries enter and
leave. A message that may have killed a process runs its last attempt alone, so that if the process dies again it is
proven guilty and nobody else is; `alone` therefore spans all clients of the process.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 10.0
"""Seconds for which a suspect holds others back before it lets them pass for as long: an hour-long handler must not
stop all."""

CHECK = 0.25
"""Seconds between two looks at whether the suspect is still wanted."""


class Gate:
    """Many at once, or one alone. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0
        self._alone = False
        self._held_back = False

    def __repr__(self) -> str:
        return f"Gate(inside={self._inside}, alone={self._alone}, held_back={self._held_back})"

    def enter(self) -> None:
        """Wait while a suspect runs alone or is about to."""
        with self._changed:
            while self._alone or self._held_back:
                self._changed.wait()
            self._inside += 1

    def leave(self) -> None:
        """Say that a message that entered is done."""
        with self._changed:
            self._inside -= 1
            self._alone = False
            self._changed.notify_all()

    def enter_alone(self, wanted: Callable[[], bool]) -> bool:
        """Wait until nobody is inside, and shut the others out; False when it is not `wanted` any more."""
        with self._changed:
            turn_ends = time.monotonic() + PATIENCE
            holding = False
            try:
                while wanted():
                    if not self._alone and (holding or not self._held_back):
                        holding = self._held_back = True
                        if self._inside == 0:
                            self._inside, self._alone = 1, True
                            return True
                        if time.monotonic() >= turn_ends:
                            holding = self._held_back = False
                            self._changed.notify_all()
                            self._let_others_pass(wanted)
                            turn_ends = time.monotonic() + PATIENCE
                            continue
                    self._changed.wait(CHECK)
                return False
            finally:
                if holding:
                    self._held_back = False
                    self._changed.notify_all()

    def _let_others_pass(self, wanted: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE
        while wanted() and time.monotonic() < until:
            self._changed.wait(CHECK)


_process: list[Gate] = [Gate()]


def process_gate() -> Gate:
    """The gate of this process."""
    return _process[0]


def _after_fork() -> None:
    _process[0] = Gate()  # whatever the parent's threads were handling is not handled here


os.register_at_fork(after_in_child=_after_fork)
