"""Publishers against each other and against the fetcher: callers' transactions, group commit, the birth of a lane.

One side is stopped in a process of its own after each of its locks, while the other side runs; then the other way
round. `publisher/test_group.py`, `publisher/test_caller.py` and `publisher/test_commit_order.py` have the same within
one process.
"""

from typing import Any

import pytest

import lanelog
from lanelog import Client
from lanelog.errors import DatabaseError
from support.pauses import IN_THE_BLOCK
from support.sql import rows
from support.stage import DIES, Actor, Call, Stage, thorough, wait_until_blocked
from support.waiting import Record, eventually

BEFORE_COMMIT = "before COMMIT following messages.INSERT"
AFTER_INSERT = "after messages.INSERT"
AFTER_COMMIT = "after COMMIT following messages.INSERT"


def call(client: Client, *keys: str) -> list[int]:
    """Publish to these keys in a caller's transaction."""
    with client.transaction() as connection:
        return [client.publish("t", key, b"1", connection=connection).offset for key in keys]


# -- group commit and a caller's lock ------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("end", ["commits", "rolls back", "dies"])
def test_a_callers_lock_holds_back_its_own_lane_and_no_other(stage: Stage, end: str) -> None:
    """A publisher to that lane waits for the caller and holds nothing: other keys and the caller's next one go on."""
    client, next_one = stage.client, f"{IN_THE_BLOCK} before next"
    client.publish_many("t", [("held", b"0"), ("next", b"0"), ("other", b"0")])
    seen = Record()
    client.subscribe("t", "g", lambda m: seen((m.key, m.offset)))
    caller = stage.actor("caller")
    calling = caller.call("publish_in_block", topic="t", keys=["held", "next"], commit=end == "commits")
    caller.paused(next_one)
    single = [stage.aside(client.publish, "t", "held", b"1") for _ in range(3)]
    wait_until_blocked(stage.raw)
    many = stage.aside(client.publish_many, "t", [("held", b"2"), ("next", b"2"), ("other", b"2")])
    for offset in range(2, 12):
        assert client.publish("t", "other", b"3").offset == offset
        assert client.publish("t", "next", b"3").offset == offset
    # The batch wants this lane, too; it holds it not while it waits, so that the two cannot wait for each other.
    caller.go(next_one)
    caller.paused(IN_THE_BLOCK)
    assert not any(one.done() for one in (many, *single))
    assert ("held", 2) not in seen.items
    if end == "dies":
        caller.program.kill()
    else:
        caller.go(IN_THE_BLOCK)
        assert calling.result() == ([2, 12] if end == "commits" else [])
    first = 3 if end == "commits" else 2
    offsets = [*(one.result(15).offset for one in single), many.result(15)[0].offset]
    assert sorted(offsets) == list(range(first, first + 4))
    assert many.result()[1].offset == (13 if end == "commits" else 12)
    last = {"held": first + 3, "next": many.result()[1].offset, "other": 12}
    got = seen.until(lambda items: len(items) == sum(last.values()), what="all messages")
    for key, offset in last.items():
        assert [o for k, o in got if k == key] == list(range(1, offset + 1))


@DIES
@pytest.mark.parametrize("point", [BEFORE_COMMIT, *thorough("after partitions.NEXT_OFFSET")])
def test_a_caller_waits_for_a_group_commit_and_comes_behind_it(stage: Stage, point: str, dies: bool) -> None:
    """No other key waits; the caller's offset is the one after the leader's, or the leader's own if that dies."""
    stage.client.publish_many("t", [("k", b"0"), ("other", b"0")])
    leading = stage.stopped(point, "publish", topic="t", key="k")
    calling = stage.waiting(call, stage.client, "k")
    assert stage.client.publish("t", "other", b"1").offset == 2
    assert not calling.done()
    assert leading.end(dies=dies) == (None if dies else 2)
    assert calling.result(15) == [2 if dies else 3]
    assert stage.stored() == ([1, 2] if dies else [1, 2, 3])


