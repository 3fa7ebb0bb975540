"""The lanes of a topic, as one member knows them.

Owns the queries for lanes: new ones in each turn of the keeper, all of them about once a lease. Takes no lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._base.backoff import RANDOM
from lanelog._base.open_lane_keys import is_open
from lanelog._stores.log import partitions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from lanelog._database import Session


@define(eq=False)
class KnownLanes:
    """What the last full pass found, and what came later."""

    keys: set[str] = field(factory=set)
    open: set[str] = field(factory=set)
    """The keys of the open lanes among them."""
    new_seconds: float = 5.0
    """How far back each query for new lanes goes: more than any lane's creation takes to commit."""
    page_lanes: int = 5000
    """The most keys that are read at once."""
    _passed: partitions.HeadsDigest | None = None  # the digest before the last full pass
    _recent: set[str] = field(factory=set)  # the lanes that the last query for new lanes found
    _full_pass_at: float = 0.0

    def forget(self) -> None:
        """Read all keys the next time: the next answer may be another server's."""
        self._recent, self._passed, self._full_pass_at = set(), None, 0.0

    def read(self, session: Session, topic: str, now: float, *, lasting: float) -> Collection[str] | None:
        """Return the new lanes. None: a full pass found that the lanes have changed.

        `lasting`: seconds after which a full pass is made again.
        """
        if now >= self._full_pass_at:
            self._full_pass_at = 0.0  # a full pass that raises is repeated in the next turn
            changed = self._full_pass(session, topic)
            self._full_pass_at = now + lasting * RANDOM.uniform(0.8, 1.0)
            return None if changed else ()
        # This is not compared with `keys`: a lane that was purged and born again is known, and has no lease row.
        recent = set(partitions.new_lanes(session, topic, self.new_seconds))
        new, self._recent = recent - self._recent, recent
        self._add(new)
        return new

    def _full_pass(self, session: Session, topic: str) -> bool:
        """Read the key of every lane, unless a digest says that they are the same. True when they have changed."""
        digest = partitions.digest(session, topic)
        if self._passed is not None and digest.same_lanes(self._passed):
            return False
        before, self.keys, self.open = self.keys, set(), set()
        after = ""
        while True:
            page = partitions.page(session, topic, after, self.page_lanes)
            self._add(key for key, _ in page if key)
            if len(page) < self.page_lanes:
                break
            after = page[-1][0]
        self._passed = digest  # older than the pages: the next full pass meets lanes that came in between
        return self.keys != before

    def _add(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.keys.add(key)
            if is_open(key):
                self.open.add(key)
