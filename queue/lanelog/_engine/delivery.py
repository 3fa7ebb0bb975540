"""A message in a handler's hands: its settlement, its extension, and the transaction that commits both at once.

Owns the way from a `Message` to its attempt. Never decides which attempt is valid: `Attempts` does. The user's code may
call it in any thread.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import ref

from attrs import define

from lanelog._database import OpenTransaction, own_transaction
from lanelog._engine import caller_ack
from lanelog._engine.lane import policy
from lanelog._engine.lane.values import ACKED, Outcome, Verb
from lanelog._stores.consumers import deliveries, offsets
from lanelog._stores.members import leases
from lanelog.errors import DatabaseError, LeaseLost
from lanelog.message import DeadLetter, Message, utc_from_ms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lanelog._base.payloads.codec import Codec
    from lanelog._database import Executor, Transaction
    from lanelog._engine.engine_context import EngineContext
    from lanelog._engine.lane.run import Attempt
    from lanelog._engine.lane.values import Term
    from lanelog._engine.member.member import Member

# A handler may take long between its statements. A stopped process must not hold locks for long after its claim.
SET_PATIENCE = "SET SESSION wait_timeout = %s"
SESSION_SECONDS = 15
UNDECIDED_SECONDS = 0.5


@define(eq=False)
class Delivery:
    """The `DeliveryHandle` of one attempt."""

    attempt: Attempt
    member: Member
    context: EngineContext

    @property
    def codec(self) -> Codec | None:
        """The client's codec."""
        return self.context.database.config.codec

    def ack(self) -> None:
        """Settle as done. Returns when that is committed."""
        self._decidable()
        self.member.attempts.settle(self.attempt, ACKED).wait()

    def ack_in(self, connection: object) -> int:
        """Settle as done in the caller's transaction. Return the `wait_timeout` that its session had before."""
        self._decidable()
        return caller_ack.write(self.member, self.attempt, self.context, connection)

    def promise_ack(self) -> None:
        """A commit of the handler's will ack. If none does, its return counts as a failure."""
        self._decidable()
        self.member.caller_acks.promise(self.attempt)

    def nack(self, delay: float | None, reason: str | None) -> None:
        """Settle as failed. The retry policy decides, and `delay` replaces its wait."""
        self._decidable()
        outcome = policy.failed(
            self.member.config, self.attempt, None, reason or "nacked by the handler", time.monotonic(), delay=delay
        )
        self.member.attempts.settle(self.attempt, outcome).wait()

    def reject(self, reason: str) -> None:
        """Settle as impossible: the message goes to the dead letters."""
        self._decidable()
        self.member.attempts.settle(self.attempt, policy.rejected(self.attempt, reason)).wait()

    def postpone(self, delay: float) -> None:
        """Settle as not yet due."""
        self._decidable()
        self.member.attempts.settle(self.attempt, Outcome(Verb.POSTPONE, delay)).wait()

    def extend(self, seconds: float) -> None:
        """Move the delivery's deadline. It is in memory only, so nothing is written."""
        self.context.check_process()
        self.member.attempts.check(self.attempt, settling=False)
        self.attempt.deadline = time.monotonic() + seconds

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Commit the writes of the block together with the ack, or neither.

        The block's rows are locked first. The lease row is locked last, and only for the moment of the commit, so a
        long transaction costs no lane. Between attempts of one term, the claim in memory decides. Between epochs, the
        lease row decides.
        """
        member, attempt = self.member, self.attempt
        self._decidable()
        member.attempts.check(attempt)
        database = self.context.database
        claimed_in: Term | None = None
        entry: OpenTransaction | None = None
        try:
            with (
                database.transaction(guarded=True) as transaction,
                own_transaction(
                    database, transaction.raw, block="message.transaction()", instead="message.ack(connection=)"
                ) as entry,
            ):
                self._stand_on_same_server(transaction)
                transaction.execute(SET_PATIENCE, (int(member.config.max_handler_time) + SESSION_SECONDS,))
                yield transaction.raw
                # This ends the patience, too, before the lease row is locked.
                transaction.reclaim()
                claimed_in = member.attempts.claim(attempt)
                self._stand_on_same_server(transaction)
                self._settle(transaction)
        except BaseException as error:
            if claimed_in is not None:
                unknown = isinstance(error, DatabaseError) and error.outcome_unknown
                if unknown and self._decided_by_reading():
                    self._committed(entry)
                    return
                self._not_committed(error)
            raise
        if not member.attempts.claimed(attempt, claimed_in) and not self._decided_by_reading():
            # Memory was loaded again during the COMMIT, from a server that lacks it. The block's writes are gone, too.
            lost = DatabaseError(
                f"the database server was changed, and lacks the transaction of {self._name()}",
                code=None,
                retriable=True,
            )
            self._not_committed(lost)
            raise lost
        self._committed(entry)

    def _decidable(self) -> None:
        """Refuse a forked child, and what follows an ack in a transaction that is still open."""
        self.context.check_process()
        caller_ack.forget_rolled_back(self.member, self.attempt, self.context)

    def _name(self) -> str:
        return caller_ack.name(self.member, self.attempt)

    def _stand_on_same_server(self, transaction: Transaction) -> None:
        """Refuse a connection to another server than the one that memory was loaded from.

        This is checked at the beginning, and again when the message is claimed. If the lane is loaded again after that,
        `claimed` sees another term.
        """
        if not self.context.server_identity.wait(transaction.line, self.context.database.config.publish_timeout):
            transaction.discard()
            raise DatabaseError(
                f"the database server was changed while {self._name()} was handled: nothing was committed",
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

    def _decided_by_reading(self) -> bool:
        """Whether the server that memory stands on has the settlement. If it has, memory settles the message, too."""
        try:
            while True:
                term = self.attempt.term
                if not self._was_committed():
                    return False
                if self.member.attempts.claimed(self.attempt, term):
                    return True
        except BaseException:
            # The outcome is unknown, and must not be guessed. The next load of the lane reads it from the rows.
            self.member.disown_lane(self.attempt.term, "whether a transaction was committed is unknown")
            raise

    def _not_committed(self, error: BaseException) -> None:
        member, attempt = self.member, self.attempt
        if member.attempts.unclaim(attempt):
            return  # this error leaves the handler's block, so the handler learns of it
        outcome = policy.judge(member.config, attempt, error, time.monotonic())
        if outcome is not None:
            policy.report(member.about(attempt), error, outcome)
            member.attempts.resolve_left(attempt, outcome)

    def _settle(self, cx: Executor) -> None:
        caller_ack.settle(cx, self.member, self.attempt, self.context)

    def _was_committed(self) -> bool:
        """Whether a COMMIT without an answer has happened. A locking read waits for the server's own decision.

        The read is repeated until it is answered, because after a wrong guess the effect would happen twice or not at
        all. The attempt stays claimed meanwhile, so it cannot time out. Raises LeaseLost when the message is settled
        and the lane has another owner or epoch by now: our COMMIT may have settled it, or the next owner's.
        """
        at, term, offset = self.member.at, self.attempt.term, self.attempt.offset
        lane = at.lane(term.key)
        while True:
            try:
                with self.context.database.transaction() as transaction:
                    self._stand_on_same_server(transaction)
                    held = self.context.fenced(leases.fence(transaction, at, self.member.owner, [term.key]))
                    if not (
                        deliveries.is_settled(transaction, lane, offset)
                        or offsets.acked_locked(transaction, lane) >= offset
                    ):
                        return False
                    if held.get(term.key) == term.epoch:
                        return True
                    raise LeaseLost(
                        f"the message {self._name()} is settled, and its lane has another owner by now: it is "
                        "unknown whether this transaction, whose COMMIT was not answered, or the next owner did that"
                    )
            except DatabaseError as error:
                if not error.retriable or self.context.closing.wait(UNDECIDED_SECONDS):
                    raise


def message_of(attempt: Attempt, member: Member, context: EngineContext) -> Message:
    """The message that the handler gets for an attempt."""
    row = attempt.row
    special = row.special
    dead_letter = None
    if special is not None and special.original_topic:
        dead_letter = DeadLetter(
            original_topic=special.original_topic,
            original_offset=special.original_offset,
            group=special.failed_group,
            failed_at=utc_from_ms(special.failed_at),
            failure_count=special.failure_count,
            last_error=special.last_error or "",
        )
    delivery = Delivery(attempt, member, context)
    attempt.handle = ref(delivery)
    at = member.at
    # In the order of the fields: arguments by name take twice as long, and this is done for every message.
    return Message(
        at.topic,
        row.key,
        row.offset,
        row.id,
        row.payload or b"",
        row.metadata,
        row.published_at,
        attempt.number,
        at.group,
        attempt.term.epoch,
        dead_letter,
        delivery,
    )
