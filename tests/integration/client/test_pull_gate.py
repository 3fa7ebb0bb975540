"""Pulling while a quarantined message has, or wants, the process to itself; nobody waits for the caller."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import tenacity

from lanelog import Client, LeaseLost, RetryPolicy
from lanelog._engine.lane.run import Attempt
from lanelog._engine.member.attempts import Attempts
from lanelog._engine.member.isolation import process_isolation
from support.sql import rows, watermark
from support.waiting import Record, eventually

WITHIN = 20.0


@pytest.mark.thorough
def test_a_caller_that_holds_messages_gets_others_before_a_quarantined_one(lanelog_client: Client, raw: Any) -> None:
    """A quarantined message lets others by while messages are unsettled, then it runs alone."""
    seen = Record()
    with lanelog_client.subscribe("t", "g", seen):
        lanelog_client.publish_many("t", [("quarantined", b"1"), ("a", b"1"), ("b", b"1")])
        seen.wait(3)
    lanelog_client.publish("t", "quarantined", b"2")
    lane = "consumer_group = 'g' AND partition_key = 'quarantined'"
    rows(raw, f"UPDATE queue_offsets SET marked_through = 2, marked_epoch = 77 WHERE {lane}")
    lease = "UPDATE queue_partition_leases SET leased_by = %s, lease_epoch = lease_epoch + 1 WHERE partition_key = %s"
    rows(raw, lease, "gone:1", "quarantined")  # nobody knows it: its lanes are left alone for a lease duration
    lanelog_client.publish("t", "a", b"2")
    policy = RetryPolicy(stop=tenacity.stop_after_attempt(2))
    with lanelog_client.deliveries("t", "g", timeout=WITHIN, retry=policy) as deliveries:
        first = next(deliveries)
        assert (first.key, first.offset) == ("a", 2)
        rows(raw, lease, "", "quarantined")
        eventually(lambda: deliveries.subscription.stats().running == 2, what="the quarantined message on its way")
        lanelog_client.publish("t", "b", b"2")
        second = next(deliveries)  # while the first one is held
        assert (second.key, second.offset) == ("b", 2)
        first.ack()
        second.ack()
        third = next(deliveries)
        assert (third.key, third.offset, third.attempt) == ("quarantined", 2, 2)
        third.ack()
    eventually(lambda: watermark(raw, "g", "t", "quarantined") == 2)


@pytest.mark.thorough
def test_pull_ends_in_time_while_a_quarantined_message_runs_alone(lanelog_client: Client, raw: Any) -> None:
    """The caller's time-out holds although the process's isolation is shut; the message comes with the next pull."""
    lanelog_client.publish("t", "a", b"1")
    deliveries = lanelog_client.deliveries("t", "g", timeout=0.5)
    subscription = deliveries.subscription.start()
    isolation, alone, leave = process_isolation(), threading.Event(), threading.Event()

    def quarantined() -> None:
        assert isolation.enter_alone(lambda: True)
        alone.set()
        leave.wait(WITHIN)
        isolation.leave()

    thread = threading.Thread(target=quarantined)
    thread.start()
    try:
        assert alone.wait(WITHIN)
        eventually(lambda: subscription.stats().running == 1)  # marked, on its way to whoever pulls
        assert subscription._core.pull(0.5) is None
    finally:
        leave.set()
        thread.join(WITHIN)
    message = subscription._core.pull(WITHIN)
    assert (message.offset, message.attempt) == (1, 1)
    message.ack()
    deliveries.close()
    assert watermark(raw, "g", "t", "a") == 1


def test_a_lane_lost_while_its_message_is_handed_over(lanelog_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is left inside the process's isolation, where a later quarantined message would wait for it for ever."""
    detach = Attempts.detach

    def too_late(self: Attempts, attempt: Attempt, leave: Callable[[], None]) -> bool:
        self.state.leasing.lose(attempt.term, "another owner has it")
        return detach(self, attempt, leave)

    lanelog_client.publish("t", "a", b"1")
    with lanelog_client.deliveries("t", "g", timeout=WITHIN) as deliveries:
        monkeypatch.setattr(Attempts, "detach", too_late)
        message = next(deliveries)
        monkeypatch.undo()
        with pytest.raises(LeaseLost):
            message.ack()
        until = time.monotonic() + WITHIN
        assert process_isolation().enter_alone(lambda: time.monotonic() < until)
        process_isolation().leave()
