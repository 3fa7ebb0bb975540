"""The state of one lane: plain data, which the lane and its two collaborators share.

Owns the fields and the answers that follow from them alone. Only this wing writes them: `Lane` loads and fills it,
`Dispatcher` hands out of it, `Progress` compares it with the database. The member's wing reads them, and changes
what it decides by the methods: the head, whether the lane is paused, and that it closes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._engine.lane.intervals import Intervals
from lanelog._engine.lane.run import State

if TYPE_CHECKING:
    from lanelog._engine.lane.run import Attempt, Run
    from lanelog._engine.lane.values import Budget, Rules, Term, Waiting
    from lanelog._engine.lane.writes import DeadLetterWrite
    from lanelog._stores.log.fetches import Fetched


@define(eq=False, repr=False)
class LaneState:
    """Each offset above the watermark is in exactly one place.

    `settled`: settled before a lower offset. `waiting`: it waits for another attempt (failed, postponed, crashed or
    handed back). `running`: it is in a run, or on its way to the dead letters. `ready`: fetched, not handed out. Any
    other one lies above `cursor` and is not fetched yet.
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

    @property
    def held_back(self) -> bool:
        """Whether no message may go out."""
        return self.closing or self.paused or self.lost or self.adopting

    @property
    def handling(self) -> bool:
        """Whether a handler has a message of this lane, or a transaction is committing one."""
        return any(attempt.state in (State.RUNNING, State.CLAIMED) for attempt in self.running.values())

    def passed(self, offset: int) -> bool:
        """Whether an offset is settled."""
        return offset <= self.watermark or offset in self.settled

    def raise_head(self, head: int) -> None:
        """Note that the lane goes on to `head` at least."""
        self.head = max(self.head, head)

    def lower_head(self, head: int) -> None:
        """Believe a head below the one in memory. What was fetched is fetched again."""
        self.drop_ready()
        self.head = head
        self.cursor = min(self.cursor, max(head, self.watermark))

    def pause(self, *, paused: bool) -> None:
        """Hand out no more, or go on."""
        self.paused = paused

    def close(self) -> None:
        """Hand out no more, for good."""
        self.closing = True

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
