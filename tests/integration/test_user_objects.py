"""The user's own objects are called outside of every lock: they may ask the subscription what it is doing."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import tenacity

from lanelog import Client, Message, RetryPolicy, Subscription
from support.sql import rows
from support.waiting import Record, eventually

WITHIN = 20.0


class Curious:
    """A stop object that looks at the statistics before it answers."""

    def __init__(self, attempts: int) -> None:
        self.attempts = attempts
        self.subscription: Subscription | None = None
        self.asked = Record()

    def __call__(self, state: tenacity.RetryCallState) -> bool:
        if self.subscription is not None:
            self.asked((state.attempt_number, self.subscription.stats().lanes))
        return state.attempt_number >= self.attempts


@pytest.mark.parametrize("order", ["strict", "serial", "concurrent"])
def test_a_stop_object_may_ask_for_statistics_when_a_crashed_message_is_planned(
    lanelog_client: Client, raw: Any, order: str
) -> None:
    """A dead owner's message is delivered to the end although its policy looks at the subscription each time."""
    seen = Record()
    with lanelog_client.subscribe("t", "g", seen, order=order):
        lanelog_client.publish("t", "a", b"1")
        seen.wait(1)
    lanelog_client.publish_many("t", [("a", b"2"), ("a", b"3"), ("b", b"1")])
    rows(raw, "UPDATE queue_offsets SET marked_through = 3, marked_epoch = 77 WHERE consumer_group = 'g'")
    stop, again = Curious(5), Record()

    def handle(message: Message) -> None:
        again((message.key, message.offset, message.attempt))
        if message.attempt < 4 and message.offset == 2:
            raise ValueError("not yet")

    subscription = lanelog_client.subscribe(
        "t",
        "g",
        handle,
        order=order,
        retry=RetryPolicy(stop=stop, wait=tenacity.wait_fixed(0.05)),
        max_deliveries=None,
    )
    stop.subscription = subscription
    eventually(lambda: subscription.stats().acked == 3, within=WITHIN)
    assert [item for item in again.items if item[:2] == ("a", 2)] == [("a", 2, number) for number in (2, 3, 4)]


class Handler(logging.Handler):
    """A logging handler that looks at the statistics of a subscription."""

    def __init__(self) -> None:
        super().__init__()
        self.subscription: Subscription | None = None
        self.seen = Record()

    def emit(self, record: logging.LogRecord) -> None:
        if self.subscription is not None:
            self.seen((record.getMessage().split(" ")[0], self.subscription.stats().handled))


@pytest.fixture
def curious_log() -> Iterator[Handler]:
    handler = Handler()
    logger = logging.getLogger("lanelog")
    logger.addHandler(handler)
    yield handler
    handler.subscription = None
    logger.removeHandler(handler)


def test_a_logging_handler_may_ask_for_statistics_about_a_dropped_message(
    lanelog_client: Client, curious_log: Handler
) -> None:
    """Without dead letters an exhausted message is an ERROR in the log, once, told when no lock is held."""

    def handle(message: Message) -> None:
        if message.offset == 1:
            raise ValueError("never")

    subscription = lanelog_client.subscribe(
        "t", "g", handle, dead_letter_suffix=None, retry=RetryPolicy(stop=tenacity.stop_after_attempt(1))
    )
    curious_log.subscription = subscription
    lanelog_client.publish_many("t", [("a", b"1"), ("a", b"2")])
    dropped = curious_log.seen.until(
        lambda items: [name for name, _ in items if name == "message.dropped"], within=WITHIN, what="the event"
    )
    eventually(lambda: subscription.stats().handled == 2, within=WITHIN)
    assert [name for name, _ in dropped].count("message.dropped") == 1


def test_a_logging_handler_may_ask_for_statistics_about_a_crashed_message_that_is_dropped(
    lanelog_client: Client, raw: Any, curious_log: Handler
) -> None:
    """The same when the last attempt was a dead owner's."""
    seen = Record()
    with lanelog_client.subscribe("t", "g", seen):
        lanelog_client.publish("t", "a", b"1")
        seen.wait(1)
    lanelog_client.publish_many("t", [("a", b"2"), ("a", b"3")])
    rows(raw, "UPDATE queue_offsets SET marked_through = 2, marked_epoch = 77 WHERE consumer_group = 'g'")
    options: dict[str, Any] = {"dead_letter_suffix": None, "retry": RetryPolicy(stop=tenacity.stop_after_attempt(1))}
    with curious_subscription(lanelog_client, curious_log, seen, options) as subscription:
        curious_log.seen.until(lambda items: [name for name, _ in items if name == "message.dropped"], within=WITHIN)
        eventually(lambda: subscription.stats().acked >= 1, within=WITHIN)


def curious_subscription(client: Client, log: Handler, handler: Any, options: dict[str, Any]) -> Subscription:
    """A subscription that the log knows before anything is planned."""
    subscription = client._register("t", "g", handler, options)
    log.subscription = subscription
    return subscription.start()
