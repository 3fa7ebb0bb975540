"""The lanes of messages without a key: their names, the lane of an id, and a draft that steps aside."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanelog._base import open_lane_keys
from lanelog._base.open_lane_keys import check_key, is_open, lane_key, lane_keys, lane_of
from lanelog._log.append.draft import Draft, make_draft
from lanelog._log.append.writing import note_attempt
from lanelog.errors import ConfigurationError, DatabaseError
from lanelog.message import Outgoing, Receipt
from lanelog.migrations.declared import declared_tables
from lanelog.migrations.steps import shape
from lanelog.publisher.topic_queue import TopicQueue, Waiter

IDS = [f"job-{number}" for number in range(2000)]


def unordered(lane: int = 0, *, lanes: int = 4, message_id: str | None = None) -> Draft:
    draft = make_draft("t", Outgoing(None, b"x", message_id), None, 10)
    draft.lanes, draft.key = lanes, lane_key(lane)
    return draft


def test_the_names_are_in_order_and_equally_long() -> None:
    """Lists that are sorted by key show them in order; and a draft's size does not depend on its lane."""
    keys = lane_keys(open_lane_keys.MOST)
    assert keys == sorted(set(keys))
    assert {len(key) for key in keys} == {len("open~000")}
    assert all(map(is_open, keys))


def test_the_default_is_the_columns() -> None:
    """A process of the version before, and one on its tables, go by the same number."""
    column = declared_tables()["queue_partitions"].columns["open_lanes"]
    assert column.default == str(open_lane_keys.DEFAULT)
    assert "open_lanes" in shape(open_lane_keys.SINCE)["queue_partitions"].columns
    assert "open_lanes" not in shape(open_lane_keys.SINCE - 1)["queue_partitions"].columns


def test_an_open_lane_may_be_named_and_nothing_else_may_be_called_like_one() -> None:
    """A message of an open lane can be copied there; a key that only looks like one is refused."""
    assert check_key("open~007") == "open~007"
    assert check_key("opening") == "opening"
    for key in ("open~7", "open~", "open~0007", "open~abc", "open~007 x"):
        with pytest.raises(ConfigurationError, match="publish with None as its key"):
            check_key(key)


@pytest.mark.parametrize("count", [1, 2, 64, 1000])
def test_ids_are_spread_evenly(count: int) -> None:
    """No lane has many times its share; every lane is one of them."""
    lanes = [lane_of(message_id, count) for message_id in IDS]
    assert set(lanes) <= set(lane_keys(count))
    assert max(map(lanes.count, set(lanes))) <= 3 * len(IDS) / count + 10


@given(st.text(min_size=1, max_size=20), st.integers(1, 999))
def test_one_lane_more_takes_ids_from_the_others_and_moves_none_between_them(message_id: str, count: int) -> None:
    """Few ids change their lane when the number changes."""
    assert lane_of(message_id, count + 1) in (lane_of(message_id, count), lane_key(count))


def test_the_lane_of_an_id_is_the_same_in_every_version() -> None:
    """A change of the arithmetic would store messages of known ids twice."""
    assert [lane_of(message_id, 64) for message_id in ("a", "b", "job-1")] == ["open~011", "open~049", "open~049"]


def test_a_draft_steps_aside_to_a_lane_that_is_free() -> None:
    """To each one once; it stays when it has met all of them busy."""
    draft = unordered(0)
    assert draft.step_aside({"open~000", "open~001", "k"})
    assert draft.key in ("open~002", "open~003")
    last = ({"open~002", "open~003"} - {draft.key}).pop()
    for steps in (True, False):
        assert (draft.step_aside({draft.key}), draft.key) == (steps, last)


def test_what_has_a_lane_of_its_own_never_steps_aside() -> None:
    """A key, an id that was given, and what may be stored in its lane already."""
    keyed = make_draft("t", Outgoing("k", b"x"), None, 10)
    doubted = unordered(1)
    error = DatabaseError("lost", retriable=True, outcome_unknown=True)
    note_attempt([doubted], [Receipt(7, doubted.id, duplicate=False)], error, 1.0)
    for draft in (keyed, unordered(1, message_id="a"), doubted):
        before = draft.key
        assert (draft.step_aside({before}), draft.key) == (False, before)


def test_what_failed_for_certain_may_step_aside() -> None:
    """After a deadlock nothing is stored."""
    draft = unordered(1)
    note_attempt([draft], [], DatabaseError("deadlock", retriable=True), 1.0)
    assert draft.step_aside({"open~001"})


def test_a_line_queues_nobody_for_a_busy_lane_who_may_lie_in_another() -> None:
    """Whoever met the busy lane is ready again in another one; whoever comes later avoids it, too."""
    queue = TopicQueue()
    first, fixed = Waiter(unordered(0), 1.0), Waiter(unordered(0, message_id="a"), 1.0)
    for waiter in (first, fixed):
        queue.admit(waiter)
    batch = queue.take()
    queue.reroute(batch, {"open~000"})
    assert list(queue.ready) == [first]
    assert first.draft.key != "open~000"
    assert (queue.leader, queue.holders) == (first, {"open~000": fixed})
    late = Waiter(unordered(0), 1.0)
    queue.admit(late)
    assert late.draft.key != "open~000"
    assert list(queue.ready) == [first, late]
