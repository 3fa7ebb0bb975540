"""How many lanes of which kind one member gives back, or takes, to have its share of open lanes and of the others.

Owns the memory of whether the others share by kind, too; pure: no clock but `now` (monotonic seconds, handed in), no
database. Called by the member's keeper.

Each kind is shared out by itself: whoever has too many of one kind gives them back, whoever has too few takes them.
Members of an older version do not: they go by all lanes together, and leave what is given back where they have enough.
So a lane that stays free although a member has fewer than its share is taken by that member, whatever its kind; and
from then on this member goes by all lanes together, too, until the members change, or for a while.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from lanelog._engine.leasing.assignment import to_shed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lanelog._engine.lane.lane import Lane
    from lanelog._engine.leasing.assignment import Share

PATIENCE = 5.0
"""Seconds that lanes of the other kind are left to others, who have to see first that they are free."""

RECONSIDER = 300.0
"""Seconds after which a member tries again to share by kind, with members that did not."""


class Kind(Enum):
    """Which lanes."""

    ANY = "any"
    OPEN = "open"
    KEYED = "keyed"


@frozen(kw_only=True)
class Plan:
    """What to give back, and how many to take of which kind."""

    shed: list[Lane] = field(factory=list)
    claim: Mapping[Kind, int] = field(factory=dict)


@define(eq=False)
class Sharing:
    """One member's memory of how it shares."""

    _short_since: float | None = None
    """Since when it has had fewer lanes than its share."""
    _alike_until: float = 0.0
    """Until then it goes by all lanes together, as long as the members are those."""
    _alike_among: tuple[str, ...] = ()
    _by_kind: bool = False
    """What the last plan went by."""

    def plan(
        self, opened: Sequence[Lane], keyed: Sequence[Lane], share: Share, live: tuple[str, ...], now: float
    ) -> Plan:
        """Plan from what is held of each kind; what is being given back already is not held."""
        short = share.total - len(opened) - len(keyed)
        if short <= 0:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = now
        alike = now < self._alike_until and live == self._alike_among
        self._by_kind = share.by_kind and not alike
        if not self._by_kind:
            return Plan(shed=to_shed([*opened, *keyed], -short), claim={Kind.ANY: short} if short > 0 else {})
        shed = to_shed(opened, len(opened) - share.open) + to_shed(keyed, len(keyed) - share.keyed)
        wanted = {Kind.OPEN: share.open - len(opened), Kind.KEYED: share.keyed - len(keyed)}
        claim = {kind: count for kind, count in wanted.items() if count > 0}
        if self._short_since is not None and now - self._short_since >= PATIENCE:
            claim[Kind.ANY] = short
        return Plan(shed=shed, claim=claim)

    def took(self, kind: Kind, live: tuple[str, ...], now: float) -> None:
        """Hear that lanes were taken: if of any kind, because they were left to nobody."""
        self._short_since = None
        if kind is Kind.ANY and self._by_kind:
            self._alike_until, self._alike_among = now + RECONSIDER, live
