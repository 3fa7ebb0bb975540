"""Collection, against the flush of another group and against publishers of the lane that it collects.

One side is stopped in a process of its own after each of its locks, while the other side runs; then the other way
round. `test_collection.py` has what collection is for, `test_interleavings_registration.py` how it meets a new group.
"""

from typing import Any

import pytest

from lanelog import Client
from lanelog._database import Database
from lanelog._engine import janitor
from lanelog._engine.registration import register
from lanelog.config import SubscriptionConfig
from support.sql import audit, rows, watermark
from support.stage import Actor, Stage
from support.waiting import Record, accept, eventually, never

LAST, ACKED_BY_SLOW = 5, 2
POINTS = [
    "after offsets.LOCK_FLOORS",
    "after offsets.WATERMARKS",
    "before COMMIT following offsets.RAISE_FLOORS",
    "after COMMIT following offsets.RAISE_FLOORS",
    "after moves.DELETE",
]


@pytest.fixture
def two_groups(lanelog_client: Client, database: Database, raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lane k: five messages, all of them acked by group fast, two by group slow; and every rise of a floor noted."""
    monkeypatch.setattr(janitor, "TURN", 0.1)
    lanelog_client.publish_many("t", [("k", b"{}")] * LAST)
    for group, acked in (("fast", LAST), ("slow", ACKED_BY_SLOW)):
        register(database, group, "t", SubscriptionConfig.from_options(retention=0))
        rows(
            raw,
            "INSERT INTO queue_offsets (consumer_group, topic, partition_key, offset_acked, marked_through,"
            " updated_at) VALUES (%s, 't', 'k', %s, %s, 0)",
            group,
            acked,
            acked,
        )
    audit(
        raw,
        "rises",
        "UPDATE",
        "queue_offsets",
        "a, b",
        "NEW.offset_acked, (SELECT MIN(offset_acked) FROM queue_offsets WHERE consumer_group <> ''"
        " AND partition_key = NEW.partition_key)",
        "NEW.consumer_group = '' AND NEW.offset_acked <> OLD.offset_acked",
    )


def stored(raw: Any) -> list[int]:
    return [offset for (offset,) in rows(raw, "SELECT `offset` FROM queue_messages WHERE topic = 't' ORDER BY 1")]


def collecting(stage: Stage, point: str) -> Actor:
    """A process of group fast whose janitor is stopped at this point."""
    collector = stage.actor("collector").pause(point, "k")
    collector.do("subscribe", topic="t", group="fast", retention=0)
    return collector.paused(point)


def assert_floors_were_safe(raw: Any) -> None:
    """No floor was ever raised beyond what every group had acked by then."""
    raised = rows(raw, "SELECT a, b FROM rises ORDER BY n")
    assert raised
    assert all(floor <= acked for floor, acked in raised), raised


# -- collection and flush ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("two_groups")
@pytest.mark.parametrize("point", POINTS)
def test_a_flush_does_not_wait_for_a_collection_and_is_collected_later(
    stage: Stage, lanelog_client: Client, raw: Any, point: str
) -> None:
    """Both groups ack while the collection is paused; what it read before is stale, and that is safe."""
    flush = "before leases.FENCE"
    slow = stage.actor("slow", janitor_turn=600).pause(flush, "k")
    slow.do("subscribe", topic="t", group="slow", retention=0)
    slow.paused(flush)
    collector = collecting(stage, point)
    lanelog_client.publish("t", "k", b"{}")
    slow.go(flush)
    assert [line["offset"] for line in slow.program.said("handled", count=4)] == [3, 4, 5, 6]
    eventually(lambda: watermark(raw, "slow", "t", "k") == watermark(raw, "fast", "t", "k") == LAST + 1)
    assert {3, 4, 5, 6} <= set(stored(raw))
    collector.go(point)
    eventually(lambda: stored(raw) == [], what="the collection of the rest")
    assert_floors_were_safe(raw)


@pytest.mark.usefixtures("two_groups")
@pytest.mark.parametrize("dies", [False, True], ids=["commits", "dies"])
@pytest.mark.parametrize("point", ["after leases.FENCE", "before COMMIT following offsets.FLUSH"])
def test_a_collection_does_not_wait_for_a_flush_and_leaves_what_it_has_not_committed(
    stage: Stage, lanelog_client: Client, raw: Any, point: str, dies: bool
) -> None:
    """Everything behind the committed watermark leaves, nothing else; if the flush dies, the rest is still there."""
    slow = stage.actor("slow")
    slow.pause(point, "k")
    slow.do("subscribe", topic="t", group="slow", retention=0, lease_duration=1.0, lease_renewal=0.3)
    slow.paused(point)
    handled = [line["offset"] for line in slow.program.lines if line.event == "handled"]
    lanelog_client.subscribe("t", "fast", accept, retention=0)
    acked = watermark(raw, "slow", "t", "k")
    eventually(lambda: stored(raw) == list(range(acked + 1, LAST + 1)), what="the collection of what both have acked")
    never(lambda: len(stored(raw)) < LAST - acked, during=0.5, what="the collection of what slow has not committed")
    assert acked == ACKED_BY_SLOW
    if dies:
        slow.program.kill()
        seen = Record()
        lanelog_client.subscribe("t", "slow", lambda m: seen(m.offset), retention=0)
        assert seen.wait(3) == [3, 4, 5]
    else:
        slow.go(point)
        said = slow.program.said("handled", count=3)
        assert handled == []
        assert [line["offset"] for line in said] == [3, 4, 5]
    eventually(lambda: stored(raw) == [], what="the collection of the rest")
    assert_floors_were_safe(raw)


# -- collection and publish ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("two_groups")
@pytest.mark.parametrize("point", [POINTS[0], *POINTS[2::2]])
def test_a_publish_does_not_wait_for_a_collection_of_its_lane(
    stage: Stage, lanelog_client: Client, raw: Any, point: str
) -> None:
    """It returns while the collection is paused; what it published stays until both groups have acked it."""
    collector = collecting(stage, point)
    assert lanelog_client.publish("t", "k", b"{}").offset == LAST + 1
    assert [r.offset for r in lanelog_client.publish_many("t", [("k", b"{}"), ("new", b"{}")])] == [LAST + 2, 1]
    collector.go(point)
    eventually(lambda: watermark(raw, "fast", "t", "k") == LAST + 2)
    seen = Record()
    lanelog_client.subscribe("t", "slow", lambda m: seen((m.key, m.offset)), retention=0)
    got = seen.wait(6)
    assert [offset for key, offset in got if key == "k"] == [3, 4, 5, 6, 7]
    eventually(lambda: stored(raw) == [], what="the collection of the rest")
    assert_floors_were_safe(raw)


@pytest.mark.usefixtures("two_groups")
@pytest.mark.parametrize("point", ["after partitions.ADVANCE", "before COMMIT following messages.INSERT"])
def test_a_collection_does_not_wait_for_an_open_publish_to_its_lane(
    stage: Stage, lanelog_client: Client, raw: Any, point: str
) -> None:
    """All that may leave has left while the publisher is paused; its message is not missed by anybody afterwards."""
    actor, publishing = stage.paused_in(point, "publish", topic="t", key="k")
    fast, slow = Record(), Record()
    lanelog_client.subscribe("t", "fast", lambda m: fast(m.offset), retention=0)
    lanelog_client.subscribe("t", "slow", lambda m: slow(m.offset), retention=0)
    eventually(lambda: stored(raw) == [], what="the collection of all that is visible")
    assert not publishing.done
    actor.go(point)
    assert publishing.result() == LAST + 1
    assert fast.wait(1) == [LAST + 1]
    assert slow.wait(4) == [3, 4, 5, LAST + 1]
    assert_floors_were_safe(raw)
