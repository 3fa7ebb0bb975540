"""Who waits for what when many threads publish to one topic: a pure plan, without I/O or threads.

It never blocks, and knows nothing of the database: every method is called under the group's lock, changes the plan, and
returns whom to wake. `group` does what it says.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum, auto

from attrs import define, field

from lanelog.message import Receipt
from lanelog.publisher.draft import Draft

MAX_BATCH = 1000
MAX_BATCH_BYTES = 4 * 1024 * 1024


class Role(Enum):
    """What a waiting thread is asked to do when it is woken."""

    LEAD = auto()
    """Commit what is ready, its own message among it."""
    HOLD = auto()
    """Wait for its busy lane, then commit what has gathered for it."""


@define(eq=False)
class Member:
    """A thread that publishes one message, and waits until somebody, perhaps itself, has committed it."""

    draft: Draft = field(repr=False)
    deadline: float
    signal: threading.Event = field(factory=threading.Event, repr=False)
    role: Role | None = None
    claimed: bool = False
    """Whether it is part of a transaction that has been or is being tried."""
    receipt: Receipt | None = None
    error: BaseException | None = None

    @property
    def done(self) -> bool:
        """Whether its outcome is there."""
        return self.receipt is not None or self.error is not None


@define(eq=False)
class Line:
    """The members of one topic: those that are ready, and those that queue for a busy lane."""

    leading: bool = False
    ready: deque[Member] = field(factory=deque)
    busy: dict[str, deque[Member]] = field(factory=dict)
    """By key; somebody holds each of them: one member with the role HOLD, who need not be in the queue any more."""

    @property
    def empty(self) -> bool:
        """Whether nobody needs it."""
        return not (self.leading or self.ready or self.busy)

    def admit(self, member: Member) -> None:
        """Let a member in: it leads if nobody does, and queues in memory if its lane is known to be busy."""
        queue = self.busy.get(member.draft.key)
        if queue is not None:
            queue.append(member)
            return
        self.ready.append(member)
        self._appoint()

    def take(self) -> list[Member]:
        """Return the next batch, in order of arrival, for the leader to commit."""
        return _take(self.ready)

    def park(self, members: Iterable[Member]) -> list[Member]:
        """Queue members whose lanes turned out to be busy, and whoever is ready for the same ones; wake the result."""
        holders = []
        for member in members:
            member.role, member.claimed = None, False
            queue = self.busy.get(member.draft.key)
            if queue is None:
                queue = self.busy[member.draft.key] = deque()
                member.role = Role.HOLD
                holders.append(member)
            queue.append(member)
        if holders:
            waiting, self.ready = self.ready, deque()
            for member in waiting:
                self.busy.get(member.draft.key, self.ready).append(member)
        return holders

    def claim(self, key: str) -> list[Member]:
        """Return the batch that has gathered for a busy lane, for its holder, who has the lane by now."""
        return _take(self.busy[key])

    def put_back(self, members: Sequence[Member]) -> None:
        """Return members to the front of those who are ready: a batch failed, and they have time for another."""
        for member in reversed(members):
            member.role, member.claimed = None, False
            self.ready.appendleft(member)

    def reopen(self, key: str) -> Member | None:
        """Declare a lane free, for its holder; wake the result."""
        self.ready.extend(member for member in self.busy.pop(key) if not member.done)
        return self._appoint()

    def hand_over(self) -> Member | None:
        """Let the next one lead, for the leader; wake the result."""
        self.leading = False
        return self._appoint()

    def withdraw(self, member: Member) -> Member | None:
        """Forget a member whose time is up, and pass on the role it was just given; wake the result."""
        key = member.draft.key
        for queue in (self.ready, self.busy.get(key, deque())):
            if member in queue:
                queue.remove(member)
        role, member.role = member.role, None
        if role is Role.LEAD:
            return self.hand_over()
        return self.reopen(key) if role is Role.HOLD else None

    def _appoint(self) -> Member | None:
        if self.leading or not self.ready:
            return None
        self.leading = True
        self.ready[0].role = Role.LEAD
        return self.ready[0]


def _take(queue: deque[Member]) -> list[Member]:
    batch: list[Member] = []
    size = 0
    while queue and len(batch) < MAX_BATCH and (not batch or size + queue[0].draft.wire_bytes <= MAX_BATCH_BYTES):
        member = queue.popleft()
        member.claimed = True
        size += member.draft.wire_bytes
        batch.append(member)
    return batch
