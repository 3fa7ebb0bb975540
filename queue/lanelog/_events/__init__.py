"""Every event that lanelog logs: its name, level, logger, meaning and fields.

Owns the list alone. Never logs, and only the command line imports it. docs/reference/events.md is made from it, and a
test compares it with each `log.….("event.name", …)` of the source.
"""

from __future__ import annotations

from typing import Final

from lanelog._events import client, engine, spark, worker
from lanelog._events.event import Event, Level

__all__ = ["EVENTS", "Event", "Level"]

EVENTS: Final = tuple(
    sorted(client.EVENTS + engine.EVENTS + spark.EVENTS + worker.EVENTS, key=lambda event: event.room)
)
"""All events by logger. A name may occur more than once, with another level or another logger."""
