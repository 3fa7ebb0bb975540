"""The queue of lanes that want rows."""

from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from lanelog._engine.member.fetch_queue import FetchQueue


@define(eq=False)
class Dispatch:
    """The side of a lane that says whether as much is out as may be."""

    full: bool = False


@define(eq=False)
class FakeLane:
    """A lane, as far as the queue asks it."""

    needs_fetch: bool = True
    unread: int = 1
    dispatch: Dispatch = field(factory=Dispatch)


CHANGES = st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.booleans(), st.booleans()), max_size=40)


@given(changes=CHANGES, limit=st.integers(1, 7), room=st.integers(1, 9), unread=st.integers(0, 4))
def test_what_is_taken_is_what_wants_rows_and_first_what_can_go_out(
    changes: list[tuple[int, bool, bool, bool]], limit: int, room: int, unread: int
) -> None:
    """However lanes change, reported or not: none comes twice or in vain, none is left out, the full ones come last.

    Each time only the last one taken may have more unread rows than there is room for.
    """
    queue, lanes = FetchQueue(), [FakeLane(unread=unread) for _ in range(6)]
    told = set()
    for number, needs, full, tell in changes:
        lane = lanes[number]
        lane.needs_fetch, lane.dispatch.full = needs, full
        if tell or not full:  # an untold change may make a lane full, or leave it without wants
            queue.add(lane)  # type: ignore[arg-type] # as far as the queue asks it
            told |= {number} if needs else set()
    wanted = [lanes[number] for number in told if lanes[number].needs_fetch]
    assert queue.any_for_now() == any(not lane.dispatch.full for lane in wanted)
    taken: list[FakeLane] = []
    while some := queue.take(limit, room):
        assert len(some) <= limit
        assert unread * (len(some) - 1) < room
        assert len({lane.dispatch.full for lane in some}) == 1
        taken += some  # type: ignore[arg-type] # as above
    assert len(taken) == len(set(map(id, taken)))
    assert set(map(id, taken)) == set(map(id, wanted))
    assert taken == sorted(taken, key=lambda lane: lane.dispatch.full)
    assert not queue
