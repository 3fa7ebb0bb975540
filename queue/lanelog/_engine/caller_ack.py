"""The ack of one message, or of a batch, in a transaction of its handler, and whether that was committed.

Owns the statements of `message.ack(connection=)`, and the questions after it. Never commits the caller's transaction,
and never decides which attempt is valid: `Attempts` does.

Lock order: what the caller has locked (heads, if it has published) → lease S → delivery → history. So the ack is the
last statement of its transaction. Until that ends, the lease cannot change hands, and the attempt stays claimed: no
time-out and no other delivery. Other lanes go on.

The caller may commit at once, late or never, in any thread, and its process may die at any point. The server alone
knows. So once the handler has returned, the row is asked for until it can be read: settled there, the transaction was
committed; neither settled nor locked, it has ended without. While the row is locked, it is open. `wait_timeout` is the
lease meanwhile: a process that sleeps with its transaction open holds the lane no longer than a dead one would.
"""

from __future__ import annotations

import time
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING

from attrs import frozen

from lanelog._database import SERVER_MARK, ForeignExecutor, codes, driver_connection, find_open
from lanelog._engine.lane import policy
from lanelog._engine.lane.run import State
from lanelog._stores.consumers import deliveries, history, offsets
from lanelog._stores.consumers.history import Ended
from lanelog._stores.log import fetches
from lanelog._stores.members import leases
from lanelog.errors import AlreadySettled, ConfigurationError, DatabaseError, LanelogError, LeaseLost

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from lanelog._database import Executor
    from lanelog._engine.engine_context import EngineContext
    from lanelog._engine.lane.run import Attempt, CallerAck
    from lanelog._engine.member.member import Member

# How long the session may be idle, and the mark of its server (no table).
_SESSION = f"SELECT @@SESSION.wait_timeout, {SERVER_MARK}"
_SET_PATIENCE = "SET SESSION wait_timeout = %s"
# In an open transaction both families refuse it, a usual one with XAER_OUTSIDE.
_XA_START = "XA START 'lanelog'"


QUESTIONS = 3
QUESTION_SECONDS = 0.05
"""The settler's question locks the row for a moment, too."""


class Fate(Enum):
    """What became of the transaction of an ack."""

    COMMITTED = "committed"
    OPEN = "open"  # or nobody can say at this moment
    GONE = "gone"


@frozen(eq=False)
class Delivered:
    """One attempt in a handler's hands, and the member whose it is."""

    member: Member
    attempt: Attempt

    @property
    def name(self) -> str:
        """The message's name for errors."""
        return name(self.member, self.attempt)

    @property
    def texts(self) -> tuple[str, ...]:
        """What a settlement sends of it."""
        row, at = self.attempt.row, self.member.at
        return at.topic, at.group, row.key, row.id, self.attempt.last_error or ""


def name(member: Member, attempt: Attempt) -> str:
    """Return a message's name for errors."""
    return f"{member.topic}/{attempt.term.key}/{attempt.offset}"


def settle(cx: Executor, member: Member, attempt: Attempt, context: EngineContext) -> None:
    """Settle a message that the caller has claimed, in an open transaction. Raises LeaseLost if the lane is lost."""
    at, term = member.at, attempt.term
    held = context.fenced(leases.fence(cx, at, member.owner, [term.key]))
    if held.get(term.key) != term.epoch:
        raise LeaseLost(f"the lane {at.group}/{at.topic}/{term.key} has another owner by now: nothing was committed")
    # The row's id proves that a server that crashed meanwhile did not give the offset to another message.
    if not deliveries.settle_same(cx, at.lane(term.key), attempt.offset, attempt.row.id):
        raise LeaseLost(f"the message {name(member, attempt)} is settled, or not in the log any more: not committed")
    if member.rules.history:
        now = time.monotonic()
        history.upsert(cx, at, member.owner, [attempt.left_as(Ended.SUCCESS, attempt.last_error, now)], now)


def settle_all(cx: Executor, messages: Sequence[Delivered], context: EngineContext) -> None:
    """Settle the messages of a batch that the caller has claimed, in an open transaction. Raises LeaseLost.

    Leases are locked in the order of topics and keys, as by every other transaction that locks some of them.
    """
    if len(messages) == 1:
        settle(cx, messages[0].member, messages[0].attempt, context)
        return
    members = {each.member.topic: each.member for each in messages}
    for topic in sorted(members):
        _settle_of(cx, members[topic], [each.attempt for each in messages if each.member is members[topic]], context)


