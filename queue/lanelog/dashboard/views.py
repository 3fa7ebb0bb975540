"""What pages are made of: cells, sheets, pages and links. Templates show nothing else.

Owns these values and the form of links. Asks no database, and writes no HTML: templates escape every text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from attrs import field, frozen


def link(to: str, /, **parameters: object) -> str:
    """Return an address below the dashboard's root, without those parameters that are None."""
    given = {name: value for name, value in parameters.items() if value is not None}
    return f"{to}?{urlencode(given)}" if given else to


@frozen
class WebCell:
    """One text of a page."""

    text: str
    href: str | None = None
    tone: str = ""
    """A class of the style sheet: `bad`, `warn`, `good`, or none."""
    title: str = ""
    """What is shown where a mouse rests on it: the exact time of a relative one."""


def to_topic(topic: str) -> WebCell:
    """Return a topic, which leads to its groups."""
    return WebCell(topic, link("groups", topic=topic))


def to_group(topic: str, group: str) -> WebCell:
    """Return a group, which leads to its lanes."""
    return WebCell(group, link("lanes", topic=topic, group=group))


def to_lane(topic: str, group: str, key: str, text: str | None = None) -> WebCell:
    """Return the key of a lane, or another text, which leads to the lane."""
    return WebCell(key if text is None else text, link("lane", topic=topic, group=group, key=key))


def to_message(topic: str, key: str, offset: int, text: str) -> WebCell:
    """Return a text that leads to a message."""
    return WebCell(text, link("message", topic=topic, key=key, offset=offset))


Texts = str | WebCell


@frozen(kw_only=True)
class WebDatabase:
    """What every page names: which database it shows, where that is, and what it is for."""

    database: str
    address: str
    environment: str
    """Such as `production`. Empty: nobody has said."""


@frozen(kw_only=True)
class WebButton:
    """A link to the preview of an action. It is shown where actions are allowed."""

    text: str
    href: str
    red: bool = False
    """Whether the action destroys."""


Cell = Texts | WebButton


@frozen(kw_only=True)
class WebFold:
    """A line, and a text of which only the title is seen until somebody opens it."""

    line: tuple[WebCell, ...]
    title: str
    text: str


@frozen(kw_only=True)
class WebUnder:
    """What stands below a row, as wide as the table: a sentence, a command, and texts that are folded."""

    sentence: str = ""
    command: str = ""
    folds: tuple[WebFold, ...] = ()


@frozen(kw_only=True)
class WebSheet:
    """A table of a page."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]
    under: Mapping[int, WebUnder] = field(factory=dict)
    """What stands below some rows, by their indexes in `rows`."""
    note: str = ""
    links: tuple[WebCell, ...] = ()
    """The links to the pages before and after."""


@frozen(kw_only=True)
class WebField:
    """A field of the form that chooses what a page shows. Without a label it is not shown, and kept."""

    name: str
    value: str
    label: str = ""


@frozen(kw_only=True)
class WebPage:
    """A page: sentences, facts, buttons, tables and texts, in this order."""

    title: str
    lead: str = ""
    sentences: tuple[str, ...] = ()
    facts: tuple[tuple[str, Texts], ...] = ()
    links: tuple[WebCell, ...] = ()
    buttons: tuple[WebButton, ...] = ()
    fields: tuple[WebField, ...] = ()
    """The fields of the form that chooses what the page shows. Without any, the page has no form."""
    sheets: tuple[WebSheet, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    """Titles and preformatted texts: payloads and tracebacks."""

    def template_values(self) -> dict[str, Any]:
        """Return what the template is given."""
        return {"page": self, "title": self.title}


def cell(value: Cell) -> WebCell | WebButton:
    """Return a text as a cell."""
    return WebCell(value) if isinstance(value, str) else value
