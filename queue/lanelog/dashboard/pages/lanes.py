"""The pages of lanes: those of a group, and one of them.

Owns how lanes are chosen, and how their pages follow each other. None reads more than `COMPARED` lanes.
"""

from __future__ import annotations

from typing import Final

from lanelog._base.text import age, plural
from lanelog._views import columns
from lanelog.admin import LaneInfo, MessageState
from lanelog.dashboard.changes.actions import button, whole
from lanelog.dashboard.pages import messages as message_pages
from lanelog.dashboard.pages.asked import Asked
from lanelog.dashboard.views import Texts, WebButton, WebCell, WebPage, WebSheet, link, to_group, to_lane, to_topic
from lanelog.errors import ConfigurationError

LANES: Final = 50
"""Lanes on one page."""
COMPARED: Final = 500
"""Lanes that are put in order by age or lag, and among which those of one state are searched for."""
_ORDERS: Final = ("age", "lag", "key")
PAUSED: Final = "paused"
_STATES: Final = (
    MessageState.RETRYABLE,
    MessageState.PROCESSING,
    MessageState.PENDING,
    MessageState.POSTPONED,
    MessageState.EXPIRED,
    PAUSED,
)
"""The states by which lanes are chosen: that of the lane's next message, or the lane's own."""


def lanes(asked: Asked) -> WebPage:
    """The lanes of a group, page by page in both directions: by age, by lag or by key; all, or those of one state."""
    topic, group = asked.need("topic"), asked.need("group")
    by, state = asked.fields.get("by", "age"), asked.fields.get("state")
    if by not in _ORDERS:
        raise ConfigurationError(f"lanes are ordered by {', '.join(_ORDERS)}, not by {by!r}")
    here = {"topic": topic, "group": group, "by": by, "state": state}
    shown, further, note = _by_key(asked, here) if by == "key" else _worst(asked, here)
    choices = [WebCell(f"by {each}", link("lanes", topic=topic, group=group, by=each)) for each in _ORDERS]
    choices += [WebCell(each, link("lanes", topic=topic, group=group, by=by, state=each)) for each in _STATES]
    return WebPage(
        title=f"Lanes of {topic} {group}",
        links=(
            WebCell("Members", link("members", topic=topic, group=group)),
            WebCell("Charts", link("charts", topic=topic, group=group)),
            *choices,
        ),
        buttons=_group_buttons(topic, group),
        sheets=(
            asked.sheet(
                shown,
                columns.LANES,
                ("Key", lambda each: to_lane(each.topic, each.group, each.key)),
                ("State", _lane_state),
                "LAG",
                "OLDEST",
                ("Attempts", lambda each: str(each.attempts)),
                ("Owner", lambda each: each.owner or "-"),
                ("Error", lambda each: message_pages.short(each.last_error)),
                links=further,
                note=note,
            ),
        ),
    )


_Here = dict[str, "str | None"]
_Shown = tuple[list[LaneInfo], tuple[WebCell, ...], str]
"""The lanes of a page, the links to the pages before and after, and a note."""


def _worst(asked: Asked, here: _Here) -> _Shown:
    """Return a page of the lanes that are furthest behind. Only so many are put in order."""
    page = whole("page", asked.fields.get("page", "1"))
    begin = (page - 1) * LANES
    if not 0 <= begin < COMPARED:
        raise ConfigurationError(f"there are pages 1 to {COMPARED // LANES}: all lanes are listed by key")
    found = asked.admin.lanes(
        here["topic"] or "",
        here["group"] or "",
        order_by="lag" if here["by"] == "lag" else "age",
        limit=COMPARED if here["state"] or page > 1 else LANES + 1,
    )
    chosen = [each for each in found if _is_in(each, here["state"])]
    links = []
    if page > 1:
        links.append(WebCell("Previous page", link("lanes", **here, page=page - 1)))
    if len(chosen) > begin + LANES:
        links.append(WebCell("Next page", link("lanes", **here, page=page + 1)))
    note = f"The {COMPARED} that come first by {here['by']}; all are listed by key." if len(found) >= COMPARED else ""
    return chosen[begin : begin + LANES], tuple(links), note