def _settle_of(cx: Executor, member: Member, attempts: Sequence[Attempt], context: EngineContext) -> None:
    at, epochs = member.at, {attempt.term.key: attempt.term.epoch for attempt in attempts}
    held = context.fenced(leases.fence(cx, at, member.owner, list(epochs)))
    for key, epoch in epochs.items():
        if held.get(key) != epoch:
            raise LeaseLost(f"the lane {at.group}/{at.topic}/{key} has another owner by now: nothing was committed")
    points = [(attempt.term.key, attempt.offset) for attempt in attempts]
    found = fetches.ids(cx, at.topic, points)  # as in `settle`
    for attempt in attempts:
        if found.get((attempt.term.key, attempt.offset)) != attempt.row.id:
            raise LeaseLost(f"the message {name(member, attempt)} is not in the log any more: not committed")
    if not deliveries.settle_unsettled(cx, at, points):
        raise LeaseLost(f"a message of the batch of {name(member, attempts[0])} is settled: not committed")
    if member.rules.history:
        now = time.monotonic()
        writes = [attempt.left_as(Ended.SUCCESS, attempt.last_error, now) for attempt in attempts]
        history.upsert(cx, at, member.owner, writes, now)


def write(messages: Sequence[Delivered], context: EngineContext, connection: object) -> int:
    """Ack one message, or a batch, in the caller's open transaction. Return the `wait_timeout` that its session had.

    The session's `wait_timeout` stays lowered. After an error nothing of the ack is left in the transaction but shared
    locks on leases, and the attempts are as before. A process that dies in between rolls everything back.
    """
    raw = driver_connection(connection)
    if find_open(raw) is not None:
        raise ConfigurationError(
            "this connection is one of lanelog's own: a block of message.transaction() acks by itself, and in one of "
            "client.transaction() nothing can be acked; pass a connection of your own"
        )
    cx = ForeignExecutor(raw, context.database.config.database, ours=False)
    cx.check_not_acked()
    cx.begin()
    cx.check_texts([text for each in messages for text in each.texts])
    session = cx.session or 0
    seconds = max(1, int(min(each.member.config.lease_duration for each in messages)))
    patience = _on_same_server(cx, context)
    claimed: list[Delivered] = []
    try:
        for each in messages:
            each.member.attempts.claim(each.attempt)
            claimed.append(each)
        if patience > seconds:
            _lower_patience(cx, patience, seconds)
        settle_all(cx, messages, context)
        _refuse_distributed(cx)
        for each in messages:
            each.member.caller_acks.note(each.attempt, session)
        cx.finish_ack()
    except BaseException as exc:
        error = _undone(cx, exc)
        if patience > seconds:
            with suppress(LanelogError):  # it may have been lost with its connection
                cx.execute(_SET_PATIENCE, (patience,))
        for each in claimed:
            _not_acked(each.member, each.attempt, error)
        if error is exc:
            raise
        raise error from exc
    return patience


def _undone(cx: ForeignExecutor, exc: BaseException) -> BaseException:
    """Undo the statements of an ack. Return the error to raise."""
    if isinstance(exc, DatabaseError):
        return cx.undo(exc)
    if isinstance(exc, LanelogError):
        cx.undo_quietly()
    else:
        cx.undo_interrupted()
    return exc


def _not_acked(member: Member, attempt: Attempt, error: BaseException, *, ack: CallerAck | None = None) -> None:
    """Give the attempt back. If its handler has returned meanwhile, in another thread, it has failed."""
    if member.attempts.unclaim(attempt, ack=ack):
        return
    outcome = policy.judge(member.config, attempt, error, time.monotonic())
    if outcome is not None:
        policy.report(member.about(attempt), error, outcome)
        member.attempts.resolve_left(attempt, outcome)


def _on_same_server(cx: ForeignExecutor, context: EngineContext) -> int:
    """Return the session's `wait_timeout`. Raises unless the session is on the server that memory stands on."""
    row = cx.one(_SESSION)
    mark = context.server_identity.mark
    if row is None or not mark:
        raise DatabaseError("the database server is not known at this moment: repeat the transaction", retriable=True)
    if int(row[1]) != mark:
        raise ConfigurationError(
            "the connection is to another server than the subscription: the ack must be where the messages are"
        )
    return int(row[0])


