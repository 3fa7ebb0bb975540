"""The purge of a lane, against publishers, keepers and another purge of the same lane.

One side is stopped in a process of its own after each of its locks, while the other side runs; then the other way
round. `test_purge_race.py` lets the same parties race without a plan, and `test_collection.py` has what a purge is for.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lanelog import Client
from lanelog._database import Database
from lanelog._engine.purge import Purge
from lanelog._engine.registration import register
from lanelog.config import SubscriptionConfig
from lanelog.errors import DatabaseError
from support.sql import one, owners, rows
from support.stage import Stage, wait_until_blocked
from support.waiting import Record

HEAD, EPOCH = 3, 7
BEFORE_THE_HEAD = ["after discovery.TRY_LOCK_TOPIC", "after offsets.LOCK_FLOORS"]
BEHIND_THE_HEAD = [
    "after discovery.TRY_LOCK_HEAD",
    "after leases.LOCK_LANE",
    "after offsets.LOCK_LANE",
    "after discovery.PURGE",
    "before COMMIT following offsets.PURGE",
]


@pytest.fixture
def drained(lanelog_client: Client, database: Database, raw: Any) -> None:
    """Lane k of topic t: three messages, all of them acked by group g and collected, its lease in nobody's name."""
    register(database, "g", "t", SubscriptionConfig.from_options(retention=0))
    lanelog_client.publish_many("t", [("k", b"{}")] * HEAD)
    rows(raw, "DELETE FROM queue_messages WHERE topic = 't'")
    rows(raw, "UPDATE queue_offsets SET offset_acked = 3, marked_through = 3 WHERE consumer_group = ''")
    rows(
        raw,
        "INSERT INTO queue_offsets (consumer_group, topic, partition_key, offset_acked, marked_through, updated_at)"
        " VALUES ('g', 't', 'k', 3, 3, 0)",
    )
    rows(
        raw,
        "INSERT INTO queue_partition_leases (consumer_group, topic, partition_key, leased_by, lease_epoch, leased_at)"
        " VALUES ('g', 't', 'k', '', %s, 0)",
        EPOCH,
    )


def purge(database: Database, key: str = "k") -> bool:
    session = database.session("purge")
    try:
        return Purge(session).drained("t", key)
    finally:
        session.close()


def topic_row(raw: Any) -> tuple[int, int]:
    return rows(raw, "SELECT head_offset, max_epoch FROM queue_partitions WHERE topic = 't' AND partition_key = ''")[0]


def head(raw: Any, key: str = "k") -> int | None:
    found: int | None = one(
        raw, "SELECT head_offset FROM queue_partitions WHERE topic = 't' AND partition_key = %s", key
    )
    return found


def assert_delivered_above(client: Client, offset: int) -> None:
    """The message at this offset is delivered once, under a token above all that were used before."""
    seen = Record()
    client.subscribe("t", "g", lambda m: seen((m.offset, m.attempt, m.fencing_token > EPOCH)), retention=0)
    client.publish("t", "k", b"{}")
    assert seen.wait(2) == [(offset, 1, True), (offset + 1, 1, True)]


# -- purge and publish ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("drained")
@pytest.mark.parametrize("point", BEFORE_THE_HEAD)
def test_a_publish_under_a_purge_that_has_no_head_yet_goes_on_and_keeps_the_lane(
    stage: Stage, lanelog_client: Client, raw: Any, point: str
) -> None:
    """The purge holds the topic row or the floor: the publisher needs neither, and the purge gives up."""
    actor, purging = stage.paused_in(point, "purge", topic="t", key="k")
    assert lanelog_client.publish("t", "k", b"{}").offset == HEAD + 1
    assert not purging.done
    actor.go(point)
    assert purging.result() is False
    assert head(raw) == HEAD + 1
    assert_delivered_above(lanelog_client, HEAD + 1)


