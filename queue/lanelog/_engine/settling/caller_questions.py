"""Acks in callers' transactions that were still open when their handlers had returned.

Owns when the server is asked about each again. It runs in the settler's thread, between two flushes. `caller_ack` asks,
and knows what follows.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._engine import caller_ack

if TYPE_CHECKING:
    from lanelog._database import Session
    from lanelog._engine.engine_context import EngineContext
    from lanelog._engine.lane.run import Attempt
    from lanelog._engine.member.member import Member

FIRST_SECONDS = 0.05
LONGEST_SECONDS = 1.0
"""Between two questions about one ack. Each wait is twice the one before."""


@define(eq=False)
class CallerQuestions:
    """Asks about them."""

    context: EngineContext
    session: Session
    _waits: dict[Attempt, float] = field(factory=dict, init=False)
    """Seconds of the present wait."""
    _due: dict[Attempt, float] = field(factory=dict, init=False)
    """When (monotonic) the next question is due."""

    def turn(self, member: Member) -> None:
        """Ask about each of a member's acks whose time has come."""
        for attempt in member.caller_acks.open():
            if time.monotonic() < self._due.get(attempt, 0.0):
                continue
            # Before the question: after an error the next one must wait as well.
            wait = min(LONGEST_SECONDS, 2 * self._waits.get(attempt, FIRST_SECONDS / 2))
            self._waits[attempt], self._due[attempt] = wait, time.monotonic() + wait
            if not self.context.vouched(self.session):
                return  # memory is loaded first
            caller_ack.follow(self.session.transaction(), member, attempt, self.context)

    def rest(self) -> float | None:
        """Return the seconds until the next question. None: no transaction is open."""
        still = {each for member in self.context.members() for each in member.caller_acks.open()}
        for gone in self._due.keys() - still:
            del self._due[gone], self._waits[gone]
        if not still:
            return None
        now = time.monotonic()
        return max(0.0, min(self._due.get(each, now) - now for each in still))
