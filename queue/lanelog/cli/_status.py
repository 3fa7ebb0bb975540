"""The verb `status`: how the ten-second view is shown.

Owns its lines and its table; what is wrong is found by `admin.status`. Registered by `_main`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from lanelog.cli._output import Answer, Table, age, plural, shown
from lanelog.cli._verbs import alarms, monitored, reading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog.admin import Admin, GroupInfo, Problem, Status

_SHOWN: Final = 10
_BEFORE: Final = "lanelog.status.before"


@click.command()
@monitored
@reading
def status(admin: Admin, *, max_lag: int | None, max_age: float | None) -> Answer:
    """Say in ten seconds what is wrong, the worst first, each with the command that mends it."""
    meta = click.get_current_context().meta
    before: Status | None = meta.get(_BEFORE)  # of --watch
    found = meta[_BEFORE] = admin.status(since=before)
    summary = (
        f"{plural(found.topics, 'topic')}, {plural(len(found.groups), 'group')}, "
        f"{plural(sum(group.members for group in found.groups), 'member')}: lag {found.lag}, "
        f"oldest {age(found.oldest_age, exact=found.oldest_age_exact)}, {plural(found.dead_letters, 'dead letter')}"
    )
    lagging = sorted((group for group in found.groups if group.lag), key=lambda group: -(group.oldest_age or 0))
    measured = [(f"{shown(each.topic)} {shown(each.group)}", each.lag, each.oldest_age) for each in found.groups]
    return Answer(
        data=found,
        before=[summary, "", *_shown(found.problems)],
        table=_table(lagging[:_SHOWN]) if lagging else None,
        alarms=alarms(measured, max_lag, max_age),
    )


def _shown(problems: Sequence[Problem]) -> list[str]:
    if not problems:
        return ["nothing is stuck"]
    return [line for problem in problems for line in (*problem.lines(), "")]


def _table(groups: Sequence[GroupInfo]) -> Table:
    heads = ("TOPIC", "GROUP", "MEMBERS", "LAGGING", "LAG", "OLDEST-AGE", "IN-FLIGHT", "WAITING")
    rows = [
        [
            shown(each.topic),
            shown(each.group),
            str(each.members),
            str(each.lagging_lanes),
            str(each.lag),
            age(each.oldest_age, exact=each.oldest_age_exact),
            str(each.in_flight),
            str(each.waiting),
        ]
        for each in groups
    ]
    return Table(heads, rows, heads[2:])


VERBS = (status,)
