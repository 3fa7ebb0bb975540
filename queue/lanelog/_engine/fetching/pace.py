"""How often the fetcher reads: its times, and the budget of one member's polls and tail reads.

Owns these values. Never reads anything. A tail read reads the rows after a lane's cursor, without asking for its head.
"""

from __future__ import annotations

from collections import deque

from attrs import define, field, frozen

from lanelog._base.backoff import Backoff
from lanelog._base.duty_cycle import DutyCycle
from lanelog._engine.fetching.heads import DigestPace, KnownHeads
from lanelog._hints.allowance import Allowance

COSTS_REMEMBERED = 5
"""A poll costs as much as the cheapest of this many. One that was slow by chance must not delay the next by seconds."""


@frozen(kw_only=True)
class FetcherPace:
    """How often the fetcher reads, and how much at once."""

    idle_seconds: float = 2.0
    """Seconds between two turns, when no member waits for its next poll."""
    unvouched_seconds: float = 0.1
    """Seconds before a session whose server is not vouched for yet is tried again."""
    soon_seconds: float = 0.005
    """Seconds from a poll that found something to the next one, and the least between any two polls."""
    after_busy_seconds: float = 0.005
    """Seconds from a tail read of the busy lanes to the poll for the others: the messages read can start meanwhile."""
    poll_cycle: DutyCycle = DutyCycle(1 / 40)
    quiet_cycle: DutyCycle = DutyCycle(1 / 80)
    """The share of time for polls that ended with the digest. An idle worker reads little else."""
    fetch_lanes: int = 40
    """With at most this many lanes, a notified member reads the tails of all of them, without a digest."""
    tail_reads: int = 10
    """Poll after this many tail reads in a row, or after one that found nothing. Only a poll finds a lane that was set
    back."""
    digests: DigestPace = field(factory=DigestPace)


@define(eq=False)
class MemberPolls:
    """The polls for one member: when the next one comes, and what they have cost."""

    backoff: Backoff
    """The back-off after polls that found nothing."""
    known: KnownHeads
    interval: float = field(init=False)
    """The seconds between the polls, before the rest that their cost adds."""
    next_poll: float = 0.0
    costs: deque[float] = field(factory=lambda: deque(maxlen=COSTS_REMEMBERED))
    # For polls that hints ask for, on top of the usual ones. If both had one budget, a flood of hints could spend it,
    # and the usual polls would have to wait: nothing that comes in by a socket may hold them back.
    allowance: Allowance = field(factory=Allowance)
    hinted: bool = False  # a hint asked for the next poll
    notified: bool = False  # a hint or this process's own publisher did
    tail_reads: int = 0  # since the last poll
    busy_first: bool = True  # a lane that was busy before was busy again, when it was last read or polled
    early: dict[str, int] = field(factory=dict)  # rows that were read since the last poll, before its digests

    def __attrs_post_init__(self) -> None:
        self.interval = self.backoff.first

    def found(self, *, news: bool) -> None:
        """Poll soon again after news, else later than the last time."""
        self.interval = self.backoff.first if news else self.backoff.following(self.interval)

    def pay(self, began: float, ended: float, *, read: bool = False) -> float:
        """Pay for what a hint asked for. The other polls have a pace of their own. Returns the seconds that count.

        `read`: rows were read meanwhile. They had to be read, so no more counts than a poll without them takes.
        """
        seconds = min(ended - began, *self.costs) if read and self.costs else ended - began
        if self.hinted:
            self.allowance.spend(ended, seconds)
        return seconds


@define
class TailRead:
    """What a tail read found: how many rows by key, and how many lanes are left to a poll."""

    rows: dict[str, int] = field(factory=dict)
    unsure: int = 0
