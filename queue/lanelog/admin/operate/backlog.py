"""A backlog in one key: which key it is, how fast it grows and shrinks, and what can help.

Owns two reads of the lane with the greatest lag of each group that is behind, two seconds apart, and the sentence about
it. Takes none where nothing is behind. Changes nothing.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

from attrs import evolve, frozen

from lanelog._base.places import GroupTopic, LaneId
from lanelog._base.text import plural
from lanelog.admin.lookup.parallel import in_parallel
from lanelog.admin.operate.problem import BEHIND, Problem
from lanelog.admin.totals import lanes
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lanelog._database import Database
    from lanelog.admin.types.topology import GroupInfo, LaneInfo

APART: Final = 2.0
"""Seconds between the two reads."""
GROUPS: Final = 20
"""Groups that are read: those that are behind with the oldest messages."""
SHARE: Final = 0.5
"""The part of a group's lag that one lane must have to be named."""

LaneName = tuple[str, str, str]


@frozen
class Rates:
    """Messages a second of one lane."""

    come: float
    go: float


def rates(before: LaneInfo, after: LaneInfo, seconds: float) -> Rates | None:
    """Return what was published to a lane between two reads, and what was settled there. None: no time has passed."""
    if seconds <= 0:  # the clock went back
        return None
    settled = [lane.head - lane.lag for lane in (before, after)]
    return Rates((after.head - before.head) / seconds, (settled[1] - settled[0]) / seconds)


def name_keys(
    database: Database,
    found: Sequence[Problem],
    groups: Sequence[GroupInfo],
    before: Sequence[LaneInfo] | None,
    seconds: float,
) -> tuple[list[Problem], tuple[LaneInfo, ...]]:
    """Name the key where most of a group's lag is in one key. Return all problems, and those lanes.

    Args:
        database: Where to read.
        found: All problems.
        groups: All groups.
        before: The lanes that an earlier answer has named, which is taken for the first of the two reads. None: there
            is none, and this takes two seconds more if there is such a key.
        seconds: How long ago that was.

    A lane that another problem names is not named again: that is what holds it up.
    """
    behind = {(each.topic, each.group): number for number, each in enumerate(found) if each.what == BEHIND}
    named = {(each.topic, each.group, each.key) for each in found}
    chosen = sorted(
        (each for each in groups if (each.topic, each.group) in behind), key=lambda each: -(each.oldest_age or 0)
    )[:GROUPS]
    began = time.monotonic()
    greatest = in_parallel([partial(_greatest, database, each) for each in chosen])
    heavy = [
        (group, lane)
        for group, lane in zip(chosen, greatest, strict=True)
        if lane is not None and lane.lag >= SHARE * group.lag and _name(lane) not in named
    ]
    if before is None:
        measured = _again(database, [lane for _, lane in heavy], began)
    else:
        earlier = {_name(lane): lane for lane in before}
        measured = {
            _name(lane): rates(earlier[_name(lane)], lane, seconds) for _, lane in heavy if _name(lane) in earlier
        }
    problems = list(found)
    for group, lane in heavy:
        number = behind[group.topic, group.group]
        problems[number] = in_one_key(problems[number], group, lane, measured.get(_name(lane)))
    return problems, tuple(lane for _, lane in heavy)


def in_one_key(problem: Problem, group: GroupInfo, lane: LaneInfo, measured: Rates | None) -> Problem:
    """Return the problem of a group that is behind, whose lag is in one lane."""
    detail = f"{lane.lag:,} of {plural(group.lag, 'message')} wait in this key"
    if measured is not None:
        detail += f", {measured.come:.1f}/s come in, {measured.go:.1f}/s go out"
    if group.order == "concurrent":
        helps = "to split the key, more threads in its worker or a faster handler; more workers cannot"
    else:
        helps = "to split the key, order='concurrent' or a faster handler; more workers cannot"
    return evolve(
        problem,
        key=lane.key,
        owner=lane.owner,
        detail=f"{detail}; what can help: {helps}",
        remedy="beside the other keys",
    )


def _again(database: Database, heavy: Sequence[LaneInfo], began: float) -> Mapping[LaneName, Rates | None]:
    if not heavy:
        return {}
    time.sleep(max(0.0, began + APART - time.monotonic()))
    afterwards = in_parallel([partial(_lane, database, lane) for lane in heavy])
    seconds = time.monotonic() - began
    return {
        _name(before): rates(before, after, seconds)
        for before, after in zip(heavy, afterwards, strict=True)
        if after is not None
    }


def _greatest(database: Database, group: GroupInfo) -> LaneInfo | None:
    try:
        found = lanes.lanes(database, GroupTopic(topic=group.topic, group=group.group), order_by="lag", limit=1)
    except ConfigurationError:  # it was deleted meanwhile
        return None
    return found[0] if found else None


def _lane(database: Database, lane: LaneInfo) -> LaneInfo | None:
    try:
        return lanes.lane(database, LaneId(topic=lane.topic, group=lane.group, key=lane.key))
    except ConfigurationError:
        return None


def _name(lane: LaneInfo) -> LaneName:
    return lane.topic, lane.group, lane.key
