"""The plan for many threads that publish to one topic: which one leads, holds a lane, or waits. No I/O, no threads.

Never blocks, and knows nothing of the database. The methods of the queue are called under the group's lock, except
`role`. A change of the plan after which others must go on returns the waiters to wake.

The roles, leader and holder, stand here alone. A waiter with a role always has a thread. A thread may leave while its
message is part of another thread's transaction, and a failure may bring the message back. So a method that queues
leaves out waiters whose threads have left, and only queued waiters get roles. `withdraw` is the one way out, and takes
every role away. An interrupt may stop any method half way. So each waiter calls `heal` now and then.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from enum import Enum, auto

from attrs import define, field

from lanelog._log.append.draft import Draft
from lanelog.message import Receipt

MAX_BATCH = 1000
MAX_BATCH_BYTES = 4 * 1024 * 1024


class Wakeup:
    """An event that any thread sets. One thread waits, and takes the mark away.

    It stays usable when the wait is interrupted. `threading.Event` is written in Python: an exception of a signal
    handler may leave its lock locked, and the thread that sets it next then hangs for ever. Here everything is one call
    of C on one lock.
    """

    __slots__ = ("_unset",)

    def __init__(self) -> None:
        self._unset = threading.Lock()  # locked while it is not set
        self._unset.acquire()

    def set(self) -> None:
        """Wake the waiting thread, or let its next wait return at once."""
        with suppress(RuntimeError):  # it is set already
            self._unset.release()

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` until it is set. Return whether it was. It is not set any more."""
        return self._unset.acquire(timeout=seconds)

    def clear(self) -> None:
        """Unset it."""
        self._unset.acquire(blocking=False)


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
class TopicQueue:
    """The waiters of one topic: those that are ready, and those behind a busy lane."""

    ready: deque[Waiter] = field(factory=deque)
    leader: Waiter | None = None
    """There is one whenever a waiter is ready."""
    busy: dict[str, deque[Waiter]] = field(factory=dict)
    """The waiters behind a busy lane, by key. Each such lane has a holder."""
    holders: dict[str, Waiter] = field(factory=dict)
    """The holders of busy lanes, by key. A holder may have left `busy`."""
    max_batch: int = MAX_BATCH
    """The most messages of one transaction."""

    @property
    def empty(self) -> bool:
        """Whether it has no waiters."""
        return not (self.ready or self.leader or self.busy)

    def role(self, waiter: Waiter) -> WaiterRole | None:
        """Return the duty of a waiter. None: it waits. A waiter may read its own duty without the lock."""
        if self._holds(waiter):
            return WaiterRole.HOLD
        return WaiterRole.LEAD if self.leader is waiter else None

    def admit(self, waiter: Waiter) -> None:
        """Let a waiter in. It leads if there is no leader, and queues in memory if its lane is known to be busy."""
        self._queue(waiter)
        self._appoint()

    def take(self) -> list[Waiter]:
        """Return the next batch, in order of arrival, for the leader to commit."""
        return _take(self.ready, self.max_batch, self.leader)

    def park(self, waiters: Iterable[Waiter]) -> list[Waiter]:
        """Queue waiters whose lanes turned out to be busy, and ready waiters of the same lanes. Wake the result.

        A leader that queues leads no more.
        """
        parked = _unclaimed(waiters)
        holders = []
        for waiter in parked:
            key = waiter.draft.key
            if key not in self.busy:
                self.busy[key], self.holders[key] = deque(), waiter
                holders.append(waiter)
            self.busy[key].append(waiter)
        if holders:
            waiting, self.ready = self.ready, deque()
            for waiter in waiting:
                self._queue(waiter)
            parked += [waiter for waiter in waiting if waiter.draft.key in self.busy]
        if self.leader in parked:
            self.leader = None
        return holders + self._appoint()

    def reroute(self, waiters: Sequence[Waiter], busy: Collection[str]) -> list[Waiter]:
        """Let waiters whose lanes turned out to be busy try other lanes, if they may. Park the rest. Wake the result.

        Waiters that try another lane are ready again, before the others. A holder stays: others wait for it there.
        """
        avoided = {*busy, *self.busy}
        moved = [
            waiter
            for waiter in waiters
            if waiter.waiting and not self._holds(waiter) and waiter.draft.step_aside(avoided)
        ]
        return self.put_back(moved) + self.park(waiter for waiter in waiters if waiter not in moved)

    def claim(self, key: str) -> list[Waiter]:
        """Return the batch that has gathered for a busy lane. Its holder has the lane now."""
        return _take(self.busy[key], self.max_batch, self.holders[key])

    def unclaim(self, key: str, waiters: Iterable[Waiter]) -> None:
        """Return a batch to the front of its busy lane. Its holder lost the lane before the commit."""
        self.busy[key].extendleft(reversed(_unclaimed(waiters)))

    def put_back(self, waiters: Iterable[Waiter]) -> list[Waiter]:
        """Return a batch that failed to the front of the ready waiters, to be tried again. Wake the result."""
        self.ready.extendleft(reversed(_unclaimed(waiters)))
        return self._appoint()

    def hand_over(self, leader: Waiter) -> list[Waiter]:
        """If this waiter leads, let the next one lead. Wake the result."""
        if self.leader is leader:
            self.leader = None
        return self._appoint()

    def withdraw(self, waiter: Waiter) -> list[Waiter]:
        """Forget a waiter whose thread leaves, and pass its roles on. Wake the result."""
        waiter.gone = True
        key = waiter.draft.key
        if not waiter.done:
            for queue in (self.ready, self.busy.get(key, deque())):
                if waiter in queue:
                    queue.remove(waiter)
        if self.holders.get(key) is waiter:
            del self.holders[key]
            self.ready.extend(other for other in self.busy.pop(key) if other.waiting)
        return self.hand_over(waiter)

    def heal(self, waiter: Waiter) -> list[Waiter]:
        """Repair what an interrupted thread left half done, for a waiter that waits. Wake the result.

        A thread that has left runs no transaction any more, so the waiters that it
        claimed, led or held a lane for continue.
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
        lost = waiter.claimer is None or waiter.claimer.gone
        if waiter.waiting and lost and waiter not in self.ready and waiter not in self.busy.get(waiter.draft.key, ()):
            waiter.claimer = None
            self._queue(waiter)
        return self._appoint()

    def _holds(self, waiter: Waiter) -> bool:
        return self.holders.get(waiter.draft.key) is waiter

    def _queue(self, waiter: Waiter) -> None:
        if waiter.draft.key in self.busy and not self._holds(waiter):
            waiter.draft.step_aside(self.busy)
        self.busy.get(waiter.draft.key, self.ready).append(waiter)

    def _appoint(self) -> list[Waiter]:
        if self.leader is not None or not self.ready:
            return []
        self.leader = self.ready[0]
        return [self.leader]


def _unclaimed(waiters: Iterable[Waiter]) -> list[Waiter]:
    """Return the waiters that still wait. They are part of no transaction any more."""
    waiting = [waiter for waiter in waiters if waiter.waiting]
    for waiter in waiting:
        waiter.claimer = None
    return waiting


def _take(queue: deque[Waiter], most: int, claimer: Waiter | None) -> list[Waiter]:
    batch: list[Waiter] = []
    size = 0
    while queue and len(batch) < most and (not batch or _fits(batch, queue[0], size)):
        waiter = queue.popleft()
        waiter.claimer = claimer
        size += waiter.draft.wire_bytes
        batch.append(waiter)
    return batch


def _fits(batch: Sequence[Waiter], waiter: Waiter, size: int) -> bool:
    """Whether a waiter may join a batch of `size` bytes."""
    return not (batch[0].lonely or waiter.lonely) and size + waiter.draft.wire_bytes <= MAX_BATCH_BYTES
