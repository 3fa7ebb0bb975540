"""The page of dead letters: grouped by reason, filtered, and read page by page.

Owns what it shows of a dead letter. A page has the same height with a hundred dead letters as with a million.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lanelog._base.reasons import takes
from lanelog._base.text import plural, shown
from lanelog._views import columns, message_columns
from lanelog.admin import DeadLetterCounts, DeadLetterPage, DeadLetterReason
from lanelog.dashboard.changes.actions import button, whole
from lanelog.dashboard.pages.asked import Asked
from lanelog.dashboard.pages.messages import short
from lanelog.dashboard.views import WebButton, WebCell, WebField, WebPage, WebSheet, link, to_message
from lanelog.errors import ConfigurationError

LETTERS: Final = 25
"""Dead letters on one page."""
REASONS: Final = 10
"""Reasons on one page: the most frequent ones first."""


def dead_letters(asked: Asked) -> WebPage:
    """Dead letters of a topic by reason, and page by page. Without a topic: which topics have some."""
    topic = asked.fields.get("topic")
    if not topic:
        return _topics(asked)
    chosen = {name: asked.fields[name] for name in ("group", "reason", "prefix") if asked.fields.get(name)}
    here = {"topic": topic, **chosen}
    counted = asked.counted((topic, chosen.get("group")))
    found = asked.admin.dead_letter_page(
        topic,
        chosen.get("group"),
        reason=chosen.get("reason"),
        key_prefix=chosen.get("prefix", ""),
        after=_after(asked),
        limit=LETTERS,
    )
    return WebPage(
        title=f"Dead letters of {topic}",
        links=(
            WebCell("All topics", link("dead-letters")),
            *((WebCell("Without these filters", link("dead-letters", topic=topic)),) if chosen else ()),
            WebCell("Jobs that redrive or delete", link("jobs")),
        ),
        fields=_fields(asked, topic),
        sheets=(
            _reasons(asked, here, counted),
            asked.sheet(
                found.letters,
                message_columns.DEAD_LETTERS,
                ("Key", lambda each: to_message(each.dead_letter_topic, each.key, each.offset, each.key)),
                ("Group", lambda each: each.group),
                ("Error", lambda each: short(each.last_error)),
                "ATTEMPTS",
                "FAILED",
                ("", lambda each: button("redrive", "Redrive", topic=topic, group=each.group, id=each.id)),
                ("", lambda each: button("delete-letters", "Delete", topic=topic, group=each.group, id=each.id)),
                title=_title(chosen, counted),
                note=_extent(found),
                links=asked.pages("dead-letters", here, _last(found)),
            ),
        ),
    )


def _title(chosen: dict[str, str], counted: DeadLetterCounts) -> str:
    if "prefix" in chosen:
        return f"Those whose keys begin with {chosen['prefix']}"
    reason = chosen.get("reason")
    total = sum(each.count for each in counted.reasons if takes(reason, each.reason))
    return plural(total, "dead letter") if counted.complete else f"At least {plural(total, 'dead letter')}"


def _extent(found: DeadLetterPage) -> str:
    """Say how far the page reads, where a page is not full and there are more."""
    if found.after is None or len(found.letters) == LETTERS:
        return ""
    return f"Read {plural(found.looked, 'dead letter')}. The next page reads further."


def _topics(asked: Asked) -> WebPage:
    sheet = asked.sheet(
        (each for each in asked.admin.topics() if each.dead_letters and not each.holds_dead_letters),
        columns.TOPICS,
        ("Topic", lambda each: WebCell(each.topic, link("dead-letters", topic=each.topic))),
        "DEAD-LETTERS",
    )
    return WebPage(title="Dead letters", sheets=(sheet,))


def _after(asked: Asked) -> tuple[str, str, int] | None:
    """Return the last dead letter of the page before."""
    if "after" not in asked.fields:
        return None
    return asked.need("where"), asked.need("after"), whole("offset", asked.need("offset"))


def _fields(asked: Asked, topic: str) -> tuple[WebField, ...]:
    given = asked.fields
    return (
        WebField(name="topic", value=topic),
        WebField(name="group", value=given.get("group", ""), label="Group"),
        WebField(name="prefix", value=given.get("prefix", ""), label="Key begins with"),
        WebField(name="reason", value=given.get("reason", ""), label="Reason"),
    )


def _reasons(asked: Asked, here: dict[str, str], counted: DeadLetterCounts) -> WebSheet:
    """Return the reasons, some at a time. Those of a topic may be a thousand."""
    found = counted.reasons
    page = whole("page", asked.fields.get("page", "1"))
    if page < 1:
        raise ConfigurationError("pages begin at 1")
    begin, links = (page - 1) * REASONS, []
    if page > 1:
        links.append(WebCell("More frequent reasons", link("dead-letters", **here, page=page - 1)))
    if begin + REASONS < len(found):
        left = len(found) - begin - REASONS
        links.append(WebCell(f"{plural(left, 'more reason')}", link("dead-letters", **here, page=page + 1)))

    def of(reason: DeadLetterReason) -> str:
        return link("dead-letters", **{**here, "group": reason.group, "reason": reason.name})

    def act(name: str, text: str) -> Callable[[DeadLetterReason], WebButton]:
        return lambda each: button(name, text, topic=here["topic"], group=each.group, letters=each.name)

    return asked.sheet(
        found[begin : begin + REASONS],
        message_columns.REASONS,
        ("Name", lambda each: WebCell(each.name, of(each))),
        ("Reason", lambda each: WebCell(shown(each.reason), of(each))),
        ("Group", lambda each: each.group),
        ("Messages", "COUNT"),
        "KEYS",
        ("Newest", "LAST-FAILED"),
        ("", act("redrive", "Redrive all")),
        ("", act("delete-letters", "Delete all")),
        title="By reason",
        note="" if counted.complete else f"Only the first {plural(counted.looked, 'dead letter')} by key are counted.",
        links=tuple(links),
    )


def _last(found: DeadLetterPage) -> dict[str, object] | None:
    """Return the last dead letter of a page, as `_after` reads it."""
    return None if found.after is None else dict(zip(("where", "after", "offset"), found.after, strict=True))
