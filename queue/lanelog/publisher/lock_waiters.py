"""The bound of connections that wait for busy lanes: one for each lane, and half of the pool in all.

Never waits. A thread that gets no slot tries again without a wait at the server. So a slow transaction of another
program delays the lanes that it holds, and no other.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from attrs import define, field

from lanelog._database import register_shared

Lane = tuple[str, str]
"""Topic and key."""


@define(eq=False)
class LockWaiters:
    """Slots for connections that wait for a head at the server. Thread-safe."""

    slots: int
    _waiting: dict[object, frozenset[Lane]] = field(factory=dict, init=False)
    """The lanes of each connection that may wait."""
    _lock: threading.Lock = field(factory=threading.Lock, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        register_shared(self)

    @contextmanager
    def enter(self, lanes: Collection[Lane]) -> Iterator[bool]:
        """Take a slot for one connection that may wait for these lanes. Yields whether there was one."""
        wanted = frozenset(lanes)
        connection = object()
        try:
            with self._lock:
                entered = (
                    bool(wanted)
                    and len(self._waiting) < self.slots
                    and all(wanted.isdisjoint(others) for others in list(self._waiting.values()))
                )
                if entered:
                    self._waiting[connection] = wanted
            yield entered
        finally:
            self._waiting.pop(connection, None)  # one call without a lock: an interrupt leaves no slot taken

    def abandon(self) -> None:
        """Forget all waits in a forked child: it has none of the threads."""
        self._lock = threading.Lock()
        self._waiting = {}
