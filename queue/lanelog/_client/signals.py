"""What ends `client.run()`: SIGTERM, SIGINT, or the failure of a subscription. A second Ctrl-C does not wait.

Owns the signal handlers inside a block. Puts the application's handlers back at its end.
"""

from __future__ import annotations

import queue
import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field

from lanelog._facts import client as facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_INTERRUPTED: Final = 128 + signal.SIGINT
"""The exit status of a program that Ctrl-C has ended, as shells count."""
_ANOTHER_PRESS: Final = 1.0
"""Seconds after which a second SIGINT comes from a person. A terminal and a program in it may both send the first."""


@define(eq=False)
class Ending:
    """The request to end. Any thread and a signal handler may make it, and the main thread waits for it.

    A signal handler runs between two lines of the main thread, and the main thread may hold any lock there. An Event
    would wait for its own lock for ever, if the signal met the main thread while it begins to wait. The `put` of a
    SimpleQueue may interrupt any other call of the queue.
    """

    _requests: queue.SimpleQueue[signal.Signals | None] = field(factory=queue.SimpleQueue, init=False)

    def ask(self, received: signal.Signals | None = None) -> None:
        """Ask for the end, because of a signal or for another reason."""
        self._requests.put(received)

    def wait(self, seconds: float) -> bool:
        """Wait until the end is asked for. Return whether it is, and log the signal."""
        try:
            received = self._requests.get(timeout=seconds)
        except queue.Empty:
            return False
        if received is not None:
            facts.signal_received(signal=received.name)
        return True


@contextmanager
def ending_by_signal(hurry: Callable[[], None]) -> Iterator[Ending]:
    """Give what SIGTERM and SIGINT ask to end. Call `hurry` before a second SIGINT ends the program.

    Puts the application's handlers back at the end of the block. Only the main thread gets signals, so in other threads
    no signal asks for the end.
    """
    ending = Ending()
    if threading.current_thread() is not threading.main_thread():
        yield ending
        return
    previous: dict[signal.Signals, Any] = {}
    first: list[float] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        ending.ask(signal.Signals(number))
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
        yield ending
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)
