"""The original Go design's acceptance suite, re-told: publishing, order, settling. The table is in tests/README.md."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from tenacity import stop_after_attempt, wait_fixed

import lanelog
from lanelog import Client, Message, RetryPolicy
from lanelog.deliveries import Deliveries
from support.elapsed import let_pass
from support.sql import delivery_rows, one, watermark
from support.waiting import Gate, Record, accept, eventually

TWICE = RetryPolicy(stop=stop_after_attempt(2), wait=wait_fixed(0.02))
SHORT = 0.2
"""Seconds in which a message that ought to wait would have come if it did not."""


def ids(deliveries: Deliveries, count: int) -> list[str]:
    """Take and ack so many messages."""
    taken = []
    for _ in range(count):
        message = next(deliveries)
        taken.append(message.id)
        message.ack()
    return taken


def nothing_comes(deliveries: Deliveries) -> bool:
    """Whether a look after more has found none."""
    return deliveries._core.pull(SHORT) is None


def test_publish_and_subscribe(lanelog_client: Client) -> None:
    """Key, id, payload and metadata arrive as they were published; without metadata there is an empty mapping."""
    with lanelog_client.deliveries("t", "g", timeout=20.0) as deliveries:
        given = {"key1": "value1", "key2": "value2", "trace_id": "abc123"}
        lanelog_client.publish("t", "lane-1", b"hello", id="msg-1", metadata=given)
        lanelog_client.publish("t", "lane-1", b"world", id="msg-2")
        first = next(deliveries)
        assert (first.topic, first.key, first.id, first.payload) == ("t", "lane-1", "msg-1", b"hello")
        assert dict(first.metadata) == given
        first.ack()
        second = next(deliveries)
        assert (second.id, second.payload, dict(second.metadata)) == ("msg-2", b"world", {})
        second.ack()


def test_per_partition_isolation(lanelog_client: Client) -> None:
    """A message that is held unsettled does not keep back another key's."""
    lanelog_client.publish("t", "a", b"1")
    lanelog_client.publish("t", "b", b"1")
    with lanelog_client.deliveries("t", "g", timeout=20.0) as deliveries:
        held, other = next(deliveries), next(deliveries)
        assert {held.key, other.key} == {"a", "b"}
        other.ack()
        held.ack()


def test_partition_order_preserved(lanelog_client: Client) -> None:
    """Five messages that wait under one key come in the order in which they were published."""
    names = [f"order-{n}" for n in range(5)]
    for name in names:
        lanelog_client.publish("t", "k", b"x", id=name)
    with lanelog_client.deliveries("t", "g", timeout=20.0) as deliveries:
        assert ids(deliveries, 5) == names


def test_message_ordering_within_partition(lanelog_client: Client) -> None:
    """Ten messages published under one key to a running group are handled in that order, whatever it has workers."""
    seen = Record()
    lanelog_client.subscribe("t", "g", lambda message: seen(message.id), workers=8)
    names = [f"msg-{n}" for n in range(10)]
    for name in names:
        lanelog_client.publish("t", "k", b"x", id=name)
    assert seen.wait(10) == names


@pytest.mark.thorough
def test_multiple_partitions(lanelog_client: Client) -> None:
    """Two messages under each of three keys: all six arrive, each key's in order."""
    seen = Record()
    lanelog_client.subscribe("t", "g", lambda message: seen((message.key, message.id)))
    for key in ("A", "B", "C"):
        for name in ("1", "2"):
            lanelog_client.publish("t", key, b"x", id=f"{key}-{name}")
    items = seen.wait(6)
    assert {key: [name for k, name in items if k == key] for key in "ABC"} == {
        key: [f"{key}-1", f"{key}-2"] for key in "ABC"
    }


@pytest.mark.thorough
def test_visibility_timeout_and_retry(lanelog_client: Client) -> None:
    """An extended message stays where it is beyond its time; one that is neither settled nor extended comes again."""
    lanelog_client.publish("t", "k", b"1", id="extended")
    with lanelog_client.deliveries("t", "g", timeout=20.0, visibility_timeout=30.0) as deliveries:
        first = next(deliveries)
        assert first.attempt == 1
        first.extend(60.0)
        lanelog_client.publish("t", "other", b"1", id="forgotten")
        forgotten = next(deliveries)
        assert (forgotten.id, forgotten.attempt) == ("forgotten", 1)
        let_pass(deliveries.subscription, 40.0)  # the first, not extended, would have run out of time as well
        again = next(deliveries)
        assert (again.id, again.attempt) == ("forgotten", 2)
        again.ack()
        first.ack()
        assert deliveries.subscription.stats().timed_out == 1


