"""The pages that show messages: one message, schedules, and what is delayed.

Owns what they show of a message. A payload is shown only when the address asks for it, in the form that it names.
"""

from __future__ import annotations

from typing import Final

from lanelog._error_text import summary
from lanelog._text import age, plural, shown
from lanelog.admin import HistoryInfo, MessageInfo
from lanelog.dashboard.actions import button, whole
from lanelog.dashboard.asked import Asked
from lanelog.dashboard.payload import FORMS, as_read
from lanelog.dashboard.views import Texts, WebButton, WebCell, WebPage, WebSheet, link
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
    rows: list[tuple[Texts | WebButton, ...]] = [
        (
            WebCell(f"{each.offset:,}", link("message", topic=topic, key=key, offset=each.offset)),
            each.id,
            asked.ago(each.published_at),
            f"{each.payload_bytes:,}",
        )
        for each in found
        if end is None or each.offset < end
    ]
    return WebSheet(title=title, columns=("Offset", "Id", "Published", "Bytes"), rows=rows)


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
            ("Topic", WebCell(topic, link("groups", topic=topic))),
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
    rows: list[tuple[Texts | WebButton, ...]] = [
        (
            WebCell(each.group, link("lane", topic=found.topic, group=each.group, key=found.key)),
            str(each.state),
            str(each.attempts),
            age(each.next_attempt_in),
            asked.ago(each.last_attempt_at),
            each.owner or "-",
        )
        for each in found.states
    ]
    return WebSheet(
        title="What each group did",
        columns=("Group", "State", "Attempts", "Next attempt in", "Last attempt", "Owner of the lane"),
        rows=rows,
    )


def _history(asked: Asked, found: list[HistoryInfo]) -> WebSheet:
    rows: list[tuple[Texts | WebButton, ...]] = [
        (
            WebCell(each.group, link("lane", topic=each.topic, group=each.group, key=each.key)),
            each.outcome,
            str(each.attempts),
            asked.ago(each.first_delivered_at),
            asked.ago(each.finished_at),
            each.owner or "-",
        )
        for each in found
    ]
    columns = ("Group", "Outcome", "Attempts", "First delivered", "Finished", "Owner")
    return WebSheet(
        title="How it left each group", columns=columns, rows=rows, note="Of groups that keep history (history=True)."
    )


def schedules(asked: Asked) -> WebPage:
    """The recurring messages."""
    rows: list[tuple[Texts | WebButton, ...]] = [
        (
            each.name,
            f"{each.expression} {each.timezone}",
            each.topic,
            each.key,
            WebCell("paused", None, "warn") if each.paused_at else asked.ago(each.next_fire_at),
            asked.ago(each.last_fire_at),
            f"{each.fired:,}",
            button("run-schedule", "Run now", name=each.name),
            button("resume-schedule", "Resume", name=each.name)
            if each.paused_at
            else button("pause-schedule", "Pause", name=each.name),
            button("remove-schedule", "Remove", name=each.name),
        )
        for each in asked.admin.schedules()
    ]
    columns = ("Schedule", "When", "Topic", "Key", "Next", "Last", "Fired", "", "", "")
    return WebPage(title="Schedules", sheets=(WebSheet(title="", columns=columns, rows=rows),))


def delayed(asked: Asked) -> WebPage:
    """Messages that are not in the log yet. Without a topic: the topics."""
    topic = asked.fields.get("topic")
    if not topic:
        found: list[tuple[Texts | WebButton, ...]] = [
            (WebCell(name, link("delayed", topic=name)), f"{count:,}")
            for name, count in sorted(asked.admin.scheduled_counts().items())
        ]
        return WebPage(
            title="Delayed",
            lead="Topics with messages that are not in the log yet.",
            sheets=(WebSheet(title="", columns=("Topic", "Messages"), rows=found),),
        )
    rows: list[tuple[Texts | WebButton, ...]] = [
        (each.key, each.id, asked.ago(each.deliver_at), f"{each.payload_bytes:,}")
        for each in asked.admin.scheduled(topic, limit=_DELAYED)
    ]
    columns = ("Key", "Id", "Due", "Bytes")
    count = asked.admin.scheduled_counts().get(topic, 0)
    note = f"{plural(count, 'message')}. At most {_DELAYED} are shown, by key and id."
    return WebPage(
        title=f"Delayed messages of {topic}", sheets=(WebSheet(title="", columns=columns, rows=rows, note=note),)
    )