@pytest.mark.usefixtures("drained")
@pytest.mark.parametrize("point", BEHIND_THE_HEAD)
def test_a_publish_under_a_purge_that_has_the_head_waits_and_brings_the_lane_back_above(
    stage: Stage, lanelog_client: Client, raw: Any, point: str
) -> None:
    """It waits for as long as the purge is paused, finds no lane, and makes it anew: no offset and no token twice."""
    actor, purging = stage.paused_in(point, "purge", topic="t", key="k")
    with ThreadPoolExecutor(1) as thread:
        publishing = thread.submit(lanelog_client.publish, "t", "k", b"{}")
        wait_until_blocked(raw)
        assert not publishing.done()
        actor.go(point)
        assert publishing.result(10).offset == HEAD + 1
    assert purging.result() is True
    assert topic_row(raw) == (HEAD, EPOCH)
    assert_delivered_above(lanelog_client, HEAD + 1)


@pytest.mark.usefixtures("drained")
def test_publish_many_and_a_caller_meet_the_same_purge(stage: Stage, lanelog_client: Client, raw: Any) -> None:
    """A batch makes the lane anew; a caller's transaction is told to repeat, and its repetition succeeds."""
    point = "after leases.PURGE"
    lanelog_client.publish("t", "other", b"{}")
    actor, purging = stage.paused_in(point, "purge", topic="t", key="k")
    with ThreadPoolExecutor(2) as threads:

        def caller() -> int:
            with lanelog_client.transaction() as connection:
                return lanelog_client.publish("t", "k", b"{}", connection=connection).offset

        calling = threads.submit(caller)
        wait_until_blocked(raw)
        many = threads.submit(lanelog_client.publish_many, "t", [("k", b"{}"), ("other", b"{}")])
        wait_until_blocked(raw, 2)
        actor.go(point)
        assert purging.result() is True
        with pytest.raises(DatabaseError, match="purged just now") as caught:
            calling.result(10)
        assert caught.value.retriable
        assert [receipt.offset for receipt in many.result(10)] == [HEAD + 1, 2]
        assert caller() == HEAD + 2


@pytest.mark.usefixtures("drained")
@pytest.mark.parametrize(
    ("step", "point"),
    [
        ("publish", "after partitions.TRY_LOCK_HEADS"),
        ("publish", "before COMMIT following messages.INSERT"),
        ("publish_many", "after partitions.TRY_LOCK_HEADS"),
    ],
)
def test_a_purge_gives_up_at_once_when_a_publisher_has_the_head(
    stage: Stage, lanelog_client: Client, database: Database, raw: Any, step: str, point: str
) -> None:
    """It ends while the publisher is still paused; the message is there afterwards, and is delivered."""
    what = {"keys": ["k"]} if step == "publish_many" else {"key": "k"}
    actor, publishing = stage.paused_in(point, step, topic="t", **what)
    assert purge(database) is False
    assert not publishing.done
    actor.go(point)
    assert publishing.result() in (HEAD + 1, [HEAD + 1])
    assert purge(database) is False
    assert_delivered_above(lanelog_client, HEAD + 1)


@pytest.mark.usefixtures("drained")
@pytest.mark.parametrize("point", ["after partitions.SHARE_TOPIC", "before COMMIT following partitions.CREATE_HEADS"])
def test_a_purge_gives_up_at_once_when_a_lane_of_the_topic_is_being_made(
    stage: Stage, database: Database, raw: Any, point: str
) -> None:
    """The new lane's first offset is read under the topic row: nothing may be purged until it stands."""
    actor, publishing = stage.paused_in(point, "publish", topic="t", key="new")
    assert purge(database) is False
    assert not publishing.done
    actor.go(point)
    assert publishing.result() == 1
    assert purge(database) is True
    assert topic_row(raw) == (HEAD, EPOCH)