def _lower_patience(cx: ForeignExecutor, before: int, seconds: int) -> None:
    """Lower `wait_timeout` to the lease. Raises ConfigurationError where that is ignored."""
    cx.execute(_SET_PATIENCE, (seconds,))
    row = cx.one(_SESSION)
    if row is None or int(row[0]) > seconds:
        raise ConfigurationError(
            f"wait_timeout of the connection stays {before} s, although it was set to {seconds}: a process that "
            "stops with its transaction open would hold the lane for that long, so nothing was acked"
        )


def _refuse_distributed(cx: ForeignExecutor) -> None:
    """Raise ConfigurationError in a distributed transaction: prepared, it would outlive its connection."""
    try:
        cx.execute(_XA_START)
    except DatabaseError as exc:
        if exc.code == codes.XA_OUTSIDE:
            return
        if exc.code != codes.XA_RUNNING:
            raise
    raise ConfigurationError("the connection is in a distributed transaction (XA), in which nothing can be acked")


def forget_rolled_back(member: Member, attempt: Attempt, context: EngineContext) -> None:
    """Let a handler settle once more after it has rolled its ack back. Raises AlreadySettled if that is still open."""
    if attempt.state is not State.CLAIMED or attempt.ack is None:
        return
    for _ in range(QUESTIONS):
        fate = follow(context.database.transaction(), member, attempt, context)
        if fate is not Fate.OPEN or attempt.state is not State.CLAIMED:
            return
        if context.closing.wait(QUESTION_SECONDS):
            break
    raise AlreadySettled(f"{name(member, attempt)} is acked in a transaction that is still open: roll that back first")


def follow(
    transaction: AbstractContextManager[Executor], member: Member, attempt: Attempt, context: EngineContext
) -> Fate:
    """Ask what became of the transaction of an ack, and let memory follow. Raises DatabaseError.

    If the lane was loaded again between question and answer, or another thread has decided or acked once more, the
    transaction counts as open: the next question decides.
    """
    term, ack = attempt.term, attempt.ack
    if ack is None:
        return Fate.OPEN
    fate = _ask(transaction, member, attempt, context)
    if fate is Fate.OPEN or attempt.term != term:
        return Fate.OPEN
    if fate is Fate.COMMITTED:
        return fate if member.attempts.claimed(attempt, term, ack=ack) else Fate.OPEN
    if attempt.ack is not ack:
        return Fate.OPEN
    _not_acked(member, attempt, ack.raised or without_commit(member, attempt), ack=ack)
    return fate


def follow_batch(
    transaction: Callable[[], AbstractContextManager[Executor]], messages: Sequence[Delivered], context: EngineContext
) -> None:
    """Ask what became of the transaction in which a batch was acked: of the first message, and the others follow it.

    All of them stand in one transaction. Of those whose lane was loaded again meanwhile, each is asked about by itself.
    """
    if not messages:
        return
    # Before the question: after a reload the answer may be of another server, and the settler asks once more.
    asked = [(each, each.attempt.ack, each.attempt.term) for each in messages[1:]]
    fate = follow(transaction(), messages[0].member, messages[0].attempt, context)
    for each, ack, term in asked:
        if each.attempt.term != term:
            continue
        if fate is Fate.GONE:
            error = without_commit(each.member, each.attempt) if ack is None or ack.raised is None else ack.raised
            _not_acked(each.member, each.attempt, error, ack=ack)
        elif fate is Fate.COMMITTED:
            each.member.attempts.claimed(each.attempt, term, ack=ack)


def without_commit(member: Member, attempt: Attempt) -> DatabaseError:
    """Return the error of an attempt whose handler has raised none, and whose ack was not committed."""
    return DatabaseError(
        f"the transaction in which {name(member, attempt)} was acked has ended without a commit", retriable=True
    )


def _ask(
    transaction: AbstractContextManager[Executor], member: Member, attempt: Attempt, context: EngineContext
) -> Fate:
    """Return what the server says, in a transaction of its own that never waits for the caller's."""
    at, key = member.at, attempt.term.key
    try:
        with transaction as cx:
            # Only the server that memory stands on is asked, while the lane is ours. Another one may lack the commit.
            if context.fenced(leases.fence(cx, at, member.owner, [key])).get(key) != attempt.term.epoch:
                return Fate.OPEN
            settled = deliveries.is_settled_now(cx, at.lane(key), attempt.offset)
            # Without its row, an operator may have moved the group beyond it.
            settled = settled or offsets.acked_locked(cx, at.lane(key)) >= attempt.offset
            return Fate.COMMITTED if settled else Fate.GONE
    except DatabaseError as error:
        if error.code not in codes.LOCKED:
            raise
        return Fate.OPEN
