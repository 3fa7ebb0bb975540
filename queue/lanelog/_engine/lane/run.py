"""Attempts at messages, and the runs in which they are handed to a worker.

Owns who may start the next message of a run; never decides what is handed out nor what an outcome means.
"""

from __future__ import annotations

import threading
from enum import Enum
from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._stores.history import HistoryWrite

if TYPE_CHECKING:
    from collections.abc import Callable
    from weakref import ref

    from lanelog._engine.lane.flush_waiter import FlushWaiter
    from lanelog._engine.lane.policy import Outcome
    from lanelog._engine.lane.values import Term
    from lanelog._stores.fetches import Fetched
    from lanelog._stores.history import Ended


class State(Enum):
    """Where an attempt stands; only memory knows, the database knows marks and outcomes."""

    READY = "ready"  # waits for its mark or for a worker
    RUNNING = "running"  # a handler has it
    CLAIMED = "claimed"  # message.transaction() is committing its settlement
    BURYING = "burying"  # on its way to the dead letters
    SETTLED = "settled"  # decided: acked, nacked, postponed or dead-lettered
    SUPERSEDED = "superseded"  # given up by the engine; its settlement would be refused


@define(eq=False)
class Attempt:
    """One attempt at one message, identified to the outside by (lease epoch, attempt number)."""

    term: Term
    row: Fetched
    number: int
    first_started: float | None  # monotonic; None: this is the first
    crashed: bool = False
    postponed: int = 0
    last: bool = False  # of one that crashed before: no other attempt follows
    released: bool = False  # granted although the deliveries may be at their cap
    last_error: str | None = None  # of the attempt before, as far as this process knows
    state: State = State.READY
    started: float = 0.0
    deadline: float = 0.0
    expired: bool = False  # it was `overdue` when it was to start
    slow_reported: bool = False
    left: bool = False  # its handler returned while another thread was committing it: nobody else decides it
    run: Run | None = field(default=None, repr=False)
    on_release: Callable[[], None] | None = field(default=None, repr=False)  # what a detached attempt still holds
    handle: ref[object] | None = field(default=None, repr=False)  # by which the user settles it; dead: nobody can

    @property
    def forgotten(self) -> bool:
        """Whether the user has thrown the message away, and with it the only way to settle or extend it."""
        return self.handle is not None and self.handle() is None

    def release(self) -> None:
        """Let go of what was held while the user had the message; once."""
        released, self.on_release = self.on_release, None
        if released is not None:
            released()

    @property
    def offset(self) -> int:
        """The offset of the message in its lane."""
        return self.row.offset

    def overdue(self, now: float) -> bool:
        """Whether it must not start any more: its time is over, and no handler has had the message."""
        deadline = self.row.start_by
        if deadline is None or now < deadline:
            return False
        return self.number == 1 and not (self.crashed or self.postponed)

    def left_as(self, ended: Ended, error: str | None, now: float) -> HistoryWrite:
        """The row of its history, settled now."""
        row = self.row
        attempts = 0 if self.expired else self.number
        first = None if self.expired else self.first_started if self.first_started is not None else now
        return HistoryWrite(row.key, row.offset, row.id, ended, attempts, row.published_at, first, now, error)


class Run:
    """Messages of one lane that one worker handles one after the other under one mark.

    The run's own lock makes "start the next one" and "take back the rest" exclude each other, so that a message is
    either started or returned, never both.
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
        self.first = first  # first deliveries, marked by the run mark; else one redelivery with a row of its own
        self.late = late  # waits for a worker unmarked; whoever takes it has it marked
        self.alone = alone  # a suspect, always late: it is marked once it has the process to itself
        self.marked = not late  # what is written of its lane from now on counts its attempts
        self.waiter: FlushWaiter | None = None  # of the flush that writes the mark of a late one
        self.recalled = False
        self.expired = 0  # passed without a handler, because their time was over
        self._outcomes: list[tuple[Attempt, Outcome]] = []  # decided by the worker, not yet taken over
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
        """The highest offset still in this run; 0 when everything was taken back."""
        return self.attempts[-1].offset if self.attempts else 0

    def start_next(self, now: float, timeout: float) -> Attempt | None:
        """The next attempt, RUNNING until `now + timeout`; None when none is left or the rest was recalled.

        One that is `overdue` counts as no start: no handler may have it, and the caller records that it has expired.
        """
        with self._lock:
            if self._next >= len(self.attempts):
                return None
            attempt = self.attempts[self._next]
            self._next += 1
            if attempt.row.start_by is not None:
                # What is acked before its handler was in time then: it runs, or it is lost.
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
        """Take back what no handler has seen; idempotent."""
        with self._lock:
            self.recalled = True
            rest = self.attempts[self._next :]
            del self.attempts[self._next :]
            return rest

    def record(self, attempt: Attempt, outcome: Outcome) -> None:
        """The worker decided an attempt; somebody takes it over later."""
        with self._lock:
            self._outcomes.append((attempt, outcome))

    def take_outcomes(self) -> list[tuple[Attempt, Outcome]]:
        """What was recorded since the last call; each outcome is returned once."""
        with self._lock:
            outcomes, self._outcomes = self._outcomes, []
            return outcomes
