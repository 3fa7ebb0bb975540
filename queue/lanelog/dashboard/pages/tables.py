"""The pages that show tables: topics, groups, archives, jobs, the audit and the database.

Owns which columns they have. Each is a function of what was asked for. Pages of lanes, members, messages and dead
letters stand beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lanelog._base.places import GroupTopic
from lanelog._base.text import age
from lanelog._views import columns
from lanelog.admin import GroupInfo, Problem, Rank, TopicInfo
from lanelog.dashboard.charts import rate_text
from lanelog.dashboard.pages import lanes as lane_pages
from lanelog.dashboard.pages import letters as letter_pages
from lanelog.dashboard.pages import members as member_pages
from lanelog.dashboard.pages import messages as message_pages
from lanelog.dashboard.pages import search as search_page
from lanelog.dashboard.pages.asked import OF_GROUP, Asked, Maker
from lanelog.dashboard.views import Texts, WebCell, WebPage, link, to_topic

ACTS: Final = 100
"""Entries of the audit on one page."""
_UNKNOWN: Final = "unknown"


def topics(asked: Asked) -> WebPage:
    """All topics, at most 1,000."""
    sheet = asked.sheet(
        asked.admin.topics(),
        columns.TOPICS,
        ("Topic", lambda each: to_topic(each.topic)),
        "LANES",
        "MESSAGES",
        ("Dead letters", _dead_letters),
        ("Groups", lambda each: ", ".join(each.groups) or "-"),
        ("", lambda each: WebCell("delayed", link("delayed", topic=each.topic))),
        ("", lambda each: WebCell("search", link("search", topic=each.topic))),
    )
    return WebPage(title="Topics", sheets=(sheet,))


def _dead_letters(topic: TopicInfo) -> WebCell:
    found = topic.dead_letters
    return WebCell(f"{found:,}", link("dead-letters", topic=topic.topic), "bad" if found else "")


def groups(asked: Asked) -> WebPage:
    """The groups of a topic, or of all topics."""
    topic, status, rates = asked.fields.get("topic"), asked.status(), asked.rates()
    worst: dict[tuple[str, str], Problem] = {}
    for problem in status.problems:  # the worst ones come first
        worst.setdefault((problem.topic, problem.group), problem)

    def members(group: GroupInfo) -> WebCell:
        count = f"{group.members:,}" if status.members_known else _UNKNOWN
        return WebCell(count, link("members", topic=group.topic, group=group.group))

    def rate(group: GroupInfo) -> tuple[float | None, float | None]:
        return rates.get(GroupTopic(topic=group.topic, group=group.group), (None, None))

    sheet = asked.sheet(
        (each for each in status.groups if topic in (None, each.topic)),
        columns.GROUPS,
        *OF_GROUP,
        ("State", lambda each: _group_state(each, worst.get((each.topic, each.group)), known=status.members_known)),
        ("Members", members),
        ("Busy", lambda each: _busy(each) if status.members_known else _UNKNOWN),
        "LAG",
        "OLDEST",
        ("In/s", lambda each: rate_text(rate(each)[0])),
        ("Out/s", lambda each: rate_text(rate(each)[1])),
        ("Lanes behind", lambda each: f"{each.lagging_lanes:,} of {each.lanes:,}"),
        "ORDER",
    )
    return WebPage(title="Groups" if topic is None else f"Groups of {topic}", sheets=(sheet,))


def _busy(group: GroupInfo) -> str:
    """Return how many workers of a group are busy, and of how many members that is known, if not of all."""
    if not group.members:
        return "-"
    if not group.members_telling:
        return _UNKNOWN
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
    """Who changed what with the methods of `Admin`, the last first: of a topic, or of all."""
    topic = asked.fields.get("topic")
    sheet = asked.sheet(
        asked.admin.audit(topic, limit=ACTS),
        columns.AUDIT,
        "WHEN",
        ("Who", lambda each: each.by or each.account),
        ("What", "VERB"),
        ("Topic", lambda each: WebCell(each.topic, link("audit", topic=each.topic)) if each.topic else "-"),
        ("Where", lambda each: " ".join(filter(None, (each.group, each.key, each.choice))) or "-"),
        "MESSAGES",
        ("Why", lambda each: each.reason or "-"),
    )
    return WebPage(
        title="Audit" if topic is None else f"Audit of {topic}",
        lead="What was changed here and from the command line. Entries stay for a year at least. Older ones go "
        "with the next changes that an account with the role admin makes; the role dashboard deletes none.",
        sheets=(sheet,),
    )


def archives(asked: Asked) -> WebPage:
    """The groups of archives and replays: how far they are, and whether the job that moves them on has stopped."""
    status = asked.status()
    wrong = {(each.topic, each.group): each for each in status.problems if each.key is None}

    def state(group: GroupInfo) -> WebCell:
        problem = wrong.get((group.topic, group.group))
        return WebCell(problem.what, None, "bad") if problem else WebCell("fine", None, "good")

    sheet = asked.sheet(
        (each for each in status.groups if each.order in ("archive", "replay")),
        columns.GROUPS,
        *OF_GROUP,
        ("Kind", "ORDER"),
        ("State", state),
        ("Behind", "LAG"),
        "OLDEST",
        ("Archive", lambda each: each.start or "-"),
        ("Since", lambda each: asked.ago(each.created_at)),
    )
    return WebPage(
        title="Archives",
        lead="Spark's archives and replays stand in the log as groups: what they have not read is not collected.",
        sheets=(sheet,),
    )


def jobs(asked: Asked) -> WebPage:
    """What was asked for here and takes long: it runs, or has ended."""
    sheet = asked.sheet(
        asked.jobs.all(),
        (),
        ("Job", lambda each: WebCell(each.title, link("job", id=each.id))),
        ("State", lambda each: each.state),
        ("Messages", lambda each: each.progress),
        ("Who", lambda each: each.by),
        ("Why", lambda each: each.why),
        ("Since", lambda each: asked.ago(each.begun_at)),
    )
    lead = "Actions that take long, since this dashboard was started. The audit has all actions."
    return WebPage(title="Jobs", lead=lead, sheets=(sheet,))


def database(asked: Asked) -> WebPage:
    """What the server says of itself."""
    server = asked.admin.server()
    sheet = asked.sheet(
        sorted(server.tables.items()),
        (),
        ("Table", lambda each: each[0]),
        ("Rows (estimate)", lambda each: f"{each[1].rows:,}"),
        ("Bytes", lambda each: f"{each[1].bytes:,}"),
        title="Tables",
    )
    denied = "not visible to this account"
    oldest, history = server.oldest_transaction, server.history_list_length
    return WebPage(
        title="Database",
        facts=(
            ("Oldest transaction", denied if oldest is None else age(oldest)),
            ("History list", denied if history is None else f"{history:,}"),
        ),
        sheets=(sheet,),
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
