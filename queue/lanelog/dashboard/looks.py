"""The dashboard's looks at the whole log, shared by all who watch: one at a time, and none while the last is fresh.

Owns the last answer. Twenty browsers that refresh the front page cost the database what one does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from attrs import define, field

T = TypeVar("T")


@define(eq=False)
class SharedLook(Generic[T]):
    """Returns the answer of `ask`, at most `fresh` seconds old. Thread-safe.

    Threads that come while one asks wait for its answer. If it fails, each of them asks for itself, one after another.
    """

    _ask: Callable[[T | None], T]
    """Given the answer before."""
    _fresh: float
    _lock: threading.Lock = field(init=False, factory=threading.Lock)
    _last: T | None = field(init=False, default=None)
    _at: float = field(init=False, default=0.0)

    def __call__(self) -> T:
        """Return the answer."""
        with self._lock:
            if self._last is None or time.monotonic() - self._at > self._fresh:
                self._last, self._at = self._ask(self._last), time.monotonic()
            return self._last

    def forget(self) -> None:
        """Ask again at the next call: something was changed."""
        with self._lock:
            self._at = float("-inf")
