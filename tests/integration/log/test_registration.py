"""Groups begin to exist: where they start, when that is committed, and what becomes of a group that is deleted."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import lanelog
from lanelog import Client, ClosedError, LanelogError, Message
from support.sql import delivery_rows, one, owners, rows, watermark
from support.waiting import Record, accept, eventually


def now_of(raw: Any) -> datetime:
    return rows(raw, "SELECT UTC_TIMESTAMP(3)")[0][0].replace(tzinfo=UTC)


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_group_begins_with_what_is_there_or_behind_it(lanelog_client: Client, raw: Any, start: str) -> None:
    """Earliest, the default: all that was not collected; latest: what comes after it, in old and new lanes."""
    lanelog_client.publish_many("t", [("a", b"1"), ("a", b"2"), ("b", b"1")])
    seen = Record()
    options = {} if start == "earliest" else {"start": start}
    lanelog_client.subscribe("t", "g", lambda m: seen((m.key, m.offset)), **options)
    lanelog_client.publish_many("t", [("a", b"3"), ("c", b"1")])
    before = [("a", 1), ("a", 2), ("b", 1)] if start == "earliest" else []
    assert sorted(seen.wait(2 + len(before))) == sorted([*before, ("a", 3), ("c", 1)])
    eventually(lambda: watermark(raw, "g", "t", "b") == 1)


def test_an_instant_begins_with_the_first_message_after_it(lanelog_client: Client, raw: Any) -> None:
    """Per lane by binary search: everything published at or after the instant, nothing before."""
    for n in range(9):
        lanelog_client.publish_many("t", [("a", f"{n}")] * (n + 1) + [("b", b"x")])
    rows(raw, "UPDATE queue_messages SET created_at = created_at - 7200000 WHERE topic = 't' AND `offset` <= 7")
    start = now_of(raw) - timedelta(hours=1)
    lanelog_client.publish("t", "c", b"new")
    seen = Record()
    lanelog_client.subscribe("t", "g", lambda m: seen((m.key, m.offset)), start=start)
    wanted = [("a", offset) for offset in range(8, 46)] + [("b", 8), ("b", 9), ("c", 1)]
    assert sorted(seen.wait(len(wanted))) == wanted
    eventually(lambda: watermark(raw, "g", "t", "a") == 45)


@pytest.mark.parametrize(("hours", "first"), [(-100, 1), (100, 4)])
def test_an_instant_outside_of_the_log(lanelog_client: Client, raw: Any, hours: int, first: int) -> None:
    """Before the first message: all of it; in the future: nothing of what is there."""
    lanelog_client.publish_many("t", [("a", b"x")] * 3)
    seen = Record()
    lanelog_client.subscribe("t", "g", lambda m: seen(m.offset), start=now_of(raw) + timedelta(hours=hours))
    lanelog_client.publish("t", "a", b"x")
    assert seen.wait(5 - first) == list(range(first, 5))


def test_start_counts_at_the_registration_only(lanelog_client: Client) -> None:
    """A group that exists goes on where it was, whatever `start` says."""
    seen = Record()
    first = lanelog_client.subscribe("t", "g", lambda m: seen(m.offset))
    lanelog_client.publish("t", "a", b"1")
    seen.wait(1)
    assert first.stop(10)
    lanelog_client.publish("t", "a", b"2")
    lanelog_client.subscribe("t", "g", lambda m: seen(m.offset), start="latest")
    assert seen.wait(2) == [1, 2]


def delete_group(raw: Any, group: str, topic: str) -> None:
    rows(raw, "DELETE FROM queue_groups WHERE consumer_group = %s AND topic = %s", group, topic)


def test_a_group_deleted_under_its_subscription_fails_it(lanelog_client: Client, raw: Any) -> None:
    """The subscription stops, says why, gives its lanes back, never registers again by itself, and others go on."""
    lanelog_client.publish("t", "a", b"1")
    subscription = lanelog_client.subscribe("t", "g", accept)
    other = lanelog_client.subscribe("t", "other", accept)
    eventually(lambda: subscription.stats().acked == 1)
    delete_group(raw, "g", "t")
    eventually(lambda: subscription.state == "failed")
    assert isinstance(subscription.failure, LanelogError)
    assert "deleted" in str(subscription.failure)
    eventually(lambda: owners(raw, "g", "t").get("a", "") == "")
    assert one(raw, "SELECT COUNT(*) FROM queue_groups WHERE consumer_group = 'g'") == 0
    assert other.state == "running"
    with pytest.raises(ClosedError):
        subscription.start()
    assert subscription.stop(10)


@pytest.mark.thorough
def test_a_group_that_was_deleted_and_made_anew_fails_the_old_subscription(
    lanelog_client: Client, lanelog_url: str, raw: Any
) -> None:
    """The old subscription must not go on in the name of the new group."""
    old_seen, new_seen = Record(), Record()
    lanelog_client.publish("t", "a", b"1")
    old = lanelog_client.subscribe("t", "g", lambda m: old_seen(m.offset))
    old_seen.wait(1)
    delete_group(raw, "g", "t")
    with lanelog.connect(lanelog_url) as other:
        new = other.subscribe("t", "g", lambda m: new_seen(m.offset))
        eventually(lambda: old.state == "failed")
        assert new_seen.wait(1) == [1]
        eventually(lambda: owners(raw, "g", "t") == {"a": new.owner})


def test_run_raises_what_made_a_subscription_fail(lanelog_client: Client, raw: Any) -> None:
    """client.run() drains the others and raises the failure."""
    lanelog_client.subscriber("t", "g")(accept)
    lanelog_client.subscriber("t", "other")(accept)
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(lanelog_client.run)
        eventually(lambda: one(raw, "SELECT COUNT(*) FROM queue_groups") == 2)
        delete_group(raw, "g", "t")
        with pytest.raises(LanelogError, match="'g'"):
            running.result(20)
    assert one(raw, "SELECT COUNT(*) FROM queue_subscriber_heartbeats WHERE deregistered_at = 0") == 0


def test_a_new_group_inherits_nothing_of_an_earlier_one_of_its_name(lanelog_client: Client, raw: Any) -> None:
    """Watermarks, waiting rows and leases of the earlier group are gone; its fencing tokens are not used again."""
    tokens, fail = Record(), threading.Event()
    fail.set()

    def handle(message: Message) -> None:
        tokens((message.offset, message.attempt, message.fencing_token))
        if message.offset == 2 and fail.is_set():
            message.nack(delay=3600)

    lanelog_client.publish_many("t", [("a", b"x")] * 3)
    first = lanelog_client.subscribe("t", "g", handle, order="serial")
    eventually(lambda: (first.stats().acked, first.stats().retried) == (2, 1))
    assert first.stop(10)
    assert [r["message_offset"] for r in delivery_rows(raw, "g", "t") if not r["acked"]] == [2]
    delete_group(raw, "g", "t")
    fail.clear()
    second = lanelog_client.subscribe("t", "g", handle, order="strict")
    eventually(lambda: second.stats().acked == 3)
    assert [(o, n) for o, n, _ in tokens.items[3:]] == [(1, 1), (2, 1), (3, 1)]
    assert min(t for _, _, t in tokens.items[3:]) > max(t for _, _, t in tokens.items[:3])


def test_leftovers_of_other_groups_are_left_alone(lanelog_client: Client, raw: Any) -> None:
    """Registering g does not touch g2's rows, nor g's in another topic."""
    lanelog_client.publish("t", "a", b"1")
    lanelog_client.publish("u", "a", b"1")
    for topic, group in (("t", "g2"), ("u", "g")):
        subscription = lanelog_client.subscribe(topic, group, lambda m: m.nack(delay=3600))
        eventually(lambda s=subscription: s.stats().retried == 1)
        assert subscription.stop(10)
    before = [delivery_rows(raw, "g2", "t"), delivery_rows(raw, "g", "u")]
    assert all(before)
    lanelog_client.subscribe("t", "g", accept)
    assert [delivery_rows(raw, "g2", "t"), delivery_rows(raw, "g", "u")] == before
    assert owners(raw, "g2", "t") == {"a": ""}
