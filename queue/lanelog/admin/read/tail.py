"""Tail: the end of a lane, and what is published from then on.

Owns how far it has been read; never settles, locks or registers anything: who looks is no consumer. Called by `Admin`.
Each look is one statement for the heads of a topic, and one for every page of messages of a lane that has moved.
"""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING, Final

from lanelog._checks import check_duration, check_integer
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lanelog._checks import Duration
    from lanelog.admin import Admin, MessageInfo

LINES_MAX: Final = 10_000
INTERVAL_LEAST: Final = 0.1
_PAGE: Final = 1000


def tail(
    admin: Admin, topic: str, key: str | None, *, lines: int, follow: bool, interval: Duration
) -> Iterator[MessageInfo]:
    """See `Admin.tail`."""
    if key is None and not follow:
        raise ConfigurationError("without a key there is only follow=True, from now on")
    check_integer("lines", lines, least=0, most=LINES_MAX)
    pause = check_duration("interval", interval, least=INTERVAL_LEAST)
    # Where it begins is looked up at the call, and a topic or lane that is not there refused.
    return _messages(admin, topic, key, _start(admin, topic, key, lines), pause if follow else None)


def _messages(
    admin: Admin, topic: str, key: str | None, seen: dict[str, int], interval: float | None
) -> Iterator[MessageInfo]:
    while True:
        yield from _new(admin, topic, key, seen)
        if interval is None:
            return
        rest(interval)


def rest(seconds: float) -> None:
    """Wait, where Ctrl-C is heard."""
    Event().wait(seconds)


def _start(admin: Admin, topic: str, key: str | None, lines: int) -> dict[str, int]:
    """What is taken as seen: offsets by key."""
    if key is None:
        return admin.heads(topic)
    heads = admin.heads(topic)
    if key not in heads:  # refuses a lane that is not there; one beyond the first 10,000 is read from its beginning
        oldest = admin.messages(topic, key, limit=1)
        return {key: oldest[0].offset - 1 if oldest else 0}
    return {key: max(0, heads[key] - lines)}


def _new(admin: Admin, topic: str, key: str | None, seen: dict[str, int]) -> Iterator[MessageInfo]:
    """What is behind `seen`, which it moves on; in a lane that was purged meanwhile there is nothing."""
    keys = [name for name, head in admin.heads(topic).items() if head > seen.get(name, 0)] if key is None else [key]
    for name in keys:
        while True:
            try:
                found = admin.messages(topic, name, from_offset=seen.get(name, 0) + 1, limit=_PAGE)
            except ConfigurationError:
                if name not in seen:
                    raise
                found = []
            for message in found:
                seen[name] = message.offset
                yield message
            if not found:
                break
