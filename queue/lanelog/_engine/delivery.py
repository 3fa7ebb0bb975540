"""A message in a handler's hands: its settlement and its extension.

Owns the way from a `Message` to its attempt. Never decides which attempt is valid: `Attempts` does. The user's code may
call it in any thread.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from attrs import define

from lanelog._engine import caller_ack
from lanelog._engine.caller_ack import Delivered
from lanelog._engine.handler_transaction import HandlerTransaction
from lanelog._engine.lane import policy
from lanelog._engine.lane.values import ACKED, Outcome, Verb
from lanelog.errors import ConfigurationError
from lanelog.message import DeadLetter, Message, utc_from_ms

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from lanelog._base.payloads.codec import Codec
    from lanelog._engine.engine_context import EngineContext
    from lanelog._engine.lane.run import Attempt
    from lanelog._engine.member.member import Member


# In strict order a call would come too late: later messages of the lane are in the handler's hands already.
_BY_ITS_HANDLER: Final = "given up by a call: return a list with Retry, Postpone or Reject"


@define(eq=False)
class Delivery:
    """The `DeliveryHandle` of one attempt."""

    attempt: Attempt
    member: Member
    context: EngineContext
    batched: bool = False
    """Whether it is one of several messages of a call."""

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
        self._refuse_batched("acked alone in a transaction of your own: use messages.ack(connection=)")
        self._decidable()
        return caller_ack.write([Delivered(self.member, self.attempt)], self.context, connection)

    def promise_ack(self) -> None:
        """A commit of the handler's will ack. If none does, its return counts as a failure."""
        self._refuse_batched("acked alone in a transaction of your own: use messages.ack(connection=)")
        self._decidable()
        self.member.caller_acks.promise(self.attempt)

    def nack(self, delay: float | None, reason: str | None) -> None:
        """Settle as failed. The retry policy decides, and `delay` replaces its wait."""
        self._refuse_batched(_BY_ITS_HANDLER)
        self._decidable()
        outcome = policy.failed(
            self.member.config, self.attempt, None, reason or "nacked by the handler", time.monotonic(), delay=delay
        )
        self.member.attempts.settle(self.attempt, outcome).wait()

    def reject(self, reason: str) -> None:
        """Settle as impossible: the message goes to the dead letters."""
        self._refuse_batched(_BY_ITS_HANDLER)
        self._decidable()
        self.member.attempts.settle(self.attempt, policy.rejected(self.attempt, reason)).wait()

    def postpone(self, delay: float) -> None:
        """Settle as not yet due."""
        self._refuse_batched(_BY_ITS_HANDLER)
        self._decidable()
        self.member.attempts.settle(self.attempt, Outcome(Verb.POSTPONE, delay)).wait()

    def extend(self, seconds: float) -> None:
        """Move the delivery's deadline. It is in memory only, so nothing is written."""
        self.context.check_process()
        self.member.attempts.check(self.attempt, settling=False)
        self.attempt.deadline = time.monotonic() + seconds

    def transaction(self) -> AbstractContextManager[Any]:
        """Commit the writes of the block together with the ack, or neither."""
        one = HandlerTransaction(self.context, [Delivered(self.member, self.attempt)], "message.ack(connection=)")
        return one.open("message.transaction()")

    def _refuse_batched(self, what: str) -> None:
        if self.batched:
            raise ConfigurationError(f"a message of a batch cannot be {what}, or subscribe without batch=")

    def _decidable(self) -> None:
        """Refuse a forked child, and what follows an ack in a transaction that is still open."""
        self.context.check_process()
        caller_ack.forget_rolled_back(self.member, self.attempt, self.context)


def message_of(attempt: Attempt, member: Member, context: EngineContext, *, batched: bool = False) -> Message:
    """The message that the handler gets for an attempt. `batched`: it gets others with it."""
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
    delivery = Delivery(attempt, member, context, batched)
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
