"""Retry policies made of tenacity's own objects, asked about attempts that the database remembers."""

import logging
from typing import Any

import pytest
from tenacity import (
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_chain,
    wait_fixed,
    wait_incrementing,
)

import lanelog
from lanelog import Client, Message, RetryPolicy
from support.sql import one, rows
from support.waiting import Record, events, eventually, raising


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("policy", "attempts"),
    [
        (RetryPolicy(stop=stop_after_attempt(4), wait=wait_fixed(0.01)), 4),
        (RetryPolicy(stop=stop_after_attempt(9) | stop_after_attempt(2), wait=wait_fixed(0.01)), 2),
        (RetryPolicy(stop=stop_after_attempt(3), wait=wait_fixed(0.01) + wait_incrementing(0, 0.01)), 3),
        (RetryPolicy(stop=stop_after_attempt(9), retry=retry_if_exception_type(KeyError)), 1),
        (RetryPolicy(stop=stop_after_attempt(1)), 1),
    ],
    ids=["attempts", "or", "sum of waits", "not this exception", "once"],
)
def test_tenacitys_objects_decide(lanelog_client: Client, raw: Any, policy: RetryPolicy, attempts: int) -> None:
    """stop, wait and retry objects and their combinations, as tenacity means them."""
    seen = Record()

    def fail(message: Message) -> None:
        seen(message.attempt)
        raise ValueError("no")

    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe("t", "g", fail, retry=policy)
    eventually(lambda: subscription.stats().dead_lettered == 1)
    assert seen.items == list(range(1, attempts + 1))
    assert one(raw, "SELECT failure_count FROM queue_messages WHERE topic = 't_dlq'") == attempts


def test_stop_after_delay_counts_from_the_first_attempt(lanelog_client: Client, lanelog_url: str, raw: Any) -> None:
    """The time since the first attempt comes from the row, so that it survives a change of owner."""
    seen = Record()

    def fail(message: Message) -> None:
        seen(message.attempt)
        raise ValueError("no")

    policy = RetryPolicy(stop=stop_after_delay(3600), wait=wait_chain(wait_fixed(0.01), wait_fixed(7200)))
    lanelog_client.publish("t", "k", b"1")
    first = lanelog_client.subscribe("t", "g", fail, retry=policy)
    eventually(lambda: first.stats().retried == 2)
    assert first.stop(10)
    assert first.stats().dead_lettered == 0
    # An hour passes: the wait is over, and the first attempt as long ago.
    hour = "invisible_until = 1, first_attempt_at = first_attempt_at - 3600000"
    rows(raw, f"UPDATE queue_delivery_state SET {hour} WHERE consumer_group = 'g' AND topic = 't'")
    with lanelog.connect(lanelog_url) as other:
        second = other.subscribe("t", "g", fail, retry=policy)
        eventually(lambda: second.stats().dead_lettered == 1)
    # A second owner that began anew would wait two hours for a fourth attempt.
    assert seen.items == [1, 2, 3]


@pytest.mark.thorough
def test_a_policy_that_fails_itself_loses_nothing(lanelog_client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """An application's own wait that raises is an ERROR; the message is tried again all the same."""

    def handle(message: Message) -> None:
        if message.attempt == 1:
            raise ValueError("no")

    lanelog_client.publish("t", "k", b"1")
    policy = RetryPolicy(stop=stop_after_attempt(3), wait=raising(RuntimeError, "the wait itself"))
    subscription = lanelog_client.subscribe("t", "g", handle, retry=policy)
    eventually(lambda: subscription.stats().acked == 1)
    assert events(caplog, "retry_policy.failed", logging.ERROR)


@pytest.mark.thorough
def test_a_wait_is_never_longer_than_was_asked_for(lanelog_client: Client, raw: Any) -> None:
    """The database's clock was an hour ahead when the attempt failed, and is right again at the next owner's."""
    seen = Record()

    def fail(message: Message) -> None:
        seen(message.attempt)
        if message.attempt == 1:
            message.nack(delay=2)

    lanelog_client.publish("t", "k", b"1", id="m")
    first = lanelog_client.subscribe("t", "g", fail)
    eventually(lambda: first.stats().retried == 1)
    assert first.stop(10)
    columns = ("invisible_until", "first_attempt_at", "last_attempt_at")
    rows(raw, f"UPDATE queue_delivery_state SET {', '.join(f'{name} = {name} + 3600000' for name in columns)}")
    (state,) = lanelog_client.admin.message("t", "k", id="m").states
    assert state.next_attempt_in is not None
    assert 0 < state.next_attempt_in <= 2
    lanelog_client.subscribe("t", "g", fail)
    assert seen.wait(2) == [1, 2]
