"""The plan for many threads that publish to one topic: which one leads, holds a lane, or waits. No I/O, no threads.

Never blocks, and knows nothing of the database. Every method is called under the group's lock, changes the plan, and
returns the members to wake.

The roles, leader and holder, stand here alone. A member with a role always has a thread. A thread may leave while its
message is part of another thread's transaction, and a failure may bring the message back. So a method that fills a
queue leaves out members whose threads have left, and only members of queues get roles. `withdraw` is the one way out,
and takes every role away. An interrupt may stop any method half way. So each member that waits calls `heal` now and
then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from enum import Enum, auto

from attrs import define, field

from lanelog._log.append.draft import Draft
from lanelog.message import Receipt
from lanelog.publisher.wakeup import Wakeup

MAX_BATCH = 1000
MAX_BATCH_BYTES = 4 * 1024 * 1024


class WaiterRole(Enum):
    """What a waiting thread does after it was woken."""

    LEAD = auto()
    """Commit the messages that are ready, its own among them."""
    HOLD = auto()
    """Wait for its busy lane, then commit the messages that have gathered for it."""


@define(eq=False)
class Waiter:
    """A thread that publishes one message, and waits until a thread, perhaps itself, has committed it."""

    draft: Draft = field(repr=False)
    deadline: float
    signal: Wakeup = field(factory=Wakeup, repr=False)
    claimer: Waiter | None = field(default=None, repr=False)
    """Whose thread has it in a transaction that was tried, or is tried now. None: nobody's."""
    gone: bool = False
    """Whether its thread has left, perhaps while another thread's transaction had the message."""
    lonely: bool = False
    """Whether it shares no transaction: in one, the driver failed, perhaps because of this message."""
    receipt: Receipt | None = None
    error: BaseException | None = None

    @property
    def claimed(self) -> bool:
        """Whether it is part of a transaction that was tried, or is tried now."""
        return self.claimer is not None

    @property
    def done(self) -> bool:
        """Whether it has an outcome."""
        return self.receipt is not None or self.error is not None

    @property
    def waiting(self) -> bool:
        """Whether its thread waits for an outcome."""
        return not (self.done or self.gone)


@define(eq=False)
class Line:
    """The members of one topic: those that are ready, and those that queue for a busy lane."""

    ready: deque[Waiter] = field(factory=deque)
    leader: Waiter | None = None
    """There is one whenever a member is ready."""
    busy: dict[str, deque[Waiter]] = field(factory=dict)
    """Queues by key. Each has a holder."""
    holders: dict[str, Waiter] = field(factory=dict)
    """By key. A holder may have left the queue."""
    max_batch: int = MAX_BATCH
    """The most messages of one transaction."""

    @property
    def empty(self) -> bool:
        """Whether it has no members."""
        return not (self.ready or self.leader or self.busy)

    def role(self, member: Waiter) -> WaiterRole | None:
        """Return the duty of a member. None: it waits. A member may read its own duty without the lock."""
        if self._holds(member):
            return WaiterRole.HOLD
        return WaiterRole.LEAD if self.leader is member else None

    def admit(self, member: Waiter) -> None:
        """Let a member in. It leads if there is no leader, and queues in memory if its lane is known to be busy."""
        self._queue(member)
        self._appoint()

    def take(self) -> list[Waiter]:
        """Return the next batch, in order of arrival, for the leader to commit."""
        return _take(self.ready, self.max_batch, self.leader)

    def park(self, members: Iterable[Waiter]) -> list[Waiter]:
        """Queue members whose lanes turned out to be busy, and ready members of the same lanes. Wake the result.

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
        """Let members whose lanes turned out to be busy try other lanes, if they may. Park the rest. Wake the result.

        Members that try another lane are ready again, before the others. A holder stays: others wait for it there.
        """
        members = list(members)
        avoided = {*busy, *self.busy}
        moved = [
            member
            for member in members
            if member.waiting and not self._holds(member) and member.draft.step_aside(avoided)
        ]
        return self.put_back(moved) + self.park(member for member in members if member not in moved)

    def claim(self, key: str) -> list[Waiter]:
        """Return the batch that has gathered for a busy lane. Its holder has the lane now."""
        return _take(self.busy[key], self.max_batch, self.holders[key])

    def unclaim(self, key: str, members: Iterable[Waiter]) -> None:
        """Return a batch to the front of its busy lane. Its holder lost the lane before the commit."""
        self.busy[key].extendleft(reversed(_unclaimed(members)))

    def put_back(self, members: Iterable[Waiter]) -> list[Waiter]:
        """Return a batch that failed to the front of the ready members, to be tried again. Wake the result."""
        self.ready.extendleft(reversed(_unclaimed(members)))
        return self._appoint()

    def hand_over(self, leader: Waiter) -> list[Waiter]:
        """If this member leads, let the next one lead. Wake the result."""
        if self.leader is leader:
            self.leader = None
        return self._appoint()

    def withdraw(self, member: Waiter) -> list[Waiter]:
        """Forget a member whose thread leaves, and pass its roles on. Wake the result."""
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

    def heal(self, member: Waiter) -> list[Waiter]:
        """Mend what an interrupted thread left half done, for a member that waits. Wake the result.

        A thread that has left runs no transaction any more, so whom it claimed, led or held the lane for goes on.
        """
        self.ready = deque(other for other in self.ready if not other.gone)
        for key, queue in list(self.busy.items()):
            staying = deque(other for other in queue if not other.gone)
            holder = self.holders.get(key)
            if holder is None or holder.gone:
                self.holders.pop(key, None)
                del self.busy[key]
                self.ready.extend(other for other in staying if other not in self.ready)
            else:
                self.busy[key] = staying
        for key in self.holders.keys() - self.busy.keys():
            del self.holders[key]
        if self.leader is not None and self.leader.gone:
            self.leader = None
        lost = member.claimer is None or member.claimer.gone
        if member.waiting and lost and member not in self.ready and member not in self.busy.get(member.draft.key, ()):
            member.claimer = None
            self._queue(member)
        return self._appoint()

    def _holds(self, member: Waiter) -> bool:
        return self.holders.get(member.draft.key) is member

    def _queue(self, member: Waiter) -> None:
        if member.draft.key in self.busy and not self._holds(member):
            member.draft.step_aside(self.busy)
        self.busy.get(member.draft.key, self.ready).append(member)

    def _appoint(self) -> list[Waiter]:
        if self.leader is not None or not self.ready:
            return []
        self.leader = self.ready[0]
        return [self.leader]


def _unclaimed(members: Iterable[Waiter]) -> list[Waiter]:
    """Return the members that still wait. They are part of no transaction any more."""
    waiting = [member for member in members if member.waiting]
    for member in waiting:
        member.claimer = None
    return waiting


def _take(queue: deque[Waiter], most: int, claimer: Waiter | None) -> list[Waiter]:
    batch: list[Waiter] = []
    size = 0
    while queue and len(batch) < most and (not batch or _fits(batch, queue[0], size)):
        member = queue.popleft()
        member.claimer = claimer
        size += member.draft.wire_bytes
        batch.append(member)
    return batch


def _fits(batch: Sequence[Waiter], member: Waiter, size: int) -> bool:
    """Whether a member may join a batch of so many bytes."""
    return not (batch[0].lonely or member.lonely) and size + member.draft.wire_bytes <= MAX_BATCH_BYTES
