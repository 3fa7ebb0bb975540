"""The state of a member, and what follows from any change of a lane.

Owns the fields, the lock and the lists of what is to be done; the operations are in `Settlements` and `Member`.
"""

from __future__ import annotations

import heapq
import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, cast

from attrs import define, field

from lanelog._asleep import suspended
from lanelog._engine.lane import failures
from lanelog._engine.lane.values import Burial
from lanelog._engine.member.rules import Counters
from lanelog._telemetry import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from lanelog._engine.lane.lane import Lane
    from lanelog._engine.lane.run import Attempt, Run
    from lanelog._engine.lane.values import Budget
    from lanelog._engine.member.member import Member
    from lanelog._engine.member.rules import Signals, SubscriptionRules
    from lanelog._telemetry import ExcInfo
    from lanelog.config import SubscriptionConfig

PLANS_A_TURN = 32
"""Runs of one lane that one change may send out; more follow with the next."""

log = get_logger("subscription")
settler_log = get_logger("settler")


@define(eq=False)
class MemberState:
    """One owner's part in one group and topic. Every method takes the lock itself unless its name ends in `_locked`."""

    group: str
    topic: str
    owner: str
    config: SubscriptionConfig
    rules: SubscriptionRules
    budget: Budget
    lock: threading.Lock
    signals: Signals
    runs: queue.SimpleQueue[tuple[Member, Run] | Callable[[], object] | None]
    failed: Callable[[BaseException], None]  # tells the subscription; called once
    workers: int = 0  # threads that run its handler; pulled: none
    detached: dict[Attempt, None] = field(factory=dict)  # handed to the user: pulled, or settled by hand
    lanes: dict[str, Lane] = field(factory=dict)
    counters: Counters = field(factory=Counters)
    burials: deque[Burial] = field(factory=deque)
    authority_until: float = 0.0  # monotonic; no handler starts later than this
    slept: float = field(factory=suspended)  # what `suspended` said when authority was given
    paused: bool = False  # by subscription.pause()
    group_paused: bool = False  # by an operator
    stopping: bool = False
    _ahead: list[Lane] = field(factory=list)  # memory has seen a higher head than the last look
    disowned: set[tuple[str, int]] = field(factory=set)  # (key, epoch) of lanes that memory has lost, and we still own
    registered_at: int = 0
    failure: BaseException | None = None
    ended: threading.Event = field(factory=threading.Event)  # nothing is held any more, nor registered
    # To be told of without a lock: logging is the user's code, too.
    _dropped: deque[tuple[Attempt, str, ExcInfo | None]] = field(factory=deque)
    _look_wanted: bool = True
    _dirty: dict[Lane, None] = field(factory=dict)
    _needs_payload: dict[Lane, None] = field(factory=dict)
    _needs_fetch: dict[Lane, None] = field(factory=dict)
    _dues: list[tuple[float, int, Lane]] = field(factory=list)
    _sequence: int = 0

    def __repr__(self) -> str:
        return f"Member({self.group!r}, {self.topic!r}, lanes={len(self.lanes)})"

    def has_authority(self, now: float) -> bool:
        """Whether handlers may start: the last read-back is not older than a lease, the machine's sleep included."""
        return now + suspended() - self.slept < self.authority_until

    def context(self, attempt: Attempt) -> dict[str, object]:
        """What an event about an attempt says."""
        return {
            "topic": self.topic,
            "key": attempt.lane.key,
            "group": self.group,
            "offset": attempt.offset,
            "attempt": attempt.number,
        }

    def later(self, hook: Callable[[], object]) -> None:
        """Let a worker call a user's hook: no loop runs user code."""
        self.runs.put(hook)

    def announce_dropped(self) -> None:
        """Say which messages were given up for want of dead letters; the settler does, and holds no lock."""
        while self._dropped:
            attempt, error, raised = self._dropped.popleft()
            if attempt.expired:
                settler_log.error("message.expired", **{**self.context(attempt), "attempt": 0}, dead_letter_topic=None)
            else:
                told = {"error": failures.summary(error), "exc_info": raised}
                settler_log.error("message.dropped", **self.context(attempt), **told)

    def fail(self, error: BaseException) -> None:
        """This member cannot go on: stop handing out, and say so once."""
        with self.lock:
            if self.failure is not None:
                return
            self.failure = error
        log.error("membership.failed", topic=self.topic, group=self.group, exc_info=error)
        self.failed(error)

    def pump(self) -> None:
        """Look at every lane again, for example after authority came back."""
        now = time.monotonic()
        with self.lock:
            for lane in list(self.lanes.values()):
                self._after_change_locked(lane, now)
        self.signals.wake_settler()

    @property
    def has_needing_fetch(self) -> bool:
        """Whether some lane waits for the fetcher."""
        return bool(self._needs_fetch or self._needs_payload)

    def _after_change_locked(self, lane: Lane, now: float, *, fetching: bool = False) -> None:
        """Whatever happened to a lane: send out what may go, and note what it needs from whom.

        `fetching`: the fetcher itself is here and need not be woken.
        """
        if lane.lost:
            return
        if self.has_authority(now):
            self._plan_locked(lane, now)
        if lane.needs_payload:
            self._needs_payload[lane] = None
        if lane.needs_fetch:
            self._needs_fetch[lane] = None
        if self.has_needing_fetch and not fetching:
            self.signals.wake_fetcher()
        if lane.needs_write:
            self._dirty[lane] = None
            if fetching:
                self.signals.wake_settler()

    def _plan_locked(self, lane: Lane, now: float) -> None:
        for _ in range(PLANS_A_TURN):
            planned = lane.plan(now)
            if planned is None:
                return
            if isinstance(planned, Burial):
                self._bury_planned_locked(planned, now)
            elif planned.late:
                self.runs.put((cast("Member", self), planned))  # marked by who takes it; others by the next flush

    def _bury_planned_locked(self, burial: Burial, now: float) -> None:
        if self.config.dead_letter_suffix is None and burial.attempt is not None:
            burial.lane.succeeded(burial.attempt, now, ended=burial.ended, error=burial.error)
            self._dropped.append((burial.attempt, burial.error, None))
        else:
            self.burials.append(burial)
        self.signals.wake_settler()

    def _note_due_locked(self, due: float, lane: Lane) -> None:
        self._sequence += 1
        heapq.heappush(self._dues, (due, self._sequence, lane))
        self.signals.wake_fetcher()

    def resolve_all(self, error: Exception) -> None:
        """The engine ends: nobody may wait for it any longer."""
        with self.lock:
            lanes = list(self.lanes.values())
            waiters = [waiter for lane in lanes for waiter in lane.waiters]
            waiters += [waiter for lane in lanes for burial in lane.burials.values() for waiter in burial.waiters]
            waiters += [waiter for lane in lanes if lane.writing is not None for waiter in lane.writing.waiters]
        for waiter in waiters:
            waiter.resolve(error)
