"""Tail: the end of a lane or of a topic, and the messages published from then on.

Owns how far it has read. Never settles, locks or registers anything. Each poll is one statement for the heads of a
topic, and one for every page of messages of a lane that has moved.
"""

from __future__ import annotations

from itertools import chain, islice
from threading import Event
from typing import TYPE_CHECKING, Final

from lanelog._base.checks import check_duration, check_integer
from lanelog._log.lookup.known import known_lane, read
from lanelog.admin.read import heads, messages
from lanelog.admin.read.newest import newest
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lanelog._base.checks import Duration
    from lanelog._database import Database
    from lanelog.admin.types.messages import MessageInfo

LINES: Final = 10
LINES_MAX: Final = 10_000
LANES_MAX: Final = 10_000
"""Lanes of a topic that are read without a key."""
INTERVAL_LEAST: Final = 0.1
_PAGE: Final = 1000


def tail(
    database: Database,
    topic: str,
    key: str | None,
    *,
    lines: int | None,
    follow: bool,
    interval: Duration,
    lanes: int = LANES_MAX,
) -> Iterator[MessageInfo]:
    """See `Admin.tail`. `lanes`: so many are read without a key."""
    if lines is None:
        lines = 0 if key is None and follow else LINES
    check_integer("lines", lines, least=0, most=LINES_MAX)
    pause = check_duration("interval", interval, least=INTERVAL_LEAST)
    # The beginning is looked up at the call, which refuses an unknown topic or lane there and then.
    if key is None:
        seen = heads.heads(database, topic, lanes)
        last = newest(database, topic, dict(seen), lines)
        return chain(last, _followed(database, topic, key, seen, pause, lanes)) if follow else last
    seen = {key: max(0, read(database, known_lane, "finding the lane", topic, key) - lines)}
    if follow:
        return _followed(database, topic, key, seen, pause, lanes)
    # Without a bound, the end of a lane is never reached while somebody publishes faster than this reads.
    return islice(_new(database, topic, key, seen, lanes), lines)


def _followed(
    database: Database, topic: str, key: str | None, seen: dict[str, int], interval: float, lanes: int
) -> Iterator[MessageInfo]:
    while True:
        yield from _new(database, topic, key, seen, lanes)
        rest(interval)


def rest(seconds: float) -> None:
    """Wait. Ctrl-C ends an Event's wait."""
    Event().wait(seconds)


def _new(database: Database, topic: str, key: str | None, seen: dict[str, int], lanes: int) -> Iterator[MessageInfo]:
    """Yield the messages after `seen`, and advance it. A lane that was removed meanwhile has none."""
    if key is None:
        keys = [name for name, head in heads.heads(database, topic, lanes).items() if head > seen.get(name, 0)]
    else:
        keys = [key]
    for name in keys:
        while True:
            try:
                found = messages.messages(database, topic, name, from_offset=seen.get(name, 0) + 1, limit=_PAGE)
            except ConfigurationError:
                if name not in seen:
                    raise
                found = []
            for message in found:
                seen[name] = message.offset
                yield message
            if not found:
                break
