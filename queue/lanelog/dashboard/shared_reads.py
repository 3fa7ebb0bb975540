"""The dashboard's reads of much of the log, shared by all who watch: one at a time, and none while the last is fresh.

Owns the last answers. Twenty browsers that refresh the front page cost the database what one does.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from attrs import define, field

from lanelog._base.duty_cycle import DutyCycle
from lanelog._database import register_shared
from lanelog.errors import LanelogError

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

CYCLE: Final = DutyCycle(1 / 21)
"""Of these reads: an answer is kept as long as its read rests."""
OLDEST: Final = 60.0
"""The most seconds for which an answer is kept."""
KEPT: Final = 50
"""Answers of one topic each that are kept: those that were asked for last."""


@define(eq=False)
class SharedRead(Generic[T]):
    """Returns the answer of `ask`, at most `fresh` seconds old, or older where a read takes long. Thread-safe.

    After a read that took a second, the next one comes after twenty: it must not keep a large database busy.

    Threads that come while one asks wait for its answer. If it fails, they get its error, and so do all that come
    within `fresh` seconds: with the database away, threads must not wait one after the other.
    """

    _ask: Callable[[T | None], T]
    """Given the answer before."""
    _fresh: float
    _lock: threading.Lock = field(init=False, factory=threading.Lock)
    _last: T | None = field(init=False, default=None)
    _error: LanelogError | None = field(init=False, default=None)
    _until: float = field(init=False, default=0.0)

    def __attrs_post_init__(self) -> None:
        register_shared(self)

    def abandon(self) -> None:
        """Forget, in a forked child, that a thread of the parent asks."""
        self._lock = threading.Lock()

    def __call__(self) -> T:
        """Return the answer."""
        with self._lock:
            began = time.monotonic()
            if began > self._until:
                self._read(began)
            if self._error is not None:
                raise self._error.with_traceback(None)
            assert self._last is not None  # noqa: S101 - without an error there is an answer
            return self._last

    def _read(self, began: float) -> None:
        try:
            self._last, self._error = self._ask(self._last), None
        except LanelogError as exc:
            self._error = exc
            self._until = time.monotonic() + self._fresh
        else:
            now = time.monotonic()
            self._until = now + min(OLDEST, max(self._fresh, CYCLE.rest(now - began)))

    def forget(self) -> None:
        """Ask again at the next call: something was changed."""
        with self._lock:
            self._until = 0.0


@define(eq=False)
class SharedReads(Generic[K, T]):
    """A `SharedRead` for each key that somebody asks for, such as a topic. Thread-safe."""

    _ask: Callable[[K], T]
    _fresh: float
    _lock: threading.Lock = field(init=False, factory=threading.Lock)
    _reads: OrderedDict[K, SharedRead[T]] = field(init=False, factory=OrderedDict)

    def __attrs_post_init__(self) -> None:
        register_shared(self)

    def abandon(self) -> None:
        """Forget, in a forked child, what the parent's threads hold."""
        self._lock = threading.Lock()

    def __call__(self, key: K) -> T:
        """Return the answer of one key."""
        with self._lock:
            read = self._reads.setdefault(key, SharedRead(lambda _: self._ask(key), self._fresh))
            self._reads.move_to_end(key)
            while len(self._reads) > KEPT:
                self._reads.popitem(last=False)
        return read()

    def forget(self) -> None:
        """Ask again at the next call of each key: something was changed."""
        with self._lock:
            self._reads.clear()
