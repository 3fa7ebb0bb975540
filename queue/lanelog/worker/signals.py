"""The signals of a supervisor, as something that its loop can wait for.

Owns the signal handlers inside its block. The first SIGTERM or SIGINT asks for the drain; another one, a second or more
later, does not wait. SIGCHLD only ends the wait.
"""

from __future__ import annotations

import signal
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

from attrs import define, field

from lanelog_command.early_signal import early

if TYPE_CHECKING:
    from types import FrameType, TracebackType

INTERRUPTED: Final = 128
"""A program that signal N has ended has the exit status 128 + N, as shells count."""
_ANOTHER: Final = 1.0
"""Seconds after which a second signal is meant as one. A terminal and a program in it may both send the first."""


@define(eq=False)
class EndingSignals:
    """Makes signals something to wait for. A context manager, in the main thread alone."""

    wakes: socket.socket = field(init=False)
    """Becomes readable at each signal."""
    hard: int = field(default=0, init=False)
    """The second signal's number. 0: there was none."""
    _woken: socket.socket = field(init=False)
    _taken: list[signal.Signals] = field(factory=list, init=False)
    _first: float | None = field(default=None, init=False)
    _before: dict[signal.Signals, Any] = field(factory=dict, init=False)
    _descriptor: int = field(default=-1, init=False)

    def __enter__(self) -> Self:
        self.wakes, self._woken = socket.socketpair()
        for each in (self.wakes, self._woken):
            each.settimeout(0)
        self._descriptor = signal.set_wakeup_fd(self._woken.fileno(), warn_on_full_buffer=False)
        for number, handler in (
            (signal.SIGTERM, self._asked),
            (signal.SIGINT, self._asked),
            (signal.SIGCHLD, _nothing),
        ):
            self._before[number] = signal.signal(number, handler)
        if early.take():  # it came while the command was being imported
            self._asked(signal.SIGTERM, None)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._descriptor)
        self.wakes.close()
        self._woken.close()

    def take(self) -> list[signal.Signals]:
        """Return the first signal that asks for the end, once."""
        with suppress(BlockingIOError):
            while self.wakes.recv(4096):
                pass
        taken, self._taken = self._taken, []
        return taken

    def _asked(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = now
            self._taken.append(signal.Signals(number))
        elif now - self._first >= _ANOTHER:
            self.hard = number


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Notice the end of a process: the default handler would not end a wait."""