def test_idempotent_publish(lanelog_client: Client) -> None:
    """A second publish under the same id says where the first one is, and nothing is delivered twice."""
    first = lanelog_client.publish("t", "k", b"once", id="same")
    second = lanelog_client.publish("t", "k", b"once", id="same")
    assert (first.duplicate, second.duplicate, second.offset) == (False, True, first.offset)
    with lanelog_client.deliveries("t", "g", timeout=20.0) as deliveries:
        assert ids(deliveries, 1) == ["same"]
        assert nothing_comes(deliveries)


@pytest.mark.thorough
def test_dedup_outlives_consumption(lanelog_client: Client, raw: Any) -> None:
    """An id that everybody has acked is still a duplicate, as long as its message is retained; after that it is new."""
    lanelog_client.subscribe("kept", "g", accept, retention=300)
    lanelog_client.subscribe("gone", "g", accept, retention=0)
    for topic in ("kept", "gone"):
        assert lanelog_client.publish(topic, "k", b"1", id="done").offset == 1
        eventually(lambda topic=topic: watermark(raw, "g", topic, "k") == 1)
    eventually(lambda: one(raw, "SELECT COUNT(*) FROM queue_messages WHERE topic = 'gone'") == 0)
    again = lanelog_client.publish("kept", "k", b"1", id="done")
    assert (again.offset, again.duplicate) == (1, True)
    anew = lanelog_client.publish("gone", "k", b"1", id="done")
    assert (anew.offset, anew.duplicate) == (2, False)


@pytest.mark.thorough
def test_concurrent_publishers(lanelog_client: Client) -> None:
    """Five threads that publish three messages each under one key: fifteen arrive, each thread's in its order."""
    together = threading.Barrier(5)

    def publish(number: int) -> None:
        together.wait(20)
        for turn in range(3):
            lanelog_client.publish("t", "k", b"x", id=f"{number}-{turn}")

    with lanelog_client.deliveries("t", "g", timeout=20.0) as deliveries, ThreadPoolExecutor(5) as pool:
        publishing = [pool.submit(publish, number) for number in range(5)]
        taken = ids(deliveries, 15)
        for future in publishing:
            future.result(20)
    for number in range(5):
        assert [name for name in taken if name.startswith(f"{number}-")] == [f"{number}-{turn}" for turn in range(3)]


def test_dead_letter_queue(lanelog_client: Client) -> None:
    """After its two attempts a message leaves its lane for the dead letters, with payload, key and the whole story."""
    lanelog_client.publish("t", "k", b"poison", id="poison-msg", metadata={"trace": "abc"})
    with lanelog_client.deliveries("t", "g", timeout=20.0, retry=TWICE) as deliveries:
        for attempt in (1, 2):
            message = next(deliveries)
            assert (message.id, message.attempt) == ("poison-msg", attempt)
            message.nack(reason=f"failure {attempt}")
        assert nothing_comes(deliveries)
        assert deliveries.subscription.stats().dead_lettered == 1
    with lanelog_client.deliveries("t_dlq", "g", timeout=20.0) as dead:
        message = next(dead)
        assert (message.key, message.payload) == ("k", b"poison")
        assert dict(message.metadata) == {"trace": "abc", "lanelog.original_id": "poison-msg"}
        assert message.dead_letter is not None
        story = message.dead_letter
        assert (story.original_topic, story.original_offset, story.group) == ("t", 1, "g")
        assert (story.failure_count, story.last_error) == (2, "failure 2")
        assert story.failed_at.tzinfo is UTC
        assert story.failed_at > datetime(2020, 1, 1, tzinfo=UTC)
        message.ack()


def test_late_subscriber(lanelog_client: Client) -> None:
    """A subscriber that comes after the messages were published gets all of them."""
    names = [f"early-{n}" for n in range(5)]
    for name in names:
        lanelog_client.publish("t", "k", b"x", id=name)
    with lanelog_client.deliveries("t", "late", timeout=20.0) as deliveries:
        assert ids(deliveries, 5) == names


def test_empty_topic_subscribe(lanelog_client: Client) -> None:
    """A group may subscribe to a topic that nobody has published to: nothing comes, and then the first message does."""
    with lanelog_client.deliveries("t", "g", timeout=20.0) as deliveries:
        assert nothing_comes(deliveries)
        lanelog_client.publish("t", "k", b"x", id="first")
        assert ids(deliveries, 1) == ["first"]


