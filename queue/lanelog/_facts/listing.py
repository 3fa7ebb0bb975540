"""All events, for the command line and the documentation. Nothing else imports this: a program needs its own rooms."""

from __future__ import annotations

from typing import Final

from lanelog._facts import admin, client, dashboard, database, logging, publisher, spark, supervisor
from lanelog._facts.engine import fetcher, hints, janitor, keeper, loop, scheduler, settler, subscription, worker

_ROOMS: Final = (
    admin, client, dashboard, database, fetcher, hints, janitor, keeper, logging, loop,
    publisher, scheduler, settler, spark, subscription, supervisor, worker,
)  # fmt: skip

EVENTS: Final = tuple(
    sorted(
        (fact for each in _ROOMS for fact in each.room.facts), key=lambda fact: (fact.room.name, fact.name, fact.level)
    )
)
"""By logger, then by name. A name may occur more than once, with another level or another logger."""
