"""Mending a lane whose tables contradict each other, and what looks like one: what else happens to it meanwhile."""

from typing import Any

import pytest

from support.settling import BEFORE_THE_FENCE, settling
from support.situations import Situations
from support.sql import one, rows
from support.stage import DIES, EPOCH, HEAD, Stage, wait_until_blocked


def tables(raw: Any) -> list[Any]:
    """What a repair may change of the lane."""
    return [
        rows(raw, f"SELECT * FROM queue_{table} WHERE topic = 't' AND partition_key = 'k' ORDER BY 1, 2, 3, 4")
        for table in ("partitions", "offsets", "partition_leases", "delivery_state")
    ]


def errors(stage: Stage, name: str) -> list[str]:
    """What an actor has logged as an ERROR."""
    lines = [line for line in stage.fleet.journal.items if (line.process, line.event) == (name, "log")]
    return [line["text"] for line in lines if line["level"] == "ERROR"]


def test_a_purge_and_rebirth_between_two_reads_of_a_load_is_no_contradiction(stage: Stage, drained: None) -> None:
    """The head is of the lane that was purged, the floor of the one that came back and was drained: no repair.

    The suspicion brings the lane under locks, where all of it is read again.
    """
    point = "after lane_rows.ENDS"
    keeper = stage.member("keeper", point, "k", retention=0)
    assert stage.purge() is True
    assert [stage.client.publish("t", "k", b"{}").offset for _ in range(2)] == [HEAD + 1, HEAD + 2]
    rows(stage.raw, "DELETE FROM queue_messages WHERE topic = 't'")
    rows(stage.raw, "UPDATE queue_offsets SET offset_acked = 5, marked_through = 5 WHERE consumer_group = ''")
    Situations(stage.raw).place("k", HEAD + 2)
    before = tables(stage.raw)
    looked = "after partitions.LOCK_HEAD"
    keeper.pause(looked)
    keeper.go(point)
    keeper.paused(looked).go(looked)
    assert tables(stage.raw)[:1] == before[:1]
    assert stage.client.publish("t", "k", b"{}").offset == HEAD + 3
    assert keeper.handled(1, "offset") == [HEAD + 3]
    assert errors(stage, "keeper") == []
    assert one(stage.raw, "SELECT COUNT(*) FROM queue_messages WHERE topic = 't' AND `offset` > 6") == 0


@DIES
def test_a_publish_under_a_repair_waits_and_comes_behind_what_is_stored(
    stage: Stage, drained: None, dies: bool
) -> None:
    """The head is locked from the first look at it to the COMMIT; whoever dies there has changed nothing."""
    rows(stage.raw, "UPDATE queue_offsets SET offset_acked = 9, marked_through = 9 WHERE consumer_group = ''")
    mending = stage.stopped("before COMMIT following partitions.LOCK_HEAD", "audit", "k", topic="t")
    publishing = stage.waiting(stage.client.publish, "t", "k", b"{}")
    mending.end(dies=dies)
    assert publishing.result(30).offset == (HEAD + 1 if dies else 10)


@pytest.mark.thorough
@DIES
def test_a_settlement_under_a_repair_waits_and_is_refused(stage: Stage, dies: bool) -> None:
    """The lease is taken away in the same transaction; if that dies, the settlement is committed as if nothing was."""
    seldom = {"lease_duration": 600.0}  # between two full passes of the owner's own janitor, which would be first
    owner = settling(stage, "return", BEFORE_THE_FENCE["return"], **seldom)
    columns = "consumer_group, topic, partition_key, message_offset, through_offset, acked"
    rows(stage.raw, f"INSERT INTO queue_delivery_state ({columns}) VALUES ('g', 't', 'k', 9, 9, 1)")
    mending = stage.stopped("before COMMIT following leases.TAKE_AWAY", "audit", "k", name="mending", topic="t")
    owner.go(BEFORE_THE_FENCE["return"])
    wait_until_blocked(stage.raw)
    assert mending.end(dies=dies) == (None if dies else 1)
    if not dies:
        owner.is_refused("return")
    stage.until_acked(2)
    assert [offset for offset, _ in owner.started()] == [1, 2] + [2] * (not dies)
    assert one(stage.raw, "SELECT COUNT(*) FROM queue_delivery_state WHERE message_offset = 9") == int(dies)


@pytest.mark.thorough
@DIES
def test_a_second_repair_waits_and_finds_what_the_first_has_left(stage: Stage, drained: None, dies: bool) -> None:
    """One of them repairs the lane, and logs it; if the first dies, that is the second."""
    rows(stage.raw, "UPDATE queue_offsets SET offset_acked = 9 WHERE consumer_group = 'g'")
    first = stage.stopped("before COMMIT following offsets.REWIND", "audit", "k", topic="t")
    second = stage.actor("second")
    call = second.call("audit", topic="t")
    wait_until_blocked(stage.raw)
    assert first.end(dies=dies) == (None if dies else 1)
    assert call.result() == int(dies)
    epoch = one(stage.raw, "SELECT lease_epoch FROM queue_partition_leases WHERE partition_key = 'k'")
    assert (stage.acked(), epoch) == (HEAD, EPOCH + 1)
