"""A caller's wait for the flush that carries its settlement.

Owns the hand-over of one outcome between two threads; never knows what the outcome is about. Made by whoever settles
explicitly, resolved by the settler.
"""

from __future__ import annotations

import threading


class Ticket:
    """Resolved once, with success or with the error to raise in the waiting thread."""

    __slots__ = ("_done", "error")

    def __init__(self) -> None:
        self._done = threading.Event()
        self.error: Exception | None = None

    def __repr__(self) -> str:
        state = "waiting" if not self._done.is_set() else "ok" if self.error is None else type(self.error).__name__
        return f"Ticket({state})"

    def resolve(self, error: Exception | None = None) -> None:
        """Let the waiting thread go on, or raise `error` there."""
        self.error = error
        self._done.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until resolved; raises the error it was resolved with. False after `timeout` seconds."""
        if not self._done.wait(timeout):
            return False
        if self.error is not None:
            raise self.error
        return True
