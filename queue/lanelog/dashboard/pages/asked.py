"""A request for a page, and what its handler needs to answer it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, Final, TypeVar

from attrs import field, frozen

from lanelog._base.places import GroupTopic
from lanelog._base.text import age, moment
from lanelog._views.column import Column
from lanelog.admin import Admin, DeadLetterCounts, Status
from lanelog.dashboard.changes.jobs import Jobs
from lanelog.dashboard.payload import Mask
from lanelog.dashboard.views import Cell, WebCell, WebPage, WebSheet, link, to_group, to_topic
from lanelog.errors import ConfigurationError

Row = TypeVar("Row")
Own = Callable[[Row], Cell]
"""Returns the cell of a row that only a page has."""


@frozen(kw_only=True)
class Asked:
    """One request for a page."""

    admin: Admin
    fields: Mapping[str, str] = field(repr=False)
    mask: Mask | None
    status: Callable[[], Status]
    """The shared status of the whole log: groups of all topics cost a read of all lanes."""
    counted: Callable[[tuple[str, str | None]], DeadLetterCounts]
    """The shared count of the dead letters of a topic, and of one group unless it is None."""
    rates: Callable[[], Mapping[GroupTopic, tuple[float, float]]]
    """What was published and settled in a second, by group, where two samples know."""
    jobs: Jobs
    """The actions of this process that run, or have ended."""

    def need(self, name: str) -> str:
        """Return a field that the page cannot do without."""
        value = self.fields.get(name)
        if not value:
            raise ConfigurationError(f"the address names no {name}")
        return value

    @cached_property
    def now(self) -> datetime:
        """The database's clock. Only a page that shows a time asks for it."""
        return self.admin.now()

    def when(self, at: datetime | None) -> str:
        """Return a time, and how long ago it was."""
        return moment(at) if at is None else f"{moment(at)} ({self.ago(at).text})"

    def ago(self, at: datetime | None) -> WebCell:
        """Return how long ago a time was, or how far away it is, with the time itself for a mouse that rests there."""
        if at is None:
            return WebCell(moment(at))
        seconds = (self.now - at).total_seconds()
        text = f"{age(seconds)} ago" if seconds >= 0 else f"in {age(-seconds)}"
        return WebCell(text, title=moment(at))

    def sheet(
        self, rows: Iterable[Row], view: Sequence[Column], *shown: str | tuple[str, str | Own[Row]], **more: Any
    ) -> WebSheet:
        """Return a table.

        Args:
            rows: Its rows.
            view: The list of columns that the command line shows of such rows.
            shown: What the page shows: the head of a column of the view, with a title before it if that is another
                here, or a title and a function that returns the cell of a row.
            more: What else the sheet has.
        """
        columns = {each.head: each for each in view}
        titles, cells = [], []
        for each in shown:
            title, found = (columns[each].title, each) if isinstance(each, str) else each
            titles.append(title)
            cells.append(self._cell(columns[found]) if isinstance(found, str) else found)
        made = [tuple(cell(row) for cell in cells) for row in rows]
        return WebSheet(**{"title": "", **more}, columns=tuple(titles), rows=made)

    def pages(self, page: str, here: Mapping[str, object], last: Mapping[str, object] | None) -> tuple[WebCell, ...]:
        """Return the links to the first page and to the next one, which begins after `last`. None: there is none."""
        links = [WebCell("First page", link(page, **here))] if "after" in self.fields else []
        links += [] if last is None else [WebCell("Next page", link(page, **here, **last))]
        return tuple(links)

    def _cell(self, column: Column) -> Callable[[Any], Cell]:
        """Return the function that writes a column here. Only a time asks for the database's clock."""
        get, show = column.get, column.show
        return (lambda row: self.ago(get(row))) if show is None else (lambda row: show(get(row)))


Maker = Callable[[Asked], WebPage]

OF_GROUP: Final[tuple[tuple[str, Own[Any]], ...]] = (
    ("Topic", lambda each: to_topic(each.topic)),
    ("Group", lambda each: to_group(each.topic, each.group)),
)
"""The first cells of a row about a group, which lead to its topic and to its lanes."""
