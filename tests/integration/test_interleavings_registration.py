"""The registration of a group, against collection, publishers and another registration of the same group.

One side is stopped in a process of its own after each of its locks, while the other side runs; then the other way
round. `test_registration.py` and `test_collection.py` have the same parties one after the other.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lanelog import Client, ConfigurationError, Message
from lanelog._database import Database
from lanelog._engine.registration import register
from lanelog.config import SubscriptionConfig
from support.sql import one, rows, watermark
from support.stage import Stage, wait_until_blocked
from support.waiting import Record, eventually

OLD = 5
STARTS = ["earliest", "latest", "instant"]
RELEASING = [
    "after offsets.LOCK_FLOORS",
    "after offsets.WATERMARKS",
    "before COMMIT following offsets.RAISE_FLOORS",
]
DELETING = ["after COMMIT following offsets.RAISE_FLOORS", "after moves.DELETE"]


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as thread:
        yield thread


@pytest.fixture
def collectable(lanelog_client: Client, database: Database, raw: Any) -> None:
    """Lane k: five messages that group early, the only one, has acked, the first three of them an hour old."""
    lanelog_client.publish_many("t", [("k", b"{}")] * OLD)
    rows(raw, "UPDATE queue_messages SET created_at = created_at - 7200000 WHERE `offset` <= 3")
    options(database, "early")
    rows(
        raw,
        "INSERT INTO queue_offsets (consumer_group, topic, partition_key, offset_acked, marked_through, updated_at)"
        " VALUES ('early', 't', 'k', %s, %s, 0)",
        OLD,
        OLD,
    )
    rows(
        raw,
        "INSERT INTO queue_partition_leases (consumer_group, topic, partition_key, leased_by, lease_epoch, leased_at)"
        " VALUES ('early', 't', 'k', '', 1, 0)",
    )


def hour_ago(raw: Any) -> datetime:
    return rows(raw, "SELECT UTC_TIMESTAMP(3)")[0][0].replace(tzinfo=UTC) - timedelta(hours=1)


def options(database: Database, group: str, **given: Any) -> int:
    """Register a group that has no retention of its own."""
    return register(database, group, "t", SubscriptionConfig.from_options(retention=0, **given))


def start_of(raw: Any, start: str) -> Any:
    return hour_ago(raw) if start == "instant" else start


def floor(raw: Any, key: str = "k") -> int:
    return watermark(raw, "", "t", key)


def stored(raw: Any) -> list[int]:
    return [offset for (offset,) in rows(raw, "SELECT `offset` FROM queue_messages WHERE topic = 't' ORDER BY 1")]


def read_by_late(client: Client, last: int) -> list[int]:
    """Every offset that the late group gets of lane k, up to the last one."""
    seen = Record()

    def handle(message: Message) -> None:
        if message.key == "k":
            seen(message.offset)

    client.subscribe("t", "late", handle, retention=0)
    return seen.until(lambda offsets: last in offsets, what=f"offset {last}")


# -- collection and registration -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("collectable")
@pytest.mark.parametrize(
    ("point", "start"),
    [(point, "earliest") for point in RELEASING] + [(RELEASING[-1], "latest"), (RELEASING[-1], "instant")],
)
def test_a_registration_waits_for_a_collection_that_asks_who_reads_the_topic(
    stage: Stage,
    lanelog_client: Client,
    database: Database,
    raw: Any,
    thread: ThreadPoolExecutor,
    point: str,
    start: str,
) -> None:
    """What was released before it is not its own; everything that is published after it is kept for it."""
    begin = start_of(raw, start)
    collector = stage.actor("collector").pause(point)
    collector.do("subscribe", topic="t", group="early", retention=0)
    collector.paused(point)
    registering = thread.submit(options, database, "late", start=begin)
    wait_until_blocked(raw)
    assert not registering.done()
    assert one(raw, "SELECT COUNT(*) FROM queue_groups WHERE consumer_group = 'late'") == 0
    collector.go(point)
    registering.result(10)
    assert floor(raw) == OLD
    assert_kept_for_late(stage, lanelog_client, raw)


@pytest.mark.usefixtures("collectable")
@pytest.mark.parametrize(
    ("point", "start"),
    [(point, "earliest") for point in DELETING] + [(DELETING[0], "latest"), (DELETING[0], "instant")],
)
def test_a_registration_does_not_wait_for_the_deletion(
    stage: Stage, lanelog_client: Client, database: Database, raw: Any, point: str, start: str
) -> None:
    """What is released and still in the log is not its own; it registers while the deletion is paused."""
    begin = start_of(raw, start)
    collector = stage.actor("collector").pause(point)
    collector.do("subscribe", topic="t", group="early", retention=0)
    collector.paused(point)
    options(database, "late", start=begin)
    assert stored(raw) == (list(range(1, OLD + 1)) if point == DELETING[0] else [])
    collector.go(point)
    assert_kept_for_late(stage, lanelog_client, raw)


def assert_kept_for_late(stage: Stage, client: Client, raw: Any) -> None:
    client.publish_many("t", [("k", b"{}")] * 2)
    eventually(lambda: watermark(raw, "early", "t", "k") == OLD + 2, what="early acking what is new")
    eventually(lambda: stored(raw) == [OLD + 1, OLD + 2], what="the deletion of what was released")
    assert read_by_late(client, OLD + 2) == [OLD + 1, OLD + 2]
    eventually(lambda: stored(raw) == [], what="the collection of what both have acked")
    assert not stage.fleet.logged("log.hole_found")


@pytest.mark.usefixtures("collectable")
@pytest.mark.parametrize(
    ("point", "start"),
    [
        ("after discovery.LOCK_TOPIC", "earliest"),
        ("before COMMIT following groups.CREATE", "earliest"),
        ("after offsets.START_AT_HEAD", "latest"),
        ("after moves.CREATED_AT", "instant"),
        ("after offsets.START_AT", "instant"),
    ],
)
def test_a_collection_waits_for_a_registration_and_asks_the_new_group(
    stage: Stage, lanelog_client: Client, raw: Any, point: str, start: str
) -> None:
    """No floor rises while it is paused; then no higher than where the new group begins."""
    about_to = "before discovery.SHARE_TOPIC"
    what = {"start_ms": int(hour_ago(raw).timestamp() * 1000)} if start == "instant" else {"start": start}
    registrar, collector = stage.actor("registrar"), stage.actor("collector").pause(about_to)
    collector.do("subscribe", topic="t", group="early", retention=0)
    collector.paused(about_to)
    registering = registrar.pause(point).call("register", topic="t", group="late", retention=0, **what)
    registrar.paused(point)
    collector.go(about_to)
    wait_until_blocked(raw)
    assert floor(raw) == 0
    assert not registering.done
    registrar.go(point)
    registering.result()
    first = {"earliest": 1, "latest": OLD + 1, "instant": 4}[start]
    eventually(lambda: floor(raw) == first - 1, what="the release of what late does not read")
    lanelog_client.publish("t", "k", b"{}")
    eventually(lambda: watermark(raw, "early", "t", "k") == OLD + 1, what="early acking what is new")
    assert read_by_late(lanelog_client, OLD + 1) == list(range(first, OLD + 2))
    eventually(lambda: stored(raw) == [], what="the collection of what both have acked")


# -- registration and publish --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "start"),
    [
        ("after discovery.LOCK_TOPIC", "latest"),
        ("after offsets.START_AT_HEAD", "latest"),
        ("before COMMIT following offsets.START_AT", "instant"),
        ("before COMMIT following groups.CREATE", "earliest"),
    ],
)
def test_publishers_of_lanes_that_exist_do_not_wait_for_a_registration(
    stage: Stage, lanelog_client: Client, raw: Any, thread: ThreadPoolExecutor, point: str, start: str
) -> None:
    """A publish under the paused registration returns; the birth of a lane waits; neither is missed by the group."""
    lanelog_client.publish_many("t", [("k", b"{}")] * 2)
    rows(raw, "UPDATE queue_messages SET created_at = created_at - 7200000")
    what = {"start_ms": int(hour_ago(raw).timestamp() * 1000)} if start == "instant" else {"start": start}
    actor, registering = stage.paused_in(point, "register", topic="t", group="late", **what)
    assert lanelog_client.publish("t", "k", b"{}").offset == 3
    born = thread.submit(lanelog_client.publish, "t", "new", b"{}")
    wait_until_blocked(raw)
    assert not born.done()
    actor.go(point)
    registering.result()
    assert born.result(10).offset == 1
    lanelog_client.publish("t", "k", b"{}")
    seen = Record()
    lanelog_client.subscribe("t", "late", lambda m: seen((m.key, m.offset)))
    got = seen.until(lambda found: {("k", 4), ("new", 1)} <= set(found))
    # A group that has not read the heads when offset 3 came begins behind it: it was not registered yet.
    first = 4 if point == "after discovery.LOCK_TOPIC" else 1 if start == "earliest" else 3
    assert [offset for key, offset in got if key == "k"] == list(range(first, 5))


@pytest.mark.parametrize(
    ("point", "start"),
    [("after partitions.TRY_LOCK_HEADS", "latest")]
    + [("before COMMIT following messages.INSERT", start) for start in STARTS],
)
def test_a_registration_under_an_open_publish_does_not_wait_and_the_group_gets_the_message(
    stage: Stage, lanelog_client: Client, database: Database, raw: Any, point: str, start: str
) -> None:
    """It is visible after the registration, so it is the group's, wherever it begins; also if its clock is before."""
    lanelog_client.publish("t", "k", b"{}")
    rows(raw, "UPDATE queue_messages SET created_at = created_at - 7200000")
    actor, publishing = stage.paused_in(point, "publish", topic="t", key="k")
    options(database, "late", start=start_of(raw, start))
    assert not publishing.done
    actor.go(point)
    assert publishing.result() == 2
    assert read_by_late(lanelog_client, 2) == ([1, 2] if start == "earliest" else [2])


