"""The registration of a group, against collection, publishers and another registration of the same group.

One side is stopped in a process of its own after each of its locks, while the other side runs; then the other way
round. `log/test_registration.py` and `log/test_collection.py` have the same parties one after the other.
"""

from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest

from lanelog import ConfigurationError, Reject
from support.situations import Situations
from support.sql import one, rows
from support.stage import DIES, Stage, thorough, wait_until_blocked
from support.waiting import Record, eventually, raising

OLD = 5
LOCKING = "after partitions.LOCK_TOPIC"
CREATING = "before COMMIT following groups.CREATE"
RAISING = "before COMMIT following offsets.RAISE_FLOORS"
RAISED = "after COMMIT following offsets.RAISE_FLOORS"
DELETED = "after leaving.DELETE"


@pytest.fixture
def collectable(stage: Stage) -> None:
    """Lane k: five messages that group early, the only one, has acked, the first three of them an hour old."""
    stage.client.publish_many("t", [("k", b"{}")] * OLD)
    make_old(stage, 3)
    stage.register("early")
    Situations(stage.raw, group="early").place("k", OLD)
    Situations(stage.raw, group="early").lease("k", "", 1)


def make_old(stage: Stage, last: int) -> None:
    """Two hours."""
    rows(stage.raw, "UPDATE queue_messages SET created_at = created_at - 7200000 WHERE `offset` <= %s", last)


def hour_ago(stage: Stage) -> datetime:
    return rows(stage.raw, "SELECT UTC_TIMESTAMP(3)")[0][0].replace(tzinfo=UTC) - timedelta(hours=1)


def start_of(stage: Stage, start: str) -> Any:
    return hour_ago(stage) if start == "instant" else start


def for_actors(stage: Stage, start: str) -> dict[str, Any]:
    """The same, as an order for an actor."""
    return {"start_ms": int(hour_ago(stage).timestamp() * 1000)} if start == "instant" else {"start": start}


def read_by_late(stage: Stage, last: int) -> list[int]:
    """Every offset that the late group gets of lane k, up to the last one."""
    seen = Record()
    stage.client.subscribe("t", "late", lambda m: seen((m.key, m.offset)), retention=0)
    found = seen.until(lambda items: ("k", last) in items, what=f"offset {last}")
    return [offset for key, offset in found if key == "k"]


def wait_until_all_is_collected(stage: Stage) -> None:
    eventually(lambda: stage.stored() == [], what="the collection of what both have acked")


# -- collection and registration -----------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.usefixtures("collectable")
@pytest.mark.parametrize(
    ("point", "start"),
    [
        *product((RAISING, RAISED), ("earliest", "latest", "instant")),
        *product(("after offsets.TRY_LOCK_FLOORS", "after offsets.WATERMARKS", DELETED), ("earliest",)),
    ],
)
def test_a_registration_under_a_collection_owns_nothing_that_was_released_and_all_that_follows(
    stage: Stage, point: str, start: str
) -> None:
    """The registration waits for a collection that reads the topic's groups, and not for the deletion.

    Messages released before it are not its own, in the log or not; messages published after it are kept for it.
    """
    begin = start_of(stage, start)
    collector = stage.member("collector", point, group="early", retention=0)
    if point in (RAISED, DELETED):
        stage.register("late", start=begin)
        assert stage.stored() == ([] if point == DELETED else [1, 2, 3, 4, 5])
        collector.go(point)
    else:
        registering = stage.waiting(stage.register, "late", start=begin)
        assert one(stage.raw, "SELECT COUNT(*) FROM queue_groups WHERE consumer_group = 'late'") == 0
        collector.go(point)
        registering.result(15)
        assert stage.acked(group="") == OLD
    stage.client.publish_many("t", [("k", b"{}")] * 2)
    stage.until_acked(OLD + 2, group="early")
    eventually(lambda: stage.stored() == [OLD + 1, OLD + 2], what="the deletion of what was released")
    assert read_by_late(stage, OLD + 2) == [OLD + 1, OLD + 2]
    wait_until_all_is_collected(stage)
    assert not stage.fleet.logged("log.hole_found")


