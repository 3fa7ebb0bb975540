"""Stores of the log, by the bare executor: rows in, rows out."""

import time
from collections.abc import Sequence
from typing import Any

import pytest

from lanelog._base.places import GroupTopic, LaneId
from lanelog._database import Database, Executor, Lock
from lanelog._stores.consumers import deliveries, offsets
from lanelog._stores.consumers.deliveries import DeliveryWrite
from lanelog._stores.log import dead_letters, expiry, fetches, lane_rows, leaving, messages, partitions
from lanelog._stores.log.fetches import Behind
from lanelog._stores.log.lane_rows import LaneRows
from lanelog._stores.log.messages import NewMessage
from lanelog._stores.members import leases
from support.sql import rows

AT = GroupTopic(topic="t", group="g")
LANE = LaneId(topic="t", group="g", key="k")
PACKET = 1_000_000
OF_B = "consumer_group = 'g', topic = 't', partition_key = 'b'"
RISE = "UPDATE queue_partitions SET head_offset = head_offset + %s WHERE partition_key IN (%s, %s)"


def fill(cx: Executor, keys: Sequence[str], count: int = 1) -> None:
    """Lanes with so many messages each."""
    partitions.create_topic(cx, "t")
    offsets.create_floors(cx, "t", keys, 0)
    partitions.create_heads(cx, "t", keys, count)
    new = [NewMessage(key, offset, f"i{offset}", b"x" * offset, None) for key in keys for offset in range(1, count + 1)]
    messages.insert(cx, "t", new, PACKET)


def test_heads_are_locked_advanced_and_purged(cx: Executor) -> None:
    """Each key by its own number; a lane that is none has no head."""
    fill(cx, ["a", "b", "c"], 2)
    assert partitions.advance(cx, "t", {"a": 1, "b": 3, "none": 1}) == 2
    assert partitions.heads(cx, "t", ["a", "b", "c", "none"], Lock.UPDATE) == {"a": 3, "b": 5, "c": 2}
    assert partitions.lock_heads(cx, "t", {"a", "none"}) == ({"a": 3}, set(), {"none"})
    assert partitions.page(cx, "t", "a", 1) == [("b", 5)]


def test_the_digest_of_the_heads_tells_what_is_published_and_which_lanes_there_are(cx: Executor) -> None:
    """A publish changes the digest; so does the age of a lane that was purged and came back at the same head."""
    keys = ["b", "a", "A", "ä", "日本", "😀", "a'b\"c\\d", "%_", "x" * 191, "0"]
    fill(cx, keys)
    before, parts = partitions.digest(cx, "t"), partitions.parts(cx, "t")
    assert set(parts) == {partitions.part_of(key) for key in ["", *keys]}
    assert partitions.whole(parts) == before == partitions.digest(cx, "t")
    partitions.advance(cx, "t", {"a": 1})
    after, risen = partitions.digest(cx, "t"), partitions.parts(cx, "t")
    assert partitions.whole(risen) == after != before
    assert [part for part in risen if risen[part] != parts[part]] == [partitions.part_of("a")]
    assert after.same_lanes(before)
    cx.execute("UPDATE queue_partitions SET created_at = created_at + 1 WHERE partition_key = 'b'")
    assert not partitions.digest(cx, "t").same_lanes(after)


@pytest.mark.parametrize("head", [2**32 - 1, 2**53, 2**63])
@pytest.mark.parametrize("risen", [1, 7, 2**31 + 1])
def test_the_digests_of_the_heads_tell_a_lane_that_rose_at_any_offset(cx: Executor, head: int, risen: int) -> None:
    """The server adds up doubles, which must lose no bit, however great the offsets are."""
    keys = [key for key in map(str, range(200)) if partitions.part_of(key) == 0]
    assert len(keys) > 2
    fill(cx, keys)
    cx.execute("UPDATE queue_partitions SET head_offset = %s WHERE partition_key <> ''", (head,))
    digest, (before,) = partitions.digest(cx, "t"), partitions.parts(cx, "t").values()
    cx.execute(RISE, (risen, keys[1], keys[1]))
    (after,) = partitions.parts(cx, "t").values()
    assert partitions.digest(cx, "t") != digest
    assert after.risen_since(before) == risen
    assert [key for key in keys if after.may_be(key, before)] == [keys[1]]
    cx.execute(RISE, (risen, keys[0], keys[2]))
    (both,) = partitions.parts(cx, "t").values()
    assert both.risen_since(after) == 2 * risen % 2**32
    assert not any(both.may_be(key, after) for key in keys)