@pytest.mark.thorough
def test_of_callers_who_want_each_others_lanes_one_is_refused_and_one_commits(stage: Stage) -> None:
    """Two transactions in opposite orders: one is rolled back whole and may be repeated, the other commits at once."""
    before = f"{IN_THE_BLOCK} before b"
    stage.client.publish_many("t", [("a", b"0"), ("b", b"0")])
    caller = stage.actor("caller")
    theirs = caller.call("publish_in_block", topic="t", keys=["a", "b"])
    caller.paused(before)
    mine = stage.waiting(call, stage.client, "b", "a")
    caller.go(before)
    eventually(lambda: theirs.done or mine.done(), what="the end of one of them")
    # Who was told is heard of later than what the other could do at once: only an error of ours says that it was us.
    if not (mine.done() and mine.exception()):
        with pytest.raises(AssertionError, match="whole transaction"):
            theirs.result()
        assert mine.result(15) == [2, 2]
    else:
        error = mine.exception()
        assert isinstance(error, DatabaseError)
        assert (error.code, error.retriable) == (1213, True)
        caller.paused(IN_THE_BLOCK).go(IN_THE_BLOCK)
        assert theirs.result() == [2, 2]
    assert call(stage.client, "b", "a") == [3, 3]
    assert stage.stored("a") == stage.stored("b") == [1, 2, 3]


# -- the leader of a group commit, its members, and others ---------------------------------------------------------


def gather(leader: Actor, *messages: tuple[str, str], count: int) -> list[Call]:
    """Keys and payloads that threads of the leader's process publish, while it leads; so many wait for it then."""
    calls = [leader.call("publish", topic="t", key=key, payload=payload) for key, payload in messages]
    eventually(lambda: leader.do("gathered", topic="t") == count, what="messages that wait for a leader")
    return calls


def leading(stage: Stage, point: str, **config: Any) -> tuple[Actor, list[Call]]:
    """An actor that is stopped at a point of the transaction with lane a's messages 1 and 2, and b's 3."""
    stage.client.publish_many("t", [(key, b"0") for key in ("a", "b", "first", "other")])
    leader = stage.actor("leader", **config).pause(AFTER_INSERT)
    alone = leader.call("publish", topic="t", key="first")
    calls = gather(leader.paused(AFTER_INSERT), ("a", "1"), ("a", "2"), ("b", "3"), count=3)
    leader.pause(point, "a", "b").go(AFTER_INSERT)
    assert alone.result() == 2
    return leader.paused(point), calls


def payloads(stage: Stage, key: str) -> list[int]:
    """What is in a lane's log, in order of its offsets, which are dense."""
    sql = "SELECT `offset`, payload FROM queue_messages WHERE topic = 't' AND partition_key = %s ORDER BY 1"
    found = rows(stage.raw, sql, key)
    assert [offset for offset, _ in found] == list(range(1, len(found) + 1))
    return [int(payload) for _, payload in found]


@pytest.mark.thorough
@pytest.mark.parametrize("end", ["commits", "dies", "is killed"])
def test_the_members_of_a_batch_have_the_fate_of_its_leader(stage: Stage, end: str) -> None:
    """Nobody else's lane waits. Of its own, strangers and later members come behind it, or first if it dies.

    If only the leader's session is killed, the batch is tried again, and each message is there once.
    """
    leader, members = leading(stage, BEFORE_COMMIT)
    stranger = stage.waiting(stage.client.publish, "t", "b", b"4")
    assert stage.client.publish("t", "other", b"5").offset == 2
    later = gather(leader, ("b", "6"), ("other", "7"), count=2)
    assert not any(call.done for call in (*members, *later))
    if end == "dies":
        leader.program.kill()
        assert stranger.result(15).offset == 2
        assert (payloads(stage, "a"), payloads(stage, "b"), payloads(stage, "other")) == ([0], [0, 4], [0, 5])
        return
    if end == "is killed":
        writing = "SELECT trx_mysql_thread_id FROM information_schema.INNODB_TRX WHERE trx_rows_modified > 0"
        [(number,)] = rows(stage.raw, writing)
        rows(stage.raw, f"KILL {number}")
        assert stranger.result(15).offset == 2
    leader.go(BEFORE_COMMIT)
    a, b = sorted(call.result() for call in members[:2]), members[2].result()
    assert (a, sorted((b, stranger.result(15).offset, later[0].result()))) == ([2, 3], [2, 3, 4])
    if end == "commits":
        assert b == 2
    assert later[1].result() == 3
    assert sorted(payloads(stage, "a")) == [0, 1, 2]
    assert sorted(payloads(stage, "b")) == [0, 3, 4, 6]
    assert payloads(stage, "other") == [0, 5, 7]


@pytest.mark.thorough
@DIES
def test_a_leader_right_behind_its_commit_keeps_its_members_waiting_and_no_stranger(stage: Stage, dies: bool) -> None:
    """The batch is there, even if the leader dies. Later members have the next transaction, or none."""
    leader, members = leading(stage, AFTER_COMMIT)
    (later,) = gather(leader, ("b", "6"), count=1)
    assert stage.client.publish("t", "b", b"4").offset == 3
    assert not any(call.done for call in (*members, later))
    if dies:
        leader.program.kill()
    else:
        leader.go(AFTER_COMMIT)
        assert sorted(call.result() for call in members) == [2, 2, 3]
        assert later.result() == 4
    assert sorted(payloads(stage, "a")) == [0, 1, 2]
    assert payloads(stage, "b") == ([0, 3, 4] if dies else [0, 3, 4, 6])


