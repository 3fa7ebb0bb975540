"""For transactions that append: create their lanes before, and notify the readers after.

A lane is never created in a transaction that appends to it: that would hold the topic row for as long as it takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from attrs import frozen

from lanelog._log.append.lanes import LaneCreator

MOMENT_SECONDS: Final = 0.05
"""For how long the creation of lanes is tried by a loop, which must not wait for it."""


@frozen
class Appender:
    """The way into the log for callers without a publisher: what is due, fired, buried or redriven."""

    _lanes: LaneCreator
    committed: Callable[[str], None]
    """The callback that gets the topic after the commit. It wakes the fetchers of this process, and of others."""

    def ensure_lanes(self, topic: str, keys: Iterable[str]) -> None:
        """Create the missing lanes on a connection of our own. It is tried for a moment only. Raises DatabaseError."""
        self._lanes.ensure(topic, set(keys), deadline=time.monotonic() + MOMENT_SECONDS)
