"""One thread that runs handlers, and its current work.

Its own thread writes these fields. The keeper's thread reads them, and abandons a worker whose time is over.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from lanelog._engine.member.isolation import Passage, process_isolation

if TYPE_CHECKING:
    from lanelog._engine.caller_ack import Delivered
    from lanelog._engine.lane.run import Attempt, Run
    from lanelog._engine.member.member import Member


@frozen(eq=False)
class BatchCall:
    """One call of a handler with a batch."""

    messages: tuple[Delivered, ...]
    runs: tuple[tuple[Member, Run], ...]
    """All runs of the batch, of which it may be a half."""


@define(eq=False)
class Worker:
    """One thread and its current work."""

    number: int
    thread: threading.Thread | None = None
    member: Member | None = None
    run: Run | None = None
    attempt: Attempt | None = None
    call: BatchCall | None = None  # of its handler with a batch
    lock: threading.Lock = field(factory=threading.Lock)  # of the end of a call, and of its time-out
    passage: Passage | None = None
    abandoned: bool = False
    waits: float = 0.0  # since when (monotonic) it has waited in the isolation; 0: it does not
    longest: float = 0.0  # seconds of the longest handler that ended here

    def enter(self, member: Member, run: Run) -> Passage | None:
        """Wait in the process's isolation until a run may be handled. None: a quarantined one need not run any more."""
        isolation, inside = process_isolation(), True
        self.waits = time.monotonic()
        if run.alone:
            inside = isolation.enter_alone(
                lambda: bool(run.attempts) and member.attempts.may_start(run.term, time.monotonic())
            )
        else:
            isolation.enter()
        self.waits = 0.0
        return Passage(isolation) if inside else None
