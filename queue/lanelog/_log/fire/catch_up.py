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

from attrs import evolve, frozen

from lanelog._log.fire.occurrences import Fired, Occurrence, occurrence, reached

if TYPE_CHECKING:
    from lanelog._base.cron import Cron

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
    """The occurrences of a schedule to publish now."""

    times: Sequence[Occurrence]
    """Those to publish a message for, in order."""
    next: Occurrence
    """The earliest one after them. It may be due already, when `most` has cut `times` short."""
    fired: Fired
    """What is fired after them."""
    missed: bool
    """Whether the due times were missed."""


def dues(
    cron: Cron, catch_up: str, *, first: Occurrence, since_ms: int, fired: Fired, now_ms: int, most: int
) -> DueTimes:
    """Plan a schedule that is due: at most `most` times at once.

    `first`: the earliest occurrence not fired, as it was planned, perhaps by a process with other time zone data. Its
    lateness counts from the moment that it was planned for. `since_ms`: when the expression was declared; `first` may
    be older, and come from the expression before. `fired`: none of these is fired again.
    """
    start = reached(cron, first)
    then = max(start, since_ms)
    grace = min(MOST_GRACE_MS, max(LEAST_GRACE_MS, cron.after(then) - start))
    missed = now_ms - first.at > grace
    first = evolve(first, at=min(first.at, start))  # before those that follow it, and not after now
    if missed and catch_up != CatchUp.ALL:
        latest = cron.last(then, now_ms)
        found = [first if latest is None else occurrence(cron, latest)] if catch_up == CatchUp.LATEST else []
        begin = max(then, now_ms)
    else:
        rest = [occurrence(cron, at) for at in islice(cron.between(then, now_ms), most - 1)]
        found = [first, *rest]
        begin = rest[-1].at if rest else then
    times = []
    for each in found:
        if not fired.has(cron, each):
            times.append(each)
            fired = fired.with_one(each)
    return DueTimes(times=times, next=fired.following(cron, begin), fired=fired, missed=missed)
