"""What the fetcher knows of a topic's heads, and the cheapest query that finds those that rose.

Owns the digests and what they cost. Never decides when to poll.

There are three queries:

1. The digest of all heads: was anything published?
2. The digests of the parts of a topic: which part changed, and which single lane would explain the change? If the rows
   of that lane do not explain it, the heads of the part are read by key.
3. The full poll: all lanes that are behind. It needs no digest, and takes a join for each lane.

A digest is always read before the heads or rows that it covers. So a commit in between changes the next digest, and
the next poll finds it. A lane that was opened meanwhile may have been loaded with an older head: its head is read with
the next digest. All heads are read again after an error, and after memory was loaded from another server, whose digest
may be the same by chance. Now and then a full poll follows without a reason. It also measures anew what it costs.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from lanelog._stores.log import partitions
from lanelog._stores.log.partitions import HeadsDigest, Part

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from lanelog._database import Session
    from lanelog._engine.member.member import Member

LEAST_SECONDS = 1e-6
"""The least cost of a full poll: a coarse clock must not say that it costs nothing."""


@frozen(kw_only=True)
class DigestPace:
    """How much digests may cost, beside the last full poll."""

    most_share: float = 0.5
    """Of the time of a full poll: when a digest takes more, the poll is made without it."""
    again_times: float = 20.0
    """A full poll is made when the digests since the last one have taken this many times as long as it did."""
    by_key_share: float = 0.5
    """Of the lanes: heads of more of them are found by the full poll, because each key in a statement costs."""


@frozen
class Named:
    """A lane that explains alone what changed in its part of the topic."""

    key: str
    risen: int
    """By how many messages. When it has fewer new ones, other lanes of the part have risen, too."""
    part: Sequence[str] = field(repr=False)
    """The keys of all held lanes of the part."""


@frozen
class Risen:
    """The lanes whose heads rose, as far as digests show."""

    named: Sequence[Named] = ()
    among: Sequence[str] = ()
    """Keys of the lanes in the other parts that changed. Perhaps a lane of another owner has risen there."""


@define(eq=False)
class KnownHeads:
    """What is known of the heads of one member's lanes."""

    pace: DigestPace = field(factory=DigestPace)
    digest: HeadsDigest | None = None
    parts: Mapping[int, Part] = field(factory=dict)
    saved: float = math.inf  # seconds that the last full poll took
    digest_cost: float = 0.0  # seconds that the last digest took, halved for each poll without one
    _spent: float = 0.0  # seconds that digests took since the last full poll
    _generation: int = 0  # of memory, at the last digest
    _changes: int = -1  # of the member's lanes, when their keys were read
    _keys: Mapping[int, Sequence[str]] = field(factory=dict)  # of the member's lanes, by part

    def changed(self, session: Session, member: Member, generation: int, *, notified: bool) -> Risen | None:
        """Return the lanes to read; none if nothing was published, None for the full poll.

        `notified`: something was published, so the question is where.
        """
        # This is taken before the query, so the next poll meets what is opened after it. `forget` covers an error.
        unsure = member.fetching.take_unsure()
        if generation != self._generation:
            self.forget()
            self._generation = generation
        if self.digest_cost > self.pace.most_share * self.saved:
            self.digest_cost /= 2
            return None
        if self._spent > self.pace.again_times * self.saved:
            return None
        began = time.monotonic()
        try:
            risen = self._where(session, member) if notified else self._whether(session, member)
        except BaseException:
            self.forget()
            # A limit of the server may end each digest of a huge topic: then the next polls are made without one.
            self.saved = min(self.saved, time.monotonic() - began)
            raise
        finally:
            self.digest_cost = time.monotonic() - began
            self._spent += self.digest_cost
        if risen is None or not unsure:
            return risen
        return self._if_few(Risen(risen.named, [*risen.among, *unsure]), member)

    def read(self, session: Session, member: Member, keys: Collection[str] | None, check: Callable[[], None]) -> bool:
        """Read the heads of these lanes, or of all that are behind. True when one rose.

        `check`: raises when memory was loaded again meanwhile. Then the answer is another server's, perhaps.
        """
        began = time.monotonic()
        try:
            if keys is None:
                heads = partitions.owned_heads(session, member.at, member.owner)
                # A poll that was slow by chance would make every digest pay: it counts twice the one before at most.
                self.saved = max(LEAST_SECONDS, min(2 * self.saved, time.monotonic() - began))
                self._spent = 0.0
            else:
                heads = list(partitions.heads(session, member.topic, list(keys)).items())
            check()
        except BaseException:
            self.forget()  # the heads of this digest were not read
            raise
        return member.fetching.heads(heads)

    def forget(self) -> None:
        """Believe no digest. The next poll reads the heads of all lanes that are behind."""
        self.digest, self.parts = None, {}

    def _whether(self, session: Session, member: Member) -> Risen | None:
        known, self.digest = self.digest, partitions.digest(session, member.topic)
        return Risen() if self.digest == known else None

    def _where(self, session: Session, member: Member) -> Risen | None:
        known, self.parts = self.parts, partitions.parts(session, member.topic)
        self.digest = partitions.whole(self.parts)
        if not known:
            return None
        if (changes := member.changes) != self._changes:
            self._keys, self._changes = _by_part(member.fetching.keys()), changes
        named: list[Named] = []
        among: list[str] = []
        for part, held in self._keys.items():
            now, before = self.parts.get(part), known.get(part)
            if now == before:
                continue
            risen = 0 if now is None or before is None else now.risen_since(before)
            alone = [key for key in held if now.may_be(key, before)] if risen and now and before else []
            if len(alone) == 1:
                named.append(Named(alone[0], risen, held))
            else:
                among += held
        return self._if_few(Risen(named, among), member)

    def _if_few(self, risen: Risen, member: Member) -> Risen | None:
        return None if len(risen.among) > self.pace.by_key_share * len(member.lanes) else risen


def _by_part(keys: Collection[str]) -> Mapping[int, Sequence[str]]:
    found: dict[int, list[str]] = {}
    for key in keys:
        found.setdefault(partitions.part_of(key), []).append(key)
    return found
