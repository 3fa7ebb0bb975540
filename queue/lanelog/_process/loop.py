"""The background thread of a loop: its start, its waits, its stop, and its back-off when a turn fails.

Never knows what a turn does. Never sleeps: it waits on an event that `wake` and `stop` set.
"""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

from attrs import define, field

from lanelog._base.backoff import OF_LOOPS, Backoff
from lanelog._facts.engine import loop as facts
from lanelog._process import pulse as _pulse
from lanelog._process.pulse import Pulse
from lanelog.errors import ClosedError, LanelogError

if TYPE_CHECKING:
    from collections.abc import Callable


FAILURES_UNTIL_FAILED = 5
"""How often in a row an error that a retry does not repair may come. Then what the loop serves has failed."""

LOG_AGAIN: Final = 60.0
"""Seconds after which an outage that goes on is logged again."""


class Wakeable(Protocol):
    """What a loop waits on; `threading.Event` is one."""

    def set(self) -> None:
        """End the wait, or the next one."""

    def clear(self) -> None:
        """Forget that it was set."""

    def wait(self, timeout: float) -> bool:
        """Wait until it is set, for `timeout` seconds at most."""
        ...


@define
class _Row:
    """Failed turns in a row. Times are monotonic."""

    failures: int = 0
    counted: int = 0
    """Those of them that were no error of the database."""
    logged: set[tuple[object, ...]] = field(factory=set)
    """The kinds of those that were logged."""
    away_since: float = math.inf
    """When the first turn failed because the database was unavailable."""
    log_at: float = -math.inf
    """When an outage is logged again."""
    lasts_since: float = math.inf
    """When the present series of faults that must not last began."""
    failed: bool = False
    """Whether `failed` was called."""


def _while_retriable(error: BaseException) -> float:
    return math.inf if isinstance(error, LanelogError) and error.retriable else 0.0


