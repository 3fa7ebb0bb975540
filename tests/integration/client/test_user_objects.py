"""The user's own objects are called outside of every lock: they may ask the subscription what it is doing."""

import logging
from collections.abc import Iterator
from decimal import Decimal, getcontext
from typing import Any

import pytest
import structlog
import tenacity

from lanelog import Client, Message, Outgoing, Reject, RetryPolicy, Subscription
from lanelog._engine.lane import policy
from lanelog.notices import Notice
from support.sql import rows, watermark
from support.stage import thorough
from support.waiting import Record, events, eventually, raising


@pytest.mark.parametrize("order", ["strict", *thorough("serial", "concurrent")])
def test_a_stop_object_may_ask_for_statistics_when_a_crashed_message_is_planned(
    lanelog_client: Client, raw: Any, order: str
) -> None:
    """A dead owner's message is delivered to the end although its policy looks at the subscription each time."""
    asked, again = Record(), Record()

    def stop(state: tenacity.RetryCallState) -> bool:
        asked(subscription.stats().lanes)
        return state.attempt_number >= 5

    def handle(message: Message) -> None:
        again((message.offset, message.attempt))
        if message.attempt < 4 and message.offset == 2:
            raise ValueError("not yet")

    leave_marks(lanelog_client, raw, 3, order)
    options = {"order": order, "retry": RetryPolicy(stop=stop, wait=tenacity.wait_fixed(0.05)), "max_deliveries": None}
    subscription = Subscription(lanelog_client._register("t", "g", handle, options))
    with subscription.start():
        eventually(lambda: watermark(raw, "g", "t", "a") == 3)
    assert [attempt for offset, attempt in again.items if offset == 2] == [2, 3, 4]
    assert len(asked) >= 3


