"""Which messages of a topic are its newest ones."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from lanelog.admin.read.newest import chosen

LANES, LONGEST = "abcdef", 12


@given(
    heads=st.dictionaries(st.sampled_from(LANES), st.integers(0, LONGEST), min_size=1),
    collected=st.dictionaries(st.sampled_from(LANES), st.integers(0, LONGEST)),
    times=st.lists(st.integers(1, 40), min_size=len(LANES) * LONGEST, max_size=len(LANES) * LONGEST),
    most=st.integers(0, 30),
)
def test_the_newest_messages_are_those_inserted_last(
    heads: dict[str, int], collected: dict[str, int], times: list[int], most: int
) -> None:
    """The answer holds for any order of inserts and any collection. No message is read twice, and few in vain."""
    left = {
        (key, offset): created
        for lane, (key, head) in enumerate(heads.items())
        for offset, created in enumerate(sorted(times[LONGEST * lane : LONGEST * lane + head]), 1)
        if offset > collected.get(key, 0)
    }
    asked: list[tuple[str, int]] = []

    def stamps(points: Sequence[tuple[str, int]]) -> list[tuple[int, str, int, int]]:
        asked.extend(points)
        assert len(points) <= max(most, len(heads))
        return [(left[point], *point, 1) for point in points if point in left]

    found = sorted(chosen(stamps, heads, most), reverse=True)
    assert [stamp[:3] for stamp in found] == sorted(((at, *point) for point, at in left.items()), reverse=True)[:most]
    assert len(asked) == len(set(asked))
