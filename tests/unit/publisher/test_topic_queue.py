"""Who leads, who waits and who holds a busy lane: the plan of group commit, without threads."""

import pytest

from lanelog._base.open_lane_keys import lane_keys
from lanelog._log.append.draft import make_draft
from lanelog.message import Outgoing
from lanelog.publisher.lock_waiters import LockWaiters
from lanelog.publisher.topic_queue import MAX_BATCH, MAX_BATCH_BYTES, TopicQueue, Waiter, WaiterRole


def waiter(key: str = "k", payload: bytes = b"x") -> Waiter:
    return Waiter(make_draft("t", Outgoing(key, payload), None, MAX_BATCH_BYTES), deadline=1.0)


def admitted(queue: TopicQueue, *keys: str) -> list[Waiter]:
    waiters = [waiter(key) for key in keys]
    for one in waiters:
        queue.admit(one)
    return waiters


def test_the_first_leads_and_takes_all_that_are_ready() -> None:
    """One leader at a time; later waiters wait, and are part of the batch if they came before it was taken."""
    queue = TopicQueue()
    first, second, third = admitted(queue, "a", "b", "a")
    assert [queue.role(waiter) for waiter in (first, second, third)] == [WaiterRole.LEAD, None, None]
    assert queue.take() == [first, second, third]
    assert first.claimed
    assert queue.take() == []


def test_the_leader_hands_over_to_who_came_next() -> None:
    """No thread leads for others for ever; with nobody left the queue is empty."""
    queue = TopicQueue()
    (first,) = admitted(queue, "a")
    queue.take()
    (late,) = admitted(queue, "b")
    assert queue.hand_over(first) == [late]
    assert queue.role(late) is WaiterRole.LEAD
    queue.take()
    assert queue.hand_over(first) == []
    assert queue.role(late) is WaiterRole.LEAD
    assert queue.hand_over(late) == []
    assert queue.empty