@pytest.mark.usefixtures("drained")
@pytest.mark.parametrize("step", ["publish", "publish_many", "publish_in_block"])
def test_a_lane_that_is_purged_between_its_making_and_its_first_message_is_made_again(
    stage: Stage, lanelog_client: Client, database: Database, raw: Any, step: str
) -> None:
    """A lane without a message is drained by everybody; its publisher finds it gone, and nothing is lost of it."""
    point = "after COMMIT following partitions.CREATE_HEADS"
    what = {"key": "new"} if step == "publish" else {"keys": ["new"]}
    actor, publishing = stage.paused_in(point, step, topic="t", **what)
    assert head(raw, "new") == 0
    assert purge(database, "new") is True
    actor.go(point)
    if step == "publish_in_block":
        with pytest.raises(AssertionError, match="roll back and repeat"):
            publishing.result()
        assert rows(raw, "SELECT * FROM queue_messages") == []
    else:
        assert publishing.result() in (1, [1])
    assert lanelog_client.publish("t", "new", b"{}").offset == (1 if step == "publish_in_block" else 2)


# -- purge and purge -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("drained")
@pytest.mark.parametrize("point", [*BEFORE_THE_HEAD, BEHIND_THE_HEAD[0], BEHIND_THE_HEAD[-1]])
def test_a_second_purge_gives_up_at_once(
    stage: Stage, lanelog_client: Client, database: Database, raw: Any, point: str
) -> None:
    """Of the same lane and of a neighbour: it ends while the first is paused, which then does all of it."""
    register(database, "h", "t", SubscriptionConfig.from_options(retention=0, start="latest"))
    actor, purging = stage.paused_in(point, "purge", topic="t", key="k")
    assert purge(database) is False
    assert purge(database, "another") is False
    actor.go(point)
    assert purging.result() is True
    assert head(raw) is None
    assert owners(raw, "g", "t") == {}
    assert one(raw, "SELECT COUNT(*) FROM queue_offsets WHERE topic = 't'") == 0
    assert topic_row(raw) == (HEAD, EPOCH)


# -- purge and acquisition ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("drained")
@pytest.mark.parametrize(
    "point", [BEFORE_THE_HEAD[-1], "after leases.LOCK_LANE", "before COMMIT following offsets.PURGE"]
)
def test_a_keeper_does_not_wait_for_a_purge_and_never_keeps_a_lane_that_is_gone(
    stage: Stage, lanelog_client: Client, raw: Any, point: str
) -> None:
    """The lease is taken as long as the purge has not locked it, else skipped; then the lane comes back above."""
    about_to, over = "before leases.LOCK_CANDIDATES", "after COMMIT following leases.LOCK_CANDIDATES"
    purger, keeper = stage.actor("purger"), stage.actor("keeper").pause(about_to).pause(over)
    keeper.do("subscribe", topic="t", group="g", retention=0)
    keeper.paused(about_to)
    purging = purger.pause(point).call("purge", topic="t", key="k")
    purger.paused(point)
    keeper.go(about_to)
    keeper.paused(over)
    assert not purging.done
    taken = owners(raw, "g", "t")["k"].startswith("keeper:")
    assert taken == (point in BEFORE_THE_HEAD)
    purger.go(point)
    assert purging.result() is True
    assert owners(raw, "g", "t") == {}
    epoch = EPOCH + taken
    assert topic_row(raw) == (HEAD, epoch)
    keeper.go(over)
    assert lanelog_client.publish("t", "k", b"{}").offset == HEAD + 1
    (line,) = keeper.program.said("handled")
    assert (line["offset"], line["token"]) == (HEAD + 1, epoch + 1)


