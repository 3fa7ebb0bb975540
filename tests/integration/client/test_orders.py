"""The three orders: what a key's messages wait for, on a real server."""

import threading
from typing import Any

import pytest
from tenacity import stop_after_attempt, wait_fixed

import lanelog
from lanelog import Client, Message, RetryPolicy
from support.situations import NOW
from support.sql import delivery_rows, one, rows, watermark
from support.turns import Turns
from support.waiting import Gate, Record, eventually

QUICK = RetryPolicy(stop=stop_after_attempt(5), wait=wait_fixed(0.05))
LONG = 3600.0
PATIENT = RetryPolicy(stop=stop_after_attempt(5), wait=wait_fixed(LONG))


def end_the_waits(raw: Any) -> None:
    """What waits for its time is due, for whoever has the lane next."""
    rows(raw, "UPDATE queue_delivery_state SET invisible_until = 1 WHERE acked = 0")


def runs(raw: Any, *, unacked: bool = True) -> list[tuple[int, int]]:
    """(first, last offset) of each delivery row; `unacked=False`: of the acked ones alone."""
    found = delivery_rows(raw, "g", "t")
    return [(row["message_offset"], row["through_offset"]) for row in found if unacked or row["acked"]]


def test_strict_holds_a_key_until_its_failing_message_is_through(lanelog_client: Client) -> None:
    """A message that fails twice holds its key; other keys go on; then its successors run in order, each once."""
    seen, through = Record(), threading.Event()

    def handle(message: Message) -> None:
        if message.key == "a" and message.offset == 2 and message.attempt == 2:
            assert through.wait(20)  # in vain, if b waited for it
        seen((message.key, message.offset, message.attempt))
        if message.key == "b" and message.offset == 5:
            through.set()
        if message.key == "a" and message.offset == 2 and message.attempt < 3:
            raise ValueError("not yet")

    lanelog_client.publish_many("t", [("a", b"x")] * 5)
    subscription = lanelog_client.subscribe("t", "g", handle, retry=QUICK)
    seen.wait(2)
    lanelog_client.publish_many("t", [("b", b"x")] * 5)
    items = seen.wait(12)
    eventually(lambda: subscription.stats().acked == 10)
    assert [(o, n) for key, o, n in items if key == "a"] == [(1, 1), (2, 1), (2, 2), (2, 3), (3, 1), (4, 1), (5, 1)]
    assert [(o, n) for key, o, n in items if key == "b"] == [(o, 1) for o in range(1, 6)]


def test_strict_holds_a_key_behind_a_failure_in_the_middle_of_a_run(lanelog_client: Client, raw: Any) -> None:
    """A run of fast handlers has many messages; a failure in one sends the rest back, and they keep attempt 1."""
    seen = Record()
    failing = {37, 120, 121, 250}

    def handle(message: Message) -> None:
        seen((message.offset, message.attempt))
        if message.offset in failing and message.attempt == 1:
            raise ValueError("once")

    lanelog_client.publish_many("t", [("a", b"x")] * 300)
    subscription = lanelog_client.subscribe("t", "g", handle, retry=QUICK)
    eventually(lambda: subscription.stats().acked == 300)
    wanted = [(offset, attempt) for offset in range(1, 301) for attempt in ([1, 2] if offset in failing else [1])]
    assert seen.items == wanted
    eventually(lambda: watermark(raw, "g", "t", "a") == 300)
    eventually(lambda: not delivery_rows(raw, "g", "t"))


def test_serial_lets_a_failing_message_step_aside(lanelog_client: Client, raw: Any) -> None:
    """While it waits its successors run, one at a time; it comes back when it is due."""
    seen = Record()
    inside = threading.Semaphore(1)
    together: list[int] = []

    def handle(message: Message) -> None:
        if not inside.acquire(blocking=False):
            together.append(message.offset)
        seen((message.offset, message.attempt))
        try:
            if message.offset == 2 and message.attempt < 3:
                raise ValueError("not yet")
        finally:
            inside.release()

    lanelog_client.publish_many("t", [("a", f"{n}") for n in range(1, 21)])
    for tried in range(1, 3):
        with lanelog_client.subscribe("t", "g", handle, order="serial", retry=PATIENT) as subscription:
            eventually(lambda tried=tried: len(seen) == 19 + tried and subscription.stats().waiting == 1)
        end_the_waits(raw)
    with lanelog_client.subscribe("t", "g", handle, order="serial", retry=PATIENT):
        eventually(lambda: watermark(raw, "g", "t", "a") == 20)
    assert seen.items == [*((offset, 1) for offset in range(1, 21)), (2, 2), (2, 3)]
    assert together == []


