"""Threads that leave group commit at the worst moment, and what they are told; and one that waits for a lane."""

import time
from collections.abc import Callable
from types import SimpleNamespace, TracebackType
from typing import Any

import pytest

from lanelog._base.backoff import OF_TRANSACTIONS, Backoff
from lanelog._log.append.draft import Draft, make_draft
from lanelog.errors import DatabaseError
from lanelog.message import Outgoing, Receipt
from lanelog.publisher.group import GroupCommit
from lanelog.publisher.lock_report import Locked
from lanelog.publisher.lock_waiters import LockWaiters
from lanelog.publisher.topic_queue import TopicQueue, Waiter


class Writer:
    """Gives the prepared answers, one for each transaction; then none."""

    def __init__(self, *answers: set[str] | BaseException) -> None:
        self.answers = list(answers)

    def commit(self, *_: object, **__: object) -> set[str]:
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Contended:
    """A lock that somebody else always gets first, and does something under it."""

    def __init__(self, *before: Callable[[], object]) -> None:
        self.before = list(before)

    def __enter__(self) -> None:
        if self.before:
            self.before.pop(0)()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        """Nobody waits for it."""


def grouping(writer: Writer, *, timeout: float = 0.01, backoff: Backoff = OF_TRANSACTIONS) -> GroupCommit:
    """Group commit with a place for nobody who waits at the server."""
    database: Any = SimpleNamespace(
        config=SimpleNamespace(publish_timeout=timeout),
        lock_wait=5,
        reached=True,
        holder=lambda _lock, seconds: seconds and None,
    )
    anything: Any = writer
    return GroupCommit(database, anything, LockWaiters(0), Locked(database), backoff)


def make(key: str = "k") -> Draft:
    return make_draft("t", Outgoing(key, b""), None, 10)


def publish(group: GroupCommit, draft: Draft) -> Receipt:
    """Publish with the client's time-out."""
    return group.publish(draft, time.monotonic() + group._database.config.publish_timeout)


def queued(*keys: str) -> tuple[TopicQueue, list[Waiter]]:
    """A queue, and its waiters, of which the first leads."""
    queue, waiters = TopicQueue(), [Waiter(make(key), time.monotonic() + 60) for key in keys]
    for waiter in waiters:
        queue.admit(waiter)
    return queue, waiters


def led(group: GroupCommit) -> TopicQueue:
    """The queue of the topic, whose leader is busy elsewhere."""
    group._queues["t"], _ = queued("k")
    group._queues["t"].take()
    return group._queues["t"]


def test_a_message_taken_when_its_time_is_up_is_of_unknown_outcome() -> None:
    """The leader takes it between the end of the wait and the leaving: it may be committed, and the error says so."""
    group = grouping(Writer())
    queue = led(group)
    lock: Any = Contended(lambda: None, queue.take)
    group._lock = lock
    with pytest.raises(DatabaseError, match="another thread was about to") as caught:
        publish(group, make())
    assert caught.value.outcome_unknown


def test_a_message_committed_when_its_time_is_up_is_no_error() -> None:
    """The receipt came between the end of the wait and the leaving."""
    group = grouping(Writer())
    queue = led(group)
    receipt = Receipt(7, "i", duplicate=False)
    lock: Any = Contended(lambda: None, lambda: setattr(queue.take()[0], "receipt", receipt))
    group._lock = lock
    assert publish(group, make()) == receipt


def test_a_message_that_nobody_took_is_not_stored() -> None:
    """The time was up in the queue; the leader, whom it does not concern, finds the message gone."""
    group = grouping(Writer())
    queue = led(group)
    with pytest.raises(DatabaseError, match="locked by others") as caught:
        publish(group, make())
    assert not caught.value.outcome_unknown
    assert queue.take() == []