@define(eq=False, repr=False)
class Loop:
    """One thread that repeats `turn(now) -> delay` until it is stopped.

    `turn` gets the monotonic time and returns the seconds to wait, 0 for none. `patience` returns the seconds for which
    an error may last. Infinity is an outage, which has no end. 0 means that five may come in a row. After that `failed`
    gets the error, once until a turn succeeds. `finished` runs in the thread at its end, and closes what the thread
    owned.
    """

    name: str
    _turn: Callable[[float], float]
    _failed: Callable[[BaseException], None] = field(kw_only=True)
    _patience: Callable[[BaseException], float] = field(default=_while_retriable, kw_only=True)
    _finished: Callable[[], None] | None = field(default=None, kw_only=True)
    _backoff: Backoff = field(default=OF_LOOPS, kw_only=True)
    _woken: Wakeable = field(factory=threading.Event, kw_only=True)
    pulse: Pulse = field(factory=Pulse, init=False)
    error: str = field(default="", init=False)
    """The error of the last turn. Empty: it succeeded."""
    _lock: threading.Lock = field(factory=threading.Lock, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _stopping: threading.Event = field(factory=threading.Event, init=False)
    _row: _Row = field(factory=_Row, init=False)  # written by the loop's own thread alone

    def __repr__(self) -> str:
        state = "running" if self.running else "stopped"
        return f"<Loop {self.name} {state}, {self._row.failures} failures in a row>"

    @property
    def running(self) -> bool:
        """Whether the thread is alive. After `stop` it is, until its last turn has ended."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    @property
    def expected(self) -> bool:
        """Whether it should be turning: it was started, and `stop` was not called."""
        return self._thread is not None and not self._stopping.is_set()

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called. A long turn may check it."""
        return self._stopping.is_set()

    def start(self) -> None:
        """Start the thread if it does not run. ClosedError: it is still stopping."""
        with self._lock:
            if self.running:
                if self._stopping.is_set():
                    raise ClosedError(f"the loop {self.name} is still stopping: wait until stop() returns True")
                return
            self._stopping.clear()
            self._woken.clear()
            self.pulse.expected = time.monotonic()
            self._thread = threading.Thread(target=self._run, name=f"lanelog-{self.name}", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # no more threads: stop() must not wait for this one
                self._thread = None
                raise

    def wake(self) -> None:
        """End the current wait, or during a turn the wait after it. A back-off after a failure does not end."""
        self._woken.set()

    def stop(self, timeout: float | None = None) -> bool:
        """Ask the loop to end after its turn, and wait for that, at most `timeout` seconds. True when it has ended.

        In the loop's own thread it only asks. A signal handler must not call it: it may have interrupted the thread
        that holds the lock.
        """
        with self._lock:
            thread = self._thread
            self._stopping.set()
            self._woken.set()
        if thread is None:
            return True
        if thread is threading.current_thread():
            return False
        thread.join(None if timeout is None else max(timeout, 0.0))
        return not thread.is_alive()

    def step(self, now: float) -> float:
        """Take one turn, without the wait after it. Return the seconds until the next."""
        try:
            delay = self._turn(now)
        except BaseException as error:  # noqa: BLE001 - the loop must go on after any error
            return self._after_failure(error, now)
        if self._row.failures:
            facts.loop_recovered(loop=self.name, failures=self._row.failures)
            self._forget()
        return delay

    def _forget(self) -> None:
        self._row, self.error = _Row(), ""

    def _after_failure(self, error: BaseException, now: float) -> float:
        row, patience = self._row, self._patience(error)
        row.failures += 1
        self.error = f"{type(error).__name__}: {error}"
        if patience == math.inf:
            row.lasts_since = math.inf
            self._log_outage(error, now)
        else:
            self._log_fault(error)
            row.counted += not patience
            row.lasts_since = min(row.lasts_since, now) if patience else row.lasts_since
            over = now - row.lasts_since >= patience if patience else row.counted >= FAILURES_UNTIL_FAILED
            if over and not row.failed:
                row.failed = True
                self._call("failed", lambda: self._failed(error))
        return self._backoff.after(row.failures)

    def _log_outage(self, error: BaseException, now: float) -> None:
        """Log an outage at once, and again each minute, whatever the database says meanwhile."""
        row = self._row
        row.away_since = min(row.away_since, now)
        if now >= row.log_at:
            row.log_at = now + LOG_AGAIN
            seconds = round(now - row.away_since, 1)
            facts.loop_failed_in_outage(loop=self.name, error=error, retriable=True, seconds=seconds)

    def _log_fault(self, error: BaseException) -> None:
        """Log each kind of fault once."""
        kind = (type(error), getattr(error, "code", None))
        if kind not in self._row.logged:
            self._row.logged.add(kind)
            facts.loop_failed(loop=self.name, error=error, retriable=False, exc_info=error)

    def _run(self) -> None:
        self._forget()
        _pulse.give(pulse := self.pulse)
        try:
            while True:
                # Cleared before the turn, so that a wake() during the turn ends the wait that follows. stop() sets
                # _stopping before _woken, so no stop is lost between these two lines.
                self._woken.clear()
                if self._stopping.is_set():
                    return
                pulse.turned = pulse.expected = now = time.monotonic()
                pulse.turns += 1
                delay = self.step(now)
                if delay > 0:
                    pulse.expected = time.monotonic() + delay
                    # If wake() ended a back-off, a busy publisher would cause a storm of attempts.
                    event = self._stopping if self._row.failures else self._woken
                    event.wait(min(delay, threading.TIMEOUT_MAX))
        finally:
            if self._finished is not None:
                self._call("finished", self._finished)

    def _call(self, what: str, callback: Callable[[], None]) -> None:
        try:
            callback()
        except BaseException as error:  # noqa: BLE001 - a callback must not end the loop
            facts.loop_callback_failed(loop=self.name, callback=what, error=error, exc_info=error)
