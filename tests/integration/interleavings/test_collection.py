"""Collection, against the flush of another group and against publishers of the lane that it collects.

One side is stopped in a process of its own after each of its locks, while the other side runs; then the other way
round. `log/test_collection.py` has what collection is for, `interleavings/test_registration.py` how it meets a new
group.
"""

from collections.abc import Iterator

import pytest

from support.pace import paced
from support.situations import Situations
from support.sql import audit, rows
from support.stage import DIES, Actor, Stage, thorough
from support.waiting import Record, accept, eventually

LAST, ACKED_BY_SLOW = 5, 2
RAISING = "before COMMIT following offsets.RAISE_FLOORS"
POINTS = [
    "after offsets.TRY_LOCK_FLOORS",
    "after offsets.WATERMARKS",
    "after COMMIT following offsets.RAISE_FLOORS",
    "after leaving.DELETE",
]
FLUSHING = "before COMMIT following flushes.FLUSH"


@pytest.fixture(autouse=True)
def _two_groups(stage: Stage) -> Iterator[None]:
    """Lane k: five messages, all of them acked by group fast, two by group slow; no floor rises above what both acked.

    Every rise is noted by the server, with the lowest watermark of that moment.
    """
    paced(stage.client, janitor={"turn_seconds": 0.1})
    stage.client.publish_many("t", [("k", b"{}")] * LAST)
    for group, acked in (("fast", LAST), ("slow", ACKED_BY_SLOW)):
        stage.register(group)
        Situations(stage.raw, group=group).place("k", acked)
    lowest = "(SELECT MIN(offset_acked) FROM queue_offsets WHERE consumer_group <> '' AND partition_key = 'k')"
    risen = "NEW.consumer_group = '' AND NEW.partition_key = 'k' AND NEW.offset_acked <> OLD.offset_acked"
    audit(stage.raw, "rises", "UPDATE", "queue_offsets", "a, b", f"NEW.offset_acked, {lowest}", risen)
    yield
    raised = rows(stage.raw, "SELECT a, b FROM rises ORDER BY n")
    assert raised
    assert all(floor <= acked for floor, acked in raised), raised


def collecting(stage: Stage, point: str) -> Actor:
    """A process of group fast whose janitor is stopped at this point."""
    return stage.member("collector", point, "k", group="fast", retention=0)


def wait_for_the_rest(stage: Stage) -> None:
    eventually(lambda: stage.stored() == [], what="the collection of the rest")


# -- collection and flush ------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("point", [RAISING, *POINTS])
def test_a_flush_does_not_wait_for_a_collection_and_is_collected_later(stage: Stage, point: str) -> None:
    """Two groups ack while the collection is paused; what it read before is stale, and that is safe."""
    flush = "before leases.FENCE"
    slow = stage.member("slow", flush, "k", group="slow", retention=0, config={"janitor_turn": 600})
    collector = collecting(stage, point)
    stage.client.publish("t", "k", b"{}")
    slow.go(flush)
    assert slow.handled(4, "offset") == [3, 4, 5, 6]
    stage.until_acked(LAST + 1, group="slow")
    stage.until_acked(LAST + 1, group="fast")
    assert {3, 4, 5, 6} <= set(stage.stored())
    collector.go(point)
    wait_for_the_rest(stage)


@DIES
@pytest.mark.parametrize("point", [FLUSHING, *thorough("after leases.FENCE")])
def test_a_collection_does_not_wait_for_a_flush_and_leaves_what_it_has_not_committed(
    stage: Stage, point: str, dies: bool
) -> None:
    """Everything behind the committed watermark leaves, nothing else; if the flush dies, the rest is still there."""
    slow = stage.member("slow", point, "k", group="slow", retention=0)
    stage.client.subscribe("t", "fast", accept, retention=0)
    eventually(lambda: stage.stored() == [3, 4, 5], what="the collection of what both have acked")
    stage.client.admin.maintain()
    assert stage.stored() == [3, 4, 5]
    assert stage.acked(group="slow") == ACKED_BY_SLOW
    if dies:
        slow.program.kill()
        seen = Record()
        stage.client.subscribe("t", "slow", lambda m: seen(m.offset), retention=0)
        assert seen.wait(3) == [3, 4, 5]
    else:
        slow.go(point)
        assert slow.handled(3, "offset") == [3, 4, 5]
    wait_for_the_rest(stage)


# -- collection and publish ----------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("point", [RAISING, "after offsets.TRY_LOCK_FLOORS", "after leaving.DELETE"])
def test_a_publish_does_not_wait_for_a_collection_of_its_lane(stage: Stage, point: str) -> None:
    """The publish returns while the collection is paused; its message stays until both groups have acked it."""
    collector = collecting(stage, point)
    assert stage.client.publish("t", "k", b"{}").offset == LAST + 1
    assert [r.offset for r in stage.client.publish_many("t", [("k", b"{}"), ("new", b"{}")])] == [LAST + 2, 1]
    collector.go(point)
    stage.until_acked(LAST + 2, group="fast")
    seen = Record()
    stage.client.subscribe("t", "slow", lambda m: seen((m.key, m.offset)), retention=0)
    assert [offset for key, offset in seen.wait(6) if key == "k"] == [3, 4, 5, 6, 7]
    wait_for_the_rest(stage)


@pytest.mark.parametrize(
    "point", ["before COMMIT following messages.INSERT", *thorough("after partitions.ADVANCE_TO_NEXT")]
)
def test_a_collection_does_not_wait_for_an_open_publish_to_its_lane(stage: Stage, point: str) -> None:
    """All that may leave has left while the publisher is paused; its message is not missed by anybody afterwards."""
    publishing = stage.stopped(point, "publish", topic="t", key="k")
    fast, slow = Record(), Record()
    stage.client.subscribe("t", "fast", lambda m: fast(m.offset), retention=0)
    stage.client.subscribe("t", "slow", lambda m: slow(m.offset), retention=0)
    eventually(lambda: stage.stored() == [], what="the collection of all that is visible")
    assert publishing.end() == LAST + 1
    assert fast.wait(1) == [LAST + 1]
    assert slow.wait(4) == [3, 4, 5, LAST + 1]
