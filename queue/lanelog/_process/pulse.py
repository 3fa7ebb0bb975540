"""The signs of life of a background thread: its turns, and its calls to the database.

Owns the times, and judges nothing. A thread writes its own pulse alone, and any thread may read it: each time is one
assignment, so no lock is needed. A thread without a pulse, such as one that publishes, writes nothing.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from attrs import define

if TYPE_CHECKING:
    from types import TracebackType


@define(eq=False)
class Pulse:
    """All times are monotonic. 0: never."""

    turned: float = 0.0
    """When the last turn began."""
    turns: int = 0
    expected: float = 0.0
    """The latest time of the next sign of life, if there is nothing to do."""
    asked: float = 0.0
    """When the thread's present call to the database began. 0: there is none."""
    answered: float = 0.0
    """When the database last answered this thread."""


class _Own(threading.local):
    pulse: Pulse | None = None  # a default: a missing attribute would cost ten times as much


_own: Final = _Own()


def give(pulse: Pulse) -> None:
    """Make this the pulse of the current thread."""
    _own.pulse = pulse


class _Calling:
    """Marks a call to the database in the pulse of the current thread. One object serves all threads."""

    __slots__ = ()

    def __enter__(self) -> None:
        pulse = _own.pulse
        if pulse is not None:
            pulse.asked = time.monotonic()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pulse = _own.pulse
        if pulse is not None:
            pulse.expected = now = time.monotonic()
            pulse.asked = 0.0
            if exc_type is None:
                pulse.answered = now


calling: Final = _Calling()
"""`with calling:` around a call to the database."""
