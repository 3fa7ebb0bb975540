"""The time that a thread has left for what it does: its waits for the server and for a connection end by then.

Owns the deadline of each thread. Never waits. Without it, a repetition that begins just before the end of
publish_timeout would wait for the server for another read_timeout.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

GRACE: Final = 1.0
"""Seconds beyond the deadline for an answer. To cut a statement off that is answered at once would make its outcome
unknown."""


LEFT_OVER: Final = 60.0
"""Seconds after which a deadline that has passed is none any more: every wait within it has ended."""


class _OfThread(threading.local):
    deadline: float | None = None


_own: Final = _OfThread()


@contextmanager
def until(deadline: float) -> Iterator[None]:
    """Let this thread wait until `deadline` (monotonic) at most, inside the block. An earlier one stays."""
    before = _live()
    _own.deadline = deadline if before is None else min(before, deadline)
    try:
        yield
    finally:
        _own.deadline = before


def deadline(seconds: float) -> float:
    """Return the deadline (monotonic) of this thread. Without one it is in so many seconds."""
    own = _live()
    return time.monotonic() + seconds if own is None else own


def at_most(seconds: float) -> float:
    """Return a time-out of so many seconds, or of those that are left."""
    own = _live()
    return seconds if own is None else min(seconds, max(0.0, own - time.monotonic()) + GRACE)


def _live() -> float | None:
    """The deadline of this thread. One that has long passed is left over from a block that an interrupt has left."""
    own = _own.deadline
    return None if own is None or time.monotonic() > own + LEFT_OVER else own