@pytest.mark.parametrize(
    ("point", "start"),
    [("after partitions.CREATE_FLOORS", "latest")]
    + [("before COMMIT following partitions.CREATE_HEADS", start) for start in STARTS],
)
def test_a_registration_waits_for_the_birth_of_a_lane_and_begins_before_its_first_message(
    stage: Stage,
    lanelog_client: Client,
    database: Database,
    raw: Any,
    thread: ThreadPoolExecutor,
    point: str,
    start: str,
) -> None:
    """The publisher's message comes after the registration, in a lane that came before it."""
    second = "before partitions.ADVANCE"
    actor, publishing = stage.paused_in(point, "publish", topic="t", key="k")
    actor.pause(second)
    registering = thread.submit(options, database, "late", start=start_of(raw, start))
    wait_until_blocked(raw)
    actor.go(point)
    registering.result(10)
    actor.paused(second).go(second)
    assert publishing.result() == 1
    assert read_by_late(lanelog_client, 1) == [1]


# -- registration and registration ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("collectable")
@pytest.mark.parametrize(
    "point",
    [
        "after discovery.CREATE_TOPIC",
        "after discovery.LOCK_TOPIC",
        "after groups.CREATE",
        "before COMMIT following groups.CREATE",
    ],
)
def test_a_second_registration_of_a_group_waits_and_finds_it(
    stage: Stage, database: Database, raw: Any, thread: ThreadPoolExecutor, point: str
) -> None:
    """One registration, one start: the second returns the first one's, and one with another order is refused."""
    actor, first = stage.paused_in(point, "register", topic="t", group="late", start="latest")
    second = thread.submit(options, database, "late", start="earliest")
    wait_until_blocked(raw)
    assert not second.done()
    actor.go(point)
    registered = first.result()
    # Before the topic row is locked for good, either of them may be the first.
    assert registered == second.result(10)
    assert one(raw, "SELECT COUNT(*) FROM queue_groups WHERE consumer_group = 'late'") == 1
    if point != "after discovery.CREATE_TOPIC":
        assert watermark(raw, "late", "t", "k") == OLD
    with pytest.raises(ConfigurationError, match="one order"):
        options(database, "late", order="serial")


@pytest.mark.usefixtures("collectable")
def test_a_registration_that_dies_leaves_the_group_to_the_second(
    stage: Stage, database: Database, raw: Any, thread: ThreadPoolExecutor
) -> None:
    """Killed before its COMMIT: nothing of it is left, and who waited registers with a start of his own."""
    point = "before COMMIT following groups.CREATE"
    actor, _ = stage.paused_in(point, "register", topic="t", group="late", start="latest")
    second = thread.submit(options, database, "late", start="earliest")
    wait_until_blocked(raw)
    actor.program.kill()
    second.result(10)
    assert rows(raw, "SELECT start_at FROM queue_groups WHERE consumer_group = 'late'") == [("earliest",)]
    assert one(raw, "SELECT COUNT(*) FROM queue_offsets WHERE consumer_group = 'late'") == 0
