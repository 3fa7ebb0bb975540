"""The side of a member for acks in callers' transactions: which of them are not decided.

Never decides one: `Attempts.claimed` and `Attempts.unclaim` do.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from attrs import define

from lanelog._engine.lane.run import Attempt, CallerAck, State
from lanelog._engine.member.state import Side, step

if TYPE_CHECKING:
    from lanelog._engine.member.attempts import Attempts


@define(eq=False, repr=False)
class CallerAcks(Side):
    """What `message.ack(connection=)`, the settler and the workload have to do with a member."""

    attempts: Attempts

    @step
    def promise(self, attempt: Attempt) -> None:
        """A transaction will ack the attempt. Raises LeaseLost, AlreadySettled."""
        self.attempts.check_locked(attempt)
        attempt.promised = True

    @step
    def note(self, attempt: Attempt, session: int) -> None:
        """The ack of a claimed attempt stands in a caller's transaction, in this session. The server decides."""
        attempt.ack = CallerAck(session, time.monotonic())
        self.state.effects.needs.add(self.state.signals.wake_settler)

    def open(self) -> list[Attempt]:
        """Those of them whose handlers have returned, or whose messages were pulled."""
        detached = list(self.state.detached)
        return [each for each in detached if each.ack is not None and each.state is State.CLAIMED]
