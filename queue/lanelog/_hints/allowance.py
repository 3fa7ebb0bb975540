"""An account of seconds: a share of the time is paid in, and what is done because of hints is paid from it.

Pure. It lets single hints be answered at once, and a flood of them no more than its share of the time.
"""

from __future__ import annotations

from typing import Final

from attrs import define

from lanelog._base.duty_cycle import DutyCycle

OF_HINTS: Final = DutyCycle(1 / 40)
"""For the reading and sending of hints, and for the polls that they cause."""


@define(eq=False)
class Allowance:
    """What may be spent of a duty cycle. Times are monotonic, in seconds."""

    cycle: DutyCycle = OF_HINTS
    span_seconds: float = 2.0
    """The pay of so many seconds can be saved, or drawn in advance: it is spent on work in a row."""
    _saved: float = 0.0
    _at: float = 0.0

    def free_at(self, now: float) -> float:
        """When work may begin: `now`, or when the debt is paid."""
        saved = self._saved_at(now)
        return now if saved >= 0 else now - saved / self.cycle.share

    def spend(self, now: float, seconds: float) -> None:
        """Pay for work that took `seconds`."""
        self._saved, self._at = max(-self._most, self._saved_at(now) - seconds), now

    @property
    def _most(self) -> float:
        return self.span_seconds * self.cycle.share

    def _saved_at(self, now: float) -> float:
        return min(self._most, self._saved + max(0.0, now - self._at) * self.cycle.share)
