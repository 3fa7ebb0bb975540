"""The signals that end `client.run()`: the first asks for the end, a second Ctrl-C does not wait for it.

Owns the signal handlers inside a block. Puts the application's handlers back at its end.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from lanelog._telemetry import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_INTERRUPTED: Final = 128 + signal.SIGINT
"""The exit status of a program that Ctrl-C has ended, as shells count."""
_ANOTHER_PRESS: Final = 1.0
"""Seconds after which a second SIGINT comes from a person. A terminal and a program in it may both send the first."""

log = get_logger("client")


@contextmanager
def ending_by_signal(stop: Callable[[], None], hurry: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at each SIGTERM or SIGINT inside the block, and `hurry` before a second SIGINT ends the program.

    Does nothing outside of the main thread: only that thread gets signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous: dict[signal.Signals, Any] = {}
    first: list[float] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        log.info("signal.received", signal=signal.Signals(number).name)
        stop()
        now = time.monotonic()
        if not first:
            first.append(now)
        elif number == signal.SIGINT and now - first[0] >= _ANOTHER_PRESS:
            signal.signal(number, previous[signal.SIGINT])
            if previous[signal.SIGINT] is signal.default_int_handler:
                hurry()
                raise SystemExit(_INTERRUPTED)  # Python's own handler would print a traceback
            signal.raise_signal(number)

    for each in _SIGNALS:
        previous[each] = signal.signal(each, on_signal)
    try:
        yield
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)
