"""A request for a page, and what its handler needs to answer it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import field, frozen

from lanelog.admin import Admin, Status
from lanelog.dashboard.jobs import Jobs
from lanelog.dashboard.payload import Mask
from lanelog.dashboard.views import WebPage
from lanelog.errors import ConfigurationError


@frozen(kw_only=True)
class Asked:
    """One request for a page."""

    admin: Admin
    fields: Mapping[str, str] = field(repr=False)
    mask: Mask | None
    status: Callable[[], Status]
    """The shared look at the whole log: groups of all topics cost a look at all lanes."""
    jobs: Jobs
    """The actions of this process that run, or have ended."""

    def need(self, name: str) -> str:
        """Return a field that the page cannot do without."""
        value = self.fields.get(name)
        if not value:
            raise ConfigurationError(f"the address names no {name}")
        return value


Maker = Callable[[Asked], WebPage]
