"""The threads that wait for a connection of the pool, and the one warning that says how many connections would do.

Owns the wait, and the count of each moment. Lends nothing.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from attrs import define, field

from lanelog._facts import database as facts

if TYPE_CHECKING:
    from lanelog._database.pool.loans import Loan


MANY: Final = 100
"""Waits within `WITHIN` after which the warning comes. A single wait now and then costs less than a connection."""
WITHIN: Final = 60.0
"""Seconds."""


@define(eq=False)
class Crowd:
    """The waits for one pool. Any thread may note its own."""

    pool_size: int
    _now: set[tuple[int, int]] = field(factory=set, init=False)  # process and thread: a fork copies the parent's
    _most: int = field(default=0, init=False)
    _times: deque[float] = field(factory=deque, init=False)
    _logged: bool = field(default=False, init=False)

    def wait(self, loan: Loan, seconds: float) -> bool:
        """Wait for a wire. Return whether there was one in time."""
        if not seconds:
            return loan.wait(seconds)  # the caller can do without, and does not wait
        process = os.getpid()
        me = process, threading.get_ident()
        self._now.add(me)
        try:
            self._most = max(self._most, sum(each == process for each, _ in self._now.copy()))
            return loan.wait(seconds)
        finally:
            self._now.discard(me)
            self._note()

    def _note(self) -> None:
        now = time.monotonic()
        self._times.append(now)
        if len(self._times) < MANY:
            return
        if now - self._times.popleft() > WITHIN or self._logged:
            return
        self._logged = True  # two threads at once may say it twice
        facts.pool_too_small(
            pool_size=self.pool_size,
            waits=MANY,
            needed=self.pool_size + self._most,
            remedy=f"connect(pool_size={self.pool_size + self._most}), or fewer threads that use the client at once",
        )
