"""The state of one member: its lanes, the needs of these lanes, and the lock under which all of it changes.

Owns the fields, and what follows any change of a lane. The loops read them; the steps of the sides change them:
`LeasingSide`, `FetchingSide`, `WritingSide`, `Attempts` and `HandingBack`.
"""

from __future__ import annotations

import functools
import heapq
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from attrs import Factory, define, field

from lanelog._engine.lane.run import State
from lanelog._engine.lane.writes import DeadLetterWrite
from lanelog._engine.member.effects import Effects
from lanelog._engine.member.fetch_queue import FetchQueue
from lanelog._facts.fact import AttemptFields
from lanelog._process.asleep import suspended
from lanelog.measures import Counters, Handlings

if TYPE_CHECKING:
    import queue
    from collections.abc import Callable, Iterable

    from lanelog._base.places import GroupTopic
    from lanelog._engine.lane.lane import Lane
    from lanelog._engine.lane.run import Attempt, Run
    from lanelog._engine.lane.values import Budget, Term
    from lanelog._engine.member.rules import Signals, SubscriptionRules
    from lanelog._facts.log import ExcInfo
    from lanelog.config import SubscriptionConfig

P = ParamSpec("P")
T = TypeVar("T")

PLANS_A_TURN = 32
"""How many runs of one lane one change may send out. The next change sends out more."""


