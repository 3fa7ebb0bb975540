"""Open lanes and others are shared out each by themselves, also beside members that know no difference."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, cast

from attrs import frozen
from hypothesis import example, given
from hypothesis import strategies as st

from lanelog._base.open_lane_keys import is_open, lane_keys
from lanelog._engine.lane.lane import Lane
from lanelog._engine.leasing.fair_share import fair_share, fair_shares, to_shed
from lanelog._engine.leasing.sharing import Kind, Sharing

OWNERS = st.sets(st.sampled_from("abcdefg"), min_size=1)


@frozen
class Held:
    """As much of a lane as is looked at."""

    key: str
    closing: bool = False

    running: tuple[int, ...] = ()

    @property
    def state(self) -> Held:
        """A lane's flags stand in its state."""
        return self


def lanes(keys: list[str]) -> list[Lane]:
    return [cast("Lane", Held(key)) for key in keys]


@given(st.integers(0, 200), st.integers(0, 200), OWNERS)
def test_each_kind_is_shared_out_evenly_and_both_together_as_ever(opened: int, keyed: int, owners: set[str]) -> None:
    """All are somebody's; nobody has two open lanes more than another; older versions compute the same totals."""
    listed = sorted(owners)
    shares = [fair_shares(opened, keyed, listed, owner) for owner in listed]
    assert sum(share.open for share in shares) == opened
    assert sum(share.keyed for share in shares) == keyed
    assert max(share.open for share in shares) - min(share.open for share in shares) <= 1
    assert min(share.keyed for share in shares) >= 0
    assert [share.total for share in shares] == [fair_share(opened + keyed, listed, owner) for owner in listed]


def test_five_processes_have_twelve_or_thirteen_of_sixty_four() -> None:
    """The shares are the same whatever other keys the topic has."""
    for keyed in (0, 3, 1000):
        found = [fair_shares(64, keyed, "abcde", owner).open for owner in "abcde"]
        assert found == [13, 13, 13, 13, 12]


class Fleet:
    """Members that take and give back lanes turn by turn; one of the version before goes by the total alone."""

    def __init__(self, keys: list[str]) -> None:
        self.holder = dict.fromkeys(keys, "")
        self.sharing: dict[str, Sharing] = {}
        self.now = 1000.0

    def turn(self, owner: str, live: list[str], *, older: bool) -> bool:
        """One turn; whether it changed anything."""
        before = dict(self.holder)
        mine = [key for key in self.holder if self.holder[key] == owner]
        opened, keyed = [key for key in mine if is_open(key)], [key for key in mine if not is_open(key)]
        share = fair_shares(sum(map(is_open, self.holder)), sum(not is_open(key) for key in self.holder), live, owner)
        if older:
            shed, claim = to_shed(lanes(mine), len(mine) - share.total), {Kind.ANY: share.total - len(mine)}
        else:
            sharing = self.sharing.setdefault(owner, Sharing())
            plan = sharing.plan(lanes(opened), lanes(keyed), share, tuple(live), self.now)
            shed, claim = plan.shed, dict(plan.claim)
        for lane in shed:
            self.holder[lane.key] = ""
        taken = False
        for kind, count in claim.items():
            free = [key for key in sorted(self.holder) if not self.holder[key] and key not in {x.key for x in shed}]
            fitting = [key for key in free if kind is Kind.ANY or is_open(key) is (kind is Kind.OPEN)]
            chosen = [] if taken and kind is Kind.ANY else fitting[: max(0, count)]
            self.holder.update(dict.fromkeys(chosen, owner))
            if chosen:
                taken = True
                if not older:
                    self.sharing[owner].took(kind, tuple(live), self.now)
        return self.holder != before

    def rest(self, live: list[str], older: set[str] = frozenset(), turns: int = 40) -> None:  # type: ignore[assignment]
        """Let all of them have so many turns, half a second each; the lanes of the others are free."""
        for key, owner in self.holder.items():
            if owner not in live:
                self.holder[key] = ""
        for _ in range(turns):
            self.now += 0.5
            for owner in live:
                self.turn(owner, live, older=owner in older)

    def counts(self, *, opened: bool) -> Counter[str]:
        return Counter(owner for key, owner in self.holder.items() if is_open(key) is opened)


