"""The pages that show messages: one message, schedules, and what is delayed.

Owns what they show of a message. A payload is shown only when the address asks for it, in the form that it names.
"""

from __future__ import annotations

from typing import Final

from lanelog._base.text import plural, shown, summary
from lanelog._views import message_columns
from lanelog.admin import HistoryInfo, MessageInfo, ScheduleInfo
from lanelog.dashboard.changes.actions import button, whole
from lanelog.dashboard.pages.asked import Asked
from lanelog.dashboard.payload import FORMS, as_read
from lanelog.dashboard.views import Texts, WebButton, WebCell, WebPage, WebSheet, link, to_lane, to_message, to_topic
from lanelog.errors import ConfigurationError

RECENT: Final = 20
"""Messages of a lane that are shown from one offset on."""
_DELAYED: Final = 100
"""Delayed messages on one page."""
_ERROR: Final = 120


def short(error: str | None) -> str:
    """Return the line of an error that says most."""
    return shown(summary(error), _ERROR) if error else "-"


def sheet(asked: Asked, title: str, topic: str, key: str, first: int, end: int | None = None) -> WebSheet:
    """Return messages of a lane from one offset on, before `end`."""
    found = asked.admin.messages(topic, key, from_offset=first, limit=RECENT)
    return asked.sheet(
        (each for each in found if end is None or each.offset < end),
        message_columns.MESSAGES,
        ("Offset", lambda each: to_message(topic, key, each.offset, f"{each.offset:,}")),
        ("Id", lambda each: each.id),
        "PUBLISHED",
        "BYTES",
        title=title,
    )


def message(asked: Asked) -> WebPage:
    """One message: where it stands for each group, and its payload if that is asked for."""
    topic, key, offset = asked.need("topic"), asked.need("key"), asked.need("offset")
    number = whole("offset", offset)
    found = asked.admin.message(topic, key, offset=number)
    if found is None:
        raise ConfigurationError(f"lane {key!r} of topic {topic!r} does not hold offset {offset}")
    form = asked.fields.get("show")
    here = {"topic": topic, "key": key, "offset": offset}
    texts = [(f"Payload as {form}", as_read(found, form, asked.mask))] if form else []
    texts += [(f"Last error of {each.group}", each.last_error) for each in found.states if each.last_error]
    history = [left for each in found.states for left in asked.admin.history(topic, each.group, key=key, offset=number)]
    texts += [(f"What {each.group} kept of it", each.error) for each in history if each.error]
    if found.dead_letter is not None:
        texts.append((f"Why {found.dead_letter.group} gave it up", found.dead_letter.last_error))
    return WebPage(
        title=f"Message {offset} of {key}",
        facts=(
            ("Topic", to_topic(topic)),
            ("Id", found.id),
            ("Published", asked.when(found.published_at)),
            ("Expires", asked.when(found.expires_at)),
            ("Payload", f"{plural(found.payload_bytes, 'byte')}, hidden until asked for"),
            *_metadata(found),
        ),
        links=tuple(WebCell(f"Show as {each}", link("message", **here, show=each)) for each in FORMS),
        sheets=(_states(asked, found), _history(asked, history)),
        texts=tuple(texts),
    )


def _metadata(found: MessageInfo) -> list[tuple[str, Texts]]:
    return [(f"Metadata {name}", value) for name, value in sorted(found.metadata.items())]


def _states(asked: Asked, found: MessageInfo) -> WebSheet:
    return asked.sheet(
        found.states,
        message_columns.STATES,
        ("Group", lambda each: to_lane(found.topic, each.group, found.key, each.group)),
        ("State", lambda each: str(each.state)),
        "ATTEMPTS",
        ("Next attempt in", "NEXT-IN"),
        "LAST-ATTEMPT",
        ("Owner of the lane", lambda each: each.owner or "-"),
        title="What each group did",
    )


def _history(asked: Asked, found: list[HistoryInfo]) -> WebSheet:
    return asked.sheet(
        found,
        message_columns.HISTORY,
        ("Group", lambda each: to_lane(each.topic, each.group, each.key, each.group)),
        "OUTCOME",
        "ATTEMPTS",
        ("First delivered", "DELIVERED"),
        "FINISHED",
        ("Owner", lambda each: each.owner or "-"),
        title="How it left each group",
        note="Of groups that keep history (history=True).",
    )


def schedules(asked: Asked) -> WebPage:
    """The recurring messages."""

    def next_time(each: ScheduleInfo) -> WebCell:
        return WebCell("paused", None, "warn") if each.paused_at else asked.ago(each.next_fire_at)

    def pause(each: ScheduleInfo) -> WebButton:
        verb, text = ("resume-schedule", "Resume") if each.paused_at else ("pause-schedule", "Pause")
        return button(verb, text, name=each.name)

    sheet = asked.sheet(
        asked.admin.schedules(),
        message_columns.SCHEDULES,
        ("Schedule", lambda each: each.name),
        ("When", lambda each: f"{each.expression} {each.timezone}"),
        ("Topic", lambda each: each.topic),
        ("Key", lambda each: each.key),
        ("Next", next_time),
        "LAST",
        "FIRED",
        ("", lambda each: button("run-schedule", "Run now", name=each.name)),
        ("", pause),
        ("", lambda each: button("remove-schedule", "Remove", name=each.name)),
    )
    return WebPage(title="Schedules", sheets=(sheet,))


def delayed(asked: Asked) -> WebPage:
    """Messages that are not in the log yet. Without a topic: the topics."""
    topic, counts = asked.fields.get("topic"), asked.admin.scheduled_counts()
    if not topic:
        found = asked.sheet(
            sorted(counts.items()),
            (),
            ("Topic", lambda each: WebCell(each[0], link("delayed", topic=each[0]))),
            ("Messages", lambda each: f"{each[1]:,}"),
        )
        return WebPage(title="Delayed", lead="Topics with messages that are not in the log yet.", sheets=(found,))
    waiting = asked.sheet(
        asked.admin.scheduled(topic, limit=_DELAYED),
        message_columns.SCHEDULED,
        ("Key", lambda each: each.key),
        ("Id", lambda each: each.id),
        "DUE",
        "BYTES",
        note=f"{plural(counts.get(topic, 0), 'message')}. At most {_DELAYED} are shown, by key and id.",
    )
    return WebPage(title=f"Delayed messages of {topic}", sheets=(waiting,))
