"""The rules of a subscription for its lanes, and its signals to the loops.

Owns the derived numbers: run size, concurrency, the attempts that a policy allows. Never touches a lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._engine.lane import policy
from lanelog._engine.lane.values import Gather
from lanelog.config import AckPolicy, Order
from lanelog.measures import Meter
from lanelog.notices import Notices

if TYPE_CHECKING:
    from collections.abc import Callable

    from lanelog.config import SubscriptionConfig

RUN_SECONDS = 0.02
"""Seconds of work in one run: the most that a crash makes others repeat, and enough to justify a flush."""

LONG_SECONDS = 0.1
"""When a message takes more seconds than this, its run is marked late. Such a message waits long for a worker, and the
extra flush for its mark is cheap beside its handler."""


@define(eq=False)
class SubscriptionRules:
    """The `Rules` of a subscription's lanes, with the measured length of its handler."""

    group: str
    config: SubscriptionConfig
    singly: bool  # one message a run: messages are pulled, settled by hand, or acked first
    seconds: float | None = None  # per message, smoothed; None until the first run was measured
    max_waiting: int = 1000
    strict: bool = field(init=False)
    concurrency: int = field(init=False)
    batch_size: int = field(init=False)
    max_deliveries: int | None = field(init=False)
    ack_first: bool = field(init=False)
    history: bool = field(init=False)
    batch: Gather | None = field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        config = self.config
        self.strict = config.order is Order.STRICT
        self.concurrency = config.lane_concurrency if config.order is Order.CONCURRENT else 1
        # Small enough that every worker can have a lane: the lanes of a few long handlers must not fill the prefetch.
        self.batch_size = max(1, min(config.batch_size, config.prefetch // config.workers))
        self.max_deliveries = config.max_deliveries
        self.ack_first = config.ack_policy is AckPolicy.ACK_FIRST
        self.history = config.history
        # When only one attempt is allowed, a crash dead-letters all messages under the mark: so a mark covers only one.
        self.singly = self.singly or self.ack_first or policy.exhausted(config, 1, 0.0)
        if config.batch is not None:
            size = config.batch.size
            self.batch = Gather(size, config.batch.wait if config.batch.across == "lane" else 0.0)
            # A lane reads on until half of it is ready.
            self.batch_size = max(self.batch_size, min(2 * size, config.prefetch))

    def run_size(self) -> int:
        """How many messages are about `RUN_SECONDS` of work. One until a run was measured."""
        if self.batch is not None:
            return self.batch.size
        if self.singly or self.seconds is None:
            return 1
        return max(1, min(self.batch_size, int(RUN_SECONDS / max(self.seconds, 1e-7))))

    def marks_late(self) -> bool:
        """Whether a run is marked when a worker takes it. Under ACK_FIRST it is marked and acked before that."""
        if self.batch is not None:
            return True  # it is filled until then
        return not self.ack_first and (self.seconds is None or self.seconds > LONG_SECONDS)

    def exhausted(self, attempts: int, since_first: float) -> bool:
        """Whether no attempt may follow after this many."""
        return policy.exhausted(self.config, attempts, since_first)

    def measured(self, messages: int, seconds: float) -> None:
        """Learn from a finished run. A slow run raises the estimate at once, a fast one lowers it slowly."""
        if messages:
            each = seconds / messages
            self.seconds = each if self.seconds is None or each > self.seconds else self.seconds * 0.7 + each * 0.3


@define(eq=False)
class Signals:
    """How a member wakes the client's loops."""

    wake_fetcher: Callable[[], None]
    wake_settler: Callable[[], None]
    wake_keeper: Callable[[], None]
    notices: Notices = field(factory=Notices)
    """Notifies the program itself."""
    meter: Meter = field(factory=Meter)
    """Notifies observers of what is measured."""
