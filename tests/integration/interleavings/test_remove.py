"""The deletion of a group against its settlements and its registration; the deletion of a topic against publishers.

One side is stopped in a process of its own after each of its locks, while the other runs; then the other way round.
`admin/test_remove.py` has the verbs undisturbed.
"""

import pytest

from support.settling import BEFORE_THE_FENCE, BEHIND_THE_FENCE, effects, settling
from support.situations import Situations
from support.sql import delivery_rows, one
from support.stage import DIES, Call, Stage, thorough, wait_until_blocked
from support.waiting import Record, eventually

ENDING = "before COMMIT following groups.DELETE"
ENDED = "after COMMIT following groups.DELETE"
HOW = pytest.mark.parametrize("how", ["transaction", *thorough("return")])


def deleting_group(stage: Stage, point: str) -> Call:
    """A deletion of group g that is stopped at this point."""
    return stage.stopped(point, "admin", verb="delete_group", topic="t", group="g", evict=True, dry_run=False)


def assert_deleted(stage: Stage, group: str = "g") -> None:
    """No row of the group is left, in any table."""
    for table in ("queue_groups", "queue_offsets", "queue_delivery_state", "queue_partition_leases"):
        assert not one(stage.raw, f"SELECT COUNT(*) FROM {table} WHERE consumer_group = %s", group)


def assert_begins_anew(stage: Stage, token: int) -> None:
    """A group of that name gets everything once more, under a token above those of the one that was deleted."""
    seen = Record()
    stage.client.subscribe("t", "g", lambda m: seen((m.offset, m.attempt, m.fencing_token > token)), recreate=True)
    assert seen.wait(2) == [(1, 1, True), (2, 1, True)]
    stage.until_acked(2)


# -- delete_group and flush ----------------------------------------------------------------------------------------


def assert_ended(stage: Stage, how: str, *offsets: int) -> None:
    """The subscription fails, nothing of the group is left but these effects, and it begins anew above its token."""
    eventually(lambda: stage.fleet.logged("membership.failed"), what="the end of the subscription")
    assert_deleted(stage)
    assert effects(stage.raw) == ([(offset,) for offset in offsets] if how == "transaction" else [])
    assert_begins_anew(stage, 1)


@HOW
def test_a_settlement_that_has_not_reached_its_fence_finds_no_lease_any_more(stage: Stage, how: str) -> None:
    """The deletion does not wait; nothing is written for a group that is gone, and its subscription fails."""
    owner = settling(stage, how, BEFORE_THE_FENCE[how])
    assert one(stage.raw, "SELECT lease_epoch FROM queue_partition_leases") == 1
    deleted = stage.client.admin.delete_group("t", "g", evict=True, dry_run=False)
    assert (deleted.lanes, deleted.lag, deleted.members) == (1, 1, 1)
    owner.go(BEFORE_THE_FENCE[how])
    owner.is_refused(how)
    assert_ended(stage, how, 1)


@pytest.mark.thorough
@HOW
def test_the_deletion_waits_for_a_settlement_behind_its_fence_and_leaves_nothing_of_it(stage: Stage, how: str) -> None:
    """The settlement stands, what it wrote goes with the group."""
    owner = settling(stage, how, BEHIND_THE_FENCE[how])
    deleting = stage.waiting(stage.client.admin.delete_group, "t", "g", evict=True, dry_run=False)
    owner.go(BEHIND_THE_FENCE[how])
    deleting.result(20)
    assert_ended(stage, how, 1, 2)


@pytest.mark.thorough
@DIES
def test_a_settlement_that_meets_the_deletion_waits_and_is_decided_by_its_commit(stage: Stage, dies: bool) -> None:
    """Refused when the group goes; written when the deletion dies, and the group is as it was."""
    point = BEFORE_THE_FENCE["transaction"]
    owner = settling(stage, "transaction", point)
    deleting = deleting_group(stage, ENDING)
    owner.go(point)
    wait_until_blocked(stage.raw)
    deleting.end(dies=dies)
    if dies:
        stage.until_acked(2)
        assert effects(stage.raw) == [(1,), (2,)]
        assert not stage.fleet.logged("membership.failed")
        return
    owner.is_refused("transaction")
    assert_ended(stage, "transaction", 1)


# -- delete_group and registration ---------------------------------------------------------------------------------


@pytest.fixture
def abandoned(stage: Stage) -> None:
    """Lane k with two messages, and a group without workers that has acked the first and tried the second."""
    stage.client.publish_many("t", [("k", b"{}")] * 2)
    stage.register("g")
    group = Situations(stage.raw)
    group.place("k", 1)
    group.row("k", 2, retry_count=3)
    group.lease("k", "", 7)


