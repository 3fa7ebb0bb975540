"""The pause of a group, or of one lane of a group, as a value. Never contains SQL."""

from __future__ import annotations

from typing import Final, NamedTuple


class Pause(NamedTuple):
    """The time, author and reason of a pause."""

    at_ms: int
    """Epoch milliseconds by the database's clock. 0: not paused."""
    by: str
    reason: str


RUNS: Final = Pause(0, "", "")
