"""Seek against collection and against the acquisition of the lane; pause against acquisition and flush.

One side is stopped in a process of its own at each of its dangerous points, while the other runs; then the other way
round. `interleavings/test_fence.py` has seek and the settlements of the owner.
"""

from typing import Any

import pytest

from support.pace import paced
from support.situations import Situations
from support.sql import one
from support.stage import DIES, Actor, Call, Stage, thorough, wait_until_blocked
from support.waiting import Record, eventually

LAST = 5
RAISING = "before COMMIT following offsets.RAISE_FLOORS"
HOLDING_THE_FLOOR = ["after offsets.TRY_LOCK_FLOORS", "after offsets.WATERMARKS"]
RELEASED = ["after COMMIT following offsets.RAISE_FLOORS", "after leaving.DELETE"]
TAKING = "before COMMIT following leases.TAKE"
TAKEN = "after COMMIT following leases.TAKE"
SEEKING = "before COMMIT following offsets.MOVE"


@pytest.fixture(autouse=True)
def _soon(stage: Stage) -> None:
    paced(stage.client, keeper={"claim_seconds": 0.2}, janitor={"turn_seconds": 0.1})


@pytest.fixture
def acked(stage: Stage) -> None:
    """Lanes k and l: five messages each, all of them acked by group g, the only one, and nothing collected yet."""
    stage.client.publish_many("t", [(key, b"{}") for key in "kl" for _ in range(LAST)])
    stage.register("g")
    for key in "kl":
        Situations(stage.raw).place(key, LAST)
        Situations(stage.raw).lease(key, "", 1)


def seek(stage: Stage, to: int) -> Any:
    return stage.client.admin.seek("t", "g", key="k", to=to, dry_run=False)


def seeking(stage: Stage, point: str, to: int) -> Call:
    return stage.stopped(point, "admin", verb="seek", topic="t", group="g", key="k", to=to, dry_run=False)


def stopped_after(stage: Stage, first: str, point: str) -> Actor:
    """A new owner, stopped at this point, which comes after the first one, or is it."""
    owner = stage.member("owner", first)
    if point != first:
        owner.pause(point).go(first)
    return owner.paused(point)


# -- seek and collection -------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.usefixtures("acked")
@pytest.mark.parametrize("point", [RAISING, RELEASED[0], *HOLDING_THE_FLOOR, RELEASED[1]])
def test_a_seek_under_a_collection_goes_as_far_back_as_that_leaves(stage: Stage, point: str) -> None:
    """The seek waits for the floor's owner, and for no deletion: it does not return to offsets below the new floor.

    This holds whether they are still in the log or not. Everything above is delivered, and nothing is a hole.
    """
    collecting = stage.stopped(point, "admin", "k", verb="maintain")
    if point in RELEASED:
        sought = seek(stage, 3)
        collecting.end()
    else:
        waiting = stage.waiting(seek, stage, 3)
        assert len(stage.stored()) == LAST
        collecting.end()
        sought = waiting.result(20)
    assert (sought.again, sought.clamped) == (0, 1)
    assert stage.acked() == stage.acked(group="") == LAST
    assert_delivered(stage, LAST + 1)


@DIES
@pytest.mark.usefixtures("acked")
@pytest.mark.parametrize("point", [SEEKING, *thorough("after offsets.SHARE_FLOORS")])
def test_a_collection_leaves_alone_the_lane_that_is_being_sought(stage: Stage, point: str, dies: bool) -> None:
    """The collection does not wait, and collects the other lane; afterwards it sees the group's new watermark."""
    moving = seeking(stage, point, 3)
    stage.client.admin.maintain()
    assert (stage.stored("l"), len(stage.stored())) == ([], LAST)
    sought = moving.end(dies=dies)
    if dies:
        eventually(lambda: stage.client.admin.maintain() and stage.stored() == [], what="the collection")
        assert_delivered(stage, LAST + 1)
        return
    assert sought["again"] == LAST - 2
    stage.client.admin.maintain()
    assert (stage.stored(), stage.acked(group="")) == ([3, 4, 5], 2)
    assert_delivered(stage, 3, 4, 5, LAST + 1)


def assert_delivered(stage: Stage, *offsets: int) -> None:
    """The group gets these of lane k, each once and as a first attempt, when one more was published."""
    seen = Record()
    stage.client.publish("t", "k", b"{}")
    stage.client.subscribe("t", "g", lambda m: seen((m.key, m.offset, m.attempt)), retention=0)
    stage.until_acked(LAST + 1)
    assert [item[1:] for item in seen.items if item[0] == "k"] == [(offset, 1) for offset in offsets]
    eventually(lambda: stage.stored() == [], what="the collection of the rest")


