"""Auditing: the full pass through a topic's lanes for tables that contradict each other, whoever owns the lanes.

Owns when a topic is looked through; what is wrong and what becomes of it is `contradictions`'. A group that nobody runs
has its watermarks looked after, too: else later messages would reach them, and nothing would tell that they are wrong.
Called by the janitor, on its session, and by `admin.maintain()`.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final

from attrs import define, field, frozen

from lanelog._engine import contradictions
from lanelog._stores import groups, lane_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._database import Session
    from lanelog._engine.contradictions import Contradiction
    from lanelog._engine.member.member import Member

SUSPECTS: Final = 1000
"""Lanes that one pass looks into: after a restore they may be all of them."""

SHARE: Final = 99.0
"""A pass may take a hundredth of the time: after one of d seconds, the next is 99 d later at the earliest."""

AGAIN: Final = 5.0
"""Seconds until lanes are looked at again that somebody held."""


@define(eq=False)
class Passes:
    """When the next pass is due (monotonic), by topic."""

    due_at: dict[str, float] = field(factory=dict)


@frozen(kw_only=True)
class Audited:
    """What one pass did."""

    mended: Sequence[Contradiction]
    busy: int
    """Suspects that somebody held for too long."""
    more: bool
    """Whether there may be suspects that it has not looked into."""


def audit(session: Session, member: Member, passes: Passes, now: float) -> bool:
    """Look through the topic and its dead letters when that is due; True when more is to be mended at once."""
    duration, dead_topic = member.config.lease_duration, member.config.dead_letter_topic(member.topic)
    more = False
    for topic in sorted({member.topic, dead_topic or member.topic}):
        if now < passes.due_at.get(topic, 0.0):
            continue
        passes.due_at[topic] = now + duration  # also if it raises
        began = time.monotonic()
        done = audit_topic(session, topic)
        pause = max(duration * random.uniform(0.8, 1.0), SHARE * (time.monotonic() - began))
        if done.mended and done.more:
            pause, more = 0.0, True
        elif done.busy:
            pause = min(pause, AGAIN)
        passes.due_at[topic] = now + pause
    return more


def audit_topic(session: Session, topic: str) -> Audited:
    """Find suspects in a few statements, however many lanes there are, and mend those that are wrong."""
    suspects = lane_rows.suspects(session, topic, list(groups.readers(session, topic)), SUSPECTS)
    mended: list[Contradiction] = []
    busy = 0
    for key in suspects:
        found = contradictions.mend(session, topic, key)
        if found is None:
            busy += 1
        else:
            mended += found
    return Audited(mended=mended, busy=busy, more=len(suspects) == SUSPECTS)
