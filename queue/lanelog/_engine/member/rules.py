"""What the lanes of a subscription must know of it, and what is counted about it.

Owns the derived numbers (run size, concurrency, the attempts a policy allows); never touches a lane. Made by the
subscription, read by `Lane` and `Member`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._engine.lane import policy
from lanelog.config import AckPolicy, Order

if TYPE_CHECKING:
    from collections.abc import Callable

    from lanelog.config import SubscriptionConfig

RUN_SECONDS = 0.02
"""A run is about this much work: what a crash can make others repeat, and what one flush is worth."""

LONG_SECONDS = 0.1
"""Beside a message that takes longer, a flush of its own for the mark is nothing, and waiting for a worker is long."""


@define(eq=False)
class SubscriptionRules:
    """The `Rules` of a subscription's lanes, with the measured length of its handler."""

    group: str
    config: SubscriptionConfig
    singly: bool  # every message by itself: pulled, settled by hand, or acked first
    seconds: float | None = None  # a message, smoothed
    strict: bool = field(init=False)
    concurrency: int = field(init=False)
    batch_size: int = field(init=False)
    max_deliveries: int | None = field(init=False)
    ack_first: bool = field(init=False)
    history: bool = field(init=False)

    def __attrs_post_init__(self) -> None:
        config = self.config
        self.strict = config.order is Order.STRICT
        self.concurrency = config.lane_concurrency if config.order is Order.CONCURRENT else 1
        # So many that every worker can have a lane: a few long handlers must not sit on all that may be prefetched.
        self.batch_size = max(1, min(config.batch_size, config.prefetch // config.workers))
        self.max_deliveries = config.max_deliveries
        self.ack_first = config.ack_policy is AckPolicy.ACK_FIRST
        self.history = config.history
        # A first attempt that is the last is dead-lettered by a crash: its neighbours must not be under the same mark.
        self.singly = self.singly or self.ack_first or policy.exhausted(config, 1, 0.0)

    def run_size(self) -> int:
        """How many messages are about 20 ms of work; one until it was measured."""
        if self.singly or self.seconds is None:
            return 1
        return max(1, min(self.batch_size, int(RUN_SECONDS / max(self.seconds, 1e-7))))

    def marks_late(self) -> bool:
        """Whether runs are marked by who takes them; what is acked before its handler is marked and acked at once."""
        return not self.ack_first and (self.seconds is None or self.seconds > LONG_SECONDS)

    def exhausted(self, attempts: int, since_first: float) -> bool:
        """Whether no attempt may follow after this many."""
        return policy.exhausted(self.config, attempts, since_first)

    def measured(self, messages: int, seconds: float) -> None:
        """Learn from a finished run; a slow one counts at once, a fast one slowly."""
        if messages:
            each = seconds / messages
            self.seconds = each if self.seconds is None or each > self.seconds else self.seconds * 0.7 + each * 0.3


@define(eq=False)
class Signals:
    """How a member wakes the client's loops."""

    wake_fetcher: Callable[[], None]
    wake_settler: Callable[[], None]
    wake_keeper: Callable[[], None]


@define(eq=False)
class Counters:
    """What `subscription.stats()` reports; changed under the member's lock."""

    handled: int = 0
    acked: int = 0
    retried: int = 0
    postponed: int = 0
    dead_lettered: int = 0
    timed_out: int = 0
    refused: int = 0
