"""The page that searches a topic: keys by their beginning, and messages by what their id or payload contains.

Owns the bounds of a search: it reads the newest messages of a few lanes, and says how far it looked. A payload is
searched as the mask shows it: a search must not find what nobody may see.
"""

from __future__ import annotations

from typing import Final

from lanelog._text import plural
from lanelog.admin import MessageInfo
from lanelog.dashboard.asked import Asked
from lanelog.dashboard.payload import masked
from lanelog.dashboard.views import Texts, WebButton, WebCell, WebField, WebPage, WebSheet, link

KEYS: Final = 50
"""Keys that are listed, and lanes whose messages are searched."""
MESSAGES: Final = 40
"""Messages of one lane that are searched: the newest ones."""
BYTES: Final = 16 * 1024 * 1024
"""Bytes of payloads after which a search ends."""
FOUND: Final = 50
"""Messages that are shown."""
_GROUPS: Final = 5
"""Groups whose lanes are linked."""


def search(asked: Asked) -> WebPage:
    """Keys that begin so, and messages of them with this id, or with this text in their payload."""
    topic, prefix, text = (asked.fields.get(name, "") for name in ("topic", "prefix", "text"))
    fields = (
        WebField(name="topic", value=topic, label="Topic"),
        WebField(name="prefix", value=prefix, label="Key begins with"),
        WebField(name="text", value=text, label="Id, or text in the id or payload"),
    )
    if not topic:
        return WebPage(title="Search", lead="Choose a topic.", fields=fields)
    asked.admin.topic(topic)  # refuses one that does not exist, and suggests a name
    keys = asked.admin.key_names(topic, prefix, limit=KEYS + 1)
    more, keys = len(keys) > KEYS, keys[:KEYS]
    sheet = _messages(asked, topic, keys, text, more=more) if text else _keys(asked, topic, keys, more=more)
    return WebPage(title=f"Search in {topic}", fields=fields, sheets=(sheet,))


def _keys(asked: Asked, topic: str, keys: list[str], *, more: bool) -> WebSheet:
    groups = asked.admin.topic(topic).groups
    rows: list[tuple[Texts | WebButton, ...]] = [
        (
            key,
            *(WebCell(group, link("lane", topic=topic, group=group, key=key)) for group in groups[:_GROUPS]),
        )
        for key in keys
    ]
    note = f"The first {KEYS} keys; a longer beginning shows others." if more else ""
    columns = ("Key", *(f"Lane of {group}" for group in groups[:_GROUPS]))
    return WebSheet(title=plural(len(keys), "key"), columns=columns, rows=rows, note=note)


def _messages(asked: Asked, topic: str, keys: list[str], text: str, *, more: bool) -> WebSheet:
    rows: list[tuple[Texts | WebButton, ...]] = []
    read = lanes = size = 0
    for key in keys:
        if size >= BYTES or len(rows) >= FOUND:
            break
        lanes += 1
        for each in _newest(asked, topic, key):
            read, size = read + 1, size + each.payload_bytes
            where = _where(asked, each, text)
            if where and len(rows) < FOUND:
                at = link("message", topic=topic, key=key, offset=each.offset)
                rows.append((key, WebCell(f"{each.offset:,}", at), each.id, asked.ago(each.published_at), where))
    note = f"Looked at {plural(read, 'message')}: the newest {MESSAGES} at most of each of {plural(lanes, 'lane')}."
    if more or lanes < len(keys):
        note += " There are more lanes: a longer beginning of the key reaches others."
    columns = ("Key", "Offset", "Id", "Published", "Found in")
    return WebSheet(title=plural(len(rows), "message"), columns=columns, rows=rows, note=note)


def _newest(asked: Asked, topic: str, key: str) -> list[MessageInfo]:
    """Return the newest messages of a lane, the newest first."""
    found = list(asked.admin.tail(topic, key, lines=MESSAGES))
    return found[::-1]


def _where(asked: Asked, message: MessageInfo, text: str) -> str:
    """Return where a message has the text; empty if nowhere."""
    if text in message.id:
        return "id"
    payload = message.payload if asked.mask is None else masked(message, asked.mask)
    return "payload" if text.encode(errors="surrogateescape") in payload else ""
