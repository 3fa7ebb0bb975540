"""Memory is bounded and goes round: what waits or was read ahead neither exceeds it nor is in the way of others."""

from typing import Any

import pytest
from tenacity import stop_after_attempt, wait_fixed

from lanelog import Client, Message, Retry, RetryPolicy
from support.sql import rows, watermark
from support.waiting import Gate, Record, eventually

KEYS = [f"k{number:02}" for number in range(40)]
EACH = 10
PAYLOAD = b"x" * 1000
WITHIN = 30.0


def leave_marks(client: Client, raw: Any, keys: list[str]) -> None:
    """What a process leaves that died with ten messages of each key under its marks: each waits, due at once."""
    seen = Record()
    with client.subscribe("t", "g", seen):
        client.publish_many("t", [(key, b"1") for key in keys])
        seen.wait(len(keys))
    client.publish_many("t", [(key, b"x") for key in keys for _ in range(EACH)])
    rows(raw, "UPDATE queue_offsets SET marked_through = 11, marked_epoch = 77 WHERE consumer_group = 'g'")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("order", "options", "messages", "size"),
    [("serial", {"prefetch": 10}, 10, 1 << 30), ("concurrent", {"prefetch_bytes": 5000}, 1000, 5000)],
    ids=["messages", "bytes"],
)
def test_messages_that_become_due_at_once_are_read_within_the_bounds(
    lanelog_client: Client, raw: Any, order: str, options: dict[str, Any], messages: int, size: int
) -> None:
    """400 messages of 40 keys fail and are due together: memory never holds more of them than prefetch allows."""
    held = Record()

    def handle(message: Message) -> None:
        if message.attempt == 1:
            raise ValueError("at first")
        stats = subscription.stats()
        held((stats.prefetched, stats.prefetched_bytes))

    policy = RetryPolicy(stop=stop_after_attempt(5), wait=wait_fixed(1.0))
    lanelog_client.publish_many("t", [(key, PAYLOAD) for key in KEYS for _ in range(EACH)])
    subscription = lanelog_client.subscribe("t", "g", handle, order=order, workers=1, retry=policy, **options)
    held.wait(len(KEYS) * EACH, within=WITHIN)
    assert max(count for count, _ in held.items) <= messages
    assert max(total for _, total in held.items) <= size
    eventually(lambda: all(watermark(raw, "g", "t", key) == EACH for key in KEYS), within=WITHIN)


def test_a_message_larger_than_the_bound_is_read_again_alone(lanelog_client: Client) -> None:
    """One that never fits is tried again once nothing else is in memory, and does not wait for ever."""
    done = Record()

    def handle(message: Message) -> None:
        if message.attempt == 1:
            raise ValueError("at first")
        done((message.key, len(message.payload)))

    policy = RetryPolicy(stop=stop_after_attempt(5), wait=wait_fixed(0.1))
    lanelog_client.publish_many("t", [("big", b"x" * 9000), *((key, b"x" * 400) for key in KEYS)])
    lanelog_client.subscribe("t", "g", handle, order="serial", workers=2, retry=policy, prefetch_bytes=5000)
    assert ("big", 9000) in done.wait(1 + len(KEYS), within=WITHIN)


def test_what_a_held_back_lane_has_in_memory_makes_room_for_others(lanelog_client: Client, raw: Any) -> None:
    """A dead owner's marks fill memory with messages behind one that waits for an hour: other keys are handled."""
    stuck, free, held = KEYS[:8], Record(), Record()
    leave_marks(lanelog_client, raw, stuck)

    def handle(message: Message) -> None:
        if message.key in stuck:
            held(message.key)
            raise Retry(delay=3600)
        free(message.key)

    subscription = lanelog_client.subscribe("t", "g", handle, prefetch=10, workers=2)
    assert sorted(held.wait(len(stuck), within=WITHIN)) == stuck
    lanelog_client.publish_many("t", [(key, b"x") for key in KEYS[8:] for _ in range(3)])
    free.wait(3 * len(KEYS[8:]), within=WITHIN)
    assert len(held) == len(stuck)
    assert subscription.stats().prefetched <= 10


@pytest.mark.thorough
def test_a_dead_owner_with_more_marks_than_memory_holds_stalls_nobody(lanelog_client: Client, raw: Any) -> None:
    """80 messages were under the marks of a process that died, memory may hold 10: all are delivered, in order."""
    keys, again = KEYS[:8], Record()
    leave_marks(lanelog_client, raw, keys)
    lanelog_client.subscribe("t", "g", lambda m: again((m.key, m.offset, m.attempt)), prefetch=10, workers=2)
    items = again.wait(80, within=WITHIN)
    for key in keys:
        assert [(offset, attempt) for k, offset, attempt in items if k == key] == [(n, 2) for n in range(2, 12)]


TURNS = 50


def bytes_sent(raw: Any) -> int:
    with raw.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Bytes_sent'")
        return int(cursor.fetchone()[1])


@pytest.mark.thorough
def test_busy_keys_do_not_read_again_what_the_others_evicted(lanelog_client: Client, raw: Any) -> None:
    """Three busy keys with more than fits: while their handlers run, hardly anything is read."""
    gate, payload = Gate(), b"x" * 100_000
    for key in ("a", "b", "c"):
        lanelog_client.publish_many("t", [(key, payload) for _ in range(30)])
    subscription = lanelog_client.subscribe("t", "g", gate, workers=4, prefetch_bytes=1_000_000)
    with gate:
        gate.reached(3)
        eventually(lambda: subscription.stats().prefetched_bytes > 900_000, within=WITHIN)
        before = bytes_sent(raw)
        for _ in range(TURNS):  # each of them is many turns of a fetcher that does not rest
            with raw.cursor() as cursor:
                cursor.execute("SELECT SLEEP(0.02)")
        read = bytes_sent(raw) - before
    assert read < 50 * len(payload)  # 140 MB a second once


def test_a_payload_that_does_not_fit_beside_what_a_busy_key_read_ahead(lanelog_client: Client, raw: Any) -> None:
    """A message of another key that could go out at once is handled while the busy key's handler runs."""
    gate, started = Gate(), Record()

    def handle(message: Message) -> None:
        started(message.key)
        if message.key == "a":
            gate()

    lanelog_client.publish_many("t", [("a", b"x" * 100) for _ in range(10)])
    subscription = lanelog_client.subscribe("t", "g", handle, workers=4, prefetch_bytes=1200)
    started.wait(1, within=WITHIN)
    eventually(lambda: subscription.stats().prefetched == 10, within=WITHIN)
    lanelog_client.publish("t", "b", b"x" * 600)
    with gate:
        assert started.wait(2, within=WITHIN) == ["a", "b"]
    eventually(lambda: watermark(raw, "g", "t", "a") == 10, within=WITHIN)
