"""Publishers against each other and against the fetcher: callers' transactions, group commit, the birth of a lane.

One side is stopped in a process of its own after each of its locks, while the other side runs; then the other way
round. `test_publish_group.py`, `test_publish_caller.py` and `test_commit_order.py` have the same within one process.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import lanelog
from lanelog import Client
from lanelog.errors import DatabaseError
from support.pauses import IN_THE_BLOCK
from support.sql import rows
from support.stage import Stage, wait_until_blocked
from support.waiting import Record, eventually, never

LEADING = [
    "after partitions.TRY_LOCK_HEADS",
    "before COMMIT following messages.INSERT",
]


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def log(raw: Any, key: str) -> list[int]:
    found = rows(raw, "SELECT `offset` FROM queue_messages WHERE partition_key = %s ORDER BY `offset`", key)
    return [offset for (offset,) in found]


# -- group commit and a caller's lock ------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["commits", "rolls back", "dies"])
def test_a_callers_lock_holds_back_its_own_lane_and_no_other(
    stage: Stage, lanelog_client: Client, raw: Any, threads: ThreadPoolExecutor, end: str
) -> None:
    """Whoever wants that lane waits for the caller, holding nothing: neither other keys nor the caller's next one."""
    next_one = f"{IN_THE_BLOCK} before next"
    lanelog_client.publish_many("t", [("held", b"0"), ("next", b"0"), ("other", b"0")])
    seen = Record()
    lanelog_client.subscribe("t", "g", lambda m: seen((m.key, m.offset)))
    caller = stage.actor("caller")
    calling = caller.call("publish_in_block", topic="t", keys=["held", "next"], commit=end == "commits")
    caller.paused(next_one)
    single = [threads.submit(lanelog_client.publish, "t", "held", b"1") for _ in range(3)]
    wait_until_blocked(raw)
    many = threads.submit(lanelog_client.publish_many, "t", [("held", b"2"), ("next", b"2"), ("other", b"2")])
    for offset in range(2, 12):
        assert lanelog_client.publish("t", "other", b"3").offset == offset
        assert lanelog_client.publish("t", "next", b"3").offset == offset
    # The batch wants this lane, too; it holds it not while it waits, so that the two cannot wait for each other.
    caller.go(next_one)
    caller.paused(IN_THE_BLOCK)
    assert not many.done()
    assert not any(one.done() for one in single)
    assert ("held", 2) not in seen.items
    if end == "dies":
        caller.program.kill()
    else:
        caller.go(IN_THE_BLOCK)
        assert calling.result() == ([2, 12] if end == "commits" else [])
    first = 3 if end == "commits" else 2
    offsets = [one.result(15).offset for one in single]
    offsets += [many.result(15)[0].offset]
    assert sorted(offsets) == list(range(first, first + 4))
    assert many.result()[1].offset == (13 if end == "commits" else 12)
    last = {"held": first + 3, "next": many.result()[1].offset, "other": 12}
    got = seen.until(lambda items: len(items) == sum(last.values()), what="all messages")
    for key, offset in last.items():
        assert [o for k, o in got if k == key] == list(range(1, offset + 1))


@pytest.mark.parametrize("dies", [False, True], ids=["commits", "dies"])
@pytest.mark.parametrize("point", LEADING)
def test_a_caller_waits_for_a_group_commit_and_comes_behind_it(
    stage: Stage, lanelog_client: Client, raw: Any, threads: ThreadPoolExecutor, point: str, dies: bool
) -> None:
    """No other key waits; the caller's offset is the one after the leader's, or the leader's own if that dies."""
    lanelog_client.publish_many("t", [("k", b"0"), ("other", b"0")])
    leader, publishing = stage.paused_in(point, "publish", topic="t", key="k")

    def call() -> int:
        with lanelog_client.transaction() as connection:
            return lanelog_client.publish("t", "k", b"1", connection=connection).offset

    calling = threads.submit(call)
    wait_until_blocked(raw)
    assert lanelog_client.publish("t", "other", b"1").offset == 2
    assert not calling.done()
    if dies:
        leader.program.kill()
    else:
        leader.go(point)
        assert publishing.result() == 2
    assert calling.result(10) == (2 if dies else 3)
    assert log(raw, "k") == ([1, 2] if dies else [1, 2, 3])


