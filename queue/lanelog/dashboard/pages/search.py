"""The page that searches a topic: keys by their beginning, messages by their id, and by text in id or payload.

Owns the bounds of a search, and says how far it went. An id is looked up in the index of each lane. Text has no
index: the newest messages of a few lanes are read for it. A payload is searched as the mask shows it: a search must not
find what nobody may see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import evolve

from lanelog._base.text import plural
from lanelog.admin import MessageInfo
from lanelog.dashboard.pages.asked import Asked
from lanelog.dashboard.payload import masked
from lanelog.dashboard.views import Cell, WebField, WebPage, WebSheet, to_lane, to_message

KEYS: Final = 50
"""Keys that are listed, and lanes whose messages are searched for text."""
MESSAGES: Final = 40
"""Messages of one lane that are searched: the newest ones."""
BYTES: Final = 16 * 1024 * 1024
"""Bytes of payloads after which a search ends, after the lane in which it reaches them."""
FOUND: Final = 50
"""Messages that are shown."""
LANES: Final = 10_000
"""Lanes in which an id is looked up."""
_GROUPS: Final = 5
"""Groups whose lanes are linked."""
_COLUMNS: Final = ("Key", "Offset", "Id", "Published")
_MORE: Final = " There are more lanes: a longer beginning of the key reaches others."
_IN_LOG: Final = "Messages that are not in the log yet, or not any more, are not found."


def search(asked: Asked) -> WebPage:
    """Keys that begin so; of them the messages with this id, and with this text in their id or payload."""
    topic, prefix, wanted, text = (asked.fields.get(name, "") for name in ("topic", "prefix", "id", "text"))
    topic, wanted = topic.strip(), wanted.strip()  # no topic and no id has white space at its ends
    fields = (
        WebField(name="topic", value=topic, label="Topic"),
        WebField(name="prefix", value=prefix, label="Key begins with"),
        WebField(name="id", value=wanted, label="Id is"),
        WebField(name="text", value=text, label="Id or payload contains"),
    )
    if not topic:
        return WebPage(title="Search", lead="Choose a topic.", fields=fields)
    about = asked.admin.topic(topic)  # refuses one that does not exist, and suggests a name
    if wanted and not prefix:
        sheet = _of_id(asked, topic, wanted, text, about.lanes)
    else:
        keys = asked.admin.key_names(topic, prefix, limit=KEYS + 1)
        more, keys = len(keys) > KEYS, keys[:KEYS]
        if wanted:
            searched = f"{plural(len(keys), 'lane')} whose key begins so"
            sheet = _named(asked, topic, keys, wanted, text, searched, more=more)
        elif text:
            sheet = _containing(asked, topic, keys, text, more=more)
        else:
            sheet = _keys(topic, keys, about.groups, more=more)
    return WebPage(title=f"Search in {topic}", fields=fields, sheets=(sheet,))


def _keys(topic: str, keys: list[str], groups: Sequence[str], *, more: bool) -> WebSheet:
    linked = groups[:_GROUPS]
    rows: list[tuple[Cell, ...]] = [(key, *(to_lane(topic, group, key, group) for group in linked)) for key in keys]
    note = f"The first {KEYS} keys; a longer beginning shows others." if more else ""
    columns = ("Key", *(f"Lane of {group}" for group in linked))
    return WebSheet(title=plural(len(keys), "key"), columns=columns, rows=rows, note=note)


def _of_id(asked: Asked, topic: str, wanted: str, text: str, lanes: int) -> WebSheet:
    """Find an id in all lanes of a topic, or in the first ones of very many."""
    keys = asked.admin.keys_of(topic, wanted, limit=LANES)
    searched = f"the first {LANES:,} of {lanes:,} lanes" if lanes > LANES else f"all {plural(lanes, 'lane')}"
    sheet = _named(asked, topic, keys[:FOUND], wanted, text, searched, more=lanes > LANES)
    if len(keys) <= FOUND:
        return sheet
    did = "searched for the text" if text else "shown"
    return evolve(sheet, note=f"{sheet.note} {len(keys):,} lanes have such a message: the first {FOUND} are {did}.")


def _named(asked: Asked, topic: str, keys: list[str], wanted: str, text: str, searched: str, *, more: bool) -> WebSheet:
    """Show the messages with this id in some lanes, and with this text if there is one.

    An id is unique in its lane only.
    """
    found = (asked.admin.message(topic, key, id=wanted) for key in keys)
    rows = [_row(asked, each) for each in found if each is not None and (not text or _where(asked, each, text))]
    what = "this id, and in its message for this text," if text else "this id"
    note = f"Searched for {what} in {searched}.{_MORE if more else ''} {_IN_LOG}"
    return WebSheet(title=plural(len(rows), "message"), columns=_COLUMNS, rows=rows, note=note)


def _containing(asked: Asked, topic: str, keys: list[str], text: str, *, more: bool) -> WebSheet:
    """Read the newest messages of some lanes, the newest of each lane first, for this text.

    It ends between two lanes only: those of a lane are read from the oldest on, and the newest must not be missed.
    """
    rows: list[tuple[Cell, ...]] = []
    read = lanes = size = 0
    for key in keys:
        if size >= BYTES or len(rows) >= FOUND:
            break
        lanes += 1
        here = []
        for each in asked.admin.tail(topic, key, lines=MESSAGES):
            read, size = read + 1, size + each.payload_bytes
            if where := _where(asked, each, text):
                here.append((*_row(asked, each), where))
        rows += here[::-1]
    note = f"Read {plural(read, 'message')}: the newest {MESSAGES} at most of each of {plural(lanes, 'lane')}."
    if size >= BYTES:
        note += f" It ended there, after {size >> 20} MiB of payloads."
    elif len(rows) >= FOUND:
        note += f" It ended there, with {FOUND} messages found."
    note += f"{_MORE if more or lanes < len(keys) else ''} {_IN_LOG}"
    shown = rows[:FOUND]
    return WebSheet(title=plural(len(shown), "message"), columns=(*_COLUMNS, "Found in"), rows=shown, note=note)


def _row(asked: Asked, message: MessageInfo) -> tuple[Cell, ...]:
    at = to_message(message.topic, message.key, message.offset, f"{message.offset:,}")
    return (message.key, at, message.id, asked.ago(message.published_at))


def _where(asked: Asked, message: MessageInfo, text: str) -> str:
    """Return where a message has the text; empty if nowhere."""
    if text in message.id:
        return "id"
    payload = message.payload if asked.mask is None else masked(message, asked.mask)
    return "payload" if text.encode(errors="surrogateescape") in payload else ""