def test_a_batch_is_bounded_by_count_and_bytes() -> None:
    """Messages beyond the bound stay for the next batch; a message larger than the bound is a batch of its own."""
    queue = TopicQueue()
    admitted(queue, *["k"] * (MAX_BATCH + 1))
    assert len(queue.take()) == MAX_BATCH
    queue = TopicQueue()
    for payload in (bytes(MAX_BATCH_BYTES), b"x", bytes(MAX_BATCH_BYTES // 2), b"x"):
        queue.admit(waiter("k", payload))
    assert [len(queue.take()) for _ in range(4)] == [1, 1, 1, 1]


def test_members_of_a_busy_lane_queue_behind_its_holder() -> None:
    """The first of a busy lane holds it; whoever is ready for it or comes later queues in memory, in order."""
    queue = TopicQueue()
    leader, first = admitted(queue, "free", "busy")
    batch = queue.take()
    ready, other = admitted(queue, "busy", "free")
    assert queue.park([batch[1]]) == [first]
    assert queue.role(first) is WaiterRole.HOLD
    assert list(queue.ready) == [other]
    (late,) = admitted(queue, "busy")
    assert queue.role(late) is None
    assert queue.claim("busy") == [first, ready, late]
    assert queue.role(leader) is WaiterRole.LEAD


def test_a_leader_whose_own_lane_is_busy_leads_no_more() -> None:
    """The former leader holds that lane, or queues for it, and another one leads those that are ready meanwhile."""
    queue = TopicQueue()
    (first,) = admitted(queue, "busy")
    batch = queue.take()
    (second,) = admitted(queue, "free")
    assert queue.park(batch) == [first, second]
    assert [queue.role(first), queue.role(second)] == [WaiterRole.HOLD, WaiterRole.LEAD]
    assert queue.claim("busy") == [first]


@pytest.mark.parametrize("way", ["part", "put back and queued"])
def test_a_holder_stays_with_its_lane_though_it_may_go_to_any(way: str) -> None:
    """Others wait for it there: what cannot be committed just now returns to the lane that it holds."""
    queue, (held, other) = TopicQueue(), lane_keys(2)
    holder, caller = waiter(held), waiter(held)
    for one in (holder, caller):
        queue.admit(one)
    queue.park(queue.take())
    holder.draft.lanes = 2
    assert queue.claim(held) == [holder, caller]
    if way == "part":
        queue.reroute([holder], {held})
    else:
        queue.put_back([holder])
        queue.park([waiter(other)])
    assert queue.role(holder) is WaiterRole.HOLD
    assert queue.claim(held) == [holder]


def test_a_lane_that_is_free_again_makes_its_members_ready() -> None:
    """Waiters that came while the holder committed go on as usual, led by the first if nobody leads."""
    queue = TopicQueue()
    (first,) = admitted(queue, "busy")
    queue.park(queue.take())
    queue.claim("busy")
    (late,) = admitted(queue, "busy")
    first.error = ValueError()
    assert queue.withdraw(first) == [late]
    assert (queue.role(late), list(queue.ready), queue.busy) == (WaiterRole.LEAD, [late], {})


def test_a_holder_that_failed_is_not_tried_again() -> None:
    """A message whose publisher got an error must not be stored afterwards."""
    queue = TopicQueue()
    (first,) = admitted(queue, "busy")
    queue.park(queue.take())
    first.error = ValueError()
    assert queue.withdraw(first) == []
    assert queue.empty


@pytest.mark.parametrize("role", [WaiterRole.LEAD, WaiterRole.HOLD])
def test_who_leaves_passes_its_role_on(role: WaiterRole) -> None:
    """A thread whose time is up leaves no other thread waiting for it."""
    queue = TopicQueue()
    first, second = admitted(queue, "k", "k")
    if role is WaiterRole.HOLD:
        queue.park(queue.take())
    assert queue.role(first) is role
    assert queue.withdraw(first) == [second]
    assert queue.role(second) is WaiterRole.LEAD
    assert queue.take() == [second]
    queue.hand_over(second)
    assert queue.empty


@pytest.mark.parametrize("way", ["busy", "failed", "held"])
def test_who_has_left_does_not_come_back_with_its_batch(way: str) -> None:
    """A waiter whose time was up during a transaction holds nothing afterwards, leads nobody, and waits nowhere."""
    queue = TopicQueue()
    if way == "held":
        (living,) = admitted(queue, "k")
        queue.park(queue.take())
        (gone,) = admitted(queue, "k")
        batch = queue.claim("k")
    else:
        living, gone = admitted(queue, "other", "k")
        batch = queue.take()
    assert queue.withdraw(gone) == []
    if way == "busy":
        assert queue.park([gone]) == []
        queue.hand_over(living)
    elif way == "failed":
        queue.put_back([gone, living])
        assert queue.take() == [living]
        queue.hand_over(living)
    else:
        queue.unclaim("k", batch)
        assert queue.claim("k") == [living]
        queue.withdraw(living)
    assert gone.claimed  # nobody knows what became of it
    assert queue.empty
    (late,) = admitted(queue, "k")
    assert queue.role(late) is WaiterRole.LEAD


def test_a_batch_that_lost_its_lane_again_waits_on() -> None:
    """The batch comes before later waiters, and is in no transaction any more."""
    queue = TopicQueue()
    first, second = admitted(queue, "k", "k")
    queue.park(queue.take())
    batch = queue.claim("k")
    (late,) = admitted(queue, "k")
    queue.unclaim("k", batch)
    assert [first.claimed, second.claimed] == [False, False]
    assert queue.role(first) is WaiterRole.HOLD
    assert queue.claim("k") == [first, second, late]


def test_members_put_back_come_first() -> None:
    """A batch that failed is tried again before what came later, and is not claimed meanwhile."""
    queue = TopicQueue()
    first, second = admitted(queue, "a", "b")
    batch = queue.take()
    (late,) = admitted(queue, "c")
    assert queue.put_back(batch) == []
    assert [first.claimed, second.claimed] == [False, False]
    assert queue.hand_over(first) == [first]
    assert queue.take() == [first, second, late]


def test_the_gate_lets_one_wait_for_each_lane_and_few_in_all() -> None:
    """A refused waiter gets no slot. A waiter that leaves frees its slot."""
    gate = LockWaiters(2)
    with gate.enter([("t", "a")]) as first, gate.enter([("t", "a")]) as same, gate.enter([("t", "b")]) as second:
        assert (first, same, second) == (True, False, True)
        with gate.enter([("t", "c")]) as third:
            assert not third
    with gate.enter([("t", "c"), ("t", "a")]) as many, gate.enter([("t", "c")]) as overlapping:
        assert (many, overlapping) == (True, False)
    with gate.enter([]) as nothing:
        assert not nothing