# -- seek and acquisition ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("acked")
def test_a_seek_waits_for_the_acquisition_of_the_lane_and_takes_it_away_again(stage: Stage) -> None:
    """The new owner has not committed: then it has lost the lane before it began, and goes on from the new place."""
    owner = stage.member("owner", TAKING)
    moving = stage.waiting(seek, stage, 4)
    owner.go(TAKING)
    assert moving.result(20).again == 2
    # The token is that of a lane that was taken, taken away, and taken again.
    assert owner.handled(2, "key", "offset", "attempt", "token") == [("k", 4, 1, 4), ("k", 5, 1, 4)]


@pytest.mark.thorough
@pytest.mark.usefixtures("acked")
@pytest.mark.parametrize("point", ["before deliveries.LOAD", TAKEN, "after leases.OWNED_AMONG"])
def test_a_seek_between_acquisition_and_loading_is_not_undone_by_what_is_loaded(stage: Stage, point: str) -> None:
    """Writes of the new owner under the old token are refused, whatever it has read, and it loads anew."""
    owner = stopped_after(stage, TAKEN, point)
    stage.client.publish("t", "k", b"{}")
    assert seek(stage, 4).again == 2
    owner.go(point)
    assert owner.handled(3, "offset", "attempt") == [(4, 1), (5, 1), (6, 1)]
    stage.until_acked(LAST + 1)
    assert owner.started() == [(4, 1), (5, 1), (6, 1)]


@pytest.mark.thorough
@DIES
def test_a_lease_that_is_born_by_a_seek_is_not_born_a_second_time(stage: Stage, dies: bool) -> None:
    """A keeper that wants to have the first lease of the lane waits; it finds the row, or makes it if the seek died."""
    looked = "before partitions.SHARE_TOPIC"  # it has found the lane, and locked nothing yet
    owner = stage.actor("owner").pause(looked)
    owner.do("subscribe", topic="t", group="g")
    stage.client.publish_many("t", [("k", b"{}")] * LAST)
    owner.paused(looked)
    moving = seeking(stage, SEEKING, 4)
    owner.go(looked)
    wait_until_blocked(stage.raw)
    moving.end(dies=dies)
    expected = [1, 2, 3, 4, 5] if dies else [4, 5]
    assert owner.handled(len(expected), "offset") == expected
    stage.until_acked(LAST)
    assert one(stage.raw, "SELECT COUNT(*) FROM queue_partition_leases") == 1
    assert not stage.fleet.logged("loop.failed")


# -- pause, and acquisition and flush ------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.usefixtures("acked")
@pytest.mark.parametrize("key", ["k", None], ids=["lane", "group"])
@pytest.mark.parametrize("point", ["after leases.OWNED_AMONG", TAKING, TAKEN])
def test_a_lane_that_is_paused_while_it_is_taken_begins_nothing(stage: Stage, point: str, key: str | None) -> None:
    """The pause waits for nobody; the new owner learns of it before it hands anything out, and gives the lane back."""
    owner = stopped_after(stage, TAKING, point)
    stage.client.publish_many("t", [("k", b"{}"), ("l", b"{}")])
    assert stage.client.admin.pause("t", "g", key=key).changed
    owner.go(point)
    if key is not None:
        assert owner.handled(1, "key") == ["l"]
    eventually(lambda: stage.owners()["k"] == "", what="the release of what is paused")
    owner.turn()
    assert owner.started() == []
    stage.client.admin.resume("t", "g", key=key)
    assert sorted(owner.handled(2, "key", "offset", "attempt")) == [("k", 6, 1), ("l", 6, 1)]


@pytest.mark.thorough
def test_a_flush_waits_for_a_pause_of_its_lane_and_is_written_then(stage: Stage) -> None:
    """The operator holds the lane's row before his COMMIT: nothing is lost, no other lane waits, nothing is begun."""
    seen = Record()
    client = stage.client
    client.subscribe("t", "g", lambda m: seen((m.key, m.offset, m.attempt)))
    client.publish_many("t", [("k", b"{}"), ("l", b"{}")])
    stage.until_acked(1, "k", "l")
    pausing = stage.stopped(
        "before COMMIT following offsets.SET_PAUSE", "admin", verb="pause", topic="t", group="g", key="k"
    )
    client.publish("t", "k", b"{}")
    wait_until_blocked(stage.raw)
    assert pausing.end()["changed"]
    eventually(lambda: stage.owners()["k"] == "", what="the release of what is paused")
    client.publish_many("t", [("k", b"{}"), ("l", b"{}")])
    seen.until(lambda items: ("l", 2, 1) in items)
    client.admin.resume("t", "g", key="k")
    seen.until(lambda items: ("k", 3, 1) in items)
    assert [item[1:] for item in seen.items if item[0] == "k"] == [(1, 1), (2, 1), (3, 1)]
