"""Gives messages without a key their open lanes: an id that was given always the same one, the others in turn.

It never writes a message; it reads how many open lanes a topic has, and has those created that are missing, on a
connection that is not the pool's. `Publisher` calls it before a draft goes anywhere else.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Sequence
from typing import Final

from attrs import define, field

from lanelog import _open_lanes
from lanelog.publisher.draft import Draft
from lanelog.publisher.lanes import LaneCreator

FRESH: Final = 10.0
"""Seconds for which the number of a topic's open lanes is believed before it is read again."""

SHARE: Final = 8
"""So many messages of one call go to one open lane, before another is locked for it."""


@define(eq=False)
class _Known:
    """How many open lanes a topic has, and when (monotonic) that is to be read again."""

    count: int
    until: float


@define(eq=False)
class Spread:
    """Chooses open lanes; usable by any thread."""

    _lanes: LaneCreator
    fresh: float = FRESH
    _known: dict[str, _Known] = field(factory=dict, init=False)
    # Processes that start at the same time must not meet in the same lanes.
    _turns: Iterator[int] = field(factory=lambda: itertools.count(random.randrange(_open_lanes.MOST)), init=False)

    def place(self, topic: str, drafts: Sequence[Draft], *, deadline: float) -> None:
        """Set the keys of those drafts that were given none. Raises DatabaseError.

        A number that somebody has just changed is seen after `fresh` seconds; until then messages go by the old one,
        to lanes that are consumed all the same.
        """
        unordered = [draft for draft in drafts if draft.unordered]
        if not unordered:
            return
        count = self.count(topic, deadline=deadline)
        width = min(count, -(-len(unordered) // SHARE))
        first = next(self._turns) * width
        for place, draft in enumerate(unordered):
            draft.lanes = count
            if draft.given:
                draft.key = _open_lanes.lane_of(draft.id, count)
            else:
                draft.key = _open_lanes.lane_key((first + place % width) % count)

    def count(self, topic: str, *, deadline: float) -> int:
        """Return how many open lanes a topic has, as far as this process knows; all are there. Raises DatabaseError."""
        known = self._known.get(topic)
        now = time.monotonic()
        if known is not None and now < known.until:
            return known.count
        if known is not None:
            known.until = now + self.fresh  # of several threads one reads, and the others go by the old number
        found = self._lanes.open_lanes(topic, deadline=deadline)
        self._known[topic] = _Known(found, time.monotonic() + self.fresh)
        return found
