"""The state of one lane: plain data, which the lane and its two collaborators share.

Owns the fields and the answers that follow from them alone. Only this folder writes them: `Lane` loads and fills it,
`Dispatcher` hands out of it, `Progress` raises its watermark, and compares it with the database. Others read what
`LaneView` has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from attrs import define, field

from lanelog._engine.lane.intervals import Intervals
from lanelog._engine.lane.run import State

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lanelog._engine.lane.run import Attempt, Run
    from lanelog._engine.lane.values import Budget, Rules, Term, Waiting
    from lanelog._engine.lane.writes import DeadLetterWrite
    from lanelog._stores.log.fetches import Fetched


@define(eq=False, repr=False)
class LaneState:
    """Each offset above the watermark is exactly one of these.

    `settled`: settled, although a lower offset is not. `waiting`: it waits for another attempt (failed, postponed,
    crashed or handed back). `running`: it is in a run, or on its way to the dead letters. `ready`: fetched, not handed
    out. Any other one lies above `cursor` and is not fetched yet.
    """

    term: Term
    rules: Rules
    budget: Budget
    watermark: int
    head: int
    cursor: int = 0
    ready: list[Fetched] = field(factory=list)
    waiting: dict[int, Waiting] = field(factory=dict)
    running: dict[int, Attempt] = field(factory=dict)
    dead_letters: dict[int, DeadLetterWrite] = field(factory=dict)
    settled: Intervals = field(factory=Intervals)
    runs: tuple[Run, ...] = ()  # runs that a worker has, or that wait in the workers' queue
    started_top: int = 0  # the highest first delivery that a handler has seen
    adopting: bool = False  # the first write after a load must commit before anything is handed out
    closing: bool = False
    paused: bool = False
    lost: bool = False
    needs_payload: bool = False  # a due message lacks its body; the fetcher clears it
    gathers_until: float = 0.0  # when (monotonic) a batch goes out that is not full; 0: none gathers

    @property
    def held_back(self) -> bool:
        """Whether no message may go out."""
        return self.closing or self.paused or self.lost or self.adopting

    @property
    def handling(self) -> bool:
        """Whether a handler has a message of this lane, or a transaction is committing one."""
        return any(attempt.state in (State.RUNNING, State.CLAIMED) for attempt in self.running.values())

    def gather(self, rows: Sequence[Fetched], now: float) -> None:
        """Let a batch wait for more from its first message on, but not for longer than half of one's time to live."""
        batch = self.rules.batch
        if batch is None or not batch.wait:
            return
        until = min([now + batch.wait, *(now + (row.start_by - now) / 2 for row in rows if row.start_by is not None)])
        self.gathers_until = min(self.gathers_until, until) if self.gathers_until else until

    def gathers(self, now: float) -> bool:
        """Whether what is ready waits for more messages of its batch."""
        batch = self.rules.batch
        return batch is not None and len(self.ready) < batch.size and now < self.gathers_until

    def taken(self, count: int, now: float) -> None:
        """The first `count` ready messages are handed out. The others gather anew."""
        del self.ready[:count]
        if count and self.gathers_until:
            self.gathers_until = 0.0
            if self.ready:
                self.gather(self.ready, now)

    def passed(self, offset: int) -> bool:
        """Whether an offset is settled."""
        return offset <= self.watermark or offset in self.settled

    def drop_bodies(self) -> None:
        """Forget the payloads of waiting messages. Each is read again when it is due and nothing holds it back."""
        for wait in self.waiting.values():
            if wait.body is not None:
                self.budget.give(wait.body)
                wait.body = None

    def drop_ready(self) -> None:
        """Forget the messages that were fetched and not handed out. They are fetched again later."""
        if not self.ready:
            return
        self.cursor = self.ready[0].offset - 1
        for row in self.ready:
            self.budget.give(row)
        self.ready.clear()
        self.gathers_until = 0.0


class LaneView(Protocol):
    """What others may read of `LaneState`, as `Lane.state`. They change a lane by methods alone."""

    @property
    def head(self) -> int:
        """The last offset of the lane that memory knows of."""

    @property
    def cursor(self) -> int:
        """The last offset that was fetched."""

    @property
    def ready(self) -> Sequence[Fetched]:
        """Fetched, not handed out."""

    @property
    def waiting(self) -> Mapping[int, Waiting]:
        """Messages that wait for another attempt."""

    @property
    def running(self) -> Mapping[int, Attempt]:
        """Attempts in a run, or on their way to the dead letters."""

    @property
    def runs(self) -> tuple[Run, ...]:
        """Runs that a worker has, or that wait for one."""

    @property
    def closing(self) -> bool:
        """Whether it is to be given back."""

    @property
    def paused(self) -> bool:
        """Whether it hands out nothing for now."""

    @property
    def lost(self) -> bool:
        """Whether nothing of it may be written."""

    @property
    def needs_payload(self) -> bool:
        """Whether a due message lacks its body."""

    @property
    def gathers_until(self) -> float:
        """When (monotonic) a batch goes out that is not full. 0: none gathers."""

    @property
    def handling(self) -> bool:
        """Whether a handler has a message of it, or a transaction commits one."""
