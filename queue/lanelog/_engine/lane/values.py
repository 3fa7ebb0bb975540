"""The values that a lane is made of, takes in and gives out.

Owns their fields; no behaviour but a budget's two sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from attrs import define, field, frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._engine.lane.flush_waiter import FlushWaiter
    from lanelog._engine.lane.run import Attempt, Run
    from lanelog._stores.deliveries import DeliveryRow, DeliveryWrite
    from lanelog._stores.fetches import Fetched
    from lanelog._stores.history import Ended, HistoryWrite
    from lanelog._telemetry import ExcInfo

CRASHED = "the process that ran it died"
"""`last_error` of an attempt whose process was gone before it was settled."""

EXPIRED = "expired"
"""`last_error` of a message whose time was over before a handler had started."""


@frozen
class Term:
    """One lane as it was loaded once, and so the identity of whatever belongs to it.

    An epoch alone is no identity: a lane that is loaded anew on another connection keeps it. Values that travel between
    threads carry the term; whoever needs the lane looks it up, and learns that it is gone or was loaded anew.
    """

    key: str
    epoch: int
    generation: int  # new with each load in this process


class Rules(Protocol):
    """What the lane must know of its subscription."""

    group: str
    strict: bool
    concurrency: int  # runs out at once; 1 for strict and serial
    batch_size: int
    max_deliveries: int | None
    ack_first: bool
    history: bool  # a row is kept of every message that leaves the group

    def run_size(self) -> int:
        """How many messages are about 20 ms of work."""

    def marks_late(self) -> bool:
        """Whether a run is marked only when a worker takes it: else one crash counts whatever waits for a worker."""

    def exhausted(self, attempts: int, since_first: float) -> bool:
        """Whether no attempt may follow after this many. Asks the user's own objects: never under a lock."""


@define(eq=False)
class Budget:
    """What a subscription holds in memory: messages and payload bytes."""

    messages: int = 0
    payload_bytes: int = 0

    def take(self, row: Fetched) -> None:
        """Count a fetched message."""
        self.messages += 1
        self.payload_bytes += row.payload_bytes

    def give(self, row: Fetched) -> None:
        """Stop counting a message whose payload is let go."""
        self.messages -= 1
        self.payload_bytes -= row.payload_bytes


@define(eq=False)
class Waiting:
    """A message with a delivery row that waits for its next attempt."""

    attempts: int
    due: float
    first_started: float | None
    crashed: bool = False
    died_alone: bool = False
    spent: bool = False  # of one that crashed: no attempt may follow
    last: bool = False  # of one that crashed: the next attempt is the last; see `Lane._asked`
    postponed: int = 0
    last_error: str | None = None
    released: bool = False  # an operator took its last attempt away: it is delivered again, whatever the cap
    body: Fetched | None = None
    id: str = ""  # of the message, where this memory has made the entry; empty: it was read from the database


@define(eq=False)
class Burial:
    """One message on its way to the dead letters of this group."""

    term: Term
    offset: int
    failures: int
    error: str
    ended: Ended
    attempt: Attempt | None
    row: Fetched | None
    waiters: list[FlushWaiter] = field(factory=list)
    raised: ExcInfo | None = field(default=None, repr=False)  # what this process has seen of the failure


@frozen(kw_only=True)
class LaneSnapshot:
    """What the database knows of a lane at the moment it is taken over (or reloaded)."""

    key: str
    epoch: int
    generation: int
    head: int
    floor: int
    offset_acked: int | None  # None: the group has no offsets row here yet
    marked_through: int = 0
    marked_epoch: int = 0
    marked_age: float = 0.0  # seconds since the run mark was written
    paused: bool = False
    rows: Sequence[DeliveryRow] = ()


@frozen(kw_only=True, eq=False)  # compared by the hundred thousand in a flush of a thousand lanes
class LaneWrite:
    """What one flush writes for one lane, and whom its commit releases."""

    term: Term
    watermark: int
    mark: int
    upserts: tuple[DeliveryWrite, ...]
    deletes: tuple[int, ...]
    offsets: frozenset[int]
    runs: list[Run]
    waiters: list[FlushWaiter]
    buffer: dict[int, str]
    left: Sequence[HistoryWrite] = ()