@pytest.mark.usefixtures("drained")
@pytest.mark.parametrize("point", ["after leases.LOCK_CANDIDATES", "after leases.TAKE"])
def test_a_purge_gives_up_at_once_when_the_lease_is_being_taken(
    stage: Stage, lanelog_client: Client, database: Database, raw: Any, point: str
) -> None:
    """It ends while the keeper is paused; the keeper has the lane then, and its messages are handled."""
    actor, subscribing = stage.paused_in(point, "subscribe", topic="t", group="g", retention=0)
    subscribing.result()
    assert purge(database) is False
    actor.go(point)
    lanelog_client.publish("t", "k", b"{}")
    (line,) = actor.program.said("handled")
    assert (line["offset"], line["token"]) == (HEAD + 1, EPOCH + 1)


@pytest.mark.usefixtures("drained")
@pytest.mark.parametrize(
    "point", ["after discovery.SHARE_TOPIC", "after groups.LOCK_SHARED", "before COMMIT following leases.CREATE"]
)
def test_a_purge_gives_up_at_once_when_a_lease_is_being_born(
    stage: Stage, lanelog_client: Client, database: Database, raw: Any, point: str
) -> None:
    """Above every token of the topic: what is purged meanwhile could not raise that any more."""
    rows(raw, "DELETE FROM queue_partition_leases")
    rows(raw, "UPDATE queue_partitions SET max_epoch = %s WHERE topic = 't' AND partition_key = ''", EPOCH)
    actor = stage.actor("keeper", janitor_turn=60).pause(point, "t")
    actor.do("subscribe", topic="t", group="g")
    actor.paused(point)
    assert purge(database) is False
    actor.go(point)
    lanelog_client.publish("t", "k", b"{}")
    (line,) = actor.program.said("handled")
    assert (line["offset"], line["token"]) == (HEAD + 1, EPOCH + 1)


@pytest.mark.usefixtures("drained")
def test_a_lane_that_goes_between_the_look_and_the_birth_of_its_lease_gets_none(
    stage: Stage, lanelog_client: Client, database: Database, raw: Any
) -> None:
    """The keeper looks again under the topic row: no lease of a lane that is gone, and a higher one when it is back."""
    rows(raw, "UPDATE queue_partition_leases SET consumer_group = 'h'")
    register(database, "h", "t", SubscriptionConfig.from_options(retention=0, start="latest"))
    rows(raw, "DELETE FROM queue_partition_leases")
    rows(
        raw,
        "INSERT INTO queue_partition_leases (consumer_group, topic, partition_key, leased_by, lease_epoch, leased_at)"
        " VALUES ('h', 't', 'k', '', %s, 0)",
        EPOCH + 20,
    )
    point, over = "after leases.UNCLAIMED", "after COMMIT following groups.LOCK_SHARED"
    actor = stage.actor("keeper").pause(point).pause(over, "k")
    actor.do("subscribe", topic="t", group="g", retention=0)
    actor.paused(point)
    assert purge(database) is True
    actor.go(point)
    actor.paused(over)
    assert owners(raw, "g", "t") == {}
    actor.go(over)
    lanelog_client.publish("t", "k", b"{}")
    (line,) = actor.program.said("handled")
    assert (line["offset"], line["token"]) == (HEAD + 1, EPOCH + 21)


@pytest.mark.usefixtures("drained")
def test_a_lane_that_goes_between_its_acquisition_and_its_loading_is_given_up(
    stage: Stage, lanelog_client: Client, database: Database, raw: Any
) -> None:
    """Taken, and purged before its rows were read: the keeper loads nothing, and takes it anew when it is back."""
    point = "after COMMIT following leases.TAKE"
    actor = stage.actor("keeper").pause(point)
    actor.do("subscribe", topic="t", group="g", retention=0)
    actor.paused(point)
    assert purge(database) is True
    assert topic_row(raw) == (HEAD, EPOCH + 1)
    actor.go(point)
    lanelog_client.publish("t", "k", b"{}")
    (line,) = actor.program.said("handled")
    assert (line["offset"], line["attempt"], line["token"]) == (HEAD + 1, 1, EPOCH + 2)
    assert not [line for line in actor.program.lines if line.event == "log" and line["level"] == "ERROR"]
