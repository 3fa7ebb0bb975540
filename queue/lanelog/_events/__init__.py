"""Every event that lanelog logs: its name, level, logger, what it says, and its fields.

Owns the list alone; nothing is logged from here, and the library runs without importing it. `lanelog events` shows it,
docs/reference/events.md is made from it, and a test holds it against each `log.….("event.name", …)` of the source.
"""

from __future__ import annotations

from typing import Final

from lanelog._events import client, engine, spark
from lanelog._events.event import Event, Level

__all__ = ["EVENTS", "Event", "Level"]

EVENTS: Final = tuple(sorted(client.EVENTS + engine.EVENTS + spark.EVENTS, key=lambda event: event.room))
"""All events by logger; a name may stand there more than once, with another level or another logger."""