def test_a_holder_that_is_refused_pauses_between_its_attempts() -> None:
    """A holder that was refused while it led also waits for the back-off before it asks the server again."""
    writer = Writer({"k"}, {"k"}, AssertionError("it asked again at once"))
    with pytest.raises(DatabaseError, match="locked by others"):
        publish(grouping(writer, timeout=0.2, backoff=Backoff(least=3600, first=3600, most=3600)), make())
    assert writer.answers


def test_an_interrupt_while_a_batch_goes_on_one_by_one_costs_nobody_his_publish() -> None:
    """Ctrl-C in the thread that repeats a failed batch waiter by waiter: those not reached yet are led by others."""
    group = grouping(Writer(DatabaseError("refused", retriable=False), KeyboardInterrupt()), timeout=20)
    queue, (first, second, third) = queued("a", "b", "c")
    group._queues["t"] = queue
    with pytest.raises(KeyboardInterrupt):
        group._lead(queue, first)
    assert (queue.withdraw(first), list(queue.ready)) == ([second], [second, third])


def test_an_exception_that_is_not_of_the_database_is_raised_where_it_struck_and_nowhere_else() -> None:
    """A time limit in the thread that commits for others, or a fault of the driver: the next batches are of one each.

    So if one of the messages is what the driver fails at, no other one fails with it again.
    """
    group = grouping(Writer(TimeoutError("Celery's"), set()), timeout=20)
    queue, (first, second, third) = queued("a", "b", "c")
    group._queues["t"] = queue
    with pytest.raises(TimeoutError):
        group._lead(queue, first)
    assert (queue.withdraw(first), second.error, third.error) == ([second], None, None)
    assert (queue.take(), queue.take()) == ([second], [third])


def test_who_has_left_may_have_been_the_one_at_fault() -> None:
    """Two were refused together, and one of them has left: the other is tried alone before it gets an error."""
    writer = Writer(set())
    group = grouping(writer)
    queue, (first, gone) = queued("a", "b")
    batch = queue.take()
    queue.withdraw(gone)
    group._failed(queue, "t", batch, first.deadline, DatabaseError("refused", retriable=False))
    assert writer.answers == []
    assert first.error is None


def test_a_leader_that_is_interrupted_while_it_hands_over_has_left_all_the_same() -> None:
    """The interrupt comes when it is about to say that it leads no more: nobody believes that it still does."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    nothing = [lambda: None] * 4  # it is admitted, takes the batch, is told who is busy, and takes no more
    group = grouping(Writer(set()), timeout=20)
    lock: Any = Contended(*nothing, interrupt)
    group._lock = lock
    with pytest.raises(KeyboardInterrupt):
        publish(group, make())
    assert group._queues == {}


@pytest.fixture
def draft() -> Draft:
    """A message that got offset 7 in a batch whose COMMIT was never answered."""
    draft = make()
    draft.repeated, draft.tried = True, 7
    return draft


def test_a_message_put_back_after_an_unknown_commit_stays_unknown(draft: Draft) -> None:
    """The batch's time was up, the message's was not; when that is up as well, its outcome is still unknown."""
    group, now = grouping(Writer()), time.monotonic()
    queue, waiter = TopicQueue(), Waiter(draft, now + 60, claimer=Waiter(make(), now))
    lost = DatabaseError("lost at COMMIT", code=2013, retriable=True, outcome_unknown=True)
    group._failed(queue, "t", [waiter], now, lost)
    assert list(queue.ready) == [waiter]
    assert group._expired(waiter).outcome_unknown
    draft.tried = None
    assert not group._expired(waiter).outcome_unknown


def test_a_sure_failure_after_an_unknown_commit_is_unknown(draft: Draft) -> None:
    """The second batch met no database, which says nothing of the first."""
    unreachable = DatabaseError("no connection", code=2003, retriable=True)
    group = grouping(Writer(unreachable, unreachable), timeout=30.0)
    for tried in (7, None):
        draft.tried = tried
        with pytest.raises(DatabaseError) as caught:
            publish(group, draft)
        assert caught.value.outcome_unknown is (tried is not None)
