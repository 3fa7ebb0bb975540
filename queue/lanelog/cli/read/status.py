"""The command `status`: how the status is shown.

Owns its lines and its table. `admin.status` finds what is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from lanelog._views import columns
from lanelog._views.sentences import sums
from lanelog.admin.operate.problems import oldest_first
from lanelog.admin.operate.status import LANES
from lanelog.cli.command import options
from lanelog.cli.command.bounds import MonitorBounds, measured, monitored
from lanelog.cli.command.pattern import topics_of
from lanelog.cli.command.verbs import reading
from lanelog.cli.output.answer import Answer
from lanelog.cli.output.table import Table
from lanelog.cli.read.problem_lines import entries

if TYPE_CHECKING:
    from lanelog.admin import Admin, Status

_SHOWN: Final = 10
_BEFORE: Final = "lanelog.status.before"


@options.command("status", "status 'orders*' --watch")
@click.argument("topic", required=False)
@monitored
@reading
def status(admin: Admin, *, topic: str | None, bounds: MonitorBounds) -> Answer:
    """Say in ten seconds what is wrong, the worst first, each with the command that repairs it.

    Without TOPIC: of all topics. TOPIC may be a pattern such as 'orders*'.
    """
    meta = click.get_current_context().meta
    before: Status | None = meta.get(_BEFORE)  # of --watch
    names = topics_of(admin, topic)
    found = meta[_BEFORE] = admin.status(names.topics, since=before)
    left_out = "; ".join(filter(None, (names.left_out, found.left_out)))
    if left_out:
        left_out += ": name a topic, or a pattern with fewer"
    # Whether a bound holds depends on all groups, and on nothing else that was left out.
    unproven = bounds.given and bool(names.left_out or found.groups_left_out)
    lagging = sorted((group for group in found.groups if group.lag), key=lambda group: oldest_first(group.oldest_age))
    return Answer(
        data=found,
        before=[sums(found, behind=f"lag {found.lag:,}", oldest="oldest"), ""],
        entries=entries(found.problems, most=LANES, complete=not left_out, waiting=found.waiting),
        table=Table(columns.STATUS, lagging[:_SHOWN], found.at) if lagging else None,
        alarms=bounds.alarms(measured(found.groups), left_out=left_out if unproven else ""),
        left_out="" if unproven else left_out,
    )
