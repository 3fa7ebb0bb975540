"""An event that one thread waits for, and that stays usable when the wait is interrupted.

`threading.Event` is written in Python. An exception of a signal handler may leave its lock locked in there, and the
thread that sets it next then hangs for ever. Here everything is one call of C on one lock.
"""

from __future__ import annotations

import threading
from contextlib import suppress


class Wakeup:
    """Set by any thread. One thread waits, and takes the mark away."""

    __slots__ = ("_unset",)

    def __init__(self) -> None:
        self._unset = threading.Lock()  # locked while it is not set
        self._unset.acquire()

    def set(self) -> None:
        """Wake the thread that waits, or lets it not wait the next time."""
        with suppress(RuntimeError):  # it is set already
            self._unset.release()

    def wait(self, seconds: float) -> bool:
        """Wait until it is set, for so long. Return whether it was. It is not set any more."""
        return self._unset.acquire(timeout=seconds)

    def clear(self) -> None:
        """Unset it."""
        self._unset.acquire(blocking=False)
