"""Collection and purge: what leaves the log, when, and that nobody misses it."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import lanelog
from lanelog import Client, Message, Reject
from lanelog._engine.collection import HEARTBEATS_KEPT, STEP
from support.sql import audit, one, owners, rows, watermark
from support.waiting import Record, accept, eventually, never


@pytest.fixture
def client(lanelog_url: str) -> Iterator[Client]:
    """A client that purges drained lanes after a moment."""
    with lanelog.connect(lanelog_url, lane_idle_purge=0.2) as client:
        yield client


def stored(raw: Any, topic: str) -> int:
    return int(one(raw, "SELECT COUNT(*) FROM queue_messages WHERE topic = %s", topic))


def lanes(raw: Any, topic: str) -> dict[str, int]:
    """Heads by key, without the topic row."""
    found = rows(raw, "SELECT partition_key, head_offset FROM queue_partitions WHERE topic = %s", topic)
    return {key: head for key, head in found if key}


def register(client: Client, topic: str, group: str, **options: Any) -> None:
    """A group that exists and does not run; it has no retention that would hold anything by itself."""
    assert client.subscribe(topic, group, accept, **{"retention": 0, **options}).stop(10)


def test_what_everybody_has_acked_leaves_also_while_the_lane_is_busy(lanelog_client: Client, raw: Any) -> None:
    """retention=0: messages leave behind the watermark while a handler of the same key runs on; the rest stays."""
    release, inside = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        if message.offset == 401:
            inside.set()
            assert release.wait(30)

    lanelog_client.publish_many("t", [("a", b"x")] * 500)
    subscription = lanelog_client.subscribe("t", "g", handle, retention=0)
    try:
        assert inside.wait(10)
        eventually(lambda: one(raw, "SELECT MIN(`offset`) FROM queue_messages WHERE topic = 't'") == 401)
        assert stored(raw, "t") == 100
    finally:
        release.set()
    eventually(lambda: stored(raw, "t") == 0)
    assert subscription.stats().acked == 500
    assert lanes(raw, "t") == {"a": 500}


def test_a_group_that_has_not_come_holds_everything(lanelog_client: Client, lanelog_url: str, raw: Any) -> None:
    """A registered group without a single row keeps what it has not read, while others ack all of it."""
    register(lanelog_client, "t", "late")
    assert one(raw, "SELECT COUNT(*) FROM queue_offsets WHERE consumer_group = 'late'") == 0
    lanelog_client.publish_many("t", [(key, b"x") for key in ("a", "b") for _ in range(50)])
    early = lanelog_client.subscribe("t", "early", accept, retention=0)
    eventually(lambda: early.stats().acked == 100)
    never(lambda: stored(raw, "t") < 100, during=1.5, what="a deletion")
    seen = Record()
    with lanelog.connect(lanelog_url) as other:
        other.subscribe("t", "late", lambda m: seen((m.key, m.offset)), retention=0)
        assert sorted(seen.wait(100)) == [(key, n) for key in ("a", "b") for n in range(1, 51)]
        eventually(lambda: stored(raw, "t") == 0)


def test_an_unacked_message_holds_its_successors(lanelog_client: Client, raw: Any) -> None:
    """Acked ahead of a waiting one is not past it: nothing behind the waiting message leaves."""

    def handle(message: Message) -> None:
        if message.offset == 3:
            message.nack(delay=3600)

    lanelog_client.publish_many("t", [("a", b"x")] * 20)
    subscription = lanelog_client.subscribe("t", "g", handle, order="serial", retention=0)
    eventually(lambda: subscription.stats().acked == 19)
    eventually(lambda: stored(raw, "t") == 18)
    never(lambda: stored(raw, "t") < 18, during=1.2, what="the deletion of an unread message")
    assert one(raw, "SELECT MIN(`offset`) FROM queue_messages WHERE topic = 't'") == 3


def test_nothing_younger_than_the_retention_leaves(lanelog_client: Client, raw: Any) -> None:
    """The longest retention of the topic's groups counts, by the time of publishing."""
    lanelog_client.publish_many("t", [("a", b"x")] * 10)
    rows(raw, "UPDATE queue_messages SET created_at = created_at - 3600000 WHERE `offset` <= 5")
    rows(raw, "UPDATE queue_messages SET created_at = created_at - 600000 WHERE `offset` > 5 AND `offset` <= 8")
    register(lanelog_client, "t", "longer", retention=1800, start="latest")
    subscription = lanelog_client.subscribe("t", "g", accept, retention=60)
    eventually(lambda: subscription.stats().acked == 10)
    eventually(lambda: stored(raw, "t") == 5)
    never(lambda: stored(raw, "t") < 5, during=1.2, what="the deletion of a young message")


