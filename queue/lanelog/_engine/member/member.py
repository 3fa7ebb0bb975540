"""A member of a consumer group: one subscription of this process to one topic, with the lanes that it holds.

Owns its end, and its sides, one for each kind of caller: `leasing` (the keeper), `fetching` (the fetcher), `writing`
(the settler), `attempts` (workers and users), `caller_acks` (acks in callers' transactions) and `handing_back` (users
who let go, and the end of a process). They change its state in steps (`state.step`). No step does I/O, or runs user
code.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from lanelog._engine.member.attempts import Attempts
from lanelog._engine.member.caller_acks import CallerAcks
from lanelog._engine.member.fetching import FetchingSide
from lanelog._engine.member.handing_back import HandingBack
from lanelog._engine.member.leasing import LeasingSide
from lanelog._engine.member.state import MemberState
from lanelog._engine.member.writing import WritingSide
from lanelog._facts.engine import subscription as facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from lanelog._engine.lane.values import Term
    from lanelog._process.workload import Workload


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


@define(eq=False, kw_only=True)
class Member(MemberState):
    """One subscription of this process to one topic, with the lanes that it holds."""

    failed: Callable[[BaseException], None]  # notifies the subscription; called once
    workload: Callable[[], Workload | None] = _unknown  # what its worker threads do now
    registered_at: int = 0  # when the group was registered, in milliseconds of the database
    failure: BaseException | None = None
    ended: threading.Event = field(factory=threading.Event)  # no lane is held, and nothing is registered any more
    leasing: LeasingSide = field(init=False)
    fetching: FetchingSide = field(init=False)
    writing: WritingSide = field(init=False)
    attempts: Attempts = field(init=False)
    caller_acks: CallerAcks = field(init=False)
    handing_back: HandingBack = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.leasing = LeasingSide(self)
        self.fetching = FetchingSide(self)
        self.writing = WritingSide(self)
        self.attempts = Attempts(self)
        self.caller_acks = CallerAcks(self, self.attempts)
        self.handing_back = HandingBack(self, self.attempts)

    @property
    def topic(self) -> str:
        """The topic that is read."""
        return self.at.topic

    @property
    def group(self) -> str:
        """The consumer group."""
        return self.at.group

    def __repr__(self) -> str:
        return f"Member({self.group!r}, {self.topic!r}, lanes={len(self.lanes)})"

    def held_locked(self) -> Holdings:
        """How much it holds. The caller has its lock."""
        lanes = self.lanes.values()
        return Holdings(
            lanes=len(lanes),
            running=sum(len(lane.state.running) for lane in lanes),
            waiting=sum(len(lane.state.waiting) for lane in lanes),
        )

    def lose_lane(self, term: Term, why: str) -> None:
        """Drop a lane whose lease is lost: nothing of it may be written any more."""
        self.leasing.lose(term, why)

    def disown_lane(self, term: Term, why: str) -> None:
        """Drop a lane whose lease is still ours. The keeper releases the lease."""
        self.leasing.disown(term, why)

    def later(self, hook: Callable[[], object]) -> None:
        """Let a worker call a user's hook: no loop runs user code."""
        self.runs.put(hook)

    def fail(self, error: BaseException) -> None:
        """This member cannot go on: log it and notify the subscription, once."""
        with self.lock:
            if self.failure is not None:
                return
            self.failure = error
        try:
            facts.membership_failed(self.signals.notices, topic=self.topic, group=self.group, exc_info=error)
        finally:
            self.failed(error)  # whatever the application's logging does: those that wait for the end must learn of it

    def resolve_all(self, error: Exception) -> None:
        """The engine ends: resolve every waiter with `error`."""
        with self.lock:
            waiters = [waiter for lane in self.lanes.values() for waiter in lane.waiters]
        for waiter in waiters:
            waiter.resolve(error)
