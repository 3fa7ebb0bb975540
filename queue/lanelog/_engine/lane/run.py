"""Attempts at messages, and the runs in which they are handed to a worker.

Owns the start of the next message of a run. Never decides which messages are handed out, nor the meaning of an outcome.
"""

from __future__ import annotations

import threading
from enum import Enum
from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._stores.consumers.history import HistoryWrite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from weakref import ref

    from lanelog._engine.lane.flush_waiter import FlushWaiter
    from lanelog._engine.lane.values import Outcome, Term
    from lanelog._stores.consumers.history import Ended
    from lanelog._stores.log.fetches import Fetched


class State(Enum):
    """The state of an attempt. It exists in memory only: the database knows marks and outcomes."""

    READY = "ready"  # waits for its mark or for a worker
    RUNNING = "running"  # a handler has it
    CLAIMED = "claimed"  # its settlement stands in a transaction of the handler's, which is not known to be committed
    BURYING = "burying"  # on its way to the dead letters
    SETTLED = "settled"  # decided: acked, nacked, postponed or dead-lettered
    SUPERSEDED = "superseded"  # the engine gave it up: its settlement is refused


MOVES = {
    State.READY: {State.RUNNING, State.BURYING, State.SETTLED},
    State.RUNNING: {State.CLAIMED, State.BURYING, State.SETTLED, State.SUPERSEDED},
    State.CLAIMED: {State.RUNNING, State.SETTLED, State.SUPERSEDED},
    State.BURYING: {State.SETTLED, State.SUPERSEDED},
    State.SETTLED: {State.RUNNING, State.SUPERSEDED},  # with ACK_FIRST alone, which settles before the handler
    State.SUPERSEDED: set[State](),
}
"""Every move of an attempt. The tests check each assignment against it, and `protocol.md` has the same table."""

# Not SUPERSEDED: until the dead letter of such an attempt is committed, its row is written from its run.
_DECIDED = (State.SETTLED, State.BURYING)


@define(eq=False)
class CallerAck:
    """An ack in a transaction of its caller's. A rolled-back one may be followed by another of the same attempt."""

    session: int
    """The number of the caller's session at the server. 0: the driver does not say."""
    at: float
    """When (monotonic) it was written."""
    raised: BaseException | None = field(default=None, repr=False)
    """By the handler, afterwards."""


@define(eq=False)
class Attempt:
    """One attempt at one message. Outside the process, epoch and attempt number identify it."""

    term: Term
    row: Fetched
    number: int
    first_started: float | None  # when the first attempt started (monotonic); None: no attempt has started
    crashed: bool = False
    postponed: int = 0
    last: bool = False  # for a message that crashed before: no other attempt follows
    released: bool = False  # an operator allowed it, although the deliveries may be at their cap
    together: int = 0  # as in `Waiting`
    last_error: str | None = None  # the error of the attempt before, as far as this process knows
    state: State = State.READY
    started: float = 0.0
    deadline: float = 0.0
    expired: bool = False  # it was `overdue` when it was to start
    slow_reported: bool = False
    hung: str | None = None  # why its process ends because of it; its row says so, and the next owner counts a crash
    left: bool = False  # its handler returned while another thread commits it: that thread decides the outcome
    promised: bool = False  # a transaction of its handler's is to ack it: a return alone does not
    ack: CallerAck | None = None  # its ack in a caller's transaction, which the server has not decided yet
    run: Run | None = field(default=None, repr=False)
    on_release: Callable[[], None] | None = field(default=None, repr=False)  # ends the stay of a detached attempt
    handle: ref[object] | None = field(default=None, repr=False)  # the user's message; dead: nothing can settle it

    def move(self, to: State) -> None:
        """Go to another state. A superseded attempt keeps its state, whatever happens to its message."""
        if self.state is not State.SUPERSEDED:
            self.state = to

    @property
    def forgotten(self) -> bool:
        """Whether the user has thrown the message away, and with it the only way to settle or extend it."""
        return self.handle is not None and self.handle() is None

    def release(self) -> None:
        """Call `on_release`, once."""
        released, self.on_release = self.on_release, None
        if released is not None:
            released()

    @property
    def offset(self) -> int:
        """The offset of the message in its lane."""
        return self.row.offset

    def overdue(self, now: float) -> bool:
        """Whether the message has expired: its time to start is over, and no earlier attempt counts."""
        deadline = self.row.start_by
        if deadline is None or now < deadline:
            return False
        return self.number == 1 and not (self.crashed or self.postponed)

    def left_as(self, ended: Ended, error: str | None, now: float) -> HistoryWrite:
        """Its history row, as settled now."""
        row = self.row
        attempts = 0 if self.expired else self.number
        first = None if self.expired else self.first_started if self.first_started is not None else now
        return HistoryWrite(row.key, row.offset, row.id, ended, attempts, row.published_at, first, now, error)


