"""The background thread of a loop: its start, its waits, its stop, and its back-off when a turn fails.

Never knows what a turn does. Never sleeps: it waits on an event that `wake` and `stop` set.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Protocol

from attrs import define, field

from lanelog import _pulse
from lanelog._backoff import OF_LOOPS, Backoff
from lanelog._pulse import Pulse
from lanelog._telemetry import get_logger
from lanelog.errors import ClosedError, LanelogError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lanelog._telemetry import EventLogger

FAILURES_UNTIL_FAILED = 5
"""So often in a row an error that a repetition does not mend may come. Then what the loop serves has failed."""


class Wakeable(Protocol):
    """What a loop waits on; `threading.Event` is one."""

    def set(self) -> None:
        """End the wait, or the next one."""

    def clear(self) -> None:
        """Forget that it was set."""

    def wait(self, timeout: float) -> bool:
        """Wait until it is set, for `timeout` seconds at most."""
        ...


@define(eq=False, repr=False)
class Loop:
    """One thread that repeats `turn(now) -> delay` until it is stopped.

    `turn` gets the monotonic time and returns the seconds to wait, 0 for none. `failed` gets the error of the fifth
    failed turn, once until a turn succeeds. A turn that raised a retriable LanelogError does not count. `finished` runs
    in the thread at its end, and closes what the thread owned.
    """

    name: str
    _turn: Callable[[float], float]
    _failed: Callable[[BaseException], None] = field(kw_only=True)
    _finished: Callable[[], None] | None = field(default=None, kw_only=True)
    _backoff: Backoff = field(default=OF_LOOPS, kw_only=True)
    _woken: Wakeable = field(factory=threading.Event, kw_only=True)
    pulse: Pulse = field(factory=Pulse, init=False)
    error: str = field(default="", init=False)
    """The error of the last turn. Empty: it succeeded."""
    _lock: threading.Lock = field(factory=threading.Lock, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _stopping: threading.Event = field(factory=threading.Event, init=False)
    # The rest is written by the loop's own thread alone.
    _failures: int = field(default=0, init=False)  # turns in a row that raised, of any kind
    _counted: int = field(default=0, init=False)  # those of them that raised no retriable LanelogError
    _logged: set[tuple[object, ...]] = field(factory=set, init=False)  # kinds of failure logged since the last success
    _log: EventLogger = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._log = get_logger("loop", loop=self.name)

    def __repr__(self) -> str:
        state = "running" if self.running else "stopped"
        return f"<Loop {self.name} {state}, {self._failures} failures in a row>"

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
        """Whether `stop` was called. A long turn may look at it."""
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
            return self._after_failure(error)
        if self._failures:
            self._log.info("loop.recovered", failures=self._failures)
            self._failures = self._counted = 0
            self._logged.clear()
            self.error = ""
        return delay

    def _after_failure(self, error: BaseException) -> float:
        self._failures += 1
        self.error = f"{type(error).__name__}: {error}"
        retriable = isinstance(error, LanelogError) and error.retriable
        kind = (type(error), getattr(error, "code", None))
        if kind not in self._logged:
            self._logged.add(kind)
            if retriable:
                self._log.warning("loop.failed", error=error, retriable=True)
            else:
                self._log.error("loop.failed", error=error, retriable=False, exc_info=error)
        if not retriable:
            self._counted += 1
            if self._counted == FAILURES_UNTIL_FAILED:
                self._call("failed", lambda: self._failed(error))
        return self._backoff.after(self._failures)

    def _run(self) -> None:
        self._failures = self._counted = 0
        self._logged.clear()
        self.error = ""
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
                    event = self._stopping if self._failures else self._woken
                    event.wait(min(delay, threading.TIMEOUT_MAX))
        finally:
            if self._finished is not None:
                self._call("finished", self._finished)

    def _call(self, what: str, callback: Callable[[], None]) -> None:
        try:
            callback()
        except BaseException as error:  # noqa: BLE001 - a callback must not end the loop
            self._log.error("loop.callback_failed", callback=what, error=error, exc_info=error)