def test_concurrent_runs_up_to_its_bound_in_offset_order(
    lanelog_client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly lane_concurrency handlers of one key are inside at once, started in order, and acked in any order."""
    turns, started, gates = Turns(monkeypatch), Record(), {n: threading.Event() for n in range(1, 13)}

    def handle(message: Message) -> None:
        started(message.offset)
        assert gates[message.offset].wait(20)

    options = {"order": "concurrent", "lane_concurrency": 4, "workers": 8}
    subscription = lanelog_client.subscribe("t", "g", handle, **options)
    try:
        for n in range(1, 4):  # one by one: each starts at once
            lanelog_client.publish("t", "a", f"{n}")
            assert started.wait(n) == list(range(1, n + 1))
        lanelog_client.publish_many("t", [("a", f"{n}") for n in range(4, 13)])
        started.wait(4)
        turns.pass_by([subscription])
        assert started.items == [1, 2, 3, 4]
        gates[3].set()
        assert started.wait(5)[4] == 5
        gates[5].set()
        gates[2].set()
        assert sorted(started.wait(7)[5:]) == [6, 7]
        # 2, 3 and 5 are acked ahead of 1: two runs, in two rows; the watermark does not move
        eventually(lambda: runs(raw, unacked=False) == [(2, 3), (5, 5)])
        assert watermark(raw, "g", "t", "a") == 0
    finally:
        for gate in gates.values():
            gate.set()
    eventually(lambda: subscription.stats().acked == 12)
    eventually(lambda: watermark(raw, "g", "t", "a") == 12)
    eventually(lambda: not delivery_rows(raw, "g", "t"))


@pytest.mark.thorough
def test_ten_thousand_are_handled_behind_one_that_takes_long(lanelog_client: Client, raw: Any) -> None:
    """In concurrent order one long message stops nothing: the rest is handled, in bounded memory and few rows."""
    gate, bounds = Gate(), Record()

    def handle(message: Message) -> None:
        if message.offset == 1:
            gate()

    def others_are_acked() -> bool:
        bounds((subscription.stats().prefetched, one(raw, "SELECT COUNT(*) FROM queue_delivery_state")))
        return subscription.stats().acked == 10_000

    for _ in range(10):
        lanelog_client.publish_many("t", [("a", b"x" * 50)] * 1000)
    lanelog_client.publish("t", "a", b"last")
    subscription = lanelog_client.subscribe("t", "g", handle, order="concurrent", prefetch=500)
    with gate:
        gate.reached()
        eventually(others_are_acked, within=40)
        eventually(lambda: subscription.stats().prefetched == 1)
        assert max(prefetched for prefetched, _ in bounds.items) <= 500
        assert max(found for _, found in bounds.items) <= 30
        eventually(lambda: runs(raw) == [(2, 10_001)])
        assert watermark(raw, "g", "t", "a") == 0
    eventually(lambda: watermark(raw, "g", "t", "a") == 10_001)
    eventually(lambda: not delivery_rows(raw, "g", "t"))


@pytest.mark.parametrize("order", ["strict", "serial", "concurrent"])
def test_postpone_is_a_wait_and_no_failure(lanelog_client: Client, raw: Any, order: str) -> None:
    """A postponed message starts again as attempt 1; in strict order it holds its key, elsewhere it steps aside."""
    seen = Record()

    def handle(message: Message) -> None:
        seen((message.offset, message.attempt))
        turns = [o for o, _ in seen.items].count(message.offset)
        if message.offset == 2 and turns == 1:
            raise ValueError("a failure before it, to be forgotten")
        if message.offset == 2 and turns == 2:
            if order == "serial":
                message.postpone(LONG)
            else:
                raise lanelog.Postpone(LONG)

    lanelog_client.publish_many("t", [("a", f"{n}") for n in range(1, 6)])
    policy = RetryPolicy(stop=stop_after_attempt(2), wait=wait_fixed(0.05))
    with lanelog_client.subscribe("t", "g", handle, order=order, retry=policy) as subscription:
        eventually(lambda: subscription.stats().postponed == 1)
        eventually(lambda: subscription.stats().acked == (1 if order == "strict" else 4))
        (row,) = eventually(
            lambda: [r for r in delivery_rows(raw, "g", "t") if not r["acked"] and not r["lease_epoch"]]
        )
        assert (row["message_offset"], row["retry_count"], row["postponed"]) == (2, 0, 1)
    end_the_waits(raw)
    with lanelog_client.subscribe("t", "g", handle, order=order, retry=policy) as subscription:
        eventually(lambda: watermark(raw, "g", "t", "a") == 5)
        assert subscription.stats().dead_lettered == 0
    assert [n for o, n in seen.items if o == 2] == [1, 2, 1]
    if order == "strict":
        assert [o for o, _ in seen.items] == [1, 2, 2, 2, 3, 4, 5]
    else:
        assert seen.items[-1] == (2, 1)


@pytest.mark.thorough
@pytest.mark.parametrize("how", [lanelog.Postpone, lanelog.Retry])
def test_a_waiting_message_keeps_wait_and_order_with_the_next_owner(
    lanelog_client: Client, lanelog_url: str, raw: Any, how: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wait and order stand in the database: another process waits as long, and holds the key as long."""
    turns, first, second = Turns(monkeypatch), Record(), Record()

    def wait(message: Message) -> None:
        first((message.offset, message.attempt))
        raise how(LONG)

    lanelog_client.publish_many("t", [("a", b"x")] * 4)
    subscription = lanelog_client.subscribe("t", "g", wait)
    eventually(lambda: subscription.stats().waiting == 1)
    assert subscription.stop(20)
    with lanelog.connect(lanelog_url) as other:
        late = other.subscribe("t", "g", lambda m: second((m.offset, m.attempt)))
        eventually(lambda: late.stats().lanes == 1)
        turns.pass_by([late])
        assert (late.stats().waiting, second.items) == (1, [])
        assert late.stop(20)
        left = one(raw, f"SELECT invisible_until - {NOW} FROM queue_delivery_state")
        assert (LONG - 120) * 1000 < left <= LONG * 1000
        end_the_waits(raw)
        other.subscribe("t", "g", lambda m: second((m.offset, m.attempt)))
        assert second.wait(4) == [(1, 1 if how is lanelog.Postpone else 2), (2, 1), (3, 1), (4, 1)]
    assert first.items == [(1, 1)]
