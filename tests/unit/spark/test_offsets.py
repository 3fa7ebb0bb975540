"""The positions of a stream: their JSON, how they advance, and what purged lanes do to them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanelog.errors import ConfigurationError
from lanelog.spark.source.offsets import (
    NOTHING,
    LaneExtent,
    Lanes,
    Positions,
    TopicState,
    admit,
    advance,
    ahead,
    lowered,
    pinned,
    ranges,
    skipped,
    up_to,
)
from lanelog.spark.source.splits import LaneRange

BACKLOGS = st.dictionaries(st.tuples(st.sampled_from("tu"), st.text("abcde", min_size=1)), st.integers(0, 100))


def seen(**heads: int) -> Lanes:
    return {"t": {key: LaneExtent(head, 0, 0, 5) for key, head in heads.items()}}


def at(**offsets: int) -> Positions:
    return Positions({"t": offsets}, {"t": 5})


def test_the_json_has_plain_numbers_in_a_stable_order() -> None:
    """Spark compares positions as texts: the same positions are the same text, whatever order they were found in."""
    one = Positions({"u": {"b": 2, "a": 1}, "t": {"é": 3}}, {"u": 7, "t": 5})
    other = Positions({"t": {"é": 3}, "u": {"a": 1, "b": 2}}, {"t": 5, "u": 7})
    assert json.dumps(one.json()) == json.dumps(other.json())
    assert one.json() == {"": 1, "t": {"": 5, "é": 3}, "u": {"": 7, "a": 1, "b": 2}}
    assert Positions.from_json(json.loads(json.dumps(one.json()))) == one
    many = Positions({"t": {f"repository-{n:05d}": 1000 + n for n in range(10_000)}}, {"t": 1_700_000_000_000})
    assert len(json.dumps(many.json())) < 300_000  # a name and a number for each lane, and nothing else


def test_a_checkpoint_of_another_form_is_refused() -> None:
    """The checkpoint of another version is not guessed at."""
    for form in ({"": 2, "t": {"": 5, "k": 7}}, {"t": {"k": 7}}):
        with pytest.raises(ConfigurationError, match="new checkpointLocation"):
            Positions.from_json(form)


def test_before_the_start_there_is_nothing() -> None:
    """The initial offset is the same in every run, and differs from a start without any lane."""
    assert NOTHING.json() == {}
    assert not Positions.from_json({}).begun
    assert pinned({}, {}).begun
    assert Positions.from_json(pinned({}, {}).json()).begun


def test_a_lane_is_pinned_before_it_is_read() -> None:
    """The first step knows where a new lane starts, the second reads it: both ends of a range are in the checkpoint."""
    lanes = {"t": {"old": LaneExtent(3, 0, 0, 5), "new": LaneExtent(9, 4, 4, 8)}}
    first = advance(at(old=1), lanes)
    assert first == Positions({"t": {"old": 4, "new": 5}}, {"t": 8})
    assert list(ranges(at(old=1), first)) == [LaneRange("t", "old", 0, 3)]
    second = advance(first, lanes)
    assert list(ranges(first, second)) == [LaneRange("t", "new", 4, 9)]
    assert advance(second, lanes) is second


def test_a_new_topic_starts_at_its_oldest_message() -> None:
    """One that appears later is pinned like a new lane; for a group at its watermarks, but a new lane is as before."""
    end = advance(at(k=2), {**seen(k=1), "u": {"a": LaneExtent(3, 1, 1, 6)}})
    assert end == Positions({"t": {"k": 2}, "u": {"a": 2}}, {"t": 5, "u": 6})
    lanes = {"t": {"k": LaneExtent(1, 0, 0, 5), "new": LaneExtent(9, 0, 0, 6)}, "u": {"a": LaneExtent(9, 1, 1, 6)}}
    end = advance(at(k=2), lanes, watermarks={"t": {"k": 1, "new": 4}, "u": {"a": 7}})
    assert end.lanes == {"t": {"k": 2, "new": 1}, "u": {"a": 8}}


@pytest.mark.parametrize(("floor", "gone"), [(4, None), (5, None), (6, LaneRange("t", "k", 5, 6))])
@pytest.mark.parametrize("start", [at(other=1), at(k=2, other=1), Positions({}, {})])
def test_a_new_lane_lost_messages_if_its_floor_is_above_every_purged_lane(
    start: Positions, floor: int, gone: LaneRange | None
) -> None:
    """No lane is born above where the purged ones end: one that is new, or came back, and is released further."""
    lanes = {"t": {"k": LaneExtent(9, floor, floor, 6), "other": LaneExtent(9, 1, 1, 5)}}
    assert skipped(start, lanes, {"t": TopicState(5, 1)}) == gone
    assert skipped(start, lanes, {}) is None
    assert skipped(Positions({"t": {"k": 9, "other": 1}}, {"t": 6}), lanes, {"t": TopicState(0, 1)}) is None


def test_a_purged_lane_leaves_and_is_pinned_anew() -> None:
    """A lane that is gone is forgotten; one that came back meanwhile, further up, is forgotten and pinned again."""
    assert advance(at(gone=4, k=2), seen(k=1)) == at(k=2)
    reborn = {"t": {"k": LaneExtent(12, 10, 10, 6)}}
    forgotten = advance(at(k=4), reborn)
    assert (forgotten, list(ranges(at(k=4), forgotten))) == (Positions({"t": {}}, {"t": 6}), [])
    again = advance(forgotten, reborn)
    assert again == Positions({"t": {"k": 11}}, {"t": 6})


def test_a_position_above_the_end_of_its_lane_is_lowered_to_it() -> None:
    """In a step that reads nothing. A lane that was purged, or came back, has not gone back; nor one at its end."""
    start = at(k=6, end=3, gone=4, reborn=9)
    lanes = {"t": {**seen(k=2, end=2)["t"], "reborn": LaneExtent(4, 4, 4, 6)}}
    assert ahead(start, lanes) == [LaneRange("t", "k", 2, 5)]
    down = lowered(start, ahead(start, lanes))
    assert (down, list(ranges(start, down))) == (at(k=3, end=3, gone=4, reborn=9), [])
    assert list(ranges(down, advance(down, seen(k=7, end=2)))) == [LaneRange("t", "k", 2, 7)]


@given(BACKLOGS, st.integers(1, 300), st.integers(0, 1000))
def test_admission_is_exact_and_even(behind: dict[tuple[str, str], int], limit: int, turn: int) -> None:
    """The limit is used up, and no lane gets more than it has; one cut short gets at most one less than any other."""
    admitted = admit(behind, limit, turn)
    assert sum(admitted.values()) == min(limit, sum(behind.values()))
    assert all(0 < rows <= behind[lane] for lane, rows in admitted.items())
    short = [admitted.get(lane, 0) for lane, rows in behind.items() if admitted.get(lane, 0) < rows]
    assert not short or max(admitted.values()) <= min(short) + 1


@given(st.integers(1, 12), st.integers(1, 5))
def test_no_lane_waits_for_ever(lanes: int, limit: int) -> None:
    """With fewer messages than lanes in every step, each lane has its turn."""
    position = Positions({"t": {f"k{n}": 1 for n in range(lanes)}}, {"t": 5})
    heads = seen(**{f"k{n}": 4 for n in range(lanes)})
    steps = 0
    while (end := advance(position, heads, limit=limit)) is not position:
        assert sum(each.rows for each in ranges(position, end)) <= limit
        position, steps = end, steps + 1
    assert position.lanes["t"] == {f"k{n}": 5 for n in range(lanes)}
    assert steps == -(-4 * lanes // limit)


@given(st.integers(2, 9), st.integers(1, 4))
def test_no_lane_waits_for_busy_ones(lanes: int, limit: int) -> None:
    """The first keys get as many messages as every step may take: the others get their turn."""
    heads = {f"k{n}": 100 for n in range(lanes)}
    position = Positions({"t": dict.fromkeys(heads, 1)}, {"t": 5})
    for step in range(2 * lanes):
        heads[f"k{step % 2}"] += limit
        position = advance(position, seen(**heads), limit=limit)
    assert min(position.lanes["t"].values()) > 1


def test_what_came_after_the_target_is_another_run() -> None:
    """With availableNow, heads are those of the beginning, and a lane that was made since does not exist."""
    now = {"t": {"k": LaneExtent(9, 0, 0, 5), "new": LaneExtent(1, 0, 0, 6)}, "u": {}}
    assert up_to(now, seen(k=4)) == seen(k=4)
