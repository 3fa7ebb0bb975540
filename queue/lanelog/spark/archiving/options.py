"""The options of the archive job, checked. It never talks to a database. Called by `archive` and the command line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from attrs import field, frozen

from lanelog._checks import check_integer, check_name, duration, seconds
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

GROUP: Final = "_archive"


@frozen(kw_only=True)
class ArchiveOptions:
    """What is archived, from where to where; durations in seconds or as a timedelta. Raises ConfigurationError."""

    path: str
    url: str | None = None
    password_env: str | None = None
    topics: tuple[str, ...] = ()
    """Empty: those that match `pattern`."""
    pattern: str = ".*"
    group: str = GROUP
    checkpoint: str | None = None
    """Default: in the archive."""
    once: bool = True
    """End when everything is archived that was there at the start; else go on."""
    interval: float = field(default=10.0, converter=seconds, validator=duration())
    """Between the starts of two micro-batches, if it goes on."""
    max_messages: int = 100_000
    """Of one micro-batch."""
    grace: float = field(default=3600.0, converter=seconds, validator=duration())
    """How long files stay that were merged into others: longer than any reader reads."""

    def __attrs_post_init__(self) -> None:
        for topic in self.topics:
            check_name("topic", topic)
        check_name("group", self.group)
        check_integer("max_messages", self.max_messages, least=1, most=1 << 31)
        try:
            re.compile(self.pattern)
        except re.error as exc:
            raise ConfigurationError(f"pattern is no regular expression: {exc}") from None

    @property
    def source(self) -> dict[str, str]:
        """Options of the data source that say where the database is."""
        given = {"url": self.url, "passwordEnv": self.password_env}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def selection(self) -> dict[str, str]:
        """Options of the data source that say which topics."""
        return {"subscribePattern": one_of(self.topics) if self.topics else self.pattern}


def one_of(topics: Iterable[str]) -> str:
    """A pattern that exactly these topics match: their names may hold commas."""
    return "|".join(re.escape(topic) for topic in topics)
