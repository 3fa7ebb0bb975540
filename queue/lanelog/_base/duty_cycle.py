"""A duty cycle: work that may take no more than a share of the time.

Owns the arithmetic alone. Never waits, and reads no clock.
"""

from __future__ import annotations

from attrs import frozen


@frozen
class DutyCycle:
    """After each piece of work comes a rest that keeps the work within its share of the time."""

    share: float
    """The share of the time, between 0 and 1."""

    def rest(self, work_seconds: float) -> float:
        """Return the seconds of rest that follow work of so many seconds."""
        return work_seconds * (1 / self.share - 1)
