"""What SIGTERM does until a verb of the command has a handler of its own.

Sets no handler when it is imported: `main` does. The kernel drops a SIGTERM for process 1, as the command of a
container is, unless the process handles it.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any

_ENDED_BY = 128
"""A program that signal N has ended has the exit status 128 + N, as shells count."""


class EarlySignal:
    """SIGTERM before the command is ready for it. For the main thread."""

    def __init__(self) -> None:
        self._before: Any = None
        """What SIGTERM did before. None: this handler does not stand."""
        self._received = False
        self._ends = False

    def remember(self) -> None:
        """Remember a signal from now on."""
        self._before = signal.signal(signal.SIGTERM, self._on_signal)

    def take(self) -> bool:
        """Return whether one was remembered. For a verb that has set a handler of its own.

        When the verb has put this one back, nothing is remembered any more: a signal ends the command.
        """
        self._ends = True  # first: a signal that comes now is not remembered where nobody looks again
        return self._received

    def end(self) -> None:
        """From now on a signal ends the command as it ends any other process. So does one that was remembered."""
        if self._before is None or self._ends:
            return
        received = self.take()
        if os.getpid() != 1:
            signal.signal(signal.SIGTERM, self._before)
        if received:
            signal.raise_signal(signal.SIGTERM)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if not self._ends:
            self._received = True
            return
        signal.signal(number, self._before)
        signal.raise_signal(number)
        if os.getpid() == 1:  # for which the kernel drops it
            os._exit(_ENDED_BY + number)


early = EarlySignal()
