"""Gives messages without a key their open lanes. A given id always gets the same lane; others go round.

Never writes a message. Reads how many open lanes a topic has, and creates missing ones on a connection that does not
belong to the pool.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Final

from attrs import define, field

from lanelog._base import open_lane_keys
from lanelog._base.backoff import RANDOM
from lanelog._log.append.draft import Draft
from lanelog._log.append.lanes import LaneCreator

FRESH: Final = 10.0
"""Seconds until the number of a topic's open lanes is read again."""

SHARE: Final = 8
"""How many messages of one call go to one open lane before it takes another."""


@define(eq=False)
class _Known:
    """How many open lanes a topic has, and when (monotonic) that is read again."""

    count: int
    until: float


@define(eq=False)
class OpenLaneRouting:
    """Chooses open lanes. Thread-safe."""

    _lanes: LaneCreator
    fresh: float = FRESH
    _known: dict[str, _Known] = field(factory=dict, init=False)
    # Processes that start at the same time must not meet in the same lanes.
    _rounds: Iterator[int] = field(factory=lambda: itertools.count(RANDOM.randrange(open_lane_keys.MOST)), init=False)

    def route(self, topic: str, unordered: Sequence[Draft], *, deadline: float) -> None:
        """Set the keys of drafts whose callers gave none. Raises DatabaseError.

        A new number of open lanes is seen after `fresh` seconds. Until then the old number decides. Its lanes are
        consumed, too.
        """
        count = self.count(topic, deadline=deadline)
        width = min(count, -(-len(unordered) // SHARE))
        first = next(self._rounds) * width
        for number, draft in enumerate(unordered):
            draft.lanes = count
            if draft.given:
                draft.key = open_lane_keys.lane_of(draft.id, count)
            else:
                draft.key = open_lane_keys.lane_key((first + number % width) % count)

    def count(self, topic: str, *, deadline: float) -> int:
        """Return how many open lanes a topic has, as this process knows. They were created. Raises DatabaseError."""
        known = self._known.get(topic)
        now = time.monotonic()
        if known is not None and now < known.until:
            return known.count
        if known is not None:
            known.until = now + self.fresh  # one thread reads, and the others use the old number meanwhile
        found = self._lanes.open_lanes(topic, deadline=deadline)
        self._known[topic] = _Known(found, time.monotonic() + self.fresh)
        return found
