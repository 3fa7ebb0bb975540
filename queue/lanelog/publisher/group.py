"""Group commit: threads that publish at the same time share a transaction, committed by whoever came first.

It never lingers for company, and never lets a lane that somebody else has locked delay another lane.
`Publisher.publish` calls it; `line` decides who does what, `batch` writes.

A thread that finds nobody leading commits what is ready, its own message among it, and hands over. It takes heads with
SKIP LOCKED. The members of a busy lane queue in memory; the first of them *holds* it: it waits for the head at the
server if the gate has a place, otherwise it tries again and again, and then commits what has gathered. A batch that
fails for a reason that will not pass is repeated member by member, so that a bad message fails alone. Members wait no
longer than publish_timeout: if theirs was being tried by then, the outcome is unknown to them, and the error says so.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import copy

from attrs import define, field

from lanelog._backoff import OF_TRANSACTIONS, Backoff
from lanelog._database import Database, codes
from lanelog._database.fork import register_shared
from lanelog.errors import DatabaseError
from lanelog.message import Receipt
from lanelog.publisher.batch import BatchWriter
from lanelog.publisher.draft import Draft
from lanelog.publisher.line import Duty, Line, Waiter
from lanelog.publisher.lock_waiters import LockWaiters
from lanelog.publisher.locked import Locked, lanes


@define(eq=False)
class GroupCommit:
    """Publishes single messages for any number of threads."""

    _database: Database
    _writer: BatchWriter
    _gate: LockWaiters
    _locked: Locked
    _backoff: Backoff = OF_TRANSACTIONS
    """Of a member that waits for its lane, but not at the server."""
    _lines: dict[str, Line] = field(factory=dict, init=False)
    """By topic; a line lives as long as it has members."""
    _lock: threading.Lock = field(factory=threading.Lock, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        register_shared(self)

    def publish(self, draft: Draft) -> Receipt:
        """Return when the message is committed. Raises DatabaseError, or what else became of its transaction."""
        member = Waiter(draft, time.monotonic() + self._database.config.publish_timeout)
        line: Line | None = None
        try:
            with self._lock:
                line = self._lines.get(draft.topic)
                if line is None:
                    line = self._lines[draft.topic] = Line()
                line.admit(member)
            while not member.done:
                role = line.role(member)
                if role is Duty.LEAD:
                    self._lead(line, member)
                elif role is Duty.HOLD:
                    self._hold(line, member)
                    break
                elif member.signal.wait(_left(member.deadline)):
                    member.signal.clear()
                else:
                    break
        finally:
            # With an outcome, out of time or interrupted: every thread leaves here, and what it was to do passes on.
            if line is not None:
                self._change(line, draft.topic, lambda: line.withdraw(member))
        if not member.done:
            raise self._expired(member)  # only now: no transaction can have taken it after it was asked
        if member.error is not None:
            raise self._failure(member, member.error) from member.error
        assert member.receipt is not None  # noqa: S101 - for the type checker: it is done
        return member.receipt

    def abandon(self) -> None:
        """In a forked child no other thread publishes."""
        self._lock = threading.Lock()
        self._lines = {}

    def _lead(self, line: Line, leader: Waiter) -> None:
        topic = leader.draft.topic
        while not leader.done and line.role(leader) is Duty.LEAD:
            with self._lock:
                batch = line.take()
            if not batch:
                break
            self._commit(line, topic, batch, leader.deadline)
        self._change(line, topic, lambda: line.hand_over(leader))

    def _commit(self, line: Line, topic: str, batch: Sequence[Waiter], deadline: float) -> None:
        """Commit a batch without waiting for heads; the members of busy lanes are parked."""

        def choose(heads: Mapping[str, int]) -> list[Waiter]:
            return [member for member in batch if member.waiting and member.draft.key in heads]

        keys = {member.draft.key for member in batch}
        try:
            alone = batch[0] if len(batch) == 1 else None
            busy = self._writer.commit(topic, keys, choose, wait=False, persist=False, deadline=deadline, alone=alone)
        except Exception as exc:  # noqa: BLE001 - every member raises it, or its own, in its own thread
            if isinstance(exc, DatabaseError) and exc.code == codes.LOCK_WAIT_TIMEOUT:
                # Not a head was locked, but say a gap in an index, by a caller that is SERIALIZABLE. Whichever lane of
                # the batch that concerns, it must not hold up the others again: each goes on by itself.
                self._change(line, topic, lambda: line.park(batch))
            else:
                self._failed(line, topic, batch, deadline, exc)
            return
        except BaseException:
            self._interrupted(line, topic, batch)
            raise
        self._change(line, topic, lambda: line.part([member for member in batch if member.draft.key in busy], busy))

    def _hold(self, line: Line, holder: Waiter) -> None:
        """Try until the message has an outcome, or its time is up."""
        topic, key = holder.draft.topic, holder.draft.key
        refused = 0
        while not holder.done and _left(holder.deadline) > 0:
            with self._gate.enter([(topic, key)]) as waits:
                self._commit_lane(line, holder, wait=waits)
            if not holder.done:
                refused += 1
                holder.signal.clear()  # set when it became the holder, perhaps only after it knew; nobody else sets it
                holder.signal.wait(min(self._backoff.after(refused), _left(holder.deadline)))

    def _commit_lane(self, line: Line, holder: Waiter, *, wait: bool) -> None:
        """Commit what has gathered for one lane by the time its head is taken, if it can be taken."""
        topic, key = holder.draft.topic, holder.draft.key
        claimed: list[Waiter] = []

        def claim(_heads: Mapping[str, int]) -> list[Waiter]:
            if not claimed:  # a repetition writes what the first attempt may have written
                with self._lock:
                    claimed.extend(line.claim(key))
            return [member for member in claimed if member.waiting]

        try:
            busy = self._writer.commit(topic, {key}, claim, wait=wait, persist=True, deadline=holder.deadline)
        except Exception as exc:  # noqa: BLE001 - as above
            self._failed(line, topic, claimed or [holder], holder.deadline, exc)
            return
        except BaseException:
            self._interrupted(line, topic, claimed)
            raise
        if busy:
            # An attempt failed after it had claimed, and somebody was faster than the next: perhaps the server, which
            # has not seen yet that the connection of the first is given up, and holds the head for it.
            with self._lock:
                line.unclaim(key, claimed)

    def _interrupted(self, line: Line, topic: str, members: Sequence[Waiter]) -> None:
        """Let others go on with what the thread that ran it did not finish: the interrupt is its own."""
        self._change(line, topic, lambda: line.put_back(members))

    def _failed(self, line: Line, topic: str, members: Sequence[Waiter], deadline: float, exc: Exception) -> None:
        """Decide what becomes of members whose transaction failed for good, or until the deadline of who ran it."""
        alone = sum(not member.done for member in members) == 1
        members = [member for member in members if member.waiting]
        late = max(deadline, time.monotonic())
        if isinstance(exc, DatabaseError) and exc.retriable:
            patient = [member for member in members if member.deadline > late and self._database.reached]
            self._change(line, topic, lambda: line.put_back(patient))
            for member in members:
                if member not in patient:
                    _fail(member, exc)
        elif alone:
            for member in members:
                _fail(member, exc)
        else:
            rest = deque(members)
            try:
                while rest:
                    self._commit(line, topic, [rest.popleft()], deadline)
            finally:
                self._change(line, topic, lambda: line.put_back(rest))  # nobody, unless this thread was interrupted

    def _change(self, line: Line, topic: str, change: Callable[[], list[Waiter]]) -> None:
        """Change the plan, wake whom that concerns, and drop a line that nobody needs."""
        with self._lock:
            woken = change()
            if line.empty and self._lines.get(topic) is line:
                del self._lines[topic]
        for member in woken:
            member.signal.set()

    def _failure(self, member: Waiter, shared: BaseException) -> BaseException:
        """Every member raises its own copy: threads must not add their tracebacks to one object."""
        error = copy(shared)
        if not isinstance(error, DatabaseError):
            return error
        if member.draft.tried is not None:
            error.outcome_unknown = True  # of an earlier batch, though not of the one that failed for good
        return self._locked.explained(error, member.draft.topic, [member.draft.key])

    def _expired(self, member: Waiter) -> DatabaseError:
        seconds = self._database.config.publish_timeout
        if member.claimed:
            why = "another thread was about to; publish it again under the same id"
        else:
            topic, key = member.draft.topic, member.draft.key
            why = f"{lanes(topic, [key])} locked by others{self._locked.holder(topic, [key])}"
            why += ", or the database did not answer"
        return DatabaseError(
            f"the message was not committed within publish_timeout ({seconds:g} s): {why}",
            retriable=True,
            outcome_unknown=member.claimed or member.draft.tried is not None,
        )


def _fail(member: Waiter, exc: Exception) -> None:
    member.error = exc
    member.signal.set()


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