@pytest.mark.thorough
@pytest.mark.usefixtures("collectable")
@pytest.mark.parametrize(
    ("point", "start"),
    [
        (CREATING, "earliest"),
        (LOCKING, "earliest"),
        ("after offsets.START_AT_HEAD", "latest"),
        ("after leaving.CREATED_AT", "instant"),
        ("after offsets.START_AT", "instant"),
    ],
)
def test_a_collection_waits_for_a_registration_and_asks_the_new_group(stage: Stage, point: str, start: str) -> None:
    """No floor rises while it is paused; then no higher than where the new group begins."""
    about_to = "before partitions.SHARE_TOPIC"
    collector = stage.member("collector", about_to, group="early", retention=0)
    registering = stage.stopped(point, "register", topic="t", group="late", retention=0, **for_actors(stage, start))
    collector.go(about_to)
    wait_until_blocked(stage.raw)
    assert stage.acked(group="") == 0
    registering.end()
    first = {"earliest": 1, "latest": OLD + 1, "instant": 4}[start]
    eventually(lambda: stage.acked(group="") == first - 1, what="the release of what late does not read")
    stage.client.publish("t", "k", b"{}")
    stage.until_acked(OLD + 1, group="early")
    assert read_by_late(stage, OLD + 1) == list(range(first, OLD + 2))
    wait_until_all_is_collected(stage)


# -- registration and the retention of dead letters ----------------------------------------------------------------


@pytest.fixture
def old_letters(stage: Stage) -> None:
    """Three dead letters of lane k whose retention is over, and nobody who reads them."""
    stage.client.publish_many("t", [("k", b"{}")] * 3)
    with stage.client.subscribe("t", "g", raising(Reject, "no"), dead_letter_retention=600):
        eventually(lambda: stage.letters() == [1, 2, 3])
    make_old(stage, 3)


@pytest.mark.thorough
@pytest.mark.usefixtures("old_letters")
@pytest.mark.parametrize("point", [RAISING, RAISED, DELETED, "after offsets.TRY_LOCK_FLOORS", "after leaving.LETTERS"])
def test_a_reader_registered_under_retention_begins_behind_what_it_releases(stage: Stage, point: str) -> None:
    """The registration waits for the release's COMMIT, not for the deletion; all readers had read the released ones."""
    releasing = stage.stopped(point, "admin", "t_dlq", verb="maintain", topics=["t_dlq"])
    if point in (RAISED, DELETED):
        stage.register("late", topic="t_dlq")
        releasing.end()
    else:
        registering = stage.waiting(stage.register, "late", topic="t_dlq")
        releasing.end()
        registering.result(15)
    assert stage.letters() == []
    assert stage.client.admin.groups("t_dlq")[0].lag == 0
    assert stage.client.admin.heads("t_dlq") == {"k": 3}


@pytest.mark.thorough
@DIES
@pytest.mark.usefixtures("old_letters")
@pytest.mark.parametrize("point", [CREATING, LOCKING])
def test_retention_waits_for_the_registration_of_a_reader_and_keeps_all_it_reads(
    stage: Stage, point: str, dies: bool
) -> None:
    """Nothing is deleted until the new reader is past it; one whose process dies before its commit was never there."""
    registering = stage.stopped(point, "register", topic="t_dlq", group="late", retention=0, start="earliest")
    releasing = stage.waiting(stage.client.admin.maintain, topics=["t_dlq"])
    registering.end(dies=dies)
    assert releasing.result(20).dead_letters == (3 if dies else 0)
    assert stage.letters() == ([] if dies else [1, 2, 3])
    if not dies:
        seen = Record()
        with stage.client.subscribe("t_dlq", "late", lambda m: seen(m.offset), retention=0):
            assert seen.wait(3) == [1, 2, 3]
        assert stage.client.admin.maintain(topics=["t_dlq"]).dead_letters == 3
        assert stage.letters() == []