@pytest.mark.thorough
def test_graceful_shutdown_during_processing(lanelog_client: Client, lanelog_url: str) -> None:
    """A close lets the running handler end and keeps its ack; what nobody had begun or settled is another's, uncounted.

    A pulled message that was not settled when its block was left is given back, too, as if never delivered.
    """
    gate, seen = Gate(), Record()

    def handle(message: Message) -> None:
        seen(message.offset)
        gate()

    for topic in ("handled", "pulled"):
        lanelog_client.publish_many(topic, [("k", b"x")] * 5)
    with lanelog.connect(lanelog_url) as leaving, ThreadPoolExecutor(1) as pool, gate:
        handled = leaving.subscribe("handled", "g", handle)
        with leaving.deliveries("pulled", "g", timeout=20.0) as deliveries:
            pulled = next(deliveries)
        gate.reached()
        closing = pool.submit(leaving.close)
        eventually(lambda: handled.state == "stopping")
        gate.open()
        assert closing.result(30) is True
    assert (seen.items, pulled.offset) == ([1], 1)
    for topic, rest in (("handled", range(2, 6)), ("pulled", range(1, 6))):
        with lanelog_client.deliveries(topic, "g", timeout=20.0) as deliveries:
            for offset in rest:
                message = next(deliveries)
                assert (message.offset, message.attempt) == (offset, 1)
                message.ack()
            assert nothing_comes(deliveries)


def test_in_flight_does_not_block_others(lanelog_client: Client, raw: Any) -> None:
    """Concurrent order: later messages of a key are delivered and acked while an earlier one is in somebody's hands."""
    with lanelog_client.deliveries("t", "g", timeout=20.0, order="concurrent") as deliveries:
        lanelog_client.publish("t", "k", b"1", id="msg-1")
        held = next(deliveries)
        for n in (2, 3):
            lanelog_client.publish("t", "k", b"x", id=f"msg-{n}")
        assert ids(deliveries, 2) == ["msg-2", "msg-3"]
        assert (held.id, watermark(raw, "g", "t", "k")) == ("msg-1", 0)
        held.ack()
        assert watermark(raw, "g", "t", "k") == 3


@pytest.mark.thorough
def test_postpone_blocks_until_due(lanelog_client: Client) -> None:
    """Strict order: a postponed message holds back its key until it is due, then comes first and as attempt 1."""
    with lanelog_client.deliveries("t", "g", timeout=20.0) as deliveries:
        lanelog_client.publish("t", "k", b"1", id="msg-1")
        first = next(deliveries)
        began = time.monotonic()
        first.postpone(1.0)
        for n in (2, 3):
            lanelog_client.publish("t", "k", b"x", id=f"msg-{n}")
        again = next(deliveries)
        assert (again.id, again.attempt) == ("msg-1", 1)
        assert time.monotonic() - began >= 1.0
        again.ack()
        assert ids(deliveries, 2) == ["msg-2", "msg-3"]


def test_postpone_resets_retry_budget(lanelog_client: Client) -> None:
    """A postpone forgets the failures before it; as many failures after it as the policy allows are still too many."""
    lanelog_client.publish("t", "k", b"x", id="wait-then-poison")
    story = [(1, "postpone"), (1, "nack"), (2, "postpone"), (1, "nack"), (2, "nack")]
    with lanelog_client.deliveries("t", "g", timeout=20.0, retry=TWICE) as deliveries:
        for attempt, how in story:
            message = next(deliveries)
            assert message.attempt == attempt
            message.postpone(0.02) if how == "postpone" else message.nack()
        assert nothing_comes(deliveries)
    with lanelog_client.deliveries("t_dlq", "g", timeout=20.0) as dead:
        message = next(dead)
        assert message.metadata["lanelog.original_id"] == "wait-then-poison"
        assert message.dead_letter.failure_count == 2
        message.ack()


@pytest.mark.thorough
def test_strict_serialization(lanelog_client: Client) -> None:
    """Serial order, the original's batch of one: the next message of a key comes when the one before is settled."""
    lanelog_client.publish_many("t", [("k", f"{n}") for n in range(1, 6)])
    with lanelog_client.deliveries("t", "g", timeout=20.0, order="serial") as deliveries:
        for offset in range(1, 6):
            message = next(deliveries)
            assert message.offset == offset
            assert nothing_comes(deliveries)
            message.ack()
        assert nothing_comes(deliveries)


def test_watermark_advances_contiguously(lanelog_client: Client, raw: Any) -> None:
    """Of five messages, 3, 1 and 2 are acked: two are behind the head; 5: still two; 4: none, and no row is left."""
    lanelog_client.publish_many("t", [("k", f"{n}") for n in range(1, 6)])

    def lag() -> int:
        head = one(raw, "SELECT head_offset FROM queue_partitions WHERE topic = 't' AND partition_key = 'k'")
        return int(head) - watermark(raw, "g", "t", "k")

    with lanelog_client.deliveries("t", "g", timeout=20.0, order="concurrent") as deliveries:
        taken = {message.offset: message for message in (next(deliveries) for _ in range(5))}
        lags = []
        for offset in (3, 1, 2, 5, 4):
            taken[offset].ack()
            lags.append(lag())
    assert lags == [5, 4, 2, 2, 0]
    assert delivery_rows(raw, "g", "t") == []
