"""Fair shares: how many of a topic's lanes each owner gets, and which ones an owner with too many gives back.

Owns this arithmetic. Every owner computes the same from the same rows. Pure: it never reads the database or a clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lanelog._engine.lane.lane import Lane


def fair_share(lanes: int, owners: Sequence[str], me: str) -> int:
    """The number of lanes for `me`: the first (lanes mod owners) owners in sorted order get one more than the rest.

    Every owner computes the same from the same input, so no owner has to lead. An owner that is not in the list,
    because its heartbeat is not visible yet, counts itself in.
    """
    ranked = sorted({*owners, me})
    share, left_over = divmod(lanes, len(ranked))
    return share + (1 if ranked.index(me) < left_over else 0)


@frozen(kw_only=True)
class Share:
    """One owner's share of each kind of lanes."""

    open: int
    keyed: int
    by_kind: bool
    """Whether the topic has open lanes. Without them, all lanes are alike."""

    @property
    def total(self) -> int:
        """How many in all."""
        return self.open + self.keyed


def fair_shares(open_lanes: int, keyed: int, owners: Sequence[str], me: str) -> Share:
    """The number of open and of keyed lanes for `me`. Open lanes are shared evenly, and so are all lanes together.

    So one owner does not get all open lanes of a topic, and all its work, while others have its idle keys. An owner of
    an older version shares all lanes alike. It computes the same total for each owner.
    """
    mine = fair_share(open_lanes, owners, me)
    total = fair_share(open_lanes + keyed, owners, me)
    return Share(open=mine, keyed=total - mine, by_kind=open_lanes > 0)


def to_shed(lanes: Iterable[Lane], surplus: int) -> list[Lane]:
    """The lanes to give back: idle ones first, and then in the order of their keys."""
    if surplus <= 0:
        return []
    staying = [lane for lane in lanes if not lane.state.closing]
    return sorted(staying, key=lambda lane: (bool(lane.state.running), lane.key))[:surplus]
