"""A caller's wait for the flush that carries its settlement.

Owns the hand-over of one result between two threads. Never knows the meaning of the result.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class FlushWaiter:
    """Resolved once, with success or with an error for the waiting thread. After that, `then` is called.

    The first call of `resolve` counts. A lane may be lost while the answer to its last flush is still on the way.
    """

    __slots__ = ("_done", "_lock", "_then", "error")

    def __init__(self, then: Callable[[], None] | None = None) -> None:
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._then = then
        self.error: Exception | None = None

    def __repr__(self) -> str:
        state = "waiting" if not self._done.is_set() else "ok" if self.error is None else type(self.error).__name__
        return f"FlushWaiter({state})"

    def resolve(self, error: Exception | None = None) -> None:
        """Let the waiting thread go on, or raise `error` there. A second call changes nothing."""
        with self._lock:
            if self._done.is_set():
                return
            self.error = error
            self._done.set()
        if self._then is not None:
            self._then()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until resolved. Raises the error, if it was resolved with one. False after `timeout` seconds."""
        if not self._done.wait(timeout):
            return False
        if self.error is not None:
            raise self.error
        return True
