"""The page of members: what the workers of each process run, for how long, and where they stand.

Owns what it shows of a member, and how its pages follow each other. None reads more than `COMPARED` members.
"""

from __future__ import annotations

from typing import Final

from lanelog._base.text import age, plural
from lanelog._process.workload import RunningHandler
from lanelog._views import columns
from lanelog.admin import MemberInfo, OwnerState, Rank
from lanelog.admin.operate.hung import HUNG, hung_member, state_of
from lanelog.dashboard.pages.asked import OF_GROUP, Asked
from lanelog.dashboard.views import (
    Texts,
    WebCell,
    WebFold,
    WebPage,
    WebUnder,
    link,
    to_lane,
    to_message,
    to_topic,
)
from lanelog.errors import ConfigurationError

MEMBERS: Final = 25
"""Members on one page."""
COMPARED: Final = 200
"""Members among which those of one state are searched for."""
_STATES: Final = (HUNG, *(each.value for each in OwnerState if each is not OwnerState.MISSING))
_UNKNOWN: Final = "unknown"


def members(asked: Asked) -> WebPage:
    """The members of a group, or of all groups, page by page; all, or those of one state."""
    topic, group = asked.fields.get("topic"), asked.fields.get("group")
    state = asked.fields.get("state")
    if state is not None and state not in _STATES:
        raise ConfigurationError(f"members are {', '.join(_STATES)}, not {state!r}")
    here = {"topic": topic, "group": group}
    found = asked.admin.members(topic, group, limit=COMPARED if state else MEMBERS + 1, after=_after(asked))
    chosen = [each for each in found if state in (None, state_of(each))]
    shown = chosen[:MEMBERS]
    status = asked.status()
    believed = status.members_known
    return WebPage(
        title="Members" if topic is None else f"Members of {topic} {group}",
        lead="What the workers of each process did at its last heartbeat. A handler that had run for 10 s by then is "
        "listed below its member.",
        sentences=tuple(
            f"It is not known who lives: {each.detail}." for each in status.problems if each.rank is Rank.SERVER
        ),
        links=(
            *_links(topic, group),
            *((WebCell("All states", link("members", **here)),) if state else ()),
            *(WebCell(each, link("members", **here, state=each)) for each in _STATES if each != state),
        ),
        sheets=(
            asked.sheet(
                shown,
                columns.MEMBERS,
                ("State", lambda each: _state(each, believed=believed)),
                *(OF_GROUP if topic is None else ()),
                ("Member", lambda each: each.name),
                ("Process", _process),
                ("Busy", lambda each: WebCell(_busy(each), None, _hung(each, believed=believed))),
                ("None ended for", lambda each: _quiet(each, believed=believed)),
                "LANES",
                ("Last heartbeat", "HEARTBEAT"),
                ("Lease left", "LEASE"),
                title="" if state is None else state.capitalize(),
                under={
                    at: under for at, each in enumerate(shown) if (under := _under(each, believed=believed)) is not None
                },
                links=asked.pages("members", {**here, "state": state}, _last(found, chosen)),
                note=_note(found, shown, state),
            ),
        ),
    )


def _after(asked: Asked) -> tuple[str, str, str] | None:
    """Return the last member of the page before."""
    if "after" not in asked.fields:
        return None
    return asked.need("of"), asked.need("by"), asked.need("after")


def _links(topic: str | None, group: str | None) -> tuple[WebCell, ...]:
    if topic is None:
        return ()
    return (
        WebCell("Members of all groups", link("members")),
        WebCell("Lanes", link("lanes", topic=topic, group=group)),
        WebCell("Charts", link("charts", topic=topic, group=group)),
    )


def _last(found: list[MemberInfo], chosen: list[MemberInfo]) -> dict[str, object] | None:
    """Return the last member of a page, as `_after` reads it. None: nothing follows."""
    if len(chosen) <= MEMBERS and len(found) < COMPARED:
        return None
    last = chosen[MEMBERS - 1] if len(chosen) > MEMBERS else found[-1]
    return {"of": last.topic, "by": last.group, "after": last.name}


def _note(found: list[MemberInfo], shown: list[MemberInfo], state: str | None) -> str:
    notes = []
    if state is not None and len(found) >= COMPARED:
        notes.append(f"Of {plural(len(found), 'member')}.")
    if any(_busy(each) == _UNKNOWN for each in shown):
        notes.append(
            "Unknown: the member pulls messages and has no workers, its version of lanelog or of the tables does not "
            "say it, or its row cannot be believed."
        )
    return " ".join(notes)


def _state(member: MemberInfo, *, believed: bool) -> WebCell:
    """Return the state of a member. `believed`: whether its row says if it lives."""
    state = state_of(member) if believed else _UNKNOWN
    tone = "bad" if state == HUNG else "good" if believed and member.state is OwnerState.ALIVE else "warn"
    return WebCell(state, None, tone, f"found by {member.found_dead_by}" if member.found_dead_by else "")


def _hung(member: MemberInfo, *, believed: bool) -> str:
    """Return the tone of what says that a member hangs."""
    return "bad" if believed and state_of(member) == HUNG else ""


def _process(member: MemberInfo) -> str:
    return "-" if member.workload is None else f"{member.workload.pid} on {member.workload.host}"


def _quiet(member: MemberInfo, *, believed: bool) -> Texts:
    quiet = columns.quiet_of(member)
    return "-" if quiet is None else WebCell(age(quiet), None, _hung(member, believed=believed))


def _busy(member: MemberInfo) -> str:
    """Return how many workers of a member are busy. A member that is gone has none."""
    if member.workload is not None and member.workload.workers:
        return f"{member.workload.busy:,} of {member.workload.workers:,}"
    return _UNKNOWN if member.state.lives else "-"


def _under(member: MemberInfo, *, believed: bool) -> WebUnder | None:
    """Return what ends a member that hangs, and its handlers that run for long. `believed`: whether its row can be."""
    handlers = () if member.workload is None else member.workload.handlers
    problem = hung_member(member) if believed else None
    if problem is None and not handlers:
        return None
    return WebUnder(
        sentence="" if problem is None else problem.sentence,
        command="" if problem is None else problem.command,
        folds=tuple(_fold(member.group, each) for each in handlers),
    )


def _fold(group: str, handler: RunningHandler) -> WebFold:
    topic, key, offset = handler.topic, handler.key, handler.offset
    return WebFold(
        line=(
            to_topic(topic),
            to_lane(topic, group, key),
            to_message(topic, key, offset, f"offset {offset}"),
            WebCell(f"runs for {age(handler.seconds)}"),
        ),
        title="Where it stands",
        text=handler.stack,
    )