def test_messages_are_read_by_range_and_by_offset_and_leave(cx: Executor) -> None:
    """Payloads above the bound, or for another group, stay behind; a hole is passed."""
    fill(cx, ["k", "l"], 4)
    assert leaving.delete(cx, "t", [("k", 2), ("k", 9)]) == 1
    cx.execute("UPDATE queue_messages SET target_group = 'other' WHERE partition_key = 'k' AND `offset` = 3")
    found, other = fetches.following(cx, AT, [Behind("k", 0, 4), Behind("l", 3, 9)], largest=3)
    assert [(row.offset, row.payload) for row in found] == [(1, b"x"), (3, None), (4, None)]
    assert [row.target_group for row in found] == ["", "other", ""]
    assert [row.offset for row in other] == [4]
    assert fetches.exact(cx, AT, [("l", 2), ("k", 2)], largest=9).keys() == {("l", 2)}
    assert (fetches.payload(cx, "t", "k", 4), fetches.payload(cx, "t", "k", 2)) == (b"xxxx", None)
    assert messages.find_ids(cx, "t", [("k", "i1"), ("k", "i2"), ("l", "i4")]) == {("k", "i1"): 1, ("l", "i4"): 4}


@pytest.mark.parametrize(("ends", "over"), [(1, True), (2**62, False), (2**63, False), (2**64 - 1, False), (0, False)])
def test_a_message_expires_at_its_time_and_never_beyond_all_calendars(cx: Executor, ends: int, over: bool) -> None:
    """Who fetches it knows how long it may wait."""
    fill(cx, ["k", "l"])
    cx.execute("UPDATE queue_messages SET expires_at = %s WHERE partition_key = 'k'", (ends,))
    assert [row.offset for row in expiry.expired(cx, LANE, 0, 10)] == [1] * over
    assert expiry.expired_lanes(cx, AT, ["k", "l"]) == ["k"] * over
    ((row,),) = fetches.following(cx, AT, [Behind("k", 0, 1)], largest=9)
    assert (row.start_by is not None and row.start_by < time.monotonic()) is over


def test_a_dead_letter_is_a_copy_and_comes_back_as_one(cx: Executor) -> None:
    """Under an id of its own, behind the heads that are given; what is gone is not copied."""
    fill(cx, ["k"], 2)
    buried = [
        dead_letters.bury(
            cx, LANE, offset=offset, dead_topic="d", dead_offset=7, derived_id="dl-1", failures=3, error="no"
        )
        for offset in (2, 9)
    ]
    assert buried == [1, 0]
    assert [dead_letters.buried(cx, "d", "k", name) for name in ("dl-1", "none")] == [7, None]
    told = {"target": "t", "cap": 0, "ttl_ms": 0, "for_group": "g"}
    assert dead_letters.redrive(cx, "d", [("k", 7), ("k", 8)], {"k": 2}, **told) == 1
    row = fetches.exact(cx, AT, [("k", 3)], largest=9)["k", 3]
    assert (row.payload, row.target_group) == (b"xx", "g")


@pytest.mark.parametrize(
    ("change", "found", "found_with_fewer_reads"),
    [
        ("UPDATE queue_offsets SET offset_acked = 3", False, False),
        ("UPDATE queue_partitions SET head_offset = 2 WHERE partition_key = 'b'", True, True),
        (f"UPDATE queue_partitions SET head_offset = {2**53} WHERE partition_key = 'b'", True, True),
        ("DELETE FROM queue_offsets WHERE partition_key = 'b'", True, True),
        ("DELETE FROM queue_partitions WHERE partition_key = 'b'", True, True),
        ("UPDATE queue_offsets SET offset_acked = 4 WHERE partition_key = 'b'", True, True),
        (f"INSERT INTO queue_offsets SET {OF_B}, offset_acked = 4", True, False),
        (f"INSERT INTO queue_delivery_state SET {OF_B}, message_offset = 3, through_offset = 4", True, True),
    ],
    ids=["nothing", "head", "absurd head", "no floor", "no head", "floor", "watermark", "delivery row"],
)
def test_a_lane_whose_rows_contradict_each_other_is_found(
    cx: Executor, change: str, *, found: bool, found_with_fewer_reads: bool
) -> None:
    """By what lies above its head, and by what is missing."""
    fill(cx, ["a", "b"], 3)
    cx.execute(change)
    assert lane_rows.suspects(cx, "t", ["g"], 9) == ["b"] * found
    assert lane_rows.suspects_among(cx, "t", ["g"], 9, heads=2, watermarks=2) == ["b"] * found_with_fewer_reads


def test_the_rows_of_a_lane_are_locked_and_read_as_they_are(cx: Executor, database: Database, raw: Any) -> None:
    """Also of a lane without any."""
    fill(cx, ["k"], 3)
    leaving.delete(cx, "t", [("k", 1)])
    offsets.raise_watermarks(cx, AT, {"k": 2})
    deliveries.upsert(cx, AT, [DeliveryWrite(key="k", offset=3, through=3)])
    read = [lane_rows.read(cx, "t", key, ["g", "h"]) for key in ("k", "none")]
    assert read == [
        LaneRows(head=3, floor=0, first=2, last=3, watermarks={"g": 2}, rows={"g": [(3, 3)]}),
        LaneRows(head=None, floor=None, first=None, last=None, watermarks={}, rows={}),
    ]
    leases.create(cx, AT, "me", ["k"], 1)
    free = "SELECT 1 FROM queue_partition_leases FOR UPDATE SKIP LOCKED"
    with database.transaction() as locked:
        lane_rows.lock_leases(locked, "t", "k", ["h", "g"])
        assert rows(raw, free) == []
    assert rows(raw, free) == [(1,)]