@pytest.mark.thorough
def test_members_who_run_out_of_time_know_whether_their_leader_may_commit_them(stage: Stage) -> None:
    """The messages of a transaction may be there afterwards, and their errors say so; later ones never are."""
    leader, members = leading(stage, BEFORE_COMMIT, connect={"publish_timeout": 6.0})
    (later,) = gather(leader, ("b", "6"), count=1)
    eventually(lambda: later.done and [call.done for call in members].count(True) == 2, within=20)
    (leading_one,) = (call for call in members if not call.done)
    for call in members:
        if call is not leading_one:
            with pytest.raises(AssertionError, match="another thread was about to"):
                call.result()
    with pytest.raises(AssertionError, match=r"locked by others|did not answer"):
        later.result()
    leader.go(BEFORE_COMMIT)
    assert leading_one.result() in (2, 3)
    assert leader.do("publish", topic="t", key="b", payload="8") == 3
    assert sorted(payloads(stage, "a")) == [0, 1, 2]
    assert payloads(stage, "b") == [0, 3, 8]


# -- the birth of a lane -------------------------------------------------------------------------------------------


@DIES
@pytest.mark.parametrize(
    "point",
    [
        "before COMMIT following partitions.CREATE_HEADS",
        *thorough("after partitions.CREATE_TOPIC", "after offsets.CREATE_FLOORS"),
    ],
)
def test_a_lane_that_three_publishers_make_at_once_is_made_once(
    stage: Stage, lanelog_url: str, point: str, dies: bool
) -> None:
    """The others wait for the first, and go on whether that commits or is rolled back, deadlock or not."""
    first = stage.stopped(point, "publish", topic="t", key="k")
    with lanelog.connect(lanelog_url) as other:
        others = [stage.aside(client.publish, "t", "k", b"1") for client in (stage.client, other)]
        if point != "after partitions.CREATE_TOPIC":  # that one is committed by itself: nobody has to wait for it
            wait_until_blocked(stage.raw, 2)
            assert not any(each.done() for each in others)
        first.end(dies=dies)
        for each in others:
            each.result(20)
    count = 2 if dies else 3
    assert stage.stored() == list(range(1, count + 1))
    assert rows(stage.raw, "SELECT head_offset FROM queue_partitions WHERE partition_key = 'k'") == [(count,)]


# -- the fetcher's look at a hole, and a publisher -----------------------------------------------------------------


def hole(stage: Stage, offset: int) -> None:
    """Lanes k, with a hole, and other."""
    stage.client.publish_many("t", [*[("k", "{}")] * 3, ("other", "{}")])
    rows(stage.raw, "DELETE FROM queue_messages WHERE partition_key = 'k' AND `offset` = %s", offset)


@pytest.mark.thorough
def test_a_hole_is_not_passed_under_an_open_publish(stage: Stage) -> None:
    """The look waits a second at most and comes back; other lanes go on meanwhile; then the hole is passed, once."""
    hole(stage, 2)
    publishing = stage.stopped(BEFORE_COMMIT, "publish", topic="t", key="k")
    reader = stage.member("reader")
    wait_until_blocked(stage.raw)
    for number in range(2):
        stage.client.publish("t", "other", b"{}")
        reader.handled(3 + number, "key")
    reader.pass_by("before partitions.SHARE_HEAD")
    assert not stage.fleet.logged("log.hole_found")
    assert publishing.end() == 4
    handled = reader.handled(6, "key", "offset")
    assert [offset for key, offset in handled if key == "k"] == [1, 3, 4]
    assert len(stage.fleet.logged("log.hole_found")) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("point", ["before COMMIT following partitions.SHARE_HEAD", "after partitions.SHARE_HEAD"])
def test_a_publish_waits_for_the_check_of_a_hole_and_no_longer(stage: Stage, point: str) -> None:
    """Publishers of other lanes do not wait at all; what is published meanwhile comes right behind the hole."""
    hole(stage, 1)
    reader = stage.member("reader", point)
    publishing = stage.waiting(stage.client.publish, "t", "k", b"{}")
    assert stage.client.publish("t", "other", b"{}").offset == 2
    assert not publishing.done()
    reader.go(point)
    assert publishing.result(15).offset == 4
    handled = reader.handled(5, "key", "offset")
    assert [offset for key, offset in handled if key == "k"] == [2, 3, 4]