def _by_key(asked: Asked, here: _Here) -> _Shown:
    """Return a page of the lanes after one key, or before one. Between two pages none is left out."""
    after, before, most = asked.fields.get("after", ""), asked.fields.get("before", ""), COMPARED
    if here["state"] is None:
        most = LANES + 1
    found = asked.admin.lanes(
        here["topic"] or "", here["group"] or "", order_by="key", limit=most, after=after, before=before
    )
    chosen = [each for each in found if _is_in(each, here["state"])]
    shown = chosen[-LANES:] if before else chosen[:LANES]
    further = len(found) >= most or len(chosen) > LANES  # in the direction in which was read
    whole_window = len(chosen) <= LANES and len(found) >= most
    links = []
    if not found:
        return [], (WebCell("First page", link("lanes", **here)),) if after or before else (), ""
    if further if before else after:
        first = found[0] if (before and whole_window) or not shown else shown[0]
        links.append(WebCell("Previous page", link("lanes", **here, before=first.key)))
    if before or further:
        last = found[-1] if (not before and whole_window) or not shown else shown[-1]
        links.append(WebCell("Next page", link("lanes", **here, after=last.key)))
    note = f"Of {plural(len(found), 'lane')} from {found[0].key} to {found[-1].key}." if here["state"] else ""
    return shown, tuple(links), note


def _is_in(lane: LaneInfo, state: str | None) -> bool:
    if state is None:
        return True
    if state == PAUSED:
        return lane.paused_at is not None or lane.group_paused
    return lane.state == state


def _group_buttons(topic: str, group: str) -> tuple[WebButton, ...]:
    named = {"pause": "Pause", "resume": "Resume", "seek": "Seek", "delete-group": "Delete the group"}
    return tuple(button(name, text, topic=topic, group=group) for name, text in named.items())


def _lane_state(lane: LaneInfo) -> Texts:
    if lane.paused_at is not None or lane.group_paused:
        return WebCell("paused", None, "warn")
    if lane.state is None:
        return WebCell("caught up", None, "good")
    return WebCell(str(lane.state), None, "bad" if lane.failed else "")


def lane(asked: Asked) -> WebPage:
    """One lane of a group: where it stands, who owns it, and its next messages."""
    topic, group, key = asked.need("topic"), asked.need("group"), asked.need("key")
    found = asked.admin.lane(topic, group, key)
    names = {"topic": topic, "group": group, "key": key}
    steer = {"resume": "Resume"} if found.paused_at else {"pause": "Pause"}
    actions = {**({"retry": "Retry now"} if found.waiting else {}), **steer, "release": "Release", "seek": "Seek"}
    buttons = [button(name, text, **names) for name, text in actions.items()]
    next_one = found.watermark + 1
    if found.lag:
        buttons.append(button("skip", f"Skip offset {next_one}", **names, offset=next_one))
    return WebPage(
        title=f"Lane {key}",
        facts=(
            ("Topic", to_topic(topic)),
            ("Group", to_group(topic, group)),
            ("State", _lane_state(found)),
            ("Lag", f"{found.lag:,}"),
            ("Oldest", age(found.oldest_age)),
            ("Acked", f"{found.watermark:,} of {found.head:,}"),
            ("Owner", f"{found.owner} ({found.owner_state})" if found.owner else "-"),
            ("Lease left", age(found.lease_left)),
            ("Attempts", str(found.attempts)),
            ("Next attempt in", age(found.next_attempt_in)),
            (
                "Paused",
                f"{asked.when(found.paused_at)} by {found.paused_by}: {found.pause_reason}" if found.paused_at else "-",
            ),
        ),
        buttons=tuple(buttons),
        sheets=(
            message_pages.sheet(asked, "Next messages", topic, key, next_one),
            message_pages.sheet(asked, "Before them", topic, key, max(1, next_one - message_pages.RECENT), next_one),
            _other_groups(asked, found),
        ),
        texts=(("Last error", found.last_error),) if found.last_error else (),
    )


def _other_groups(asked: Asked, lane: LaneInfo) -> WebSheet:
    """Return where the other groups are in the lane."""
    return asked.sheet(
        (each for each in asked.admin.offsets(lane.topic, key=lane.key) if each.group != lane.group),
        columns.OFFSETS,
        ("Group", lambda each: to_lane(lane.topic, each.group, lane.key, each.group)),
        "ACKED",
        "LAG",
        ("Owner", lambda each: each.owner or "-"),
        ("Paused", lambda each: WebCell("paused", None, "warn") if each.paused_at else "-"),
        ("Last moved", "UPDATED"),
        title="Other groups here",
    )
