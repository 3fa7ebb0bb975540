"""The times for which a schedule publishes now, and its next time. Pure arithmetic, without I/O or clock.

Owns the rule for missed times, and the effect of `catch_up` on them.

A due time may be late by the schedule's own period, but by at least 5 s and at most 60 s. While the oldest due time is
late by no more than that, nothing was missed: all due times are published, in order. If it is later, no scheduler was
there to publish, and all due times were missed.
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
    """The treatment of missed times."""

    LATEST = "latest"
    """The most recent one is published."""
    ALL = "all"
    """Each of them is published, in order."""
    NONE = "none"
    """None of them is published."""


@frozen(kw_only=True)
class DueTimes:
    """The times of a schedule to publish now, in epoch milliseconds."""

    times: Sequence[int]
    """The times to publish a message for, in order."""
    next_at: int
    """The earliest time after them. It may be due already, when `most` has cut `times` short."""
    missed: bool
    """Whether the due times were missed."""


def dues(cron: Cron, catch_up: str, *, first_ms: int, since_ms: int, last_ms: int, now_ms: int, most: int) -> DueTimes:
    """Plan a schedule that is due: at most `most` times at once.

    `first_ms`: the earliest time that was not fired. `since_ms`: when the expression was declared; `first_ms` may be
    older, and come from the expression before. `last_ms`: the latest time that was fired. No time up to there is fired
    again.
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