def test_without_any_group_nothing_leaves(lanelog_client: Client, raw: Any) -> None:
    """A topic that nobody reads keeps everything for the group that may come."""
    lanelog_client.publish_many("t", [("a", b"x")] * 10)
    lanelog_client.subscribe("other", "g", accept, retention=0)
    never(lambda: stored(raw, "t") < 10, during=1.2)


def test_dead_letters_stay_when_they_are_acked(lanelog_client: Client, raw: Any) -> None:
    """An alerting group acks them; they remain for whoever redrives or inspects them."""

    def reject(message: Message) -> None:
        raise Reject("no")

    lanelog_client.publish_many("t", [("a", b"x")] * 5)
    lanelog_client.subscribe("t", "g", reject, retention=0)
    alerts = lanelog_client.subscribe("t_dlq", "alerts", accept, retention=0)
    eventually(lambda: alerts.stats().acked == 5)
    eventually(lambda: stored(raw, "t") == 0)
    never(lambda: stored(raw, "t_dlq") < 5, during=1.5, what="the deletion of a dead letter")


def test_collection_goes_in_bounded_steps(lanelog_client: Client, raw: Any) -> None:
    """However much can leave at once, a lane's floor rises by at most STEP in one transaction."""
    audit(
        raw,
        "floors",
        "UPDATE",
        "queue_offsets",
        "lane, a, b",
        "NEW.partition_key, OLD.offset_acked, NEW.offset_acked",
        "NEW.consumer_group = '' AND NEW.offset_acked <> OLD.offset_acked",
    )
    register(lanelog_client, "t", "holds")
    for _ in range(4):
        lanelog_client.publish_many("t", [(key, b"x") for key in ("a", "b") for _ in range(700)])
    subscription = lanelog_client.subscribe("t", "g", accept, retention=0)
    eventually(lambda: subscription.stats().acked == 5600)
    assert stored(raw, "t") == 5600
    rows(raw, "DELETE FROM queue_groups WHERE consumer_group = 'holds'")
    eventually(lambda: stored(raw, "t") == 0, within=30)
    steps = [(b - a) for a, b in rows(raw, "SELECT a, b FROM floors")]
    assert sum(steps) == 5600
    assert max(steps) <= STEP


def test_a_drained_lane_is_purged_and_comes_back_above(client: Client, raw: Any) -> None:
    """Head, floor, lease and offsets go; the lane's next offset and fencing token are higher than all before."""
    seen = Record()
    client.subscribe("t", "g", lambda m: seen((m.key, m.offset, m.fencing_token)), retention=0)
    client.publish_many("t", [("a", b"x")] * 7 + [("b", b"x")] * 3)
    seen.wait(10)
    eventually(lambda: lanes(raw, "t") == {})
    assert owners(raw, "g", "t") == {}
    assert one(raw, "SELECT COUNT(*) FROM queue_offsets WHERE topic = 't'") == 0
    assert client.publish("t", "a", b"again").offset >= 8
    key, offset, token = seen.wait(11)[10]
    assert key == "a"
    assert offset >= 8
    assert token > max(t for _, _, t in seen.items[:10])


def test_a_lane_with_anything_left_is_not_purged(client: Client, raw: Any) -> None:
    """A waiting message, an unread one of another group, an operator's pause: each keeps its lane."""
    register(client, "u", "late")
    inside, release = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        if message.key == "waiting":
            message.nack(delay=3600)
        if message.key == "paused":  # held, so that its lane is not drained before it is paused
            inside.set()
            assert release.wait(30)

    client.publish_many("t", [("waiting", b"x"), ("drained", b"x"), ("paused", b"x")])
    client.publish("u", "unread", b"x")
    subscription = client.subscribe(["t", "u"], "g", handle, retention=0)
    try:
        assert inside.wait(15)
        rows(raw, "UPDATE queue_offsets SET paused_at = 1 WHERE consumer_group = 'g' AND partition_key = 'paused'")
    finally:
        release.set()
    eventually(lambda: subscription.stats().acked == 3)
    eventually(lambda: "drained" not in lanes(raw, "t"))
    never(lambda: set(lanes(raw, "t")) != {"waiting", "paused"} or set(lanes(raw, "u")) != {"unread"}, during=1.5)


