"""The time that a thread has left for what it does: its waits for the server and for a connection end by then.

Owns the deadline of each thread. Never waits. Without it, a repetition that begins just before the end of
publish_timeout would wait for the server for another read_timeout.
"""

from __future__ import annotations

import math
import threading
import time
from typing import Final

GRACE: Final = 1.0
"""Seconds beyond the deadline for an answer. To cut a statement off that is answered at once would make its outcome
unknown."""


LEFT_OVER: Final = 60.0
"""Seconds after which a deadline that has passed is none any more: every wait within it has ended."""


class _OfThread(threading.local):
    deadline: float = math.inf


_own: Final = _OfThread()


class Limit:
    """Let this thread wait for so many seconds at most, inside the block. A deadline that it has already stays.

    Each publish has such a block, and several waits in it: what they cost is a part of its cost.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._before = math.inf

    def __enter__(self) -> float:
        """Return the deadline (monotonic) that holds."""
        now = time.monotonic()
        self._before = own = _live(now)
        _own.deadline = holds = now + self._seconds if own == math.inf else own
        return holds

    def __exit__(self, *_raised: object) -> None:
        _own.deadline = self._before


def deadline(seconds: float) -> float:
    """Return the deadline (monotonic) of this thread. Without one it is in so many seconds."""
    now = time.monotonic()
    own = _live(now)
    return now + seconds if own == math.inf else own


def at_most(seconds: float) -> float:
    """Return a time-out of so many seconds, or of those that are left."""
    own = _own.deadline
    if own == math.inf:
        return seconds
    left = own - time.monotonic()
    if left < -LEFT_OVER:
        return seconds
    left = GRACE if left < 0 else left + GRACE
    return min(seconds, left)


def _live(now: float) -> float:
    """The deadline of this thread. One that has long passed is left over from a block that an interrupt has left."""
    own = _own.deadline
    return math.inf if now > own + LEFT_OVER else own