@define(eq=False, repr=False)
class MemberState:
    """The fields of a member. A method whose name ends in `_locked` is called under `lock`; any other takes it."""

    at: GroupTopic
    owner: str
    config: SubscriptionConfig
    rules: SubscriptionRules
    budget: Budget
    lock: threading.Lock
    signals: Signals
    runs: queue.SimpleQueue[Any]  # of the workers: (member, run), a hook of the user, or None to end
    workers: int = 0  # threads that run its handler; 0 when messages are pulled
    effects: Effects = field(init=False, default=Factory(lambda self: Effects(self.runs.put), takes_self=True))
    lanes: dict[str, Lane] = field(factory=dict)
    detached: dict[Attempt, None] = field(factory=dict)  # handed to the user: pulled, or settled by hand
    dead_letters: deque[DeadLetterWrite] = field(factory=deque)  # to be moved to the dead letters
    dropped: deque[tuple[Attempt, str, ExcInfo | None]] = field(factory=deque)  # given up; there are no dead letters
    counters: Counters = field(factory=Counters)
    authority_until: float = 0.0  # monotonic; no handler starts later than this
    slept: float = field(factory=suspended)  # the value of `suspended` when the read-back of the authority began
    changes: int = 0  # of the held lanes and of `paused`: after one, memory must be compared with all leases
    unsure: set[str] = field(factory=set)  # keys of lanes whose head in memory may be older than the fetcher's digests
    paused: bool = False  # by subscription.pause()
    group_paused: bool = False  # by an operator
    stopping: bool = False
    disowned: set[tuple[str, int]] = field(factory=set)  # (key, epoch) of lanes that memory dropped and we still own
    # The work lists of lanes.
    dirty: dict[Lane, None] = field(factory=dict)
    needs_fetch: FetchQueue = field(factory=FetchQueue)
    needs_payload: dict[Lane, None] = field(factory=dict)
    holding: dict[Lane, None] = field(factory=dict)  # every lane with ready or waiting messages, and some without
    closing: dict[Lane, None] = field(factory=dict)  # the lanes that are to be given back
    gathering: dict[Lane, float] = field(factory=dict)  # until when a batch of theirs waits, as it was noted last
    dues: list[tuple[float, int, Lane]] = field(factory=list)  # a heap: (due, sequence, lane) of waiting messages
    _sequence: int = 0

    def lane_of(self, term: Term) -> Lane | None:
        """The lane as it was loaded in this term. None when it is gone, or was loaded again since."""
        lane = self.lanes.get(term.key)
        return lane if lane is not None and lane.term.generation == term.generation else None

    def send(self, run: Run) -> None:
        """Give a run to the workers, when the lock is released."""
        self.effects.runs.append((self, run))

    def has_authority(self, now: float) -> bool:
        """Whether handlers may start: the authority is not over. Time in which the machine slept counts."""
        return now + suspended() - self.slept < self.authority_until

    def about(self, attempt: Attempt) -> AttemptFields:
        """The fields of an event about an attempt."""
        return {
            "topic": self.at.topic,
            "key": attempt.term.key,
            "group": self.at.group,
            "offset": attempt.offset,
            "attempt": attempt.number,
        }

    def changed_locked(self, lane: Lane | None, now: float | None = None, *, fetching: bool = False) -> None:
        """After any change of a lane: send out the runs that may go, and put the lane on the work lists it belongs to.

        `lane` None: it is gone. `now` (monotonic): the step has just asked for it. `fetching`: the caller is the
        fetcher, which need not be woken.
        """
        if lane is None or lane.state.lost:
            return
        now = time.monotonic() if now is None else now
        if self.has_authority(now):
            self._plan_locked(lane, now)
        if lane.state.needs_payload:
            self.needs_payload[lane] = None
        if lane.state.ready or lane.state.waiting:
            self.holding[lane] = None
        self.needs_fetch.add(lane)
        if (self.needs_fetch or self.needs_payload) and not fetching:
            self.effects.needs.add(self.signals.wake_fetcher)
        if lane.progress.needs_write:
            self.dirty[lane] = None
            self.effects.needs.add(self.signals.wake_settler)

    def _plan_locked(self, lane: Lane, now: float) -> None:
        for _ in range(PLANS_A_TURN):
            planned = lane.dispatch.plan(now)
            if planned is None:
                until = lane.state.gathers_until
                if until > now and self.gathering.get(lane) != until:
                    self.gathering[lane] = until
                    self.note_due_locked(until, lane)
                return
            if isinstance(planned, DeadLetterWrite):
                self._bury_planned_locked(lane, planned, now)
            elif planned.late:
                self.send(planned)  # its worker has it marked; the next flush marks any other run

    def _bury_planned_locked(self, lane: Lane, dead_letter: DeadLetterWrite, now: float) -> None:
        if self.config.dead_letter_suffix is None and dead_letter.attempt is not None:
            lane.dispatch.succeeded(dead_letter.attempt, now, ended=dead_letter.ended, error=dead_letter.error)
            self.drop_locked(dead_letter.attempt, dead_letter.error, None)
        else:
            self.bury_locked(dead_letter)

    def bury_locked(self, dead_letter: DeadLetterWrite) -> None:
        """Let the settler move a message to the dead letters."""
        self.dead_letters.append(dead_letter)
        self.effects.needs.add(self.signals.wake_settler)

    def drop_locked(self, attempt: Attempt, error: str, raised: ExcInfo | None) -> None:
        """Let the settler log a message that was given up, when there are no dead letters."""
        self.dropped.append((attempt, error, raised))
        self.counters.expired += attempt.expired
        self.effects.needs.add(self.signals.wake_settler)

    def note_due_locked(self, due: float, lane: Lane) -> None:
        """Note that a message, or a batch, of this lane waits until `due` (monotonic)."""
        self._sequence += 1
        heapq.heappush(self.dues, (due, self._sequence, lane))
        self.effects.needs.add(self.signals.wake_fetcher)

    def quiet_locked(self, lane: Lane) -> None:
        """Let no more messages of this lane start: take back those that no handler has seen."""
        lane.quiet()
        if lane.state.waiting:
            self.holding[lane] = None
        self.needs_fetch.discard(lane)
        self.dirty[lane] = None
        self.effects.needs.add(self.signals.wake_settler)

    def forget_locked(self, lane: Lane) -> None:
        """Remove a lane from memory and from every work list."""
        self.changes += 1
        if self.lanes.get(lane.key) is lane:
            del self.lanes[lane.key]
        self.needs_fetch.discard(lane)
        self.gathering.pop(lane, None)
        for pending in (self.dirty, self.needs_payload, self.holding, self.closing):
            pending.pop(lane, None)

    def supersede_locked(self, attempts: Iterable[Attempt]) -> None:
        """Mark these attempts as superseded: their settlements are refused."""
        for attempt in attempts:
            attempt.ack = None
            attempt.move(State.SUPERSEDED)
            self.finish_detached_locked(attempt)

    def finish_detached_locked(self, attempt: Attempt) -> bool:
        """Take a message out of the user's hands: it is settled, or the user has lost it. False if it was not there."""
        if attempt not in self.detached:
            return False
        del self.detached[attempt]
        seconds = time.monotonic() - attempt.started
        self.rules.measured(1, seconds)  # messages settled fast are not marked late
        if not self.workers and self.signals.meter.observers:
            done = attempt.state is not State.SUPERSEDED
            handlings = Handlings()
            handlings.add(attempt.number, attempt.row.published_at, seconds, time.time() - seconds, done=done)
            self.signals.meter.handled(self.at, handlings)
        if attempt.run is not None:
            lane = self.lane_of(attempt.run.term)  # after a reload, that of an orphan is not the attempt's
            if lane is not None:
                lane.dispatch.finished(attempt.run)
                attempt.run.let_go()
        attempt.release()
        return True


@define(eq=False, repr=False)
class Side:
    """What one kind of caller may do with a member."""

    state: MemberState


S = TypeVar("S", bound=Side)


def step(change: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Make a method a step of the member: it has the lock, and its effects are carried out after it."""

    @functools.wraps(change)
    def made(side: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        state = side.state
        try:
            with state.lock:
                return change(side, *args, **kwargs)
        finally:
            state.effects.carry_out()

    return made
