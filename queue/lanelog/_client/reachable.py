"""Whether the database answers a client that has no loop which asks it: one that only publishes.

Owns when it is asked: when a caller wants to know, at most once in `EVERY` seconds, in a thread of its own. So the
caller has an answer within `PATIENCE`, also while the database says nothing. Does not know what is asked.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from attrs import define, field

from lanelog.errors import LanelogError
from lanelog.health import DatabaseHealth

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY: Final = 5.0
"""Seconds between two questions: probes of several systems may come every second."""
PATIENCE: Final = 1.0
"""Seconds for which one question waits for an answer. Probes of Kubernetes have this time-out."""


@define(eq=False)
class Reachable:
    """The last answer of the database. Any thread may ask."""

    ask: Callable[[], object]
    """Raises if the database does not answer as it should."""
    _lock: threading.Lock = field(factory=threading.Lock, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _asked: float | None = field(default=None, init=False)
    _answered: float | None = field(default=None, init=False)
    _why: str = field(default="it has not answered yet", init=False)

    def health(self) -> DatabaseHealth:
        """Ask if it is time to, and return what is known then."""
        with self._lock:
            thread = self._thread
            # A thread that a fork has left behind is not alive in the child.
            if thread is None or not thread.is_alive():
                now = time.monotonic()
                if self._asked is None or now - self._asked >= EVERY:
                    self._asked = now
                    thread = self._thread = threading.Thread(target=self._ask, name="lanelog-reachable", daemon=True)
                    thread.start()
        if thread is not None:
            thread.join(PATIENCE)
        with self._lock:
            now, why = time.monotonic(), self._why
            if thread is not None and thread.is_alive():
                why = f"no answer for {now - (self._asked or now):.1f} s"
            return DatabaseHealth(answered=self._answered and now - self._answered, fresh=not why, why=why)

    def forget_inherited(self) -> None:
        """Begin anew in a forked child: another thread of the parent may have held the lock."""
        self._lock, self._thread, self._asked = threading.Lock(), None, None

    def _ask(self) -> None:
        why = ""
        try:
            self.ask()
        except LanelogError as error:
            why = f"{type(error).__name__}: {error}"
        with self._lock:
            self._why = why
            if not why:
                self._answered = time.monotonic()