KEYS = [f"k{number:02}" for number in range(30)]


@given(st.lists(OWNERS, min_size=1, max_size=5), st.integers(0, 30), st.integers(0, 20))
def test_whoever_comes_and_goes_both_kinds_come_to_rest_evenly(
    history: list[set[str]], keyed: int, opened: int
) -> None:
    """After a few turns every lane is somebody's, each kind in fair shares, and nothing moves any more."""
    fleet = Fleet([*KEYS[:keyed], *lane_keys(opened)])
    for owners in history:
        live = sorted(owners)
        fleet.rest(live)
        shares = {owner: fair_shares(opened, keyed, live, owner) for owner in live}
        assert fleet.counts(opened=True) == Counter({owner: share.open for owner, share in shares.items()})
        assert fleet.counts(opened=False) == Counter({owner: share.keyed for owner, share in shares.items()})
        assert [fleet.turn(owner, live, older=False) for owner in live] == [False] * len(live)


@example({"a", "b"}, {"a"}, 1, 1, random.Random(1))
@example({"a", "b"}, {"a"}, 1, 1, random.Random(2))
@given(OWNERS, OWNERS, st.integers(0, 30), st.integers(0, 20), st.randoms())
def test_beside_older_members_no_lane_stays_free(
    owners: set[str], old: set[str], keyed: int, opened: int, dice: Any
) -> None:
    """Older members take their share of any kind: the others leave nothing to them for long, and rest."""
    fleet = Fleet([*KEYS[:keyed], *lane_keys(opened)])
    fleet.holder = {key: dice.choice(sorted(owners)) for key in fleet.holder}
    live, older = sorted(owners), owners & old
    fleet.rest(live, older, turns=60)
    assert "" not in fleet.holder.values()
    total = fleet.counts(opened=True) + fleet.counts(opened=False)
    assert total == Counter({owner: fair_share(opened + keyed, live, owner) for owner in live})
    assert [fleet.turn(owner, live, older=owner in older) for owner in live] == [False] * len(live)


def test_when_the_older_ones_are_gone_it_shares_by_kind_again() -> None:
    """At once when the members change; after a while in any case."""
    fleet = Fleet([*KEYS[:8], *lane_keys(8)])
    fleet.holder = {key: "a" if is_open(key) else "b" for key in fleet.holder}
    fleet.rest(["a", "b"], {"a"}, turns=60)
    assert fleet.counts(opened=True) == {"a": 8}
    fleet.rest(["a", "b", "c"])
    assert set(fleet.counts(opened=True).values()) == {2, 3}

    fleet.holder = {key: "a" if is_open(key) else "b" for key in fleet.holder}
    fleet.sharing.clear()
    fleet.rest(["a", "b"], {"a"}, turns=60)
    fleet.now += Sharing().alike_seconds
    fleet.rest(["a", "b"])
    assert set(fleet.counts(opened=True).values()) == {4}


def test_lanes_of_another_kind_are_left_to_others_for_a_moment() -> None:
    """The others have to see first that these are free."""
    sharing, share = Sharing(), fair_shares(4, 4, "ab", "a")
    mine = lanes(["k1", "k2"])
    assert sharing.plan([], mine, share, ("a", "b"), 0.0).claim == {Kind.OPEN: 2}
    assert sharing.plan([], mine, share, ("a", "b"), sharing.yield_seconds).claim == {Kind.OPEN: 2, Kind.ANY: 2}


def test_without_open_lanes_all_are_alike() -> None:
    """One claim, as before."""
    share = fair_shares(0, 10, "ab", "a")
    assert Sharing().plan([], lanes(["k1"]), share, ("a", "b"), 0.0).claim == {Kind.ANY: 4}
    assert Sharing().plan([], lanes(KEYS[:7]), share, ("a", "b"), 0.0).shed == lanes(["k00", "k01"])
