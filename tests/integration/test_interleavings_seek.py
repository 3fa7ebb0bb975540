"""Seek against collection and against the acquisition of the lane; pause against acquisition and flush.

One side is stopped in a process of its own at each of its dangerous points, while the other runs; then the other way
round. `test_interleavings_fence.py` has seek and the settlements of the owner.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lanelog import Client
from lanelog._database import Database
from lanelog._engine import janitor, membership_keeper
from lanelog._engine.registration import register
from lanelog.config import SubscriptionConfig
from support.sql import one, owners, rows, watermark
from support.stage import Stage, wait_until_blocked
from support.waiting import Record, accept, eventually, never

LAST = 5
HOLDING_THE_FLOOR = [
    "after offsets.LOCK_FLOORS",
    "after offsets.WATERMARKS",
    "before COMMIT following offsets.RAISE_FLOORS",
]
RELEASED = ["after COMMIT following offsets.RAISE_FLOORS", "after moves.DELETE"]
TAKING = "before COMMIT following leases.TAKE"
TAKEN = "after COMMIT following leases.TAKE"
SEEKING = "before COMMIT following fence.MOVE"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(janitor, "TURN", 0.1)
    monkeypatch.setattr(membership_keeper, "CLAIM_EVERY", 0.2)


@pytest.fixture
def acked(lanelog_client: Client, database: Database, raw: Any) -> None:
    """Lanes k and l: five messages each, all of them acked by group g, the only one, and nothing collected yet."""
    lanelog_client.publish_many("t", [(key, b"{}") for key in "kl" for _ in range(LAST)])
    register(database, "g", "t", SubscriptionConfig.from_options(retention=0))
    for key in "kl":
        rows(
            raw,
            "INSERT INTO queue_offsets (consumer_group, topic, partition_key, offset_acked, marked_through, updated_at)"
            " VALUES ('g', 't', %s, %s, %s, 0)",
            key,
            LAST,
            LAST,
        )
        rows(
            raw,
            "INSERT INTO queue_partition_leases (consumer_group, topic, partition_key, leased_by, lease_epoch,"
            " leased_at) VALUES ('g', 't', %s, '', 1, 0)",
            key,
        )


def stored(raw: Any, key: str = "k") -> list[int]:
    sql = "SELECT `offset` FROM queue_messages WHERE topic = 't' AND partition_key = %s ORDER BY 1"
    return [offset for (offset,) in rows(raw, sql, key)]


def floor(raw: Any, key: str = "k") -> int:
    return watermark(raw, "", "t", key)


# -- seek and collection -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("acked")
@pytest.mark.parametrize("point", HOLDING_THE_FLOOR)
def test_a_seek_waits_for_a_collection_that_has_the_floor_and_goes_as_far_back_as_it_left(
    stage: Stage, lanelog_client: Client, raw: Any, point: str
) -> None:
    """What it comes back to is there: everything above the new floor is delivered again, and nothing is a hole."""
    collector, collecting = stage.paused_in(point, "admin", "k", verb="maintain")
    with ThreadPoolExecutor(1) as thread:
        seeking = thread.submit(lanelog_client.admin.seek, "t", "g", key="k", to=3)
        wait_until_blocked(raw)
        assert not seeking.done()
        assert len(stored(raw)) == LAST
        collector.go(point)
        sought = seeking.result(20)
    collecting.result()
    assert (sought.again, sought.clamped) == (0, 1)
    assert watermark(raw, "g", "t", "k") == floor(raw) == LAST
    assert_delivered(lanelog_client, raw, [LAST + 1])


@pytest.mark.usefixtures("acked")
@pytest.mark.parametrize("point", RELEASED)
def test_a_seek_does_not_wait_for_the_deletion_and_comes_back_to_nothing_that_is_released(
    stage: Stage, lanelog_client: Client, raw: Any, point: str
) -> None:
    """Whether or not it is still in the log: the floor says that it goes."""
    collector, collecting = stage.paused_in(point, "admin", "k", verb="maintain")
    sought = lanelog_client.admin.seek("t", "g", key="k", to=3)
    assert (sought.again, sought.clamped) == (0, 1)
    assert not collecting.done
    collector.go(point)
    collecting.result()
    assert_delivered(lanelog_client, raw, [LAST + 1])


@pytest.mark.usefixtures("acked")
@pytest.mark.parametrize("dies", [False, True], ids=["commits", "dies"])
@pytest.mark.parametrize("point", ["after fence.SHARE_FLOORS", SEEKING])
def test_a_collection_leaves_alone_the_lane_that_is_being_sought(
    stage: Stage, lanelog_client: Client, raw: Any, point: str, dies: bool
) -> None:
    """It does not wait, and collects the other lane; afterwards it knows what the group wants to have again."""
    seeker, seeking = stage.paused_in(point, "admin", verb="seek", topic="t", group="g", key="k", to=3)
    lanelog_client.admin.maintain()
    assert (stored(raw, "l"), len(stored(raw))) == ([], LAST)
    if dies:
        seeker.program.kill()
        eventually(lambda: lanelog_client.admin.maintain() and stored(raw) == [], what="the collection")
        assert_delivered(lanelog_client, raw, [LAST + 1])
        return
    seeker.go(point)
    assert seeking.result()["again"] == LAST - 2
    lanelog_client.admin.maintain()
    assert (stored(raw), floor(raw)) == ([3, 4, 5], 2)
    assert_delivered(lanelog_client, raw, [3, 4, 5, LAST + 1])


def assert_delivered(client: Client, raw: Any, offsets: list[int]) -> None:
    """The group gets these of lane k, each once and as a first attempt, when one more was published."""
    seen = Record()
    client.publish("t", "k", b"{}")
    client.subscribe("t", "g", lambda m: seen((m.key, m.offset, m.attempt)), retention=0)
    seen.until(lambda items: ("k", LAST + 1, 1) in items)
    assert [item[1:] for item in seen.items if item[0] == "k"] == [(offset, 1) for offset in offsets]
    eventually(lambda: watermark(raw, "g", "t", "k") == LAST + 1)
    eventually(lambda: stored(raw) == [], what="the collection of the rest")


# -- seek and acquisition ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("acked")
def test_a_seek_waits_for_the_acquisition_of_the_lane_and_takes_it_away_again(
    stage: Stage, lanelog_client: Client, raw: Any
) -> None:
    """The new owner has not committed: then it has lost the lane before it began, and goes on from the new place."""
    owner = stage.actor("owner").pause(TAKING)
    owner.do("subscribe", topic="t", group="g")
    owner.paused(TAKING)
    with ThreadPoolExecutor(1) as thread:
        seeking = thread.submit(lanelog_client.admin.seek, "t", "g", key="k", to=4)
        wait_until_blocked(raw)
        owner.go(TAKING)
        assert seeking.result(20).again == 2
    said = owner.program.said("handled", count=2)
    assert [(line["key"], line["offset"], line["attempt"]) for line in said] == [("k", 4, 1), ("k", 5, 1)]
    assert {line["token"] for line in said} == {4}  # taken, taken away, taken again


@pytest.mark.usefixtures("acked")
@pytest.mark.parametrize("point", [TAKEN, "after leases.OWNED", "before deliveries.LOAD"])
def test_a_seek_between_acquisition_and_loading_is_not_undone_by_what_is_loaded(
    stage: Stage, lanelog_client: Client, raw: Any, point: str
) -> None:
    """Whatever the new owner has read before: what it writes under the old token is refused, and it loads anew."""
    owner = stage.actor("owner").pause(TAKEN)
    owner.do("subscribe", topic="t", group="g")
    owner.paused(TAKEN)
    if point != TAKEN:
        owner.pause(point).go(TAKEN)
        owner.paused(point)
    lanelog_client.publish("t", "k", b"{}")
    assert lanelog_client.admin.seek("t", "g", key="k", to=4).again == 2
    owner.go(point)
    said = owner.program.said("handled", count=3)
    assert [(line["offset"], line["attempt"]) for line in said] == [(4, 1), (5, 1), (6, 1)]
    eventually(lambda: watermark(raw, "g", "t", "k") == LAST + 1)
    assert [line["offset"] for line in owner.program.lines if line.event == "started"] == [4, 5, 6]


@pytest.mark.parametrize("dies", [False, True], ids=["commits", "dies"])
def test_a_lease_that_is_born_by_a_seek_is_not_born_a_second_time(
    stage: Stage, lanelog_client: Client, raw: Any, dies: bool
) -> None:
    """A keeper that wants to have the first lease of the lane waits; it finds the row, or makes it if the seek died."""
    looked = "after leases.UNCLAIMED"
    owner = stage.actor("owner").pause(looked)
    owner.do("subscribe", topic="t", group="g")
    lanelog_client.publish_many("t", [("k", b"{}")] * LAST)
    owner.paused(looked)
    seeker, seeking = stage.paused_in(SEEKING, "admin", verb="seek", topic="t", group="g", key="k", to=4)
    owner.go(looked)
    wait_until_blocked(raw)
    if dies:
        seeker.program.kill()
    else:
        seeker.go(SEEKING)
        seeking.result()
    expected = [1, 2, 3, 4, 5] if dies else [4, 5]
    assert [line["offset"] for line in owner.program.said("handled", count=len(expected))] == expected
    eventually(lambda: watermark(raw, "g", "t", "k") == LAST)
    assert one(raw, "SELECT COUNT(*) FROM queue_partition_leases") == 1
    assert not stage.fleet.logged("loop.failed")


# -- pause, and acquisition and flush ------------------------------------------------------------------------------


@pytest.mark.usefixtures("acked")
@pytest.mark.parametrize("key", [None, "k"], ids=["group", "lane"])
@pytest.mark.parametrize("point", [TAKING, TAKEN, "after leases.OWNED"])
def test_a_lane_that_is_paused_while_it_is_taken_begins_nothing(
    stage: Stage, lanelog_client: Client, raw: Any, point: str, key: str | None
) -> None:
    """The pause waits for nobody; the new owner learns of it before it hands anything out, and gives the lane back."""
    owner = stage.actor("owner").pause(TAKING)
    owner.do("subscribe", topic="t", group="g")
    owner.paused(TAKING)
    if point != TAKING:
        owner.pause(point).go(TAKING)
        owner.paused(point)
    lanelog_client.publish_many("t", [("k", b"{}"), ("l", b"{}")])
    assert lanelog_client.admin.pause("t", "g", key=key).changed
    owner.go(point)
    if key is not None:
        (line,) = owner.program.said("handled")
        assert line["key"] == "l"
    never(
        lambda: any(line.event == "started" and line["key"] == "k" for line in owner.program.lines),
        during=0.6,
        what="a handler in what is paused",
    )
    lanelog_client.admin.resume("t", "g", key=key)
    said = owner.program.said("handled", count=2)
    assert sorted((line["key"], line["offset"], line["attempt"]) for line in said) == [("k", 6, 1), ("l", 6, 1)]


def test_a_flush_waits_for_a_pause_of_its_lane_and_is_written_then(
    stage: Stage, lanelog_client: Client, raw: Any
) -> None:
    """The operator holds the lane's row before his COMMIT: nothing is lost, no other lane waits, nothing is begun."""
    seen = Record()
    point = "before COMMIT following steer.FLAG_LANE"
    lanelog_client.subscribe("t", "g", lambda m: seen((m.key, m.offset, m.attempt)))
    lanelog_client.publish_many("t", [("k", b"{}"), ("l", b"{}")])
    eventually(lambda: watermark(raw, "g", "t", "k") == watermark(raw, "g", "t", "l") == 1)
    operator, pausing = stage.paused_in(point, "admin", verb="pause", topic="t", group="g", key="k")
    lanelog_client.publish("t", "k", b"{}")
    wait_until_blocked(raw)
    operator.go(point)
    assert pausing.result()["changed"]
    eventually(lambda: owners(raw, "g", "t")["k"] == "", what="the release of what is paused")
    lanelog_client.publish_many("t", [("k", b"{}"), ("l", b"{}")])
    seen.until(lambda items: ("l", 2, 1) in items)
    lanelog_client.admin.resume("t", "g", key="k")
    seen.until(lambda items: ("k", 3, 1) in items)
    assert [item[1:] for item in seen.items if item[0] == "k"] == [(1, 1), (2, 1), (3, 1)]
    lanelog_client.subscribe("t", "idle", accept)
