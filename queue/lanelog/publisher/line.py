"""Who waits for what when many threads publish to one topic: a pure plan, without I/O or threads.

It never blocks, and knows nothing of the database: every method is called under the group's lock, changes the plan, and
returns whom to wake. `group` does what it says.

Who leads or holds is known here alone, and is always a thread that is there. A thread may leave while its message is
part of somebody's transaction, and that may bring the message back: so whatever fills a queue leaves out those who have
left, roles are given to members of queues only, and `withdraw`, the one way out, takes every role away.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable
from enum import Enum, auto

from attrs import define, field

from lanelog.message import Receipt
from lanelog.publisher.draft import Draft

MAX_BATCH = 1000
MAX_BATCH_BYTES = 4 * 1024 * 1024


class Duty(Enum):
    """What a waiting thread is asked to do when it is woken."""

    LEAD = auto()
    """Commit what is ready, its own message among it."""
    HOLD = auto()
    """Wait for its busy lane, then commit what has gathered for it."""


@define(eq=False)
class Waiter:
    """A thread that publishes one message, and waits until somebody, perhaps itself, has committed it."""

    draft: Draft = field(repr=False)
    deadline: float
    signal: threading.Event = field(factory=threading.Event, repr=False)
    claimed: bool = False
    """Whether it is part of a transaction that has been or is being tried."""
    gone: bool = False
    """Whether its thread has left, perhaps while somebody's transaction had it."""
    receipt: Receipt | None = None
    error: BaseException | None = None

    @property
    def done(self) -> bool:
        """Whether its outcome is there."""
        return self.receipt is not None or self.error is not None

    @property
    def waiting(self) -> bool:
        """Whether its thread is there, and its outcome is not."""
        return not (self.done or self.gone)


@define(eq=False)
class Line:
    """The members of one topic: those that are ready, and those that queue for a busy lane."""

    ready: deque[Waiter] = field(factory=deque)
    leader: Waiter | None = None
    """There is one whenever somebody is ready."""
    busy: dict[str, deque[Waiter]] = field(factory=dict)
    """By key; each has a holder."""
    holders: dict[str, Waiter] = field(factory=dict)
    """By key; a holder need not be in the queue any more."""
    max_batch: int = MAX_BATCH
    """The most messages of one transaction."""

    @property
    def empty(self) -> bool:
        """Whether nobody needs it."""
        return not (self.ready or self.leader or self.busy)

    def role(self, member: Waiter) -> Duty | None:
        """Return what a member is to do; None: to wait. A member may ask for its own without the lock."""
        if self.holders.get(member.draft.key) is member:
            return Duty.HOLD
        return Duty.LEAD if self.leader is member else None

    def admit(self, member: Waiter) -> None:
        """Let a member in: it leads if nobody does, and queues in memory if its lane is known to be busy."""
        self._queue(member)
        self._appoint()

    def take(self) -> list[Waiter]:
        """Return the next batch, in order of arrival, for the leader to commit."""
        return _take(self.ready, self.max_batch)

    def park(self, members: Iterable[Waiter]) -> list[Waiter]:
        """Queue members whose lanes turned out to be busy, and whoever is ready for the same ones; wake the result.

        A leader that queues leads no more.
        """
        parked = _unclaimed(members)
        holders = []
        for member in parked:
            key = member.draft.key
            if key not in self.busy:
                self.busy[key], self.holders[key] = deque(), member
                holders.append(member)
            self.busy[key].append(member)
        if holders:
            waiting, self.ready = self.ready, deque()
            for member in waiting:
                self._queue(member)
            parked += [member for member in waiting if member.draft.key in self.busy]
        if self.leader in parked:
            self.leader = None
        return holders + self._appoint()

    def part(self, members: Iterable[Waiter], busy: Collection[str]) -> list[Waiter]:
        """Let members whose lanes turned out to be busy try others, if they may, and park the rest; wake the result.

        Those that try another lane are ready again, before the others.
        """
        members = list(members)
        avoided = {*busy, *self.busy}
        moved = [member for member in members if member.waiting and member.draft.step_aside(avoided)]
        return self.put_back(moved) + self.park(member for member in members if member not in moved)

    def claim(self, key: str) -> list[Waiter]:
        """Return the batch that has gathered for a busy lane, for its holder, who has the lane by now."""
        return _take(self.busy[key], self.max_batch)

    def unclaim(self, key: str, members: Iterable[Waiter]) -> None:
        """Return a batch to the front of its busy lane, for the holder, who lost the lane before it was committed."""
        self.busy[key].extendleft(reversed(_unclaimed(members)))

    def put_back(self, members: Iterable[Waiter]) -> list[Waiter]:
        """Return a batch that failed to the front of those who are ready, to be tried again; wake the result."""
        self.ready.extendleft(reversed(_unclaimed(members)))
        return self._appoint()

    def hand_over(self, leader: Waiter) -> list[Waiter]:
        """Let the next one lead, if it is this one who leads; wake the result."""
        if self.leader is leader:
            self.leader = None
        return self._appoint()

    def withdraw(self, member: Waiter) -> list[Waiter]:
        """Forget a member whose thread leaves, for whatever reason, and pass its roles on; wake the result."""
        member.gone = True
        key = member.draft.key
        if not member.done:
            for queue in (self.ready, self.busy.get(key, deque())):
                if member in queue:
                    queue.remove(member)
        if self.holders.get(key) is member:
            del self.holders[key]
            self.ready.extend(other for other in self.busy.pop(key) if other.waiting)
        return self.hand_over(member)

    def _queue(self, member: Waiter) -> None:
        if member.draft.key in self.busy:
            member.draft.step_aside(self.busy)
        self.busy.get(member.draft.key, self.ready).append(member)

    def _appoint(self) -> list[Waiter]:
        if self.leader is not None or not self.ready:
            return []
        self.leader = self.ready[0]
        return [self.leader]


def _unclaimed(members: Iterable[Waiter]) -> list[Waiter]:
    """Return those that wait still, in no transaction any more; to the others it may have happened, or has."""
    waiting = [member for member in members if member.waiting]
    for member in waiting:
        member.claimed = False
    return waiting


def _take(queue: deque[Waiter], most: int) -> list[Waiter]:
    batch: list[Waiter] = []
    size = 0
    while queue and len(batch) < most and (not batch or size + queue[0].draft.wire_bytes <= MAX_BATCH_BYTES):
        member = queue.popleft()
        member.claimed = True
        size += member.draft.wire_bytes
        batch.append(member)
    return batch
