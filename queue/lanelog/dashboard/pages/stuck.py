"""The front page: what is stuck, why, and the one action that repairs it.

Owns the choice of the button for each problem. `admin.status` finds the problems.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from datetime import datetime
from typing import Final

from attrs import evolve, frozen

from lanelog._base.text import age, plural
from lanelog._views.sentences import nothing_stuck, sums
from lanelog.admin import Problem, Rank, Status
from lanelog.admin.operate.hung import HUNG
from lanelog.admin.operate.problem import FAILING, OWNER_GONE
from lanelog.dashboard.changes.actions import ACTIONS, button
from lanelog.dashboard.views import WebButton, WebCell, link, to_group, to_lane, to_message, to_topic

SHOWN: Final = 50
"""Problems on the front page. The rest is counted."""
_LANE_ACTIONS: Final = {
    FAILING: ("retry", "skip"),
    OWNER_GONE: ("release",),
    "slow": ("release",),
}
"""The first one brings work back. A group that nobody consumes needs a process, which no button starts."""
_PEOPLE: Final = ("no owner", "nobody consumes", "not archived", "replay unfinished")
"""Problems for which the page links to the members."""


@frozen(kw_only=True)
class StuckCard:
    """One problem as the front page shows it."""

    id: str
    """The same for the same problem in each status: so the focus of a keyboard stays where it is."""
    what: str
    tone: str
    where: tuple[WebCell, ...]
    since: str
    """How long it has lasted, or the age of the oldest message that it holds back."""
    began: str
    """The exact time, where it is known."""
    owner: str | None
    detail: str
    notes: str
    """Lines below the sentence: where hung handlers stand."""
    command: str
    buttons: tuple[WebButton, ...]
    """The action that repairs it, if the dashboard has one, and what can be tried before."""
    inspect: WebCell
    """Where more is seen."""


def headline(status: Status) -> tuple[str, str]:
    """Return the health of the log in one line, and its tone."""
    figures = sums(status, behind=f"{plural(status.lag, 'message')} behind", oldest="the oldest")
    if status.left_out:
        figures += f"; {status.left_out}"
    if not status.problems:
        calm = nothing_stuck(status.waiting, complete=not status.left_out)
        return f"{calm[0].upper()}{calm[1:]}. {figures}.", "warn" if status.left_out else "good"
    worst = status.problems[0].rank
    return f"{plural(len(status.problems), 'problem')}. {figures}.", "bad" if worst <= Rank.NOBODY else "warn"


def cards(status: Status) -> list[StuckCard]:
    """Return the worst problems, no two with one id: two connections may hold the same row."""
    found: list[StuckCard] = []
    seen: Counter[str] = Counter()
    for each in (_card(each, status.at) for each in status.problems[:SHOWN]):
        seen[each.id] += 1
        found.append(each if seen[each.id] == 1 else evolve(each, id=f"{each.id}-{seen[each.id]}"))
    return found


def _card(problem: Problem, at: datetime) -> StuckCard:
    topic, group, key = problem.topic, problem.group or None, problem.key
    where = [to_topic(topic)] if topic else []
    if group is not None:
        where.append(to_group(topic, group))
    if group is not None and key is not None:
        where.append(to_lane(topic, group, key))
    if key is not None and problem.offset is not None:
        where.append(to_message(topic, key, problem.offset, f"offset {problem.offset}"))
    whose = problem.owner or "" if key is None else ""  # several members of one group may hang
    name = "\0".join((problem.what, topic, problem.group or "", key or "", problem.reason or "", whose))
    return StuckCard(
        id="p" + hashlib.sha256(name.encode()).hexdigest()[:12],
        what=problem.what,
        tone="bad" if problem.rank <= Rank.NOBODY else "warn",
        where=tuple(where),
        since=_since(problem, at),
        began=problem.since or "",
        owner=problem.owner,
        detail=problem.sentence,
        notes="\n".join(problem.notes),
        command=problem.command,
        buttons=_buttons(problem),
        inspect=_inspect(problem),
    )


def _since(problem: Problem, at: datetime) -> str:
    """Return how long a problem has lasted, relative to the status that found it."""
    if problem.since is None:
        return problem.lasts
    try:
        lasted = (at - datetime.fromisoformat(problem.since)).total_seconds()
    except (ValueError, TypeError):  # it is no time of the database's clock
        return f"since {problem.since}"
    return f"for {age(max(0.0, lasted))}"


def _buttons(problem: Problem) -> tuple[WebButton, ...]:
    group, key = problem.group or None, problem.key
    if group is None:
        return ()
    names: tuple[str, ...] = ()
    if problem.reason is not None:
        names = ("redrive",)
    elif problem.rank is Rank.PAUSED:
        names = ("resume",)
    elif key is not None:
        names = _LANE_ACTIONS.get(problem.what, ())
    return tuple(
        button(
            each,
            topic=problem.topic,
            group=group,
            key=key,
            offset=problem.offset if "offset" in ACTIONS[each].needs else None,
            letters=problem.reason,
        )
        for each in names
    )


def _inspect(problem: Problem) -> WebCell:
    topic, group = problem.topic, problem.group or None
    if problem.rank is Rank.DEAD_LETTERS:
        return WebCell("Dead letters, by reason", link("dead-letters", topic=topic, group=group))
    if group is None:
        return WebCell("Groups", link("groups", topic=topic or None))
    if problem.what == HUNG:
        return WebCell("Members that hang", link("members", topic=topic, group=group, state=HUNG))
    if problem.what in _PEOPLE:
        return WebCell("Members", link("members", topic=topic, group=group))
    if problem.key is not None:
        return to_lane(topic, group, problem.key, "The lane")
    return WebCell("Its lanes", link("lanes", topic=topic, group=group, by="lag"))
