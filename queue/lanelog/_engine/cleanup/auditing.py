"""Auditing: the full pass through a topic's lanes, in search of tables that contradict each other.

Owns the times of these passes. `contradictions` judges and mends. A pass looks at the lanes of all groups, also of
groups without a living member. Otherwise later messages would reach a wrong watermark, and hide that it was wrong.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from attrs import define, field, frozen

from lanelog._backoff import RANDOM
from lanelog._log import repair
from lanelog._stores import groups, lane_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._database import Session
    from lanelog._engine.member.member import Member
    from lanelog._log.repair import Contradiction

DOUBTFUL: Final = 1000
"""How many doubtful lanes one pass looks into. After a restore, all lanes may be doubtful."""

SHARE: Final = 99.0
"""A pass may take a hundredth of the time: after one of d seconds, the next is 99 d later at the earliest."""

AGAIN: Final = 5.0
"""Seconds until a pass looks again at lanes that other transactions held."""


@define(eq=False)
class Passes:
    """When the next pass is due (monotonic), by topic."""

    due_at: dict[str, float] = field(factory=dict)


@frozen(kw_only=True)
class Audited:
    """The result of one pass."""

    mended: Sequence[Contradiction]
    busy: int
    """How many doubtful lanes other transactions held for too long."""
    more: bool
    """Whether there may be more doubtful lanes than this pass looked into."""


def audit(session: Session, member: Member, passes: Passes, now: float) -> bool:
    """Look through the topic and its dead letters when that is due. True when more can be mended at once."""
    duration, dead_topic = member.config.lease_duration, member.config.dead_letter_topic(member.topic)
    more = False
    for topic in sorted({member.topic, dead_topic or member.topic}):
        if now < passes.due_at.get(topic, 0.0):
            continue
        passes.due_at[topic] = now + duration  # this holds if the pass raises
        began = time.monotonic()
        done = audit_topic(session, topic)
        pause = max(duration * RANDOM.uniform(0.8, 1.0), SHARE * (time.monotonic() - began))
        if done.mended and done.more:
            pause, more = 0.0, True
        elif done.busy:
            pause = min(pause, AGAIN)
        passes.due_at[topic] = now + pause
    return more


def audit_topic(session: Session, topic: str) -> Audited:
    """Find doubtful lanes, and mend those that are wrong. The search needs few statements, even for many lanes."""
    doubtful = lane_rows.doubtful(session, topic, list(groups.readers(session, topic)), DOUBTFUL)
    mended: list[Contradiction] = []
    busy = 0
    for key in doubtful:
        found = repair.mend(session, topic, key)
        if found is None:
            busy += 1
        else:
            mended += found
    return Audited(mended=mended, busy=busy, more=len(doubtful) == DOUBTFUL)
