"""The options of the archive job, checked. Never talks to a database."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from attrs import field, fields, frozen

from lanelog._base.checks import check_integer, check_name, duration, seconds
from lanelog.errors import ConfigurationError
from lanelog.spark.source.options import database_options

if TYPE_CHECKING:
    from collections.abc import Iterable

GROUP: Final = "_archive"


@frozen(kw_only=True)
class ArchiveOptions:
    """What to archive, from where to where. Durations are seconds or a timedelta. Raises ConfigurationError."""

    path: str
    """Directory of the archive, which driver and executors share."""
    url: str | None = None
    """The database. None: LANELOG_URL."""
    password_env: str | None = None
    """Environment variable with the password of the URL's user."""
    topics: tuple[str, ...] = ()
    """Topics by name. Empty: those that match `pattern`."""
    pattern: str = ".*"
    """A regular expression that the whole name of a topic matches; topics that appear later count, too."""
    group: str = GROUP
    """The consumer group that the archive is."""
    checkpoint: str | None = None
    """Directory of Spark's checkpoint. None: in the archive."""
    once: bool = True
    """True: end when everything is archived that was there at the start. False: continue."""
    interval: float = field(default=10.0, converter=seconds, validator=duration())
    """Seconds between the starts of two micro-batches, if the job continues."""
    max_messages: int = 100_000
    """The most messages of one micro-batch."""
    grace: float = field(default=3600.0, converter=seconds, validator=duration())
    """Seconds for which merged files stay: longer than any reader reads."""
    forget_from: int = 10_000
    """Purged lanes are forgotten once there are this many. It keeps the manifest small: each batch writes it anew."""

    def __attrs_post_init__(self) -> None:
        for topic in self.topics:
            check_name("topic", topic)
        check_name("group", self.group)
        if self.once and self.interval != fields(ArchiveOptions).interval.default:
            raise ConfigurationError("interval is between the batches of a job that goes on: add --continuous")
        check_integer("max_messages", self.max_messages, least=1, most=1 << 31)
        check_integer("forget_from", self.forget_from, least=1, most=1 << 31)
        try:
            re.compile(self.pattern)
        except re.error as exc:
            raise ConfigurationError(f"pattern is no regular expression: {exc}") from None

    @property
    def source(self) -> dict[str, str]:
        """The options of the data source that say where the database is."""
        return database_options(self.url, self.password_env)

    @property
    def selection(self) -> dict[str, str]:
        """The options of the data source that say which topics."""
        return {"subscribePattern": one_of(self.topics) if self.topics else self.pattern}


def one_of(topics: Iterable[str]) -> str:
    """Return a pattern that exactly these topics match. A list would not do: their names may hold commas."""
    return "|".join(re.escape(topic) for topic in topics)
