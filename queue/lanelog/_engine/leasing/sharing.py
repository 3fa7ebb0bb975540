"""How many open and how many keyed lanes one member gives back or takes, to have its share of both.

Owns the memory whether the other members share by kind, too. Pure: it never reads the database or a clock. `now` is
monotonic seconds, given by the caller.

Each kind is shared out by itself: a member with too many lanes of a kind gives some back, and a member with too few
takes some. Members of an older version count all lanes together. When they have enough, they leave a free lane alone.
So a lane can stay free although a member has fewer lanes than its share. That member then takes the lane, whatever its
kind. From then on it counts all lanes together, too, until the members change or `alike_seconds` are over.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from lanelog._engine.leasing.fair_share import to_shed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lanelog._engine.lane.lane import Lane
    from lanelog._engine.leasing.fair_share import Share


class Kind(Enum):
    """The kinds of lanes."""

    ANY = "any"
    OPEN = "open"
    KEYED = "keyed"


@frozen(kw_only=True)
class Plan:
    """The lanes to give back, and the number to take of each kind."""

    shed: list[Lane] = field(factory=list)
    claim: Mapping[Kind, int] = field(factory=dict)


@define(eq=False)
class Sharing:
    """One member's memory of how it shares."""

    yield_seconds: float = 5.0
    """How long it leaves lanes of the other kind to others. They must see first that the lanes are free."""
    alike_seconds: float = 300.0
    """Seconds before it tries again to share by kind with the same members."""
    _short_since: float | None = None
    """When (monotonic) it began to have fewer lanes than its share."""
    _alike_until: float = 0.0
    """The time (monotonic) until which it counts all lanes together, while the members are `_alike_among`."""
    _alike_among: tuple[str, ...] = ()
    _by_kind: bool = False
    """Whether the last plan shared by kind."""

    def plan(
        self, opened: Sequence[Lane], keyed: Sequence[Lane], share: Share, live: tuple[str, ...], now: float
    ) -> Plan:
        """Plan from the lanes that are held of each kind. The caller leaves out lanes that are being given back."""
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
        if self._short_since is not None and now - self._short_since >= self.yield_seconds:
            claim[Kind.ANY] = short
        return Plan(shed=shed, claim=claim)

    def took(self, kind: Kind, live: tuple[str, ...], now: float) -> None:
        """Note that lanes were taken. With `Kind.ANY`, no other member had wanted them."""
        self._short_since = None
        if kind is Kind.ANY and self._by_kind:
            self._alike_until, self._alike_among = now + self.alike_seconds, live
