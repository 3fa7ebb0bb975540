"""What waits in memory is bounded by count and by bytes, and neither starves anybody."""

import threading
from typing import Any

import pytest

from lanelog import Client, Message
from support.sql import watermark
from support.waiting import Gate, Record, eventually

THOROUGH = pytest.mark.thorough


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("keys", "order"),
    [
        (60, "strict"),
        *(pytest.param(*each, marks=THOROUGH) for each in ((1, "strict"), (1, "concurrent"), (60, "concurrent"))),
    ],
)
def test_large_payloads_stay_within_the_bytes(lanelog_client: Client, order: str, keys: int) -> None:
    """60 messages of 900 KB with 4 MB of room: all handled, in order, and never more than 4 MB in memory."""
    bound = 4 * 1024 * 1024
    payload = b"x" * 900_000
    for n in range(0, 60, 5):
        lanelog_client.publish_many("t", [(f"k{m % keys}", payload) for m in range(n, n + 5)])
    seen, stats, ready = Record(), Record(), threading.Event()

    def handle(message: Message) -> None:
        assert ready.wait(20)
        stats(subscription.stats())
        seen((message.key, message.offset, len(message.payload)))

    subscription = lanelog_client.subscribe("t", "g", handle, order=order, prefetch_bytes=bound)
    ready.set()
    eventually(lambda: subscription.stats().acked == 60, within=40)
    assert max(each.prefetched_bytes for each in stats.items) <= bound
    assert {size for _, _, size in seen.items} == {900_000}
    for key in {key for key, _, _ in seen.items}:
        offsets = [offset for k, offset, _ in seen.items if k == key]
        assert sorted(offsets) == list(range(1, 60 // keys + 1))
        assert order != "strict" or offsets == sorted(offsets)
    assert subscription.stats().prefetched_bytes == 0


def test_a_payload_larger_than_the_bound_comes_through_and_again(lanelog_client: Client) -> None:
    """The payload is read when nothing else is in memory, also for a retry; earlier and later messages come, too."""
    seen, sizes = Record(), (10, 50_000, 10, 60_000, 10)

    def handle(message: Message) -> None:
        seen((message.key, message.attempt, len(message.payload)))
        if message.attempt == 1 and message.offset == 2:
            message.nack(delay=0.01)

    lanelog_client.publish_many("t", [(key, b"x" * size) for key in ("a", "b") for size in sizes])
    subscription = lanelog_client.subscribe("t", "g", handle, prefetch_bytes=20_000)
    eventually(lambda: subscription.stats().acked == 10)
    for key in ("a", "b"):
        got = [(attempt, size) for k, attempt, size in seen.items if k == key]
        assert got == [(1, 10), (1, 50_000), (2, 50_000), (1, 10), (1, 60_000), (1, 10)]
    assert subscription.stats().prefetched_bytes == 0


@pytest.mark.thorough
def test_prefetch_bounds_the_count(lanelog_client: Client) -> None:
    """With any backlog, no more than `prefetch` messages wait in memory; every one is handled."""
    lanelog_client.publish_many("t", [(f"k{n % 7}", b"x") for n in range(2000)])
    stats, ready = Record(), threading.Event()

    def handle(message: Message) -> None:
        assert ready.wait(20)
        stats(subscription.stats())

    subscription = lanelog_client.subscribe("t", "g", handle, prefetch=20, workers=2)
    ready.set()
    eventually(lambda: subscription.stats().acked == 2000, within=40)
    assert max(each.prefetched for each in stats.items) <= 20


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("order", "slow"),
    [
        *(("strict", 5), ("concurrent", 1)),
        *(pytest.param(*each, marks=THOROUGH) for each in (("strict", 1), ("serial", 5))),
    ],
)
def test_slow_keys_starve_nobody(lanelog_client: Client, raw: Any, order: str, slow: int) -> None:
    """Handlers hang on keys with a long backlog, with little room: other keys are handled meanwhile."""
    gate, seen = Gate(), Record()

    def handle(message: Message) -> None:
        if message.key.startswith("slow"):
            gate()
        else:
            seen(message.key)

    lanelog_client.publish_many("t", [(f"slow-{n % slow}", b"x") for n in range(100)])
    # concurrent: the slow key may have as many handlers as it is allowed, and there are more workers than that
    options: dict[str, Any] = {"lane_concurrency": 2} if order == "concurrent" else {}
    subscription = lanelog_client.subscribe(
        "t", "g", handle, order=order, prefetch=10, workers=8 if slow > 1 else 4, **options
    )
    with gate:
        gate.reached(slow)
        lanelog_client.publish_many("t", [(f"fast-{n % 5}", b"x") for n in range(500)])
        assert len(seen.wait(500, within=30)) == 500
        assert len(gate.inside) == (2 if order == "concurrent" else slow)
    eventually(lambda: subscription.stats().acked == 600, within=20)
    eventually(lambda: watermark(raw, "g", "t", "slow-0") == 100 / slow)


@pytest.mark.parametrize("order", ["strict", pytest.param("serial", marks=THOROUGH)])
def test_many_waiting_keys_starve_nobody(lanelog_client: Client, order: str) -> None:
    """Keys whose messages wait for a far retry hold no room that others need."""
    seen = Record()

    def handle(message: Message) -> None:
        if message.key.startswith("bad"):
            message.nack(delay=3600)
        else:
            seen((message.key, message.offset))

    lanelog_client.publish_many("t", [(f"bad-{n}", b"x") for n in range(30) for _ in range(3)])
    subscription = lanelog_client.subscribe("t", "g", handle, order=order, prefetch=10, workers=4)
    expected = 30 if order == "strict" else 90
    eventually(lambda: subscription.stats().retried == expected)
    lanelog_client.publish_many("t", [(f"good-{n % 3}", b"x") for n in range(300)])
    assert len(seen.wait(300)) == 300
    assert subscription.stats().prefetched <= 10
