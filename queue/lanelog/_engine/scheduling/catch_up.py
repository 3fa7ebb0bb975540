"""What a schedule publishes at a given moment, and when its next time is: arithmetic alone, without I/O or clock.

Owns what counts as missed, and what `catch_up` makes of it. Called by `recurring`.

As long as the oldest time that is due is late by no more than the schedule's own period (at least 5 s, at most 60 s),
nothing was missed: whatever is due is published, in order. Later than that, nobody was there to publish, and all that
is due by now was missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Final

from attrs import frozen

if TYPE_CHECKING:
    from lanelog._cron import Cron

LEAST_GRACE_MS: Final = 5_000
MOST_GRACE_MS: Final = 60_000


class CatchUp(StrEnum):
    """What becomes of times at which nobody was there to publish."""

    LATEST = "latest"
    """The most recent one is published."""
    ALL = "all"
    """Each of them is published, in order."""
    NONE = "none"
    """None of them is."""


@frozen(kw_only=True)
class DueTimes:
    """What to publish now; epoch milliseconds."""

    times: Sequence[int]
    """The times to publish a message for, in order."""
    next_at: int
    """The earliest time that is not dealt with then; it may be due as well, when `most` has cut `times` short."""
    missed: bool
    """Whether nobody was there when it became due."""


def dues(cron: Cron, catch_up: str, *, first_ms: int, since_ms: int, last_ms: int, now_ms: int, most: int) -> DueTimes:
    """Plan a schedule whose earliest time that is not fired, `first_ms`, is due; at most `most` times at once.

    `since_ms`: when the expression was declared; `first_ms` may be older, and still of the one before. `last_ms`: the
    latest time that was fired; whatever the rest says, nothing up to there is fired again.
    """
    then = max(first_ms, since_ms)
    grace = min(MOST_GRACE_MS, max(LEAST_GRACE_MS, cron.after(then) - first_ms))
    missed = now_ms - first_ms > grace
    if missed and catch_up != CatchUp.ALL:
        latest = cron.last(then, now_ms) or first_ms
        times = [latest] if catch_up == CatchUp.LATEST else []
        next_at = cron.after(now_ms)
    else:
        times = [first_ms, *islice(cron.between(then, now_ms), most - 1)]
        next_at = cron.after(max(then, times[-1]))
    return DueTimes(times=[at for at in times if at > last_ms], next_at=next_at, missed=missed)
