"""The verb `status`: the ten-second view. What is stuck, since when, who has it, and the command that mends it.

Owns what is asked for it, which is bounded however large the backlog is; judges nothing (`_problems` does). Registered
by `_main`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from lanelog.admin import MessageState
from lanelog.cli import _columns
from lanelog.cli._output import Answer, age, plural, shown
from lanelog.cli._pattern import topics_of
from lanelog.cli._problem_lines import told
from lanelog.cli._problems import SLOW, Problem, of_contradiction, of_group, of_lane, of_letters, worst_first
from lanelog.cli._table import Table
from lanelog.cli._verbs import alarms, monitored, reading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lanelog.admin import Admin, GroupInfo, LaneInfo, TopicInfo

LANES: Final = 100
"""Lanes of each lagging group that are looked at: the oldest."""
RUNNING: Final = 20
"""Lanes of each group whose attempt in flight is looked at, which costs a statement for each."""
LETTERS: Final = 10_000
"""Dead letters of one topic that are looked through for their reasons."""
CONTRADICTIONS: Final = 20
"""Lanes whose tables contradict each other that are named."""
HEADS: Final = 1000
"""Lanes of each topic whose head is compared with the log; `doctor` looks at all."""
_SHOWN: Final = 10
_BEFORE: Final = "lanelog.status.before"


@click.command()
@click.argument("topic", required=False)
@monitored
@reading
def status(admin: Admin, *, topic: str | None, max_lag: int | None, max_age: float | None) -> Answer:
    """Say in ten seconds what is wrong, the worst first, each with the command that mends it.

    Of all topics, or of TOPIC, which may be a pattern such as 'orders*'.
    """
    chosen = topics_of(admin, topic)
    if chosen is None:
        topics, groups = admin.topics(), admin.groups()
    else:
        topics = [admin.topic(name) for name in chosen]
        groups = [group for name in chosen for group in admin.groups(name)]
    growth = _growth(groups)
    problems = worst_first(_problems(admin, topics, groups, growth, chosen))
    lag = sum(group.lag for group in groups)
    ages = [group.oldest_age for group in groups if group.oldest_age is not None]
    oldest = age(max(ages, default=None), exact=all(group.oldest_age_exact for group in groups))
    letters = sum(topic.dead_letters for topic in topics if not topic.holds_dead_letters)
    summary = (
        f"{plural(len(topics), 'topic')}, {plural(len(groups), 'group')}, "
        f"{plural(sum(group.members for group in groups), 'member')}: lag {lag:,}, "
        f"oldest {oldest}, {plural(letters, 'dead letter')}"
    )
    lagging = sorted((group for group in groups if group.lag), key=lambda group: -(group.oldest_age or 0))[:_SHOWN]
    measured = [(f"{shown(each.topic)} {shown(each.group)}", each.lag, each.oldest_age) for each in groups]
    return Answer(
        data={
            "topics": len(topics),
            "groups": groups,
            "lag": lag,
            "oldest_age": max(ages, default=None),
            "dead_letters": letters,
            "problems": problems,
        },
        before=[summary, "", *told(problems, most=LANES)],
        table=Table(_columns.STATUS, lagging) if lagging else None,
        alarms=alarms(measured, max_lag, max_age),
    )


def _problems(
    admin: Admin,
    topics: list[TopicInfo],
    groups: list[GroupInfo],
    growth: dict[tuple[str, str], float],
    chosen: list[str] | None,
) -> Iterator[Problem]:
    for wrong in admin.contradictions(limit=CONTRADICTIONS, heads=HEADS):
        if chosen is None or wrong.topic in chosen:
            yield of_contradiction(wrong)
    for group in groups:
        yield from of_group(group, growth.get((group.topic, group.group)))
        if group.lag or group.paused_lanes:
            yield from _of_lanes(admin, group)
    for topic in topics:
        if topic.dead_letters and not topic.holds_dead_letters:
            few = topic.dead_letters <= LETTERS
            yield from of_letters(topic, admin.dead_letter_reasons(topic.topic) if few else None)


def _of_lanes(admin: Admin, group: GroupInfo) -> Iterator[Problem]:
    for place, lane in enumerate(admin.lanes(group.topic, group.group, order_by="age", limit=LANES)):
        found = of_lane(lane, group, _running(admin, lane) if place < RUNNING else None)
        if found is not None:
            yield found


def _running(admin: Admin, lane: LaneInfo) -> float | None:
    """Seconds since the attempt in flight of a lane's first message began; None: none is, or it is young.

    Told by the database's clock: the message's age is now minus the time at which it was written.
    """
    if lane.state is not MessageState.PROCESSING or (lane.oldest_age or 0) <= SLOW:
        return None
    message = admin.message(lane.topic, lane.key, offset=lane.watermark + 1)
    began = [
        each.last_attempt_at
        for each in (message.states if message else ())
        if each.group == lane.group and each.state is MessageState.PROCESSING
    ]
    if message is None or not began or began[0] is None or lane.oldest_age is None:
        return None
    return lane.oldest_age - (began[0] - message.created_at).total_seconds()


def _growth(groups: list[GroupInfo]) -> dict[tuple[str, str], float]:
    """Messages a second by which lags grew since the last look of --watch; empty at the first."""
    meta = click.get_current_context().meta
    now, lags = time.monotonic(), {(group.topic, group.group): group.lag for group in groups}
    before: tuple[float, dict[tuple[str, str], int]] | None = meta.get(_BEFORE)
    meta[_BEFORE] = (now, lags)
    if before is None or now <= before[0]:
        return {}
    return {name: (lag - before[1].get(name, lag)) / (now - before[0]) for name, lag in lags.items()}


VERBS = (status,)
