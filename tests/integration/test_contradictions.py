"""Tables that contradict each other, as after a restore of one of them: nothing is swallowed, and the ERROR says it."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lanelog import Client, DatabaseError, Message, Subscription
from support.sql import delivery_rows, one, rows, watermark
from support.waiting import Record, eventually

LANE = "topic = 't' AND partition_key = 'a'"
QUICK = {"lease_duration": 2.0, "lease_renewal": 0.5, "retention": 3600.0}


@pytest.fixture
def mended(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was mended so far, each an ERROR, without the names of topic and lane that it must have."""
    caplog.set_level(logging.ERROR, "lanelog")

    def found() -> list[str]:
        lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("lane.mended ")]
        assert all(record.levelno == logging.ERROR for record in caplog.records)
        return [line.removeprefix("lane.mended topic=t key=a ") for line in lines]

    return found


@contextmanager
def set_back(raw: Any, *tables: str) -> Iterator[None]:
    """These tables are, at the end, what they were at the beginning: restored one by one from a backup."""
    for table in tables:
        rows(raw, f"DROP TABLE IF EXISTS kept_{table}")
        rows(raw, f"CREATE TABLE kept_{table} LIKE queue_{table}")
        rows(raw, f"INSERT INTO kept_{table} SELECT * FROM queue_{table}")
    yield
    for table in tables:
        raw.begin()
        rows(raw, f"DELETE FROM queue_{table}")
        rows(raw, f"INSERT INTO queue_{table} SELECT * FROM kept_{table}")
        raw.commit()


def handle(client: Client, seen: Record, group: str = "g", **options: Any) -> Subscription:
    def note(message: Message) -> None:
        seen(message.payload.decode())

    return client.subscribe("t", group, note, **{**QUICK, **options})


def publish(client: Client, *names: str) -> None:
    client.publish_many("t", [("a", name.encode()) for name in names])


def names(first: int, last: int) -> list[str]:
    return [f"m{number}" for number in range(first, last + 1)]


def settled(raw: Any, group: str = "g") -> bool:
    """Whether a group has acked all there is."""
    head = one(raw, f"SELECT head_offset FROM queue_partitions WHERE {LANE}")
    return watermark(raw, group, "t", "a") == head


@pytest.mark.parametrize("running", [False, True], ids=["loaded", "running"])
def test_a_watermark_above_the_head_goes_back_to_the_floor(
    lanelog_client: Client, raw: Any, mended: Callable[[], list[str]], running: bool
) -> None:
    """Log and heads were set back: what is published under the offsets given out anew is delivered, once more too much."""
    first, second = Record(), Record()
    subscription = handle(lanelog_client, first)
    publish(lanelog_client, *names(1, 5))
    first.wait(5)
    with set_back(raw, "messages", "partitions"):
        publish(lanelog_client, *names(6, 10))
        first.wait(10)
        eventually(lambda: settled(raw))
        if not running:
            assert subscription.stop(10)
    publish(lanelog_client, "new1", "new2")
    if not running:
        handle(lanelog_client, second)
    seen = first if running else second
    seen.until(lambda items: items[-2:] == ["new1", "new2"] and set(names(1, 5)) <= set(items))
    eventually(lambda: settled(raw))
    assert mended() == ["group=g problem='watermark above the head' offset=10 head=7"]


@pytest.mark.parametrize("running", [False, True], ids=["loaded", "running"])
def test_a_floor_above_the_head_raises_it(
    lanelog_client: Client, raw: Any, mended: Callable[[], list[str]], running: bool
) -> None:
    """The heads were set back after a collection: what is published next gets offsets that nobody has released."""
    seen = Record()
    subscription = handle(lanelog_client, seen, retention=0.0)
    publish(lanelog_client, *names(1, 5))
    with set_back(raw, "partitions"):
        publish(lanelog_client, *names(6, 10))
        seen.wait(10)
        eventually(
            lambda: one(raw, f"SELECT offset_acked FROM queue_offsets WHERE consumer_group = '' AND {LANE}") == 10
        )
        eventually(lambda: one(raw, "SELECT COUNT(*) FROM queue_messages") == 0)
        if not running:
            assert subscription.stop(10)
    if not running:
        handle(lanelog_client, seen, retention=0.0)
    eventually(mended)
    publish(lanelog_client, "new1", "new2")
    assert seen.wait(12)[10:] == ["new1", "new2"]
    assert mended() == ["group='' problem='floor above the head' offset=10 head=10"]


@pytest.mark.parametrize("running", [False, True], ids=["loaded", "running"])
def test_acked_rows_above_the_head_go(
    lanelog_client: Client, raw: Any, mended: Callable[[], list[str]], running: bool
) -> None:
    """A row that settles an offset that was never given out settles no later message; the other group keeps its place."""
    first, other = Record(), Record()
    subscription = handle(lanelog_client, first)
    handle(lanelog_client, other, "other")
    publish(lanelog_client, *names(1, 3))
    first.wait(3)
    other.wait(3)
    eventually(lambda: settled(raw) and settled(raw, "other"))
    epoch = epochs(raw)
    if not running:
        assert subscription.stop(10)
    rows(
        raw,
        "INSERT INTO queue_delivery_state (consumer_group, topic, partition_key, message_offset, through_offset, acked)"
        " VALUES ('g', 't', 'a', 4, 6, 1)",
    )
    if not running:
        handle(lanelog_client, first)
    eventually(mended)
    publish(lanelog_client, *names(4, 8))
    assert first.wait(8) == names(1, 8)
    assert other.wait(8) == names(1, 8)
    assert mended() == ["group=g problem='delivery rows above the head' offset=6 head=3"]
    assert delivery_rows(raw, "g", "t") == []
    assert epochs(raw)["g"] > epoch["g"]
    assert epochs(raw)["other"] == epoch["other"]


def epochs(raw: Any) -> dict[str, int]:
    return dict(rows(raw, f"SELECT consumer_group, lease_epoch FROM queue_partition_leases WHERE {LANE}"))


@pytest.mark.parametrize("running", [False, True], ids=["loaded", "running"])
def test_a_head_below_the_log_is_raised(
    lanelog_client: Client, raw: Any, mended: Callable[[], list[str]], running: bool
) -> None:
    """The heads were set back alone: publishing says what happened and what to do, and works again after a full pass."""
    seen = Record()
    subscription = handle(lanelog_client, seen)
    publish(lanelog_client, *names(1, 5))
    seen.wait(5)
    if not running:
        assert subscription.stop(10)
    with set_back(raw, "partitions"):
        publish(lanelog_client, *names(6, 9))
        if running:
            seen.wait(9)
    with pytest.raises(DatabaseError, match=r"topic 't'.*'a'.*lanelog doctor --repair") as refused:
        publish(lanelog_client, "new")
    assert refused.value.code == 1062
    assert not refused.value.retriable
    if not running:
        handle(lanelog_client, seen)
    eventually(mended)
    publish(lanelog_client, "new")
    assert seen.wait(10) == [*names(1, 9), "new"]
    assert mended() == ["group='' problem='messages above the head' offset=9 head=9"]