def test_each_message_has_a_context_of_its_own(lanelog_client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """A value that a handler sets (a precision, a tenant) is gone with the next message, and with the next notice.

    The event of a failure has what its handler has bound.
    """
    handled, noticed = Record(), Record()

    def handle(message: Message) -> None:
        handled((message.id, Decimal(1) / 7, structlog.contextvars.get_contextvars()))
        getcontext().prec = 3
        structlog.contextvars.bind_contextvars(tenant=message.id)
        raise Reject("no")

    def notice(told: Notice) -> None:
        noticed((Decimal(1) / 7, structlog.contextvars.get_contextvars()))
        getcontext().prec = 3
        structlog.contextvars.bind_contextvars(tenant=told.key)

    lanelog_client.on("dead_lettered", notice)
    lanelog_client.publish_many("t", [Outgoing("k", b"x", id=name) for name in "ab"])
    with lanelog_client.subscribe("t", "g", handle, workers=1):
        noticed.until(lambda items: len(items) == 2)
    fresh = Decimal(1) / 7
    assert handled.items == [("a", fresh, {}), ("b", fresh, {})]
    assert noticed.items == [(fresh, {})] * 2
    failed = [record.__dict__["tenant"] for record in caplog.records if record.__dict__["event"] == "handler.failed"]
    assert failed == ["a", "b"]


class CuriousLog(logging.Handler):
    """A logging handler that looks at the statistics of a subscription."""

    def __init__(self) -> None:
        super().__init__()
        self.subscription: Subscription | None = None
        self.seen = Record()

    def emit(self, record: logging.LogRecord) -> None:
        if self.subscription is not None:
            self.subscription.stats()
            self.seen(record.getMessage().split(" ")[0])


@pytest.fixture
def curious_log() -> Iterator[CuriousLog]:
    handler = CuriousLog()
    logger = logging.getLogger("lanelog")
    logger.addHandler(handler)
    yield handler
    handler.subscription = None
    logger.removeHandler(handler)


def leave_marks(client: Client, raw: Any, through: int, order: str = "strict") -> None:
    """Three messages of key a, of which the first is acked; a process died with its mark on those up to `through`."""
    seen = Record()
    with client.subscribe("t", "g", seen, order=order):
        client.publish("t", "a", b"1")
        seen.wait(1)
    client.publish_many("t", [("a", b"2"), ("a", b"3")])
    rows(raw, "UPDATE queue_offsets SET marked_through = %s, marked_epoch = 77 WHERE consumer_group = 'g'", through)


@pytest.mark.parametrize("crashed", [False, True], ids=["failed", "crashed"])
def test_a_logging_handler_may_ask_for_statistics_about_a_dropped_message(
    lanelog_client: Client, raw: Any, curious_log: CuriousLog, *, crashed: bool
) -> None:
    """Without dead letters an exhausted message is an ERROR, logged once when no lock is held.

    Also when its last attempt was a dead owner's.
    """

    def handle(message: Message) -> None:
        if message.offset == 2:
            raise ValueError("never")

    leave_marks(lanelog_client, raw, 2 if crashed else 1)
    options = {"dead_letter_suffix": None, "retry": RetryPolicy(stop=tenacity.stop_after_attempt(1))}
    subscription = Subscription(lanelog_client._register("t", "g", handle, options))
    curious_log.subscription = subscription  # before anything is planned
    with subscription.start():
        eventually(lambda: "message.dropped" in curious_log.seen.items)
        eventually(lambda: watermark(raw, "g", "t", "a") == 3)
    assert curious_log.seen.items.count("message.dropped") == 1


class Untraceable(Exception):
    """An exception of an application that shows no traceback."""

    @property
    def __traceback__(self) -> Any:
        raise RuntimeError("no traceback")


class Rude(BaseException):
    """What a filter raises that knows no bounds."""


@pytest.mark.parametrize("broken", ["traceback", "filter", "rude filter"])
def test_what_breaks_beside_the_handler_is_a_failed_attempt(lanelog_client: Client, broken: str) -> None:
    """An exception without a traceback, and a logging filter that raises, cost the message its attempt alone."""
    handled, dead = Record(), Record()

    def handle(message: Message) -> None:
        handled(message.payload)
        if message.payload == b"bad":
            raise Untraceable if broken == "traceback" else ValueError

    def refuse(record: logging.LogRecord) -> bool:
        if broken != "traceback" and record.getMessage().startswith("handler.failed"):
            raise Rude if broken == "rude filter" else ValueError
        return True

    lanelog_client.on("dead_lettered", dead)
    lanelog_client.publish_many("t", [("k", b"bad"), ("k", b"good")])
    logging.getLogger("lanelog.worker").addFilter(refuse)
    try:
        once = RetryPolicy(stop=tenacity.stop_after_attempt(1))
        subscription = lanelog_client.subscribe("t", "g", handle, workers=1, retry=once)
        dead.wait(1)
        handled.until(lambda items: b"good" in items)
        assert subscription.stop(10)
        assert subscription.failure is None
    finally:
        logging.getLogger("lanelog.worker").removeFilter(refuse)


def test_a_fault_of_the_engine_ends_the_run(
    lanelog_client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another exception in a worker's thread ends the subscription without a time-out.

    The message has one attempt more, its lane is free, and the error says what failed.
    """
    monkeypatch.setattr(policy, "judge", raising(RuntimeError, "a fault"))
    fails = lanelog_client.subscriber("t", "g", workers=1, ack_policy="reject_on_error")
    lanelog_client.publish("t", "k", b"x")

    @fails
    def handle(_: Message) -> None:
        raise ValueError

    with pytest.raises(RuntimeError, match="a fault"):
        lanelog_client.run(drain_timeout=20)
    assert events(caplog, "handler.cut_off") == []
    assert rows(raw, "SELECT leased_by FROM queue_partition_leases") == [("",)]
    ((attempts, error),) = rows(raw, "SELECT retry_count, last_error FROM queue_delivery_state")
    assert attempts == 1
    assert error.startswith("RuntimeError: a fault")
