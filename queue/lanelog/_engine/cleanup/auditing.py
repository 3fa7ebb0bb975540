"""Auditing: the full pass through a topic's lanes, in search of tables that contradict each other.

Owns the times of these passes. `_log/repair` judges and repairs. A pass examines the lanes of all groups, also of
groups without a living member. Otherwise later messages would reach a wrong watermark, and hide that it was wrong.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from attrs import define, field

from lanelog._base.backoff import RANDOM
from lanelog._base.duty_cycle import DutyCycle
from lanelog._log import repair

if TYPE_CHECKING:
    from lanelog._database import Session
    from lanelog._engine.member.member import Member


@define(eq=False)
class Audit:
    """The passes over one topic and its dead letters."""

    name: ClassVar[str] = "mending"
    cycle: DutyCycle = DutyCycle(1 / 100)
    busy_seconds: float = 5.0
    """The most seconds before lanes that other transactions held are examined again."""
    _due_at: dict[str, float] = field(factory=dict)  # by topic (monotonic)

    def due(self, member: Member, now: float) -> bool:
        """Whether a topic is due."""
        return any(now >= self._due_at.get(topic, 0.0) for topic in _topics(member))

    def run(self, session: Session, member: Member, now: float) -> bool:
        """Audit the topics that are due. True when more can be repaired at once."""
        duration, more = member.config.lease_duration, False
        for topic in _topics(member):
            if now < self._due_at.get(topic, 0.0):
                continue
            self._due_at[topic] = now + duration  # this holds if the pass raises
            began = time.monotonic()
            done = repair.audit(session, topic)
            pause = max(duration * RANDOM.uniform(0.8, 1.0), self.cycle.rest(time.monotonic() - began))
            if done.repaired and done.more:
                pause, more = 0.0, True
            elif done.busy:
                pause = min(pause, self.busy_seconds)
            self._due_at[topic] = now + pause
        return more


def _topics(member: Member) -> list[str]:
    return sorted({member.topic, member.config.dead_letter_topic(member.topic) or member.topic})