# -- registration and publish --------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("point", "start"),
    [
        ("after offsets.START_AT_HEAD", "latest"),
        (LOCKING, "latest"),
        ("before COMMIT following offsets.START_AT", "instant"),
        (CREATING, "earliest"),
    ],
)
def test_publishers_of_lanes_that_exist_do_not_wait_for_a_registration(stage: Stage, point: str, start: str) -> None:
    """A publish under the paused registration returns; the birth of a lane waits; neither is missed by the group."""
    stage.client.publish_many("t", [("k", b"{}")] * 2)
    make_old(stage, 2)
    registering = stage.stopped(point, "register", topic="t", group="late", **for_actors(stage, start))
    assert stage.client.publish("t", "k", b"{}").offset == 3
    born = stage.waiting(stage.client.publish, "t", "new", b"{}")
    registering.end()
    assert born.result(15).offset == 1
    stage.client.publish("t", "k", b"{}")
    seen = Record()
    stage.client.subscribe("t", "late", lambda m: seen((m.key, m.offset)))
    got = seen.until(lambda found: {("k", 4), ("new", 1)} <= set(found))
    # A group that has not read the heads when offset 3 came begins behind it: it was not registered yet.
    first = 4 if point == LOCKING else 1 if start == "earliest" else 3
    assert [offset for key, offset in got if key == "k"] == list(range(first, 5))


@pytest.mark.parametrize(
    ("point", "start"),
    [
        ("before COMMIT following messages.INSERT", "latest"),
        *thorough(("before COMMIT following messages.INSERT", "earliest")),
        *thorough(("before COMMIT following messages.INSERT", "instant"), ("after partitions.NEXT_OFFSET", "latest")),
    ],
)
def test_a_registration_under_an_open_publish_does_not_wait_and_the_group_gets_the_message(
    stage: Stage, point: str, start: str
) -> None:
    """A message visible after the registration is the group's, wherever it begins; also if its clock is before."""
    stage.client.publish("t", "k", b"{}")
    make_old(stage, 1)
    publishing = stage.stopped(point, "publish", topic="t", key="k")
    stage.register("late", start=start_of(stage, start))
    assert publishing.end() == 2
    assert read_by_late(stage, 2) == ([1, 2] if start == "earliest" else [2])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("point", "start"),
    [
        ("before COMMIT following partitions.CREATE_HEADS", "latest"),
        ("before COMMIT following partitions.CREATE_HEADS", "earliest"),
        ("before COMMIT following partitions.CREATE_HEADS", "instant"),
        ("after offsets.CREATE_FLOORS", "latest"),
    ],
)
def test_a_registration_waits_for_the_birth_of_a_lane_and_begins_before_its_first_message(
    stage: Stage, point: str, start: str
) -> None:
    """The publisher's message comes after the registration, in a lane that came before it."""
    second = "before messages.INSERT"
    publishing = stage.stopped(point, "publish", topic="t", key="k")
    publisher = publishing.actor.pause(second)
    registering = stage.waiting(stage.register, "late", start=start_of(stage, start))
    publishing.go()
    registering.result(15)
    publisher.paused(second).go(second)
    assert publishing.result() == 1
    assert read_by_late(stage, 1) == [1]


# -- registration and registration ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("collectable")
@pytest.mark.parametrize(
    "point", [CREATING, *thorough("after partitions.ENSURE_TOPIC", LOCKING, "after groups.CREATE")]
)
def test_a_second_registration_of_a_group_waits_and_finds_it(stage: Stage, point: str) -> None:
    """One registration, one start: the second returns the first one's, and one with another order is refused."""
    first = stage.stopped(point, "register", topic="t", group="late", start="latest")
    second = stage.waiting(stage.register, "late", start="earliest")
    # Before the topic row is locked for good, either of them may be the first.
    assert first.end() == second.result(15)
    assert one(stage.raw, "SELECT COUNT(*) FROM queue_groups WHERE consumer_group = 'late'") == 1
    if point != "after partitions.ENSURE_TOPIC":
        assert stage.acked(group="late") == OLD
    with pytest.raises(ConfigurationError, match="one order"):
        stage.register("late", order="serial")


@pytest.mark.thorough
@pytest.mark.usefixtures("collectable")
def test_a_registration_that_dies_leaves_the_group_to_the_second(stage: Stage) -> None:
    """Killed before its COMMIT: nothing of it is left, and who waited registers with a start of his own."""
    first = stage.stopped(CREATING, "register", topic="t", group="late", start="latest")
    second = stage.waiting(stage.register, "late", start="earliest")
    first.end(dies=True)
    second.result(15)
    assert rows(stage.raw, "SELECT start_at FROM queue_groups WHERE consumer_group = 'late'") == [("earliest",)]
    assert one(stage.raw, "SELECT COUNT(*) FROM queue_offsets WHERE consumer_group = 'late'") == 0
