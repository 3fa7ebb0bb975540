"""Fair shares, and what is given back when one has too much."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lanelog._engine.lane.lane import Lane
from lanelog._engine.leasing.fair_share import fair_share, to_shed
from support.lanes import World
from unit.engine.leasing.test_sharing import lanes as held

OWNERS = st.sets(st.text(min_size=1, max_size=8), min_size=1, max_size=12)


def shares(lanes: int, owners: set[str]) -> dict[str, int]:
    return {owner: fair_share(lanes, sorted(owners), owner) for owner in owners}


@given(st.integers(0, 500), OWNERS, st.randoms())
def test_the_shares_are_what_dealing_the_lanes_out_gives(lanes: int, owners: set[str], random: Any) -> None:
    """Everybody gets as many lanes as if these were dealt out one by one, beginning with the first in sorted order.

    However the database lists the owners, also when one is listed twice.
    """
    ranked, listed = sorted(owners), [*owners, min(owners)]
    random.shuffle(listed)
    dealt = Counter(ranked[number % len(ranked)] for number in range(lanes))
    assert {owner: fair_share(lanes, listed, owner) for owner in owners} == {owner: dealt[owner] for owner in owners}


@given(
    st.integers(0, 30), st.lists(st.sets(st.sampled_from("abcde"), min_size=1), min_size=1, max_size=6), st.randoms()
)
def test_whoever_comes_and_goes_the_lanes_come_to_rest(lanes: int, history: list[set[str]], random: Any) -> None:
    """Owners that shed above their share and claim below it, in any order, own all lanes after two turns, and rest."""
    holder = dict.fromkeys(range(lanes), "")
    for owners in history:
        for _ in range(3):
            before = dict(holder)
            for owner in random.sample(sorted(owners), len(owners)):
                mine = [number for number, held_by in holder.items() if held_by == owner]
                missing = fair_share(lanes, sorted(owners), owner) - len(mine)
                surplus = to_shed(held([f"{number:02}" for number in mine]), -missing)
                holder |= dict.fromkeys((int(lane.key) for lane in surplus), "")
                free = [number for number, held_by in holder.items() if held_by not in owners]
                holder |= dict.fromkeys(free[: max(0, missing)], owner)
        assert before == holder, "still moving in the third turn"
        assert Counter(holder.values()) == Counter({o: n for o, n in shares(lanes, owners).items() if n})


@given(st.integers(0, 500), OWNERS, st.text(min_size=1, max_size=8))
def test_a_new_owner_takes_from_all_and_gives_to_none(lanes: int, owners: set[str], late: str) -> None:
    """When an owner joins, nobody's share grows; an owner that does not see itself yet counts itself in."""
    before, after = shares(lanes, owners), shares(lanes, owners | {late})
    assert all(after[owner] <= before[owner] for owner in owners)
    assert fair_share(lanes, sorted(owners), late) == after[late]


def lane(key: str, *, running: bool = False, closing: bool = False) -> Lane:
    world = World()
    world.lane.key = key
    world.lane.state.closing = closing
    if running:
        world.publish()
        world.start(world.go()[0])
    return world.lane


def test_idle_lanes_are_shed_first() -> None:
    """Lanes without a running handler are given back before others, each in the order of their keys."""
    lanes = [lane("d"), lane("b", running=True), lane("c"), lane("a", running=True)]
    assert [lane.key for lane in to_shed(lanes, 3)] == ["c", "d", "a"]


def test_lanes_on_their_way_out_are_not_shed_again() -> None:
    """A lane that is closing is neither chosen nor counted twice."""
    assert [lane.key for lane in to_shed([lane("a", closing=True), lane("b")], 2)] == ["b"]


def test_without_a_surplus_nothing_is_shed() -> None:
    """A member that has no more than its share keeps everything."""
    assert [to_shed([lane("a")], surplus) for surplus in (0, -1, -100)] == [[], [], []]
