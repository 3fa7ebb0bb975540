"""How often the fetcher asks: its times, and one member's account of looks and glances.

Owns these values. Never asks anything.
"""

from __future__ import annotations

from collections import deque

from attrs import define, field, frozen

from lanelog._engine.fetching.heads import DigestPace, KnownHeads
from lanelog._hints.allowance import Allowance

LOOKS_REMEMBERED = 5
"""A look costs as much as the cheapest of so many. One that was slow by chance must not delay the next by seconds."""


@frozen(kw_only=True)
class FetcherPace:
    """How often the fetcher asks."""

    soon: float = 0.005
    """Seconds from a look that found something to the next one, and the shortest time between two looks."""
    digests: DigestPace = field(factory=DigestPace)


@define(eq=False)
class Pace:
    """The pace of the looks for one member."""

    interval: float
    known: KnownHeads
    next_look: float = 0.0
    costs: deque[float] = field(factory=lambda: deque(maxlen=LOOKS_REMEMBERED))
    # For looks that hints ask for, on top of the usual ones. If both had one account, a flood of hints could spend it,
    # and the usual looks would have to wait: nothing that comes in by a socket may hold them back.
    allowance: Allowance = field(factory=Allowance)
    hinted: bool = False  # a hint asked for the next look
    told: bool = False  # a hint or this process's own publisher did
    glances: int = 0  # since the last look
    busy_first: bool = True  # a lane that was busy before was busy again, when it was last asked for or looked at
    early: dict[str, int] = field(factory=dict)  # rows that were read since the last look, before its digests

    def pay(self, began: float, ended: float, *, read: bool = False) -> float:
        """Pay for what a hint asked for. The other looks have a pace of their own. Returns the seconds that count.

        `read`: rows were read meanwhile. They had to be read, so no more counts than a look without them takes.
        """
        seconds = min(ended - began, *self.costs) if read and self.costs else ended - began
        if self.hinted:
            self.allowance.spend(ended, seconds)
        return seconds


@define
class Glance:
    """What a glance found: how many rows by key, and how many lanes are left to a look."""

    rows: dict[str, int] = field(factory=dict)
    unsure: int = 0
