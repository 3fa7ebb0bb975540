"""How the log is cut for tasks and statements: everything once, nothing twice, in even parts."""

from itertools import chain, groupby

from hypothesis import given
from hypothesis import strategies as st

from lanelog._base.places import GroupTopic
from lanelog.spark.source.splits import PAGE_LANES, PAGE_ROWS, LaneRange, pages, plan_splits, split_table

LANE = st.tuples(st.integers(0, 50), st.integers(0, 400))


def ranges_of(lanes: list[tuple[int, int]]) -> list[LaneRange]:
    return [LaneRange("t" if n % 3 else "u", f"k{n}", after, after + rows) for n, (after, rows) in enumerate(lanes)]


def messages(ranges: list[LaneRange]) -> list[tuple[str, str, int]]:
    return [(each.topic, each.key, offset) for each in ranges for offset in range(each.after + 1, each.through + 1)]


@given(st.lists(LANE, max_size=20), st.integers(1, 30), st.integers(1, 500))
def test_splits_together_are_the_ranges(lanes: list[tuple[int, int]], least: int, rows: int) -> None:
    """Every message is in one split, in the order given; sizes differ by one at most, and none is empty."""
    ranges = ranges_of(lanes)
    splits = plan_splits(ranges, min_partitions=least, split_rows=rows)
    assert messages([each for split in splits for each in split]) == messages(ranges)
    sizes = [sum(each.rows for each in split) for split in splits]
    total = sum(sizes)
    assert all(each.rows > 0 for split in splits for each in split)
    assert not sizes or (max(sizes) - min(sizes) <= 1 and max(sizes) <= rows)
    assert len(sizes) == min(total, max(least, -(-total // rows)))


def test_a_long_lane_is_cut_and_short_ones_are_packed() -> None:
    """150,000 messages are three tasks', a thousand lanes of ten one task's; what ends before it begins is nothing."""
    long = plan_splits([LaneRange("t", "k", 0, 150_000)])
    assert [split[0].rows for split in long] == [50_000] * 3
    packed = plan_splits([LaneRange("t", f"k{n}", 5, 15) for n in range(1000)])
    assert [len(split) for split in packed] == [1000]
    assert plan_splits([LaneRange("t", "k", 9, 3), LaneRange("t", "l", 0, 2)]) == [(LaneRange("t", "l", 0, 2),)]


@given(st.integers(0, 50), st.integers(1, 9))
def test_the_groups_of_a_table_are_packed(count: int, most: int) -> None:
    """Each is in one split, in the order given, and no split is empty or much larger than another."""
    parts = [GroupTopic(topic=f"t{n // 2}", group=f"g{n % 2}") for n in range(count)]
    splits = split_table(parts, most)
    assert [part for split in splits for part in split] == parts
    assert len(splits) == min(count, most)
    assert not splits or max(map(len, splits)) - min(map(len, splits)) <= 1


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3 * PAGE_ROWS)), max_size=8))
def test_pages_together_are_the_split(lanes: list[tuple[int, int]]) -> None:
    """A split's statements read each of its messages once, within their bounds, each from one topic."""
    ranges = ranges_of(lanes)
    found = list(pages(ranges))
    whole = [(key, sum(each.rows for each in parts)) for key, parts in groupby(chain(*found), lambda each: each.key)]
    assert whole == [(each.key, each.rows) for each in ranges]
    for page in found:
        assert 0 < sum(each.rows for each in page) <= PAGE_ROWS
        assert len({each.topic for each in page}) == 1


def test_a_page_has_a_bounded_number_of_lanes() -> None:
    """A thousand lanes of one message are not one statement of a thousand parts."""
    found = list(pages(LaneRange("t", f"k{n}", 0, 1) for n in range(1000)))
    assert [len(page) for page in found] == [PAGE_LANES] * (1000 // PAGE_LANES)
