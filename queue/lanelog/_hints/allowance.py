"""An account of seconds: a share of the time is paid in, and what is done because of hints is paid from it.

Pure. It lets single hints be answered at once, and a flood of them no more than its share of the time.
"""

from __future__ import annotations

from attrs import define

SHARE = 1 / 40
"""The share of the time that looks and the reading and sending of hints may take."""

MOST = 2.0
"""The pay of this many seconds can be saved, or owed: it is spent on work in a row."""


@define(eq=False)
class Allowance:
    """The share of the time that may be spent. Times are monotonic, in seconds."""

    share: float = SHARE
    _saved: float = 0.0
    _at: float = 0.0

    def free_at(self, now: float) -> float:
        """When work may begin: `now`, or when the debt is paid."""
        saved = self._saved_at(now)
        return now if saved >= 0 else now - saved / self.share

    def spend(self, now: float, seconds: float) -> None:
        """Pay for work that took `seconds`."""
        self._saved, self._at = max(-MOST * self.share, self._saved_at(now) - seconds), now

    def _saved_at(self, now: float) -> float:
        return min(MOST * self.share, self._saved + max(0.0, now - self._at) * self.share)
