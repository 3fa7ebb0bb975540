"""Groups that read one log: dead letters, pauses and failures of one are nothing to another."""

import logging
from typing import Any

import pytest
from tenacity import stop_after_attempt, wait_fixed

from lanelog import AckPolicy, Client, ConfigurationError, Message, Reject, RetryPolicy
from support.sql import delivery_rows, one, rows, watermark
from support.waiting import Record, accept, events, eventually, raising

pytestmark = pytest.mark.usefixtures("logged")

TWICE = RetryPolicy(stop=stop_after_attempt(2), wait=wait_fixed(0.05))


def test_what_one_group_dead_letters_the_other_still_gets(
    lanelog_client: Client, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Group a gives a message up; b handles it; hook and log say whose it was, what it was, and why."""
    seen, hooked, letters = Record(), Record(), Record()

    def fail(message: Message) -> None:
        if message.offset == 2:
            raise ValueError("no such branch")

    lanelog_client.publish_many("t", [("k", f"{n}".encode()) for n in (1, 2, 3)])
    a = lanelog_client.subscribe("t", "a", fail, retry=TWICE, on_dead_letter=lambda m, why: hooked((m, why)))
    b = lanelog_client.subscribe("t", "b", seen, retry=TWICE)
    lanelog_client.subscribe("t_dlq", "alerts", letters)
    eventually(lambda: a.stats().acked == 2 and a.stats().dead_lettered == 1)
    eventually(lambda: b.stats().acked == 3)
    assert [m.offset for m in seen.items] == [1, 2, 3]
    assert b.stats().dead_lettered == 0

    (letter,) = letters.wait(1)
    assert (letter.key, letter.payload, letter.dead_letter.group) == ("k", b"2", "a")
    ((message, why),) = hooked.wait(1)
    assert (message.topic, message.key, message.offset, message.payload, message.group) == ("t", "k", 2, b"2", "a")
    assert why == letter.dead_letter.last_error
    assert why.startswith("ValueError: no such branch\nTraceback (most recent call last):\n")
    assert why.endswith('    raise ValueError("no such branch")')
    (line,) = events(caplog, "message.dead_lettered", logging.ERROR)
    (record,) = (each for each in caplog.records if each.getMessage() == line)
    assert isinstance(record.exc_info[1], ValueError)
    indexed = [record.__dict__[name] for name in ("event", "topic", "key", "group", "offset", "attempt")]
    assert indexed == ["message.dead_lettered", "t", "k", "a", 2, 2]
    for part in ("topic=t", "key=k", "group=a", "offset=2", "dead_letter_topic=t_dlq", "no such branch"):
        assert part in line
    # The original stays for the others until collection.
    assert one(raw, "SELECT COUNT(*) FROM queue_messages WHERE topic = 't'") == 3
    eventually(lambda: not delivery_rows(raw, "a", "t"))


def test_two_groups_dead_letter_the_same_message_twice(lanelog_client: Client, raw: Any) -> None:
    """Each group has a dead letter of its own, with its own name and error."""
    lanelog_client.publish("t", "k", b"1")
    a = lanelog_client.subscribe("t", "a", raising(Reject, "by a"))
    b = lanelog_client.subscribe("t", "b", raising(Reject, "by b"))
    eventually(lambda: a.stats().dead_lettered == b.stats().dead_lettered == 1)
    found = rows(raw, "SELECT failed_group, last_error, original_offset FROM queue_messages WHERE topic = 't_dlq'")
    assert sorted(found) == [("a", "by a", 1), ("b", "by b", 1)]
    assert one(raw, "SELECT head_offset FROM queue_partitions WHERE topic = 't_dlq' AND partition_key = 'k'") == 2


@pytest.mark.thorough
@pytest.mark.parametrize("suffix", ["_dlq", None])
def test_a_failing_consumer_of_dead_letters_loses_none(lanelog_client: Client, raw: Any, suffix: str | None) -> None:
    """A dead letter that fails or is rejected comes again without limit, whatever the policy; no second suffix."""
    attempts = Record()

    def fail(message: Message) -> None:
        attempts((message.key, message.attempt))
        if message.attempt < 5:
            raise Reject("here, too") if message.key == "rejected" else ValueError("the pager is down")

    lanelog_client.publish_many("t", [("failed", b"1"), ("rejected", b"2")])
    a = lanelog_client.subscribe("t", "a", raising(Reject, "never"))
    eventually(lambda: a.stats().dead_lettered == 2)
    once = RetryPolicy(stop=stop_after_attempt(1), wait=wait_fixed(0.02))
    options = {"retry": once, "max_deliveries": 2, "dead_letter_suffix": suffix}
    for _ in range(5):
        with lanelog_client.subscribe("t_dlq", "alerts", fail, **options) as alerts:
            eventually(lambda: 2 in (alerts.stats().retried, alerts.stats().acked))
        assert alerts.stats().dead_lettered == 0
        rows(raw, "UPDATE queue_delivery_state SET invisible_until = 0")  # the policy names no wait, ours would be long
    assert sorted(attempts.items) == [(key, number) for key in ("failed", "rejected") for number in range(1, 6)]
    assert one(raw, "SELECT COUNT(*) FROM queue_messages WHERE topic LIKE 't\\_dlq%%'") == 2


@pytest.mark.parametrize("how", ["reject", "exhausted"])
def test_without_a_suffix_an_exhausted_message_is_dropped_loudly(
    lanelog_client: Client, raw: Any, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """dead_letter_suffix=None acks it, with an ERROR that names it; nothing else of the lane is lost."""
    seen = Record()

    def handle(message: Message) -> None:
        if message.offset == 2:
            if how == "reject":
                raise Reject("malformed")
            raise ValueError("malformed")
        seen(message.offset)

    lanelog_client.publish_many("t", [("k", b"1")] * 3)
    subscription = lanelog_client.subscribe("t", "a", handle, retry=TWICE, dead_letter_suffix=None)
    eventually(lambda: watermark(raw, "a", "t", "k") == 3)
    assert seen.items == [1, 3]
    (line,) = events(caplog, "message.dropped", logging.ERROR)
    assert "offset=2" in line
    assert "malformed" in line
    assert subscription.stats().dead_lettered == 0
    assert one(raw, "SELECT COUNT(*) FROM queue_partitions WHERE topic LIKE 't\\_dlq%%'") == 0


def test_a_failing_hook_changes_nothing(lanelog_client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """An exception of on_dead_letter is logged; the message is dead-lettered and its successors run."""
    seen = Record()

    def handle(message: Message) -> None:
        if message.offset == 1:
            raise Reject("no")
        seen(message.offset)

    lanelog_client.publish_many("t", [("k", b"1")] * 2)
    subscription = lanelog_client.subscribe("t", "a", handle, on_dead_letter=raising(RuntimeError, "the hook itself"))
    assert seen.wait(1) == [2]
    assert subscription.stats().dead_lettered == 1
    eventually(lambda: events(caplog, "hook.failed", logging.ERROR))


@pytest.mark.parametrize(
    ("left", "outcome"),
    [
        ("retry_count = 5, lease_epoch = 77, alone = 1", "lock_expired"),
        ("retry_count = 5", "failed"),
        ("retry_count = 4", "rejected"),
    ],
    ids=["after a crash loop", "beyond a lower cap", "after its last attempt"],
)
def test_hook_dead_letter_history_and_log_agree_about_the_attempts(
    lanelog_client: Client, raw: Any, caplog: pytest.LogCaptureFixture, left: str, outcome: str
) -> None:
    """Of five that were allowed five were made, whether the fifth one gives the message up or the sixth is refused."""
    told, handled = Record(), Record()

    def reject(message: Message) -> None:
        handled(message.attempt)
        raise Reject("no")

    lanelog_client.publish("t", "k", b"x")
    manual = {"ack_policy": AckPolicy.MANUAL, "history": True}
    with lanelog_client.subscribe("t", "g", lambda m: m.nack(delay=60), **manual) as subscription:
        eventually(lambda: subscription.stats().retried == 1)
    rows(raw, f"UPDATE queue_delivery_state SET invisible_until = 0, {left}")
    options = {"history": True, "max_deliveries": 5, "on_dead_letter": lambda m, _why: told(m.attempt)}
    with lanelog_client.subscribe("t", "g", reject, **options):
        assert told.wait(1) == [5]
    assert handled.items == ([5] if outcome == "rejected" else [])
    assert one(raw, "SELECT failure_count FROM queue_messages WHERE topic = 't_dlq'") == 5
    assert rows(raw, "SELECT attempts, outcome FROM queue_history") == [(5, outcome)]
    (line,) = events(caplog, "message.dead_lettered", logging.ERROR)
    assert "attempt=5" in line
    (record,) = (each for each in caplog.records if each.getMessage() == line)
    assert record.exc_info is None  # a rejection, or what another process has seen


def test_one_subscription_reads_many_topics(lanelog_client: Client) -> None:
    """Lists of topics: one subscription, each topic with its own lanes and dead letters."""
    seen = Record()

    def handle(message: Message) -> None:
        seen((message.topic, message.key, message.offset))
        if message.topic == "u":
            raise Reject("no")

    subscription = lanelog_client.subscribe(["t", "u"], "g", handle)
    lanelog_client.publish("t", "k", b"1")
    lanelog_client.publish("u", "k", b"1")
    eventually(lambda: (subscription.stats().acked, subscription.stats().dead_lettered) == (1, 1))
    assert sorted(seen.items) == [("t", "k", 1), ("u", "k", 1)]


def test_a_group_has_one_order(lanelog_client: Client, raw: Any) -> None:
    """A second subscription with another order is refused and disturbs nothing; other groups are free to differ."""
    first = lanelog_client.subscribe("t", "g", accept, order="strict")
    with pytest.raises(ConfigurationError, match=r"order='strict'.*one order.*order='concurrent'"):
        lanelog_client.subscribe("t", "g", accept, order="concurrent")
    lanelog_client.subscribe("t", "other", accept, order="concurrent")
    found = rows(raw, "SELECT consumer_group, delivery_order FROM queue_groups ORDER BY consumer_group")
    assert found == [("g", "strict"), ("other", "concurrent")]
    assert first.state == "running"