def test_callers_who_want_each_others_lanes_are_told_and_one_of_them_commits(
    stage: Stage, lanelog_client: Client, raw: Any, threads: ThreadPoolExecutor
) -> None:
    """Two transactions in opposite orders: one is rolled back whole and may be repeated, the other commits at once."""
    before = f"{IN_THE_BLOCK} before b"
    lanelog_client.publish_many("t", [("a", b"0"), ("b", b"0")])
    caller = stage.actor("caller")
    theirs = caller.call("publish_in_block", topic="t", keys=["a", "b"])
    caller.paused(before)

    def call() -> list[int]:
        with lanelog_client.transaction() as connection:
            return [lanelog_client.publish("t", key, b"1", connection=connection).offset for key in ("b", "a")]

    mine = threads.submit(call)
    wait_until_blocked(raw)
    caller.go(before)
    eventually(lambda: theirs.done or mine.done(), what="the end of one of them")
    if theirs.done:
        with pytest.raises(AssertionError, match="whole transaction"):
            theirs.result()
        assert mine.result(10) == [2, 2]
    else:
        error = mine.exception()
        assert isinstance(error, DatabaseError)
        assert (error.code, error.retriable) == (1213, True)
        caller.paused(IN_THE_BLOCK).go(IN_THE_BLOCK)
        assert theirs.result() == [2, 2]
    assert call() == [3, 3]
    assert log(raw, "a") == log(raw, "b") == [1, 2, 3]


# -- the birth of a lane -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dies", [False, True], ids=["commits", "dies"])
@pytest.mark.parametrize(
    "point",
    [
        "after partitions.CREATE_TOPIC",
        "after partitions.CREATE_FLOORS",
        "before COMMIT following partitions.CREATE_HEADS",
    ],
)
def test_a_lane_that_three_publishers_make_at_once_is_made_once(
    stage: Stage,
    lanelog_url: str,
    lanelog_client: Client,
    raw: Any,
    threads: ThreadPoolExecutor,
    point: str,
    dies: bool,
) -> None:
    """The others wait for the first, and go on whether that commits or is rolled back, deadlock or not."""
    first, publishing = stage.paused_in(point, "publish", topic="t", key="k")
    with lanelog.connect(lanelog_url) as other:
        others = [threads.submit(client.publish, "t", "k", b"1") for client in (lanelog_client, other)]
        if point != "after partitions.CREATE_TOPIC":  # that one is committed by itself: nobody has to wait for it
            wait_until_blocked(raw, 2)
            assert not any(each.done() for each in others)
        if dies:
            first.program.kill()
        else:
            first.go(point)
            publishing.result()
        for each in others:
            each.result(20)
    offsets = log(raw, "k")
    assert offsets == list(range(1, (2 if dies else 3) + 1))
    assert rows(raw, "SELECT COUNT(*), MAX(head_offset) FROM queue_partitions WHERE partition_key = 'k'") == [
        (1, offsets[-1])
    ]


# -- the fetcher's look at a hole, and a publisher -----------------------------------------------------------------


def test_a_hole_is_not_passed_under_an_open_publish(stage: Stage, lanelog_client: Client, raw: Any) -> None:
    """The look waits a second at most and comes back; other lanes go on meanwhile; then the hole is passed, once."""
    lanelog_client.publish_many("t", [("k", b"{}")] * 3)
    rows(raw, "DELETE FROM queue_messages WHERE `offset` = 2")
    point = "before COMMIT following messages.INSERT"
    publisher, publishing = stage.paused_in(point, "publish", topic="t", key="k")
    reader = stage.actor("reader")
    reader.do("subscribe", topic="t", group="g")
    wait_until_blocked(raw)
    for number in range(2):
        lanelog_client.publish("t", "other", b"{}")
        reader.program.said("handled", count=2 + number)
    never(lambda: stage.fleet.logged("log.hole_found"), during=0.5, what="a verdict about the hole")
    assert not publishing.done
    publisher.go(point)
    assert publishing.result() == 4
    handled = reader.program.said("handled", count=5)
    assert [line["offset"] for line in handled if line["key"] == "k"] == [1, 3, 4]
    assert len(stage.fleet.logged("log.hole_found")) == 1


@pytest.mark.parametrize("point", ["after fetches.SHARE_HEAD", "before COMMIT following fetches.SHARE_HEAD"])
def test_a_publish_waits_for_the_look_at_a_hole_and_no_longer(
    stage: Stage, lanelog_client: Client, raw: Any, threads: ThreadPoolExecutor, point: str
) -> None:
    """Publishers of other lanes do not wait at all; what is published meanwhile comes right behind the hole."""
    lanelog_client.publish_many("t", [("k", json.dumps({})), ("k", "{}"), ("other", "{}")])
    rows(raw, "DELETE FROM queue_messages WHERE partition_key = 'k' AND `offset` = 1")
    reader = stage.actor("reader").pause(point)
    reader.do("subscribe", topic="t", group="g")
    reader.paused(point)
    publishing = threads.submit(lanelog_client.publish, "t", "k", b"{}")
    wait_until_blocked(raw)
    assert lanelog_client.publish("t", "other", b"{}").offset == 2
    assert not publishing.done()
    reader.go(point)
    assert publishing.result(10).offset == 3
    handled = reader.program.said("handled", count=4)
    assert [line["offset"] for line in handled if line["key"] == "k"] == [2, 3]