@pytest.mark.thorough
@DIES
@pytest.mark.usefixtures("abandoned")
@pytest.mark.parametrize("point", [ENDING, "after partitions.LOCK_TOPIC"])
def test_a_registration_waits_for_the_deletion_and_begins_anew(stage: Stage, point: str, dies: bool) -> None:
    """The new group has nothing of the old one; if the deletion dies, the old group goes on."""
    deleting = deleting_group(stage, point)
    registering = stage.waiting(stage.register, "g")
    deleting.end(dies=dies)
    registering.result(20)
    if dies:
        assert stage.acked() == 1
        assert [row["retry_count"] for row in delivery_rows(stage.raw, "g", "t")] == [3]
    else:
        assert_begins_anew(stage, 7)


@pytest.mark.thorough
@pytest.mark.usefixtures("abandoned")
@pytest.mark.parametrize("point", [ENDED, "before deliveries.SOME_OF_GROUP", "before offsets.SOME_OF_GROUP"])
def test_what_is_registered_while_the_rest_is_deleted_keeps_what_is_its_own(stage: Stage, point: str) -> None:
    """Between two of its transactions the deletion finds the group registered anew, and leaves it alone."""
    deleting = deleting_group(stage, point)
    if point == ENDED:
        stage.register("g", start="latest")
        assert stage.acked() == 2
        deleting.end()
    else:  # the batch under way has the topic row
        registering = stage.waiting(stage.register, "g", start="latest")
        deleting.end()
        registering.result(20)
    assert stage.acked() == 2
    seen = Record()
    stage.client.subscribe("t", "g", lambda m: seen((m.offset, m.attempt, m.fencing_token > 7)))
    stage.client.publish("t", "k", b"{}")
    assert seen.wait(1) == [(3, 1, True)]


@pytest.mark.thorough
@pytest.mark.usefixtures("abandoned")
def test_the_deletion_waits_for_a_registration_and_deletes_what_it_made(stage: Stage) -> None:
    """The registration of another group is none of its business."""
    point = "before COMMIT following groups.CREATE"
    registering = stage.stopped(point, "register", topic="t", group="other", start="latest")
    deleting = stage.waiting(stage.client.admin.delete_group, "t", "g", dry_run=False)
    registering.end()
    deleting.result(20)
    assert_deleted(stage)
    assert stage.acked(group="other") == 2
    assert stage.client.admin.delete_group("t", "other", dry_run=False).lanes == 1
    assert_deleted(stage, "other")


# -- delete_topic and publish --------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("point", ["before COMMIT following messages.INSERT", "after partitions.NEXT_OFFSET"])
def test_a_topic_is_not_deleted_from_under_an_open_publish(stage: Stage, point: str) -> None:
    """The deletion waits for the head; what was published then was published after it began, and may go or stay."""
    stage.client.publish_many("t", [("k", b"{}"), ("l", b"{}")])
    publishing = stage.stopped(point, "publish", topic="t", key="k")
    deleting = stage.waiting(stage.client.admin.delete_topic, "t", dry_run=False)
    assert publishing.end() == 2
    deleted = deleting.result(20)
    assert (deleted.lanes, deleted.messages, stage.stored(), stage.stored("l")) in [(2, 3, [], []), (1, 2, [2], [])]
    assert_above(stage, 2)


@DIES
@pytest.mark.parametrize(
    "point",
    ["before COMMIT following partitions.PURGE", *thorough("after partitions.LOCK_HEADS", "after offsets.PURGE")],
)
def test_a_publisher_waits_for_the_deletion_of_its_lane_and_makes_it_anew(stage: Stage, point: str, dies: bool) -> None:
    """The message is above all that ever was in the topic, and stays."""
    stage.client.publish_many("t", [("k", b"{}"), ("l", b"{}"), ("l", b"{}")])
    deleting = stage.stopped(point, "admin", "k", verb="delete_topic", topic="t", dry_run=False)
    publishing = stage.waiting(stage.client.publish, "t", "k", b"{}")
    deleting.end(dies=dies)
    if dies:
        assert publishing.result(20).offset == 2
        return
    assert publishing.result(20).offset == 3
    assert (stage.stored(), stage.stored("l")) == ([3], [])
    assert_above(stage, 3)


def assert_above(stage: Stage, offset: int) -> None:
    """The lane goes on above this offset, for a group that comes now as well."""
    assert stage.client.publish("t", "k", b"{}").offset == offset + 1
    seen = Record()
    stage.client.subscribe("t", "late", lambda m: seen((m.key, m.offset)))
    seen.until(lambda items: ("k", offset + 1) in items)
    stage.until_acked(offset + 1, group="late")
