"""The purge of a lane, against publishers, keepers and another purge of the same lane.

One side is stopped in a process of its own after each of its locks, while the other side runs; then the other way
round. `log/test_purge_race.py` lets the same parties race without a plan, and `log/test_collection.py` has what a purge
is for.
"""

import pytest

from lanelog import Client
from lanelog.errors import DatabaseError
from support.sql import one, owners, rows
from support.stage import EPOCH, HEAD, Actor, Call, Stage, thorough, wait_until_blocked
from support.waiting import Record

FIRST_LOCK, FLOORS = "after partitions.TRY_LOCK_TOPIC", "after offsets.TRY_LOCK_FLOORS"
HEAD_LOCK, LEASE_LOCK = "after partitions.TRY_LOCK_HEAD", "after lease_removal.LOCK_LANE"
LAST = "before COMMIT following offsets.PURGE"
BIRTH = "before COMMIT following partitions.CREATE_HEADS"

pytestmark = pytest.mark.usefixtures("drained")


def purging(stage: Stage, point: str) -> Call:
    """A purge of lane k that is stopped at this point."""
    return stage.stopped(point, "purge", topic="t", key="k")


def publishing(stage: Stage, step: str, key: str, point: str) -> Call:
    """A publish to this lane that is stopped at this point."""
    where = {"key": key} if step == "publish" else {"keys": [key]}
    return stage.stopped(point, step, topic="t", **where)


def head(stage: Stage, key: str = "k") -> int | None:
    sql = "SELECT head_offset FROM queue_partitions WHERE topic = 't' AND partition_key = %s"
    found: int | None = one(stage.raw, sql, key)
    return found


def assert_kept_for_the_lane(stage: Stage, epoch: int = EPOCH) -> None:
    """The topic remembers the highest offset and token of the lane that is gone."""
    sql = "SELECT head_offset, max_epoch FROM queue_partitions WHERE topic = 't' AND partition_key = ''"
    assert rows(stage.raw, sql) == [(HEAD, epoch)]


def assert_delivered_above(stage: Stage, offset: int) -> None:
    """The message at this offset is delivered once, under a token above all that were used before."""
    seen = Record()
    stage.client.subscribe("t", "g", lambda m: seen((m.offset, m.attempt, m.fencing_token > EPOCH)), retention=0)
    stage.client.publish("t", "k", b"{}")
    assert seen.wait(2) == [(offset, 1, True), (offset + 1, 1, True)]


def assert_handles_the_next(stage: Stage, keeper: Actor, token: int) -> None:
    """The next message comes right behind the lane's old end, to this keeper, under this token."""
    assert stage.client.publish("t", "k", b"{}").offset == HEAD + 1
    assert keeper.handled(1, "offset", "attempt", "token") == [(HEAD + 1, 1, token)]


# -- purge and publish ---------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("point", [FLOORS, FIRST_LOCK])
def test_a_publish_under_a_purge_that_has_no_head_yet_goes_on_and_keeps_the_lane(stage: Stage, point: str) -> None:
    """The purge holds the topic row or the floor: the publisher needs neither, and the purge gives up."""
    purge = purging(stage, point)
    assert stage.client.publish("t", "k", b"{}").offset == HEAD + 1
    assert purge.end() is False
    assert head(stage) == HEAD + 1
    assert_delivered_above(stage, HEAD + 1)


@pytest.mark.thorough
@pytest.mark.parametrize("point", [LAST, HEAD_LOCK, LEASE_LOCK, "after offsets.LOCK_LANE", "after partitions.PURGE"])
def test_a_publish_under_a_purge_that_has_the_head_waits_and_brings_the_lane_back_above(
    stage: Stage, point: str
) -> None:
    """The publish waits while the purge is paused, finds no lane, and makes it anew: no offset and no token twice."""
    purge = purging(stage, point)
    published = stage.waiting(stage.client.publish, "t", "k", b"{}")
    assert purge.end() is True
    assert published.result(15).offset == HEAD + 1
    assert_kept_for_the_lane(stage)
    assert_delivered_above(stage, HEAD + 1)


