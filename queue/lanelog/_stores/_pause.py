"""The flag of a pause, as a group and one lane of a group have it; nothing here knows a table."""

from __future__ import annotations

from typing import Final, NamedTuple


class Pause(NamedTuple):
    """When, by whom and why something was paused."""

    at_ms: int
    """Epoch milliseconds by the database's clock; 0: it runs."""
    by: str
    reason: str


RUNS: Final = Pause(0, "", "")
