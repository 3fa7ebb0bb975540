"""Group commit: threads that publish to one topic at the same time share a transaction, which one of them commits.

Never waits for more messages. A lane that another transaction has locked delays no other lane. `topic_queue` decides
what each thread does. `batch` writes.

A thread that finds no *leader* leads: it commits the messages that are ready, its own among them, and hands over. It
takes heads with SKIP LOCKED. A lane whose head it did not get is busy. Waiters of a busy lane go to another lane if any
will do. The others queue in memory, and the first of them is the lane's *holder*. It waits for the head at the server
if the gate has a slot. Otherwise it tries again and again. Once it has the head, it commits the messages that have
gathered for the lane.

After an error of the database that is not retriable, the waiters of the batch are tried one by one. So a bad message
fails alone. Another exception belongs to the thread in which it was raised: a signal handler, a time limit or a fault
of the driver. There it is raised, and other threads go on with the batch.

A waiter waits for another thread until publish_timeout. If a transaction has its message then, the outcome is unknown
to the waiter, and its error says so.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Final

from attrs import define, field

from lanelog._base.backoff import OF_TRANSACTIONS, Backoff
from lanelog._database import Database, codes, register_shared
from lanelog._log.append.draft import Draft
from lanelog.errors import DatabaseError, LanelogError
from lanelog.message import Receipt
from lanelog.publisher.batch import BatchWriter
from lanelog.publisher.lock_report import Locked, lanes
from lanelog.publisher.lock_waiters import LockWaiters
from lanelog.publisher.topic_queue import TopicQueue, Waiter, WaiterRole

_HEAL_EVERY: Final = 1.0
"""Seconds after which a waiter that was not woken checks whether an interrupted thread has left it behind."""


@define(eq=False)
class GroupCommit:
    """Publishes single messages for any number of threads."""

    _database: Database
    _writer: BatchWriter
    _gate: LockWaiters
    _locked: Locked
    _backoff: Backoff = OF_TRANSACTIONS
    """Waits of a holder between two tries."""
    _queues: dict[str, TopicQueue] = field(factory=dict, init=False)
    """The queues by topic. A queue lives as long as it has waiters."""
    _lock: threading.Lock = field(factory=threading.Lock, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        register_shared(self)

    def publish(self, draft: Draft, deadline: float) -> Receipt:
        """Return the receipt when the message is committed, until `deadline` (monotonic).

        Raises DatabaseError when its time is up, or the error of its transaction.
        """
        waiter = Waiter(draft, deadline)
        queue: TopicQueue | None = None
        try:
            with self._lock:
                queue = self._queues.get(draft.topic)
                if queue is None:
                    queue = self._queues[draft.topic] = TopicQueue()
                queue.admit(waiter)
            while not waiter.done:
                role = queue.role(waiter)
                if role is WaiterRole.LEAD:
                    self._lead(queue, waiter)
                elif role is WaiterRole.HOLD:
                    self._hold(queue, waiter)
                    break
                elif not self._wait(queue, waiter):
                    break
        finally:
            # Every thread leaves here: with an outcome, out of time or interrupted. Its roles pass on to others. An
            # interrupt may strike in this block, too. `heal` reassigns the roles of threads that have left.
            waiter.gone = True
            if queue is not None:
                self._change(queue, draft.topic, lambda: queue.withdraw(waiter))
        expired = None if waiter.done else self._expired(waiter)  # now no transaction can take the message any more
        waiter.claimer = None  # break a reference cycle: a leader claims itself, and would keep its payload
        if expired is not None:
            raise expired
        if waiter.error is not None:
            raise self._failure(waiter, waiter.error) from waiter.error
        assert waiter.receipt is not None  # noqa: S101 - for the type checker: it is done
        return waiter.receipt

    def abandon(self) -> None:
        """Forget all queues in a forked child: it has none of the threads."""
        self._lock = threading.Lock()
        self._queues = {}

    def _wait(self, queue: TopicQueue, waiter: Waiter) -> bool:
        """Wait until the waiter is woken, but not for long. False: its time is up."""
        left = _left(waiter.deadline)
        if waiter.signal.wait(min(left, _HEAL_EVERY)):
            waiter.signal.clear()
        elif left <= _HEAL_EVERY:
            return False
        else:
            self._change(queue, waiter.draft.topic, lambda: queue.heal(waiter))
        return True

    def _lead(self, queue: TopicQueue, leader: Waiter) -> None:
        topic = leader.draft.topic
        while not leader.done and queue.role(leader) is WaiterRole.LEAD:
            with self._lock:
                batch = queue.take()
            if not batch:
                break
            self._commit(queue, topic, batch, leader.deadline)
        self._change(queue, topic, lambda: queue.hand_over(leader))

    def _commit(self, queue: TopicQueue, topic: str, batch: Sequence[Waiter], deadline: float) -> None:
        """Commit a batch without waiting for heads. Waiters of busy lanes try other lanes, if they may, or queue."""

        def choose(heads: Mapping[str, int]) -> list[Waiter]:
            return [waiter for waiter in batch if waiter.waiting and waiter.draft.key in heads]

        keys = {waiter.draft.key for waiter in batch}
        try:
            alone = batch[0] if len(batch) == 1 else None
            busy = self._writer.commit(topic, keys, choose, wait=False, persist=False, deadline=deadline, alone=alone)
        except LanelogError as exc:  # each waiter raises its error in its own thread
            if isinstance(exc, DatabaseError) and exc.code == codes.LOCK_WAIT_TIMEOUT:
                # The lock was not that of a head: a caller under SERIALIZABLE, for example, locks gaps of an index.
                # It is unknown which lane of the batch that concerns. So each lane goes on by itself: that one must not
                # delay the others again.
                self._change(queue, topic, lambda: queue.park(batch))
            else:
                self._failed(queue, topic, batch, deadline, exc)
            return
        except BaseException as exc:
            self._interrupted(queue, topic, batch, exc)
            raise
        self._change(
            queue, topic, lambda: queue.reroute([waiter for waiter in batch if waiter.draft.key in busy], busy)
        )

    def _hold(self, queue: TopicQueue, holder: Waiter) -> None:
        """Try to commit the lane's messages until the holder's own has an outcome, or its time is up."""
        topic, key = holder.draft.topic, holder.draft.key
        refused = 0
        while not holder.done and _left(holder.deadline) > 0:
            with self._gate.enter([(topic, key)]) as waits:
                # The server's wait must end in time, too.
                self._commit_lane(queue, holder, wait=waits and _left(holder.deadline) > self._database.lock_wait)
            if not holder.done:
                refused += 1
                holder.signal.clear()  # it may have been set late, to say that this thread is the holder
                holder.signal.wait(min(self._backoff.after(refused), _left(holder.deadline)))

    def _commit_lane(self, queue: TopicQueue, holder: Waiter, *, wait: bool) -> None:
        """Take the head of the holder's lane, and commit the messages that have gathered for the lane by then.

        If the head cannot be taken, nothing is committed.
        """
        topic, key = holder.draft.topic, holder.draft.key
        claimed: list[Waiter] = []

        def claim(_heads: Mapping[str, int]) -> list[Waiter]:
            if not claimed:  # a repetition takes no other messages: the first attempt may have stored its own
                with self._lock:
                    claimed.extend(queue.claim(key))
            return [waiter for waiter in claimed if waiter.waiting]

        try:
            busy = self._writer.commit(topic, {key}, claim, wait=wait, persist=True, deadline=holder.deadline)
        except LanelogError as exc:
            self._failed(queue, topic, claimed or [holder], holder.deadline, exc)
            return
        except BaseException as exc:
            self._interrupted(queue, topic, claimed, exc)
            raise
        if busy:
            # If there was a claim, its attempt failed, and the next attempt found the head locked. That may be the
            # lock of the failed attempt: the server may not have noticed yet that its connection was given up.
            with self._lock:
                queue.unclaim(key, claimed)

    def _interrupted(self, queue: TopicQueue, topic: str, waiters: Sequence[Waiter], exc: BaseException) -> None:
        """Put back the waiters of an interrupted transaction. Other threads go on: the interrupt is for this one.

        It may be an Exception of a signal handler, or one of the driver, which a single message may cause. So after it,
        each waiter is alone in its transaction.
        """
        for waiter in waiters:
            waiter.lonely = waiter.lonely or isinstance(exc, Exception)
        self._change(queue, topic, lambda: queue.put_back(waiters))

    def _failed(
        self, queue: TopicQueue, topic: str, waiters: Sequence[Waiter], deadline: float, exc: LanelogError
    ) -> None:
        """Decide what becomes of waiters after `batch` has given up their transaction.

        After a retriable error, waiters with a later deadline than `deadline` are tried again, but only if a server has
        ever answered. The others fail. After another error each waiter is tried alone.
        """
        alone = sum(not waiter.done for waiter in waiters) == 1
        waiters = [waiter for waiter in waiters if waiter.waiting]
        late = max(deadline, time.monotonic())
        if isinstance(exc, DatabaseError) and exc.retriable:
            patient = [waiter for waiter in waiters if waiter.deadline > late and self._database.reached]
            self._change(queue, topic, lambda: queue.put_back(patient))
            for waiter in waiters:
                if waiter not in patient:
                    _fail(waiter, exc)
        elif alone:
            for waiter in waiters:
                _fail(waiter, exc)
        else:
            rest = deque(waiters)
            try:
                while rest:
                    self._commit(queue, topic, [rest.popleft()], deadline)
            finally:
                self._change(queue, topic, lambda: queue.put_back(rest))  # empty, unless this thread was interrupted

    def _change(self, queue: TopicQueue, topic: str, change: Callable[[], list[Waiter]]) -> None:
        """Make a change of the queue under the lock, and wake the waiters that it returns. Drop an empty queue."""
        with self._lock:
            woken = change()
            if queue.empty and self._queues.get(topic) is queue:
                del self._queues[topic]
        for waiter in woken:
            waiter.signal.set()

    def _failure(self, waiter: Waiter, shared: BaseException) -> BaseException:
        """Return a waiter's own copy of a shared error: threads must not add their tracebacks to one object."""
        error = copy(shared)
        if not isinstance(error, DatabaseError):
            return error
        if waiter.draft.tried is not None:
            error.outcome_unknown = True  # that of an earlier attempt, though the last one's is known
        return self._locked.explained(error, waiter.draft.topic, [waiter.draft.key])

    def _expired(self, waiter: Waiter) -> DatabaseError:
        seconds = self._database.config.publish_timeout
        topic, key = waiter.draft.topic, waiter.draft.key
        by = self._locked.holder(topic, [key])
        locked = f"{lanes(topic, [key])} locked by others{by}"
        if waiter.claimed:
            why = "another thread was about to; publish it again under the same id" + (f"; {locked}" if by else "")
        else:
            why = f"{locked}, or the database did not answer"
        return DatabaseError(
            f"the message was not committed within publish_timeout ({seconds:g} s): {why}",
            retriable=True,
            outcome_unknown=waiter.claimed or waiter.draft.tried is not None,
        )


def _fail(waiter: Waiter, exc: LanelogError) -> None:
    waiter.error = exc
    waiter.signal.set()


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