def settled(attempts: Sequence[Attempt]) -> list[Fetched]:
    """Settle running attempts, and return their rows. One call for all: `Attempt.move` for each costs more."""
    rows = []
    for attempt in attempts:
        attempt.state = State.SETTLED
        rows.append(attempt.row)
    return rows


class Run:
    """Messages of one lane that one worker handles in order, one by one or as a batch, under one mark.

    The run's own lock separates `start_next` and `recall`: a message is either started or taken back, never both.
    """

    __slots__ = (
        "_lock",
        "_next",
        "_outcomes",
        "alone",
        "attempts",
        "expired",
        "first",
        "late",
        "marked",
        "recalled",
        "term",
        "waiter",
    )

    def __init__(
        self, term: Term, attempts: list[Attempt], *, first: bool, late: bool = False, alone: bool = False
    ) -> None:
        self.term = term
        self.attempts = attempts
        self.first = first  # first deliveries under the run mark; False: redeliveries, each with a row of its own
        self.late = late  # it waits for a worker unmarked, and that worker has it marked
        self.alone = alone  # a quarantined message, always late: it is marked when no other message runs
        self.marked = not late  # the next write of its lane counts its attempts
        self.waiter: FlushWaiter | None = None  # for the flush that marks a late run
        self.recalled = False
        self.expired = 0  # messages that had no handler, because their time was over
        self._outcomes: list[tuple[Attempt, Outcome]] = []  # decided by the worker, not yet applied to the lane
        self._next = 0
        self._lock = threading.Lock()
        for attempt in attempts:
            attempt.run = self

    def __repr__(self) -> str:
        kind = "first" if self.first else "again"
        return f"Run({self.term.key!r} {kind} {[a.offset for a in self.attempts]} started={self._next})"

    @property
    def started(self) -> int:
        """How many of its messages a handler has seen."""
        return self._next - self.expired

    @property
    def last_offset(self) -> int:
        """The highest offset still in this run. 0 when every message was taken back."""
        return self.attempts[-1].offset if self.attempts else 0

    def start_next(self, now: float, timeout: float) -> Attempt | None:
        """Start the next attempt: RUNNING until `now + timeout`. None when none is left or the rest was recalled.

        An `overdue` attempt counts as no start: no handler may have it, and the caller records that it has expired.
        """
        with self._lock:
            index, attempts = self._next, self.attempts
            if index >= len(attempts):
                return None
            attempt = attempts[index]
            self._next = index + 1
            if attempt.row.start_by is not None:
                # A message that was acked before its handler was in time then. It must run, or it is lost.
                attempt.expired = attempt.state is State.READY and attempt.overdue(now)
            attempt.state = State.RUNNING
            attempt.started = now
            attempt.deadline = now + timeout
            if attempt.expired:
                self.expired += 1
            elif attempt.first_started is None:
                attempt.first_started = now
            return attempt

    def recall(self) -> list[Attempt]:
        """Take back the messages that no handler has seen. Idempotent."""
        with self._lock:
            self.recalled = True
            rest = self.attempts[self._next :]
            del self.attempts[self._next :]
            return rest

    def cut(self, size: int) -> list[Attempt]:
        """Take back what is beyond a size, if no handler has seen it. The run goes on with the rest."""
        with self._lock:
            first = max(size, self._next)
            rest = self.attempts[first:]
            del self.attempts[first:]
            return rest

    def extend(self, attempts: Sequence[Attempt]) -> None:
        """Add attempts that follow its last one. The caller has the member's lock, and nobody has recalled the run."""
        with self._lock:
            for attempt in attempts:
                attempt.run = self
            self.attempts.extend(attempts)

    def let_go(self) -> None:
        """The run is over. Its decided attempts forget it: a reference cycle would live until a garbage collection."""
        for attempt in self.attempts:
            if attempt.state in _DECIDED:
                attempt.run = None

    def record(self, attempt: Attempt, outcome: Outcome) -> None:
        """Keep the worker's decision about an attempt until `take_outcomes`."""
        self._outcomes.append((attempt, outcome))

    def take_outcomes(self) -> list[tuple[Attempt, Outcome]]:
        """The outcomes recorded since the last call. Each is returned once. The caller has the member's lock.

        The worker may record one meanwhile, without a lock: a list is appended to, and cut at its start, in one step.
        """
        outcomes = self._outcomes[:]
        del self._outcomes[: len(outcomes)]
        return outcomes