@pytest.mark.thorough
def test_publish_many_and_a_caller_meet_the_same_purge(stage: Stage) -> None:
    """A batch makes the lane anew; a caller's transaction gets a retriable error, and its repetition succeeds."""

    def caller(client: Client) -> int:
        with client.transaction() as connection:
            return client.publish("t", "k", b"{}", connection=connection).offset

    stage.client.publish("t", "other", b"{}")
    purge = purging(stage, "after lease_removal.PURGE")
    calling = stage.waiting(caller, stage.client)
    many = stage.aside(stage.client.publish_many, "t", [("k", b"{}"), ("other", b"{}")])
    wait_until_blocked(stage.raw, 2)
    assert purge.end() is True
    with pytest.raises(DatabaseError, match="purged just now") as caught:
        calling.result(15)
    assert caught.value.retriable
    assert [receipt.offset for receipt in many.result(15)] == [HEAD + 1, 2]
    assert caller(stage.client) == HEAD + 2


@pytest.mark.parametrize(
    ("step", "point"),
    [
        ("publish", "before COMMIT following messages.INSERT"),
        *thorough(("publish", "after partitions.NEXT_OFFSET"), ("publish_many", "after partitions.TRY_LOCK_HEADS")),
    ],
)
def test_a_purge_gives_up_at_once_when_a_publisher_has_the_head(stage: Stage, step: str, point: str) -> None:
    """The purge ends while the publisher is still paused; the message is there afterwards, and is delivered."""
    publish = publishing(stage, step, "k", point)
    assert stage.purge() is False
    assert publish.end() in (HEAD + 1, [HEAD + 1])
    assert stage.purge() is False
    assert_delivered_above(stage, HEAD + 1)


@pytest.mark.thorough
@pytest.mark.parametrize("point", [BIRTH, "after partitions.HOLD_TOPIC"])
def test_a_purge_gives_up_at_once_when_a_lane_of_the_topic_is_being_made(stage: Stage, point: str) -> None:
    """The new lane's first offset is read under the topic row: nothing may be purged until it stands."""
    publish = publishing(stage, "publish", "new", point)
    assert stage.purge() is False
    assert publish.end() == 1
    assert stage.purge() is True
    assert_kept_for_the_lane(stage)


@pytest.mark.parametrize("step", ["publish", *thorough("publish_many", "publish_in_block")])
def test_a_lane_that_is_purged_between_its_making_and_its_first_message_is_made_again(stage: Stage, step: str) -> None:
    """A lane without a message is drained by everybody; its publisher finds it gone, and nothing is lost of it."""
    publish = publishing(stage, step, "new", BIRTH.replace("before", "after"))
    assert head(stage, "new") == 0
    assert stage.purge("new") is True
    if step == "publish_in_block":
        with pytest.raises(AssertionError, match="roll back and repeat"):
            publish.end()
        assert rows(stage.raw, "SELECT * FROM queue_messages") == []
    else:
        assert publish.end() in (1, [1])
    assert stage.client.publish("t", "new", b"{}").offset == (1 if step == "publish_in_block" else 2)


# -- purge and purge -------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("point", [LAST, FIRST_LOCK, FLOORS, HEAD_LOCK])
def test_a_second_purge_gives_up_at_once(stage: Stage, point: str) -> None:
    """Of the same lane and of a neighbour: it ends while the first is paused, which then does all of it."""
    stage.register("h", start="latest")
    purge = purging(stage, point)
    assert stage.purge() is False
    assert stage.purge("another") is False
    assert purge.end() is True
    assert head(stage) is None
    assert owners(stage.raw, "g", "t") == {}
    assert one(stage.raw, "SELECT COUNT(*) FROM queue_offsets WHERE topic = 't'") == 0
    assert_kept_for_the_lane(stage)


