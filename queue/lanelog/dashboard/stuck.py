"""The front page: what is stuck, why, and the one action that mends it.

Owns the choice of the button for each problem. `admin.status` finds the problems.
"""

from __future__ import annotations

import hashlib
from typing import Final

from attrs import frozen

from lanelog._text import age, plural
from lanelog.admin import Problem, Rank, Status
from lanelog.admin.operate.hung import HUNG
from lanelog.admin.operate.status import members_of
from lanelog.dashboard.actions import ACTIONS
from lanelog.dashboard.views import WebButton, WebCell, link

SHOWN: Final = 50
"""Problems on the front page. The rest is counted."""
_LANE_ACTIONS: Final = {"failing": "skip", "owner gone": "release", "slow": "release"}
_GROUP_ACTIONS: Final = {
    "nobody consumes": "delete-group",
    "not archived": "delete-group",
    "replay unfinished": "delete-group",
}


@frozen(kw_only=True)
class StuckCard:
    """One problem as the front page shows it."""

    id: str
    """The same for the same problem at each look: so the focus of a keyboard stays where it is."""
    what: str
    tone: str
    place: tuple[WebCell, ...]
    since: str
    owner: str | None
    detail: str
    notes: str
    """Lines below the sentence: where hung handlers stand."""
    command: str
    buttons: tuple[WebButton, ...]
    """The action that mends it, if the dashboard has one, and what can be tried before."""
    look: WebCell
    """Where more is seen."""


def headline(status: Status) -> tuple[str, str]:
    """Return the health of the log in one line, and its tone."""
    sums = (
        f"{plural(status.topics, 'topic')}, {plural(len(status.groups), 'group')}, "
        f"{members_of(status)}: {plural(status.lag, 'message')} behind, "
        f"the oldest {age(status.oldest_age, exact=status.oldest_age_exact)}, "
        f"{plural(status.dead_letters, 'dead letter')}"
    )
    if status.left_out:
        sums += f"; {status.left_out}"
    if not status.problems:
        if status.left_out:
            return f"Nothing is stuck in what was looked at. {sums}.", "warn"
        return f"Nothing is stuck. {sums}.", "good"
    worst = status.problems[0].rank
    return f"{plural(len(status.problems), 'problem')}. {sums}.", "bad" if worst <= Rank.NOBODY else "warn"


def cards(status: Status) -> list[StuckCard]:
    """Return the worst problems."""
    return [_card(each) for each in status.problems[:SHOWN]]


def _card(problem: Problem) -> StuckCard:
    topic, group, key = problem.topic, problem.group or None, problem.key
    place = [WebCell(topic, link("groups", topic=topic))] if topic else []
    if group is not None:
        place.append(WebCell(group, link("lanes", topic=topic, group=group)))
    if group is not None and key is not None:
        place.append(WebCell(key, link("lane", topic=topic, group=group, key=key)))
    if key is not None and problem.offset is not None:
        place.append(WebCell(f"offset {problem.offset}", link("message", topic=topic, key=key, offset=problem.offset)))
    whose = problem.owner or "" if key is None else ""  # several members of one group may hang
    name = "\0".join((problem.what, topic, problem.group or "", key or "", problem.reason or "", whose))
    return StuckCard(
        id="p" + hashlib.sha256(name.encode()).hexdigest()[:12],
        what=problem.what,
        tone="bad" if problem.rank <= Rank.NOBODY else "warn",
        place=tuple(place),
        since=f"since {problem.since}" if problem.since else f"for {age(problem.seconds)}" if problem.seconds else "",
        owner=problem.owner,
        detail=problem.detail,
        notes="\n".join(problem.notes),
        command=problem.command,
        buttons=_buttons(problem),
        look=_look(problem),
    )


def _buttons(problem: Problem) -> tuple[WebButton, ...]:
    group, key, offset = problem.group or None, problem.key, None
    if group is None:
        return ()
    if problem.reason is not None:
        name = "redrive"
    elif problem.rank is Rank.PAUSED:
        name = "resume"
    elif key is not None:
        name = _LANE_ACTIONS.get(problem.what, "")
        offset = problem.offset if name == "skip" else None
    else:
        name = _GROUP_ACTIONS.get(problem.what, "")
    names = [name, "retry"] if name == "skip" else [name] if name else []
    return tuple(
        WebButton(
            text=ACTIONS[each].label,
            href=link(f"act/{each}", topic=problem.topic, group=group, key=key, offset=offset, letters=problem.reason),
        )
        for each in names
    )


def _look(problem: Problem) -> WebCell:
    topic, group = problem.topic, problem.group or None
    if problem.rank is Rank.DEAD_LETTERS:
        return WebCell("Dead letters, by reason", link("dead-letters", topic=topic, group=group))
    if group is None:
        return WebCell("Groups", link("groups", topic=topic or None))
    if problem.what in ("no owner", HUNG):
        return WebCell("Members", link("members", topic=topic, group=group))
    if problem.key is not None:
        return WebCell("The lane", link("lane", topic=topic, group=group, key=problem.key))
    return WebCell("Its lanes", link("lanes", topic=topic, group=group, by="lag"))
