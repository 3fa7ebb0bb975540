"""The values that a lane is made of, takes in and gives out.

Owns their fields. The only behaviour is the two sums of a budget. The policy makes an outcome, and the dispatcher
applies it.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

from attrs import define, field, frozen

from lanelog._log import bury
from lanelog._stores.consumers.history import Ended

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._facts.log import ExcInfo
    from lanelog._stores.consumers.deliveries import DeliveryRow
    from lanelog._stores.log.fetches import Fetched

CRASHED = "the process that ran it died"
"""`last_error` of an attempt whose process died before it was settled."""


@frozen
class Term:
    """One load of one lane. It identifies the values that belong to that load.

    An epoch alone is no identity: a lane that is loaded again on another connection keeps it. Values that travel
    between threads carry the term. With it, a thread finds the lane, or learns that it is gone or was loaded again.
    """

    key: str
    epoch: int
    generation: int  # new with each load in this process


@frozen
class Gather:
    """How messages of one lane gather for a handler that gets several at once."""

    size: int
    """The most messages of one run."""
    wait: float
    """Seconds for which a run waits to be full. 0: it goes out with what is ready."""


class Rules(Protocol):
    """The rules of a subscription, as a lane needs them."""

    group: str
    strict: bool
    concurrency: int  # runs out at once; 1 for strict and serial
    batch_size: int
    max_waiting: int  # with so many messages that wait for another attempt, a lane fetches no new ones
    max_deliveries: int | None
    ack_first: bool
    history: bool  # a row is kept of every message that leaves the group
    batch: Gather | None  # a handler gets several messages at once; None: one after the other

    def run_size(self) -> int:
        """How many messages are about 20 ms of work."""

    def marks_late(self) -> bool:
        """Whether a run is marked when a worker takes it. Otherwise a crash also counts runs that wait for a worker."""

    def exhausted(self, attempts: int, since_first: float) -> bool:
        """Whether no attempt may follow after this many. Asks the user's own objects, so never call it under a lock."""


@define(eq=False)
class Budget:
    """The messages and payload bytes that a subscription has in memory."""

    messages: int = 0
    payload_bytes: int = 0

    def take(self, *rows: Fetched) -> None:
        """Count fetched messages."""
        self.messages += len(rows)
        self.payload_bytes += sum([row.payload_bytes for row in rows])

    def give(self, *rows: Fetched) -> None:
        """Stop counting messages whose payloads are let go."""
        self.messages -= len(rows)
        self.payload_bytes -= sum([row.payload_bytes for row in rows])


@define(eq=False)
class Waiting:
    """A message with a delivery row that waits for its next attempt."""

    attempts: int
    due: float
    first_started: float | None
    crashed: bool = False
    died_alone: bool = False
    no_attempts_left: bool = False  # for a message that crashed; see `quarantine`
    next_is_last: bool = False  # for a message that crashed
    postponed: int = 0
    last_error: str | None = None
    released: bool = False  # an operator took its last attempt away: the cap does not hold for the next one
    together: int = 0  # in a batch with at most so many others, after a time-out of more; 0: with any number
    body: Fetched | None = None
    id: str = ""  # the message's id, when this process made the entry; empty: it was read from the database


@frozen(kw_only=True)
class LaneSnapshot:
    """The rows of a lane at the moment of its load or reload."""

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


class Verb(Enum):
    """What an outcome does to its message."""

    ACK = "ack"
    RETRY = "retry"
    POSTPONE = "postpone"
    BURY = "bury"


@frozen
class Outcome:
    """The decision about an attempt. `wait` is in seconds."""

    verb: Verb
    wait: float = 0.0
    error: str | None = None
    next_is_last: bool = False  # for a message that crashed before: the attempt after this wait is the last
    ended: Ended = Ended.SUCCESS  # how history says that the message left
    raised: ExcInfo | None = field(default=None, eq=False, repr=False)  # the traceback for a dead letter's event


ACKED = Outcome(Verb.ACK)
EXPIRED = Outcome(Verb.BURY, error=bury.EXPIRED, ended=Ended.EXPIRED)
"""The outcome of a message that expired before its handler could start. It has had no attempt."""
