"""The pages that show tables: topics, groups, members, lanes and the database.

Owns which columns they have. Each is a function of what was asked for; none reads more than a page of lanes. Pages of
messages stand in `message_pages`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, cast

from lanelog._text import age, moment, plural
from lanelog.admin import GroupInfo, LaneInfo, MessageState, OwnerState
from lanelog.dashboard import letter_pages, message_pages
from lanelog.dashboard.actions import button
from lanelog.dashboard.asked import Asked, Maker
from lanelog.dashboard.views import Texts, WebButton, WebCell, WebPage, WebSheet, link
from lanelog.errors import ConfigurationError

LANES: Final = 50
"""Lanes on one page."""
ACTS: Final = 100
"""Entries of the audit on one page."""
COMPARED: Final = 500
"""Lanes among which those of one state are looked for."""
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


def topics(asked: Asked) -> WebPage:
    """All topics, at most 1,000."""
    rows: list[tuple[Texts | WebButton, ...]] = [
        (
            WebCell(each.topic, link("groups", topic=each.topic)),
            f"{each.lanes:,}",
            f"{each.messages:,}",
            WebCell(
                f"{each.dead_letters:,}", link("dead-letters", topic=each.topic), "bad" if each.dead_letters else ""
            ),
            ", ".join(each.groups) or "-",
            WebCell("delayed", link("delayed", topic=each.topic)),
        )
        for each in asked.admin.topics()
    ]
    return WebPage(
        title="Topics",
        sheets=(WebSheet(title="", columns=("Topic", "Lanes", "Messages", "Dead letters", "Groups", ""), rows=rows),),
    )


def groups(asked: Asked) -> WebPage:
    """The groups of a topic, or of all topics."""
    topic, status = asked.fields.get("topic"), asked.status()
    rows: list[tuple[Texts | WebButton, ...]] = [
        (
            WebCell(each.topic, link("groups", topic=each.topic)),
            WebCell(each.group, link("lanes", topic=each.topic, group=each.group)),
            _group_state(each, known=status.members_known),
            WebCell(
                f"{each.members:,}" if status.members_known else "unknown",
                link("members", topic=each.topic, group=each.group),
            ),
            f"{each.lag:,}",
            age(each.oldest_age, exact=each.oldest_age_exact),
            f"{each.lagging_lanes:,} of {each.lanes:,}",
            each.order,
        )
        for each in status.groups
        if topic in (None, each.topic)
    ]
    columns = ("Topic", "Group", "State", "Members", "Lag", "Oldest", "Lanes behind", "Order")
    title = "Groups" if topic is None else f"Groups of {topic}"
    return WebPage(title=title, sheets=(WebSheet(title="", columns=columns, rows=rows),))


def _group_state(group: GroupInfo, *, known: bool) -> Texts:
    if group.paused_at is not None:
        return WebCell("paused", None, "warn")
    if known and not group.members:
        return WebCell("nobody consumes", None, "bad" if group.lag else "warn")
    return WebCell("behind", None, "warn") if group.lag else WebCell("caught up", None, "good")


def members(asked: Asked) -> WebPage:
    """The subscribers of a group."""
    topic, group = asked.need("topic"), asked.need("group")
    rows: list[tuple[Texts | WebButton, ...]] = [
        (
            each.name,
            WebCell(str(each.state), None, "good" if each.state is OwnerState.ALIVE else "warn"),
            f"{each.lanes:,}",
            moment(each.heartbeat_at),
            age(each.lease_left),
        )
        for each in asked.admin.members(topic, group)
    ]
    columns = ("Member", "State", "Lanes", "Last heartbeat", "Lease left")
    return WebPage(title=f"Members of {topic} {group}", sheets=(WebSheet(title="", columns=columns, rows=rows),))


def lanes(asked: Asked) -> WebPage:
    """The lanes of a group: the worst by age or lag, those of one state, or all of them page by page."""
    topic, group = asked.need("topic"), asked.need("group")
    by, state, after = asked.fields.get("by", "age"), asked.fields.get("state"), asked.fields.get("after", "")
    if by not in _ORDERS:
        raise ConfigurationError(f"lanes are ordered by {', '.join(_ORDERS)}, not by {by!r}")
    order = cast('Literal["age", "lag", "key"]', by)
    found = asked.admin.lanes(
        topic, group, order_by=order, limit=LANES if state is None else COMPARED, after=after if by == "key" else ""
    )
    full = len(found) >= (LANES if state is None else COMPARED)
    if state is not None:
        chosen = [each for each in found if _is_in(each, state)]
        shown = chosen[:LANES]
        note = f"Of the {plural(len(found), 'lane')} that come first by {by}."
        if by != "key" and len(chosen) > LANES:
            note += f" The first {LANES} of {len(chosen)}; all are listed by key."
    else:
        shown = found
        note = f"The first {LANES} by {by}; all are listed by key." if full and by != "key" else ""
    turns = [WebCell(f"by {each}", link("lanes", topic=topic, group=group, by=each)) for each in _ORDERS]
    turns += [WebCell(each, link("lanes", topic=topic, group=group, by=by, state=each)) for each in _STATES]
    if by == "key" and (full or len(shown) == LANES):
        last = (shown if len(shown) == LANES else found)[-1].key
        turns.append(WebCell("Next page", link("lanes", topic=topic, group=group, by=by, state=state, after=last)))
    return WebPage(
        title=f"Lanes of {topic} {group}",
        links=(
            WebCell("Members", link("members", topic=topic, group=group)),
            WebCell("Charts", link("charts", topic=topic, group=group)),
            *turns,
        ),
        buttons=_group_buttons(topic, group),
        sheets=(
            WebSheet(
                title="",
                columns=("Key", "State", "Lag", "Oldest", "Attempts", "Owner", "Error"),
                rows=[_lane_row(each) for each in shown],
                note=note,
            ),
        ),
    )


def _is_in(lane: LaneInfo, state: str) -> bool:
    if state == PAUSED:
        return lane.paused_at is not None or lane.group_paused
    return lane.state == state


def _group_buttons(topic: str, group: str) -> tuple[WebButton, ...]:
    named = {"pause": "Pause", "resume": "Resume", "seek": "Seek", "delete-group": "Delete the group"}
    return tuple(button(name, text, topic=topic, group=group) for name, text in named.items())


def _lane_row(lane: LaneInfo) -> tuple[Texts | WebButton, ...]:
    return (
        WebCell(lane.key, link("lane", topic=lane.topic, group=lane.group, key=lane.key)),
        _lane_state(lane),
        f"{lane.lag:,}",
        age(lane.oldest_age),
        str(lane.attempts),
        lane.owner or "-",
        message_pages.short(lane.last_error),
    )


def _lane_state(lane: LaneInfo) -> Texts:
    if lane.paused_at is not None or lane.group_paused:
        return WebCell("paused", None, "warn")
    if lane.state is None:
        return WebCell("caught up", None, "good")
    return WebCell(str(lane.state), None, "bad" if lane.attempts and lane.last_error else "")


def lane(asked: Asked) -> WebPage:
    """One lane of a group: where it stands, who owns it, and its next messages."""
    topic, group, key = asked.need("topic"), asked.need("group"), asked.need("key")
    found = asked.admin.lane(topic, group, key)
    place = {"topic": topic, "group": group, "key": key}
    steer = {"resume": "Resume"} if found.paused_at else {"pause": "Pause"}
    actions = {**({"retry": "Retry now"} if found.waiting else {}), **steer, "release": "Release", "seek": "Seek"}
    buttons = [button(name, text, **place) for name, text in actions.items()]
    next_one = found.watermark + 1
    if found.lag:
        buttons.append(button("skip", f"Skip offset {next_one}", **place, offset=next_one))
    return WebPage(
        title=f"Lane {key}",
        facts=(
            ("Topic", WebCell(topic, link("groups", topic=topic))),
            ("Group", WebCell(group, link("lanes", topic=topic, group=group))),
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
                f"{moment(found.paused_at)} by {found.paused_by}: {found.pause_reason}" if found.paused_at else "-",
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
    place = {"topic": lane.topic, "key": lane.key}
    rows: list[tuple[Texts | WebButton, ...]] = [
        (
            WebCell(each.group, link("lane", group=each.group, **place)),
            f"{each.watermark:,}",
            f"{each.lag:,}",
            each.owner or "-",
            WebCell("paused", None, "warn") if each.paused_at else "-",
            moment(each.updated_at),
        )
        for each in asked.admin.offsets(lane.topic, key=lane.key)
        if each.group != lane.group
    ]
    columns = ("Group", "Acked", "Lag", "Owner", "Paused", "Last moved")
    return WebSheet(title="Other groups here", columns=columns, rows=rows)


def audit(asked: Asked) -> WebPage:
    """Who changed what with the verbs of administration, the last first: of a topic, or of all."""
    topic = asked.fields.get("topic")
    rows: list[tuple[Texts | WebButton, ...]] = [
        (
            moment(each.at),
            each.by or each.account,
            each.verb,
            WebCell(each.topic, link("audit", topic=each.topic)) if each.topic else "-",
            " ".join(filter(None, (each.group, each.key, each.choice))) or "-",
            f"{each.messages:,}",
            each.reason or "-",
        )
        for each in asked.admin.audit(topic, limit=ACTS)
    ]
    columns = ("When", "Who", "What", "Topic", "Where", "Messages", "Why")
    return WebPage(
        title="Audit" if topic is None else f"Audit of {topic}",
        lead="What was changed here and from the command line. Entries stay for a year at least. Older ones go "
        "with the next changes that an account with the role admin makes; the role dashboard deletes none.",
        sheets=(WebSheet(title="", columns=columns, rows=rows),),
    )


def archives(asked: Asked) -> WebPage:
    """The groups of archives and replays: how far they are, and whether the job that moves them on has stopped."""
    status = asked.status()
    wrong = {(each.topic, each.group): each for each in status.problems if each.key is None}
    rows: list[tuple[Texts | WebButton, ...]] = []
    for each in status.groups:
        if each.order not in ("archive", "replay"):
            continue
        problem = wrong.get((each.topic, each.group))
        rows.append(
            (
                WebCell(each.topic, link("groups", topic=each.topic)),
                WebCell(each.group, link("lanes", topic=each.topic, group=each.group)),
                each.order,
                WebCell(problem.what, None, "bad") if problem else WebCell("fine", None, "good"),
                f"{each.lag:,}",
                age(each.oldest_age, exact=each.oldest_age_exact),
                each.start or "-",
                moment(each.created_at),
            )
        )
    columns = ("Topic", "Group", "Kind", "State", "Behind", "Oldest", "Archive", "Since")
    return WebPage(
        title="Archives",
        lead="Spark's archives and replays stand in the log as groups: what they have not read is not collected.",
        sheets=(WebSheet(title="", columns=columns, rows=rows),),
    )


def jobs(asked: Asked) -> WebPage:
    """What was asked for here and takes long: it runs, or has ended."""
    rows: list[tuple[Texts | WebButton, ...]] = [
        (
            WebCell(each.title, link("job", id=each.id)),
            each.state,
            f"{each.done:,}" if each.total is None else f"{each.done:,} of {each.total:,}",
            each.by,
            each.why,
            moment(each.begun_at),
        )
        for each in asked.jobs.all()
    ]
    columns = ("Job", "State", "Messages", "Who", "Why", "Since")
    return WebPage(
        title="Jobs",
        lead="Actions that take long, since this dashboard was started. The audit has all actions.",
        sheets=(WebSheet(title="", columns=columns, rows=rows),),
    )


def database(asked: Asked) -> WebPage:
    """What the server says of itself."""
    server = asked.admin.server()
    rows: list[tuple[Texts | WebButton, ...]] = [
        (name, f"{size.rows:,}", f"{size.bytes:,}") for name, size in sorted(server.tables.items())
    ]
    denied = "not visible to this account"
    return WebPage(
        title="Database",
        facts=(
            ("Oldest transaction", denied if server.oldest_transaction is None else age(server.oldest_transaction)),
            (
                "History list",
                denied if server.history_list_length is None else f"{server.history_list_length:,}",
            ),
        ),
        sheets=(WebSheet(title="Tables", columns=("Table", "Rows (estimate)", "Bytes"), rows=rows),),
    )


PAGES: Final[Mapping[str, Maker]] = {
    "topics": topics,
    "groups": groups,
    "members": members,
    "lanes": lanes,
    "lane": lane,
    "message": message_pages.message,
    "dead-letters": letter_pages.dead_letters,
    "schedules": message_pages.schedules,
    "delayed": message_pages.delayed,
    "archives": archives,
    "jobs": jobs,
    "audit": audit,
    "database": database,
}
"""By their addresses."""
