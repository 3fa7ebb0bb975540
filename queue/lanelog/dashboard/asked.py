"""A request for a page, and what its handler needs to answer it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cached_property

from attrs import field, frozen

from lanelog._places import GroupTopic
from lanelog._text import age, moment
from lanelog.admin import Admin, DeadLetterCounts, Status
from lanelog.dashboard.jobs import Jobs
from lanelog.dashboard.payload import Mask
from lanelog.dashboard.views import WebCell, WebPage
from lanelog.errors import ConfigurationError


@frozen(kw_only=True)
class Asked:
    """One request for a page."""

    admin: Admin
    fields: Mapping[str, str] = field(repr=False)
    mask: Mask | None
    status: Callable[[], Status]
    """The shared look at the whole log: groups of all topics cost a look at all lanes."""
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


Maker = Callable[[Asked], WebPage]
