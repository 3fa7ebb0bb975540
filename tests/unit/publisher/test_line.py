"""Who leads, who waits and who holds a busy lane: the plan of group commit, without threads."""

import pytest

from lanelog._base.open_lane_keys import lane_keys
from lanelog._log.append.draft import Draft
from lanelog._stores.log.messages import wire_bytes
from lanelog.publisher.line import MAX_BATCH, MAX_BATCH_BYTES, Line, Waiter, WaiterRole
from lanelog.publisher.lock_waiters import LockWaiters


def member(key: str = "k", payload: bytes = b"x") -> Waiter:
    size = wire_bytes("t", key, "i", len(payload), None)
    return Waiter(
        Draft(topic="t", key=key, id="i", given=False, payload=payload, metadata=None, wire_bytes=size), deadline=1.0
    )


def admitted(line: Line, *keys: str) -> list[Waiter]:
    members = [member(key) for key in keys]
    for one in members:
        line.admit(one)
    return members


def test_the_first_leads_and_takes_all_that_are_ready() -> None:
    """One leader at a time; later members wait, and are part of the batch if they came before it was taken."""
    line = Line()
    first, second, third = admitted(line, "a", "b", "a")
    assert [line.role(member) for member in (first, second, third)] == [WaiterRole.LEAD, None, None]
    assert line.take() == [first, second, third]
    assert first.claimed
    assert line.take() == []


def test_the_leader_hands_over_to_who_came_next() -> None:
    """Nobody leads for others for ever; with nobody left the line is empty."""
    line = Line()
    (first,) = admitted(line, "a")
    line.take()
    (late,) = admitted(line, "b")
    assert line.hand_over(first) == [late]
    assert line.role(late) is WaiterRole.LEAD
    line.take()
    assert line.hand_over(first) == []
    assert line.role(late) is WaiterRole.LEAD
    assert line.hand_over(late) == []
    assert line.empty


