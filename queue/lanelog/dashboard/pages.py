"""The pages that show tables: topics, groups, archives, jobs, the audit and the database.

Owns which columns they have. Each is a function of what was asked for. Pages of lanes stand in `lane_pages`, of members
in `member_pages`, of messages in `message_pages`, of dead letters in `letter_pages`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lanelog._places import GroupTopic
from lanelog._text import age
from lanelog.admin import GroupInfo, Problem, Rank
from lanelog.dashboard import lane_pages, letter_pages, member_pages, message_pages, search_page
from lanelog.dashboard.asked import Asked, Maker
from lanelog.dashboard.charts import rate_text
from lanelog.dashboard.views import Texts, WebButton, WebCell, WebPage, WebSheet, link

ACTS: Final = 100
"""Entries of the audit on one page."""


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
            WebCell("search", link("search", topic=each.topic)),
        )
        for each in asked.admin.topics()
    ]
    return WebPage(
        title="Topics",
        sheets=(
            WebSheet(title="", columns=("Topic", "Lanes", "Messages", "Dead letters", "Groups", "", ""), rows=rows),
        ),
    )


def groups(asked: Asked) -> WebPage:
    """The groups of a topic, or of all topics."""
    topic, status, rates = asked.fields.get("topic"), asked.status(), asked.rates()
    worst: dict[tuple[str, str], Problem] = {}
    for problem in status.problems:  # the worst ones come first
        worst.setdefault((problem.topic, problem.group), problem)
    rows: list[tuple[Texts | WebButton, ...]] = [
        (
            WebCell(each.topic, link("groups", topic=each.topic)),
            WebCell(each.group, link("lanes", topic=each.topic, group=each.group)),
            _group_state(each, worst.get((each.topic, each.group)), known=status.members_known),
            WebCell(
                f"{each.members:,}" if status.members_known else "unknown",
                link("members", topic=each.topic, group=each.group),
            ),
            _busy(each) if status.members_known else "unknown",
            f"{each.lag:,}",
            age(each.oldest_age, exact=each.oldest_age_exact),
            *map(rate_text, rates.get(GroupTopic(topic=each.topic, group=each.group), (None, None))),
            f"{each.lagging_lanes:,} of {each.lanes:,}",
            each.order,
        )
        for each in status.groups
        if topic in (None, each.topic)
    ]
    columns = ("Topic", "Group", "State", "Members", "Busy", "Lag", "Oldest", "In/s", "Out/s", "Lanes behind", "Order")
    title = "Groups" if topic is None else f"Groups of {topic}"
    return WebPage(title=title, sheets=(WebSheet(title="", columns=columns, rows=rows),))


def _busy(group: GroupInfo) -> str:
    """Return how many workers of a group are busy, and of how many members that is known, if not of all."""
    if not group.members:
        return "-"
    if not group.members_telling:
        return "unknown"
    known = f"{group.busy:,} of {group.workers:,}"
    return known if group.members_telling == group.members else f"{known}, unknown of others"


def _group_state(group: GroupInfo, problem: Problem | None, *, known: bool) -> Texts:
    """Return the state of a group: its worst problem in the words of the front page, or else how far it is."""
    if problem is not None:
        return WebCell(problem.what, None, "bad" if problem.rank <= Rank.NOBODY else "warn")
    if group.paused_at is not None:
        return WebCell("paused", None, "warn")
    if known and not group.members:
        return WebCell("nobody consumes", None, "bad" if group.lag else "warn")
    return WebCell("behind", None, "warn") if group.lag else WebCell("caught up", None, "good")


def audit(asked: Asked) -> WebPage:
    """Who changed what with the verbs of administration, the last first: of a topic, or of all."""
    topic = asked.fields.get("topic")
    rows: list[tuple[Texts | WebButton, ...]] = [
        (
            asked.ago(each.at),
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
                asked.ago(each.created_at),
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
            asked.ago(each.begun_at),
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
    "members": member_pages.members,
    "lanes": lane_pages.lanes,
    "lane": lane_pages.lane,
    "message": message_pages.message,
    "dead-letters": letter_pages.dead_letters,
    "schedules": message_pages.schedules,
    "delayed": message_pages.delayed,
    "search": search_page.search,
    "archives": archives,
    "jobs": jobs,
    "audit": audit,
    "database": database,
}
"""By their addresses."""