# -- purge and acquisition ---------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("point", [LEASE_LOCK, FLOORS, LAST])
def test_a_keeper_does_not_wait_for_a_purge_and_never_keeps_a_lane_that_is_gone(stage: Stage, point: str) -> None:
    """The lease is taken as long as the purge has not locked it, else skipped; then the lane comes back above."""
    about_to, over = "before leases.TRY_LOCK_OWNERS", "after COMMIT following leases.TRY_LOCK_OWNERS"
    keeper = stage.actor("keeper").pause(over).pause(about_to)
    keeper.do("subscribe", topic="t", group="g", retention=0)
    keeper.paused(about_to)
    purge = purging(stage, point)
    keeper.go(about_to)
    keeper.paused(over)
    taken = stage.owners()["k"] == "keeper"
    assert taken == (point == FLOORS)
    assert purge.end() is True
    assert stage.owners() == {}
    assert_kept_for_the_lane(stage, EPOCH + taken)
    keeper.go(over)
    assert_handles_the_next(stage, keeper, EPOCH + taken + 1)


@pytest.mark.thorough
@pytest.mark.parametrize("point", ["after leases.TAKE", "after leases.TRY_LOCK_OWNERS"])
def test_a_purge_gives_up_at_once_when_the_lease_is_being_taken(stage: Stage, point: str) -> None:
    """The purge ends while the keeper is paused; the keeper has the lane then, and its messages are handled."""
    keeper = stage.member("keeper", point, retention=0)
    assert stage.purge() is False
    keeper.go(point)
    assert_handles_the_next(stage, keeper, EPOCH + 1)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "point", ["before COMMIT following leases.CREATE", "after partitions.SHARE_TOPIC", "after groups.LOCK_SHARED"]
)
def test_a_purge_gives_up_at_once_when_a_lease_is_being_born(stage: Stage, point: str) -> None:
    """Above every token of the topic: what is purged meanwhile could not raise that any more."""
    rows(stage.raw, "DELETE FROM queue_partition_leases")
    rows(stage.raw, "UPDATE queue_partitions SET max_epoch = %s WHERE partition_key = ''", EPOCH)
    keeper = stage.member("keeper", point, "t", config={"janitor_turn": 60})
    assert stage.purge() is False
    keeper.go(point)
    assert_handles_the_next(stage, keeper, EPOCH + 1)


@pytest.mark.thorough
def test_a_lane_purged_before_its_lease_is_made_gets_none(stage: Stage) -> None:
    """The keeper looks again under the topic row: no lease of a lane that is gone, and a higher one when it is back."""
    stage.register("h", start="latest")
    rows(stage.raw, "UPDATE queue_partition_leases SET consumer_group = 'h', lease_epoch = %s", EPOCH + 20)
    looked, over = "after leases.UNCLAIMED", "after COMMIT following groups.LOCK_SHARED"
    keeper = stage.actor("keeper").pause(looked).pause(over, "k")
    keeper.do("subscribe", topic="t", group="g", retention=0)
    keeper.paused(looked)
    assert stage.purge() is True
    keeper.go(looked)
    keeper.paused(over)
    assert owners(stage.raw, "g", "t") == {}
    keeper.go(over)
    assert_handles_the_next(stage, keeper, EPOCH + 21)


@pytest.mark.thorough
def test_a_lane_that_goes_between_its_acquisition_and_its_loading_is_given_up(stage: Stage) -> None:
    """Taken, and purged before its rows were read: the keeper loads nothing, and takes it anew when it is back."""
    point = "after COMMIT following leases.TAKE"
    keeper = stage.member("keeper", point, retention=0)
    assert stage.purge() is True
    assert_kept_for_the_lane(stage, EPOCH + 1)
    keeper.go(point)
    assert_handles_the_next(stage, keeper, EPOCH + 2)
    assert not [line for line in keeper.program.lines if line.event == "log" and line["level"] == "ERROR"]
