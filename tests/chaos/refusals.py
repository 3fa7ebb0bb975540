"""Names publishes that failed although nothing had happened: the checker's rule about what publishers are told.

Owns the list of faults that excuse nothing here. It is pure like the checker, which calls it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from chaos.account import History
from chaos.bounds import Late
from chaos.history import Publish

NO_EXCUSE: Final = frozenset({"interrupt", "fork", "clock", "grow", "expiry"})
"""What is done to one thread, to a child, or to workers."""

HELD: Final = 15.0
"""Seconds for which a server keeps the locks of a client that it has lost."""

TIMED_OUT: Final = 4.0
"""Seconds: what fails sooner does not fail because the machine is slow."""


def refused(history: History) -> Iterator[Late]:
    """A publisher was told of an error, and neither its network nor the server had a reason."""
    attempts = {event.id: event.at for event in history.events if isinstance(event, Publish) if not event.error}
    for event in history.events:
        if not isinstance(event, Publish) or not event.error:
            continue
        began = attempts.get(event.id, event.at)
        none = NO_EXCUSE | {"slow"} if event.at - began < TIMED_OUT else NO_EXCUSE
        if not any(
            fault.kind not in none and fault.start <= event.at and began - HELD <= fault.end for fault in history.faults
        ):
            detail = f"a publish failed at {event.at:.3f}, {event.outcome}: {event.error}"
            yield "", (event.topic, event.key), None, event.offset, event.id, detail