def test_a_batch_is_bounded_by_count_and_bytes() -> None:
    """What exceeds a batch stays for the next one; a message larger than the bound is a batch of its own."""
    line = Line()
    admitted(line, *["k"] * (MAX_BATCH + 1))
    assert len(line.take()) == MAX_BATCH
    line = Line()
    for payload in (bytes(MAX_BATCH_BYTES), b"x", bytes(MAX_BATCH_BYTES // 2), b"x"):
        line.admit(member("k", payload))
    assert [len(line.take()) for _ in range(4)] == [1, 1, 1, 1]


def test_members_of_a_busy_lane_queue_behind_its_holder() -> None:
    """The first of a busy lane holds it; whoever is ready for it or comes later queues in memory, in order."""
    line = Line()
    leader, first = admitted(line, "free", "busy")
    batch = line.take()
    ready, other = admitted(line, "busy", "free")
    assert line.park([batch[1]]) == [first]
    assert line.role(first) is WaiterRole.HOLD
    assert list(line.ready) == [other]
    (late,) = admitted(line, "busy")
    assert line.role(late) is None
    assert line.claim("busy") == [first, ready, late]
    assert line.role(leader) is WaiterRole.LEAD


def test_a_leader_whose_own_lane_is_busy_leads_no_more() -> None:
    """It holds that lane, or queues for it, and whoever is ready meanwhile is led by another."""
    line = Line()
    (first,) = admitted(line, "busy")
    batch = line.take()
    (second,) = admitted(line, "free")
    assert line.park(batch) == [first, second]
    assert [line.role(first), line.role(second)] == [WaiterRole.HOLD, WaiterRole.LEAD]
    assert line.claim("busy") == [first]


@pytest.mark.parametrize("way", ["part", "put back and queued"])
def test_a_holder_stays_with_its_lane_though_it_may_go_to_any(way: str) -> None:
    """Others wait for it there: what cannot be committed just now returns to the lane that it holds."""
    line, (held, other) = Line(), lane_keys(2)
    holder, caller = member(held), member(held)
    for one in (holder, caller):
        line.admit(one)
    line.park(line.take())
    holder.draft.lanes = 2
    assert line.claim(held) == [holder, caller]
    if way == "part":
        line.part([holder], {held})
    else:
        line.put_back([holder])
        line.park([member(other)])
    assert line.role(holder) is WaiterRole.HOLD
    assert line.claim(held) == [holder]


def test_a_lane_that_is_free_again_makes_its_members_ready() -> None:
    """What gathered while the holder committed goes on as usual, led by the first if nobody leads."""
    line = Line()
    (first,) = admitted(line, "busy")
    line.park(line.take())
    line.claim("busy")
    (late,) = admitted(line, "busy")
    first.error = ValueError()
    assert line.withdraw(first) == [late]
    assert (line.role(late), list(line.ready), line.busy) == (WaiterRole.LEAD, [late], {})


def test_a_holder_that_failed_is_not_tried_again() -> None:
    """Who was told of an error must not be stored afterwards."""
    line = Line()
    (first,) = admitted(line, "busy")
    line.park(line.take())
    first.error = ValueError()
    assert line.withdraw(first) == []
    assert line.empty


@pytest.mark.parametrize("role", [WaiterRole.LEAD, WaiterRole.HOLD])
def test_who_leaves_passes_its_role_on(role: WaiterRole) -> None:
    """A thread whose time is up leaves nobody behind who waits for it."""
    line = Line()
    first, second = admitted(line, "k", "k")
    if role is WaiterRole.HOLD:
        line.park(line.take())
    assert line.role(first) is role
    assert line.withdraw(first) == [second]
    assert line.role(second) is WaiterRole.LEAD
    assert line.take() == [second]
    line.hand_over(second)
    assert line.empty


@pytest.mark.parametrize("way", ["busy", "failed", "held"])
def test_who_has_left_does_not_come_back_with_its_batch(way: str) -> None:
    """Its time was up while a transaction had it, which returns it: it holds nothing, leads nobody, waits nowhere."""
    line = Line()
    if way == "held":
        (living,) = admitted(line, "k")
        line.park(line.take())
        (gone,) = admitted(line, "k")
        batch = line.claim("k")
    else:
        living, gone = admitted(line, "other", "k")
        batch = line.take()
    assert line.withdraw(gone) == []
    if way == "busy":
        assert line.park([gone]) == []
        line.hand_over(living)
    elif way == "failed":
        line.put_back([gone, living])
        assert line.take() == [living]
        line.hand_over(living)
    else:
        line.unclaim("k", batch)
        assert line.claim("k") == [living]
        line.withdraw(living)
    assert gone.claimed  # nobody knows what became of it
    assert line.empty
    (late,) = admitted(line, "k")
    assert line.role(late) is WaiterRole.LEAD


def test_a_batch_that_lost_its_lane_again_waits_on() -> None:
    """It comes before what has gathered since, and is in no transaction any more."""
    line = Line()
    first, second = admitted(line, "k", "k")
    line.park(line.take())
    batch = line.claim("k")
    (late,) = admitted(line, "k")
    line.unclaim("k", batch)
    assert [first.claimed, second.claimed] == [False, False]
    assert line.role(first) is WaiterRole.HOLD
    assert line.claim("k") == [first, second, late]


def test_members_put_back_come_first() -> None:
    """A batch that failed is tried again before what came later, and is not claimed meanwhile."""
    line = Line()
    first, second = admitted(line, "a", "b")
    batch = line.take()
    (late,) = admitted(line, "c")
    assert line.put_back(batch) == []
    assert [first.claimed, second.claimed] == [False, False]
    assert line.hand_over(first) == [first]
    assert line.take() == [first, second, late]


def test_the_gate_lets_one_wait_for_each_lane_and_few_in_all() -> None:
    """A refused one gets no place, and a place is free again afterwards."""
    gate = LockWaiters(2)
    with gate.enter([("t", "a")]) as first, gate.enter([("t", "a")]) as same, gate.enter([("t", "b")]) as second:
        assert (first, same, second) == (True, False, True)
        with gate.enter([("t", "c")]) as third:
            assert not third
    with gate.enter([("t", "c"), ("t", "a")]) as many, gate.enter([("t", "c")]) as overlapping:
        assert (many, overlapping) == (True, False)
    with gate.enter([]) as nothing:
        assert not nothing
