"""The transaction in which a handler commits its writes together with the acks of its messages, or neither.

Owns the way from that block to the decisions about its attempts. `Attempts` says which of them are valid. The user's
code may call it in any thread.

The block's rows are locked first. The lease rows are locked last, in one order, and only for the moment of the commit,
so a long transaction costs no lane. Between attempts of one term, the claim in memory decides. Between epochs, the
lease row decides.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attrs import define, field

from lanelog._database import OpenTransaction, own_transaction
from lanelog._engine import caller_ack
from lanelog._engine.lane import policy
from lanelog._stores.consumers import deliveries, offsets
from lanelog._stores.members import leases
from lanelog.errors import DatabaseError, LeaseLost

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lanelog._database import Executor, Transaction
    from lanelog._engine.caller_ack import Delivered
    from lanelog._engine.engine_context import EngineContext
    from lanelog._engine.lane.values import Term

# A handler may take long between its statements. A stopped process must not hold locks for long after its claim.
SET_PATIENCE = "SET SESSION wait_timeout = %s"
SESSION_SECONDS = 15
UNDECIDED_SECONDS = 0.5


@define(eq=False)
class HandlerTransaction:
    """One transaction of a handler for one message, or for all messages of its batch."""

    context: EngineContext
    messages: Sequence[Delivered]
    instead: str
    """What the user may call who wants to commit, for the error that refuses it."""
    _claimed: list[tuple[Delivered, Term]] = field(factory=list, init=False)

    @contextmanager
    def open(self, block: str) -> Iterator[Any]:
        """The block of the handler. `block` names it in errors."""
        self.context.check_process()
        for each in self.messages:
            caller_ack.forget_rolled_back(each.member, each.attempt, self.context)
            each.member.attempts.check(each.attempt)
        database = self.context.database
        patience = int(max(each.member.config.max_handler_time for each in self.messages)) + SESSION_SECONDS
        entry: OpenTransaction | None = None
        try:
            with (
                database.transaction(guarded=True) as transaction,
                own_transaction(database, transaction.raw, block=block, instead=self.instead) as entry,
            ):
                self._stand_on_same_server(transaction)
                transaction.execute(SET_PATIENCE, (patience,))
                yield transaction.raw
                # This ends the patience, too, before the lease rows are locked.
                transaction.reclaim()
                for each in self.messages:
                    self._claimed.append((each, each.member.attempts.claim(each.attempt)))
                self._stand_on_same_server(transaction)
                self._settle(transaction)
        except BaseException as error:
            unknown = isinstance(error, DatabaseError) and error.outcome_unknown
            if self._claimed:
                if unknown and not self._without_commit([each for each, _ in self._claimed]):
                    self._committed(entry)
                    return
                for each, _ in self._claimed:
                    self._not_committed(each, error)
            raise
        reloaded = [each for each, term in self._claimed if not each.member.attempts.claimed(each.attempt, term)]
        if without := self._without_commit(reloaded):
            # Memory was loaded again during the COMMIT, from a server that lacks it. The block's writes are gone, too.
            lost = DatabaseError(
                f"the database server was changed, and lacks the transaction of {without[0].name}",
                code=None,
                retriable=True,
            )
            for each in without:
                self._not_committed(each, lost)
            raise lost
        self._committed(entry)

    def _settle(self, cx: Executor) -> None:
        caller_ack.settle_all(cx, self.messages, self.context)

    def _stand_on_same_server(self, transaction: Transaction) -> None:
        """Refuse a connection to another server than the one that memory was loaded from.

        This is checked at the beginning, and again when the messages are claimed. If a lane is loaded again after that,
        `claimed` sees another term.
        """
        if not self.context.server_identity.wait(transaction.line, self.context.database.config.publish_timeout):
            transaction.discard()
            raise DatabaseError(
                f"the database server was changed while {self.messages[0].name} was handled: nothing was committed",
                code=None,
                retriable=True,
            )

    def _committed(self, entry: OpenTransaction | None) -> None:
        if entry is None:
            return
        for topic in entry.topics:
            self.context.appender.committed(topic)
        if entry.scheduled:
            self.context.due_in(0.0)

    def _without_commit(self, messages: Sequence[Delivered]) -> list[Delivered]:
        """Return those that the server that memory stands on has not settled. Memory settles the others.

        An error for one of them is raised after all were asked: what is not asked would stay claimed for ever.
        """
        without: list[Delivered] = []
        failure: BaseException | None = None
        for each in messages:
            try:
                if not self._decided_by_reading(each):
                    without.append(each)
            except BaseException as error:  # noqa: BLE001 - raised below
                failure = failure or error
        if failure is not None:
            for each in without:
                self._not_committed(each, failure)
            raise failure
        return without

    def _decided_by_reading(self, each: Delivered) -> bool:
        """Whether the server that memory stands on has the settlement. If it has, memory settles the message, too."""
        try:
            while True:
                term = each.attempt.term
                if not self._was_committed(each):
                    return False
                if each.member.attempts.claimed(each.attempt, term):
                    return True
        except BaseException:
            # The outcome is unknown, and must not be guessed. The next load of the lane reads it from the rows.
            each.member.disown_lane(each.attempt.term, "whether a transaction was committed is unknown")
            raise

    @staticmethod
    def _not_committed(each: Delivered, error: BaseException) -> None:
        member, attempt = each.member, each.attempt
        if member.attempts.unclaim(attempt):
            return  # this error leaves the handler's block, so the handler learns of it
        outcome = policy.judge(member.config, attempt, error, time.monotonic())
        if outcome is not None:
            policy.report(member.about(attempt), error, outcome)
            member.attempts.resolve_left(attempt, outcome)

    def _was_committed(self, each: Delivered) -> bool:
        """Whether a COMMIT without an answer has happened. A locking read waits for the server's own decision.

        The read is repeated until it is answered, because after a wrong guess the effect would happen twice or not at
        all. The attempt stays claimed meanwhile, so it cannot time out. Raises LeaseLost when the message is settled
        and the lane has another owner or epoch by now: our COMMIT may have settled it, or the next owner's.
        """
        at, term, offset = each.member.at, each.attempt.term, each.attempt.offset
        lane = at.lane(term.key)
        while True:
            try:
                with self.context.database.transaction() as transaction:
                    self._stand_on_same_server(transaction)
                    held = self.context.fenced(leases.fence(transaction, at, each.member.owner, [term.key]))
                    if not (
                        deliveries.is_settled(transaction, lane, offset)
                        or offsets.acked_locked(transaction, lane) >= offset
                    ):
                        return False
                    if held.get(term.key) == term.epoch:
                        return True
                    raise LeaseLost(
                        f"the message {each.name} is settled, and its lane has another owner by now: it is "
                        "unknown whether this transaction, whose COMMIT was not answered, or the next owner did that"
                    )
            except DatabaseError as error:
                if not error.retriable or self.context.closing.wait(UNDECIDED_SECONDS):
                    raise