def test_a_late_group_gets_every_message_of_a_lane_that_came_back(client: Client, lanelog_url: str, raw: Any) -> None:
    """Drained and purged while a late group is registered, back again, others collect: the late group misses none."""
    early = client.subscribe("t", "early", accept, retention=0)
    client.publish_many("t", [("a", b"old")] * 5)
    eventually(lambda: early.stats().acked == 5)
    eventually(lambda: lanes(raw, "t") == {})
    register(client, "t", "late")
    sent = [client.publish("t", "a", f"{n}").offset for n in range(30)]
    sent += [r.offset for r in client.publish_many("t", [("a", f"{n}") for n in range(30, 50)])]
    eventually(lambda: early.stats().acked == 55)
    never(lambda: stored(raw, "t") < 50, during=1.5, what="a deletion")
    seen = Record()
    with lanelog.connect(lanelog_url, lane_idle_purge=0.2) as other:
        other.subscribe("t", "late", lambda m: seen((m.offset, m.payload)), retention=0)
        assert seen.wait(50) == [(offset, f"{n}".encode()) for n, offset in enumerate(sent)]
        eventually(lambda: lanes(raw, "t") == {})


@pytest.mark.parametrize("start", ["earliest", "latest", "instant"])
def test_a_group_registered_while_a_lane_is_purged_starts_where_it_said(client: Client, raw: Any, start: str) -> None:
    """Whatever its start, a group registered after the purge sees what is published after it."""
    early = client.subscribe("t", "early", accept, retention=0)
    client.publish_many("t", [("a", b"old")] * 5)
    eventually(lambda: early.stats().acked == 5)
    eventually(lambda: lanes(raw, "t") == {})
    seen = Record()
    when: Any = datetime.now(UTC) - timedelta(minutes=5) if start == "instant" else start
    client.subscribe("t", "late", lambda m: seen(m.payload), start=when, retention=0)
    client.publish_many("t", [("a", b"new"), ("b", b"new")])
    assert seen.wait(2) == [b"new", b"new"]


def test_old_heartbeats_are_forgotten(lanelog_client: Client, raw: Any) -> None:
    """Owners that left or ran out long ago go, in every group of the client; the living and the recent stay."""
    age = int(HEARTBEATS_KEPT * 1000) + 60_000
    insert = (
        "INSERT INTO queue_subscriber_heartbeats (consumer_group, topic, subscriber_name, heartbeat_at, expires_at,"
        " deregistered_at) SELECT %s, 't', %s, now.ms - %s, now.ms - %s, IF(%s, now.ms - %s, 0) FROM"
        " (SELECT TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6)) DIV 1000 AS ms) AS now"
    )
    for group, name, ago, left in (
        ("g", "left", age, 1),
        ("g", "died", age, 0),
        ("g", "just left", 1000, 1),
        ("h", "left", age, 1),
        ("other", "left", age, 1),
    ):
        rows(raw, insert, group, name, ago, ago, left, ago)
    subscription = lanelog_client.subscribe("t", "g", accept)
    lanelog_client.subscribe("t", "h", accept)
    names = "SELECT subscriber_name FROM queue_subscriber_heartbeats WHERE consumer_group = %s"
    eventually(lambda: not {"left", "died"} & {name for (name,) in rows(raw, names, "g")})
    eventually(lambda: {"just left", subscription.owner} <= {name for (name,) in rows(raw, names, "g")})
    eventually(lambda: "left" not in {name for (name,) in rows(raw, names, "h")})
    assert rows(raw, names, "other") == [("left",)]


def test_the_watermark_survives_collection_and_restart(lanelog_client: Client, lanelog_url: str, raw: Any) -> None:
    """After everything was collected, a new process begins behind it and finds the next message only."""
    first = lanelog_client.subscribe("t", "g", accept, retention=0)
    lanelog_client.publish_many("t", [("a", b"x")] * 10)
    eventually(lambda: stored(raw, "t") == 0 and first.stats().acked == 10)
    assert first.stop(10)
    lanelog_client.publish("t", "a", b"next")
    seen = Record()
    with lanelog.connect(lanelog_url) as other:
        other.subscribe("t", "g", lambda m: seen((m.offset, m.payload, m.attempt)), retention=0)
        assert seen.wait(1) == [(11, b"next", 1)]
        eventually(lambda: watermark(raw, "g", "t", "a") == 11)
