"""A process as its supervisor sees it: from its start and its reports to its end.

Owns the socket to it, and its last report. Never decides when it starts or ends.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from attrs import define, field

from lanelog._process import own_end
from lanelog.worker.orders import ASK, END, Report

if TYPE_CHECKING:
    from lanelog.worker.orders import Orders

_CHUNK: Final = 65_536


@define(eq=False)
class Process:
    """One process. All times are monotonic."""

    channel: socket.socket
    _popen: subprocess.Popen[bytes]
    reported_at: float = 0.0
    """When the process last reported. 0: never."""
    ready_at: float = 0.0
    """When the process was first ready. 0: never."""
    asked_at: float = 0.0
    """When the process was asked to drain. 0: never."""
    report: Report = field(factory=Report)
    metrics: str = ""
    """Its last metrics."""
    measured_at: float = 0.0
    """When the process sent these. 0: never."""
    end_asked_at: float | None = None
    """When (by the supervisor's `Awake`) it was asked to end because its workers hang. None: never, or they went on."""
    killed: str = ""
    """Why it was killed. Empty: it was not."""
    _rest: bytes = b""

    @classmethod
    def start(cls, orders: Orders) -> Self:
        """Start a fresh interpreter.

        It is in a process group of its own: Ctrl-C in a terminal reaches the supervisor alone, which drains in order.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "lanelog.worker.child", str(theirs.fileno()), orders.to_json()]
            try:
                popen = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), process_group=0
                )
            except BaseException:
                ours.close()
                raise
        ours.settimeout(0)
        return cls(ours, popen)

    @property
    def pid(self) -> int:
        """Its number."""
        return self._popen.pid

    @property
    def asked(self) -> bool:
        """Whether it was asked to drain."""
        return bool(self.asked_at)

    @property
    def ready(self) -> bool:
        """Whether it has said that it can work."""
        return bool(self.reported_at) and not self.report.lacking

    def receive(self) -> bool:
        """Take its reports. Return False when it says nothing more."""
        with suppress(BlockingIOError):
            while True:
                try:
                    chunk = self.channel.recv(_CHUNK)
                except ConnectionError:
                    chunk = b""
                if not chunk:
                    return False
                *lines, self._rest = (self._rest + chunk).split(b"\n")
                for line in lines:
                    self._take(Report.from_line(line))
        return True

    def _take(self, report: Report) -> None:
        self.report, self.reported_at = report, time.monotonic()
        self.end_asked_at = self.end_asked_at if report.hung else None
        if report.metrics is not None:
            self.metrics, self.measured_at = report.metrics, self.reported_at
        if self.ready and not self.ready_at:
            self.ready_at = self.reported_at

    def ask(self) -> None:
        """Ask for its metrics. Any thread may. Its report brings them."""
        with suppress(OSError):  # it has ended, or has been asked too often without an answer
            self.channel.send(ASK)

    def ask_to_end(self, now: float) -> None:
        """Ask it to end itself because its workers hang. It does not if they go on meanwhile."""
        self.end_asked_at = now
        with suppress(OSError):  # it has ended, or does not read: it is killed later
            self.channel.send(END)

    def ended(self) -> int | None:
        """Return its exit status, negative for a signal. None: it still runs."""
        return self._popen.poll()

    def terminate(self) -> None:
        """Ask it to drain."""
        self.asked_at = self.asked_at or time.monotonic()
        self._popen.terminate()

    def kill(self, why: str) -> None:
        """End it at once. One that hangs in the kernel ends later."""
        self.killed = why
        self._popen.kill()

    def wait(self) -> None:
        """Wait for its end."""
        self._popen.wait()

    def close(self) -> None:
        """Forget it, after its end."""
        self.channel.close()


def named(status: int) -> str:
    """Return an exit status in words: `status 1`, `SIGKILL`."""
    if status >= 0:
        return f"status {status}" + (": its handlers hung" if status == own_end.STATUS else "")
    with suppress(ValueError):
        return signal.Signals(-status).name
    return f"signal {-status}"
