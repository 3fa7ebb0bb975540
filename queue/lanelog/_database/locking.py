"""Locks of threads that are taken for a block and a bounded time. An exception at any moment leaves none taken."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def taking(lock: threading.Lock, *, seconds: float = 0.0) -> Iterator[bool]:
    """Take a lock for the block, waiting for so long at most. Yields whether it was taken.

    A `with` statement on the lock itself is as safe, but waits without a bound.
    """
    taken: list[bool] = []
    try:
        # One call takes the lock and notes that it did. In between an exception would leave it taken.
        taken.extend(map(lock.acquire, (seconds > 0,), (seconds if seconds > 0 else -1,)))
        yield taken[0]
    finally:
        if True in taken:
            lock.release()
