"""The wait after failures in a row: twice as long each time, and within bounds.

Owns the arithmetic alone. Never waits.
"""

from __future__ import annotations

from random import SystemRandom
from typing import Final

from attrs import frozen

RANDOM: Final = SystemRandom()
"""It takes nothing from the module's generator, which an application may seed alike in all its processes, or fork."""

_DOUBLINGS: Final = 30  # after this number, every bound is reached


@frozen(kw_only=True)
class Backoff:
    """Bounds of the waits, in seconds."""

    least: float = 0.0
    first: float
    """The longest wait after one failure."""
    most: float
    """The longest wait of all."""

    def longest(self, failures: int) -> float:
        """Return the longest wait after a number of failures in a row, from 1."""
        return min(self.most, self.first * 2.0 ** min(failures - 1, _DOUBLINGS))

    def after(self, failures: int) -> float:
        """Return a random wait after a number of failures: transactions that collided must not collide again."""
        return RANDOM.uniform(self.least, self.longest(failures))

    def following(self, wait: float) -> float:
        """Return the longest wait that follows one of so many seconds. 0: there was none yet."""
        return min(self.most, 2 * wait if wait else self.first)


OF_LOOPS: Final = Backoff(least=0.05, first=0.1, most=2.0)
"""For a background loop. Nothing waits for its next run."""

OF_TRANSACTIONS: Final = Backoff(least=0.001, first=0.02, most=1.0)
"""For a transaction that a caller waits for."""
