"""A member of a consumer group: the part of one subscription in one group and topic.

Owns its identity and its end. Its state changes through five sides, one for each kind of caller: `leasing` (the
keeper), `fetching` (the fetcher), `writing` (the settler), `attempts` (workers and users) and `handing_back` (users who
let go, and the end of a process). No side does I/O or runs a handler under the lock.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from lanelog._engine.member.attempts import Attempts
from lanelog._engine.member.fetching import FetchingSide
from lanelog._engine.member.handing_back import HandingBack
from lanelog._engine.member.leasing import LeasingSide
from lanelog._engine.member.state import MemberState
from lanelog._engine.member.writing import WritingSide
from lanelog._facts.engine import subscription as facts
from lanelog._facts.fact import AttemptFields

if TYPE_CHECKING:
    import queue
    from collections.abc import Callable

    from lanelog._base.places import GroupTopic
    from lanelog._engine.lane.run import Attempt, Run
    from lanelog._engine.lane.values import Budget, Term
    from lanelog._engine.member.rules import Signals, SubscriptionRules
    from lanelog._process.workload import Workload
    from lanelog.config import SubscriptionConfig
    from lanelog.measures import Counters


def _unknown() -> Workload | None:
    """The workload of a member without worker threads: its messages are pulled."""
    return None


@frozen
class Holdings:
    """How much a member has in memory at one moment."""

    lanes: int
    running: int
    """Messages that a handler or a user has."""
    waiting: int
    """Messages that wait for another attempt."""


@define(eq=False)
class Member:
    """One owner's part in one group and topic."""

    at: GroupTopic
    owner: str
    config: SubscriptionConfig
    rules: SubscriptionRules
    budget: Budget
    lock: threading.Lock
    signals: Signals
    runs: queue.SimpleQueue[tuple[Member, Run] | Callable[[], object] | None]
    failed: Callable[[BaseException], None]  # tells the subscription; called once
    workers: int = 0  # threads that run its handler; 0 when messages are pulled
    workload: Callable[[], Workload | None] = _unknown  # what these threads do now
    registered_at: int = 0  # when the group was registered, in milliseconds of the database
    failure: BaseException | None = None
    ended: threading.Event = field(factory=threading.Event)  # no lane is held, and nothing is registered any more
    _state: MemberState = field(init=False)
    leasing: LeasingSide = field(init=False)
    fetching: FetchingSide = field(init=False)
    writing: WritingSide = field(init=False)
    attempts: Attempts = field(init=False)
    handing_back: HandingBack = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._state = MemberState(
            at=self.at,
            owner=self.owner,
            config=self.config,
            rules=self.rules,
            budget=self.budget,
            lock=self.lock,
            signals=self.signals,
            send=self._send,
            pulled=not self.workers,
        )
        self.leasing = LeasingSide(self._state)
        self.fetching = FetchingSide(self._state)
        self.writing = WritingSide(self._state)
        self.attempts = Attempts(self._state)
        self.handing_back = HandingBack(self._state, self.attempts)

    @property
    def topic(self) -> str:
        """The topic that is read."""
        return self.at.topic

    @property
    def group(self) -> str:
        """The consumer group."""
        return self.at.group

    def __repr__(self) -> str:
        return f"Member({self.group!r}, {self.topic!r}, lanes={len(self._state.lanes)})"

    def _send(self, run: Run) -> None:
        self.runs.put((self, run))

    @property
    def counters(self) -> Counters:
        """The counts since its start."""
        return self._state.counters

    def held_locked(self) -> Holdings:
        """How much it holds. The caller has its lock."""
        lanes = self._state.lanes.values()
        return Holdings(
            lanes=len(lanes),
            running=sum(len(lane.state.running) for lane in lanes),
            waiting=sum(len(lane.state.waiting) for lane in lanes),
        )

    def about(self, attempt: Attempt) -> AttemptFields:
        """The fields of an event about an attempt."""
        return self._state.about(attempt)

    def lose_lane(self, term: Term, why: str) -> None:
        """Drop a lane whose lease is lost: nothing of it may be written any more."""
        self._state.lose(term, why)

    def disown_lane(self, term: Term, why: str) -> None:
        """Drop a lane whose lease is still ours. The keeper releases the lease."""
        self._state.disown(term, why)

    def later(self, hook: Callable[[], object]) -> None:
        """Let a worker call a user's hook: no loop runs user code."""
        self.runs.put(hook)

    def fail(self, error: BaseException) -> None:
        """This member cannot go on: log it and tell the subscription, once."""
        with self.lock:
            if self.failure is not None:
                return
            self.failure = error
        try:
            facts.membership_failed(self.signals.notices, topic=self.topic, group=self.group, exc_info=error)
        finally:
            self.failed(error)  # whatever the application's logging does: who waits for the end must hear of it

    def resolve_all(self, error: Exception) -> None:
        """The engine ends: resolve every waiter with `error`."""
        with self.lock:
            waiters = [waiter for lane in self._state.lanes.values() for waiter in lane.waiters]
        for waiter in waiters:
            waiter.resolve(error)
