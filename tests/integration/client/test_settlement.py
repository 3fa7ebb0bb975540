"""Explicit settlement, control flow, ack policies, retry policies and middleware."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tenacity import stop_after_attempt, wait_fixed

import lanelog
from lanelog import AckPolicy, AlreadySettled, Client, Message, RetryPolicy
from support.sql import delivery_rows, one, rows, watermark
from support.waiting import Record, events, eventually, raising

pytestmark = pytest.mark.usefixtures("logged")

QUICK = RetryPolicy(stop=stop_after_attempt(3), wait=wait_fixed(0.05))


HOUR = 3600.0
SETTLED: dict[str, Callable[[Message], object]] = {
    "ack": Message.ack,
    "nack": lambda m: m.nack(delay=HOUR, reason="busy"),
    "postpone": lambda m: m.postpone(HOUR),
    "reject": lambda m: m.reject("bad"),
}


@pytest.mark.parametrize("how", SETTLED)
def test_a_settlement_is_committed_when_it_returns_and_final(lanelog_client: Client, raw: Any, how: str) -> None:
    """A look into the tables finds it at once; settling again, in whatever way, or extending it raises."""
    seen = Record()

    def handle(message: Message) -> None:
        SETTLED[how](message)
        letter = one(raw, "SELECT last_error FROM queue_messages WHERE topic = 't_dlq'")
        found = watermark(raw, "g", "t", "k"), delivery_rows(raw, "g", "t"), letter
        for again in SETTLED.values():
            with pytest.raises(AlreadySettled):
                again(message)
        with pytest.raises(AlreadySettled):
            message.extend(5.0)
        seen(found)

    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe("t", "g", handle, retry=QUICK)
    ((acked, waiting, letter),) = seen.wait(1)
    if how == "ack":
        assert (acked, waiting) == (1, [])
    elif how == "reject":
        assert letter == "bad"
        eventually(lambda: watermark(raw, "g", "t", "k") == 1)
    else:
        (row,) = waiting
        assert (acked, row["message_offset"], row["acked"], row["lease_epoch"]) == (0, 1, 0, 0)
        counted = row["retry_count"], row["postponed"], row["last_error"] or ""
        assert counted == ((1, 0, "busy") if how == "nack" else (0, 1, ""))
    stats = subscription.stats()
    assert [stats.acked, stats.retried, stats.postponed, stats.dead_lettered] == [int(how == name) for name in SETTLED]


@pytest.mark.parametrize("how", ["ack", "transaction"])
def test_settling_and_then_raising_keeps_the_settlement(
    lanelog_client: Client, raw: Any, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """The ack stands, the exception is logged with its traceback, and the next message runs."""

    def handle(message: Message) -> None:
        if how == "ack":
            message.ack()
        else:
            with message.transaction() as connection:
                rows(connection, "SELECT 1")
        raise ValueError("after the ack")

    lanelog_client.publish_many("t", [("k", b"1")] * 2)
    subscription = lanelog_client.subscribe("t", "g", handle, retry=QUICK)
    eventually(lambda: subscription.stats().acked == 2)
    eventually(lambda: len(events(caplog, "handler.raised_after_settling", logging.WARNING)) == 2)
    assert any(r.exc_info and "after the ack" in str(r.exc_info[1]) for r in caplog.records)
    eventually(lambda: watermark(raw, "g", "t", "k") == 2)
    assert subscription.stats().retried == 0


def test_control_flow_exceptions(lanelog_client: Client, raw: Any) -> None:
    """Reject dead-letters at once, Retry counts and waits its own delay, Postpone does not count."""
    seen = Record()

    def handle(message: Message) -> None:
        seen((message.key, message.attempt))
        turn = seen.items.count((message.key, message.attempt))
        if message.key == "reject":
            raise lanelog.Reject("bad input")
        if message.key == "retry" and message.attempt < 3:
            raise lanelog.Retry(delay=0.01)
        if message.key == "postpone" and turn < 3:
            raise lanelog.Postpone(0.01)

    lanelog_client.publish_many("t", [(key, b"1") for key in ("reject", "retry", "postpone")])
    endless = RetryPolicy(stop=stop_after_attempt(5), wait=wait_fixed(600))
    subscription = lanelog_client.subscribe("t", "g", handle, retry=endless)
    eventually(lambda: (subscription.stats().acked, subscription.stats().dead_lettered) == (2, 1))
    items = seen.items
    assert [n for k, n in items if k == "reject"] == [1]
    assert [n for k, n in items if k == "retry"] == [1, 2, 3]
    assert [n for k, n in items if k == "postpone"] == [1, 1, 1]
    assert one(raw, "SELECT last_error FROM queue_messages WHERE topic = 't_dlq'") == "bad input"


@pytest.mark.parametrize(
    ("policy", "outcomes"),
    [
        (AckPolicy.NACK_ON_ERROR, (1, 2, 1)),  # acked, retried, dead-lettered
        (AckPolicy.REJECT_ON_ERROR, (1, 0, 1)),
        (AckPolicy.ACK, (2, 0, 0)),
        (AckPolicy.ACK_FIRST, (2, 0, 0)),
    ],
    ids=lambda value: value.name if isinstance(value, AckPolicy) else "",
)
def test_ack_policies_decide_about_errors(
    lanelog_client: Client, raw: Any, policy: AckPolicy, outcomes: tuple[int, int, int]
) -> None:
    """One good and one failing message under each policy."""
    seen = Record()

    def handle(message: Message) -> None:
        seen(message.payload)
        if message.payload == b"bad":
            raise ValueError("bad")

    lanelog_client.publish_many("t", [("k", b"bad"), ("l", b"good")])
    options: Any = {"retry": QUICK} if policy is AckPolicy.NACK_ON_ERROR else {}  # no other policy asks it
    subscription = lanelog_client.subscribe("t", "g", handle, ack_policy=policy, **options)

    def counts() -> tuple[int, int, int]:
        stats = subscription.stats()
        return stats.acked, stats.retried, stats.dead_lettered

    eventually(lambda: counts() == outcomes)
    assert seen.wait(2 + outcomes[1]).count(b"bad") == 1 + outcomes[1]
    eventually(lambda: watermark(raw, "g", "t", "k") == watermark(raw, "g", "t", "l") == 1)


def test_ack_first_is_committed_before_the_handler(lanelog_client: Client, raw: Any) -> None:
    """At most once: when the handler starts, the watermark has passed its message; settling again is refused."""
    seen = Record()

    def handle(message: Message) -> None:
        passed = watermark(raw, "g", "t", "k") >= message.offset
        message.extend(5.0)
        with pytest.raises(AlreadySettled):
            message.nack()
        with pytest.raises(AlreadySettled), message.transaction():
            pass
        seen((message.offset, passed))

    lanelog_client.publish_many("t", [("k", b"1")] * 5)
    subscription = lanelog_client.subscribe("t", "g", handle, ack_policy=AckPolicy.ACK_FIRST)
    assert seen.wait(5) == [(n, True) for n in range(1, 6)]
    stats = eventually(lambda: s if (s := subscription.stats()).acked == s.handled == 5 else None)
    assert (stats.retried, stats.running) == (0, 0)
    assert delivery_rows(raw, "g", "t") == []


def test_manual_is_settled_by_hand_only(lanelog_client: Client, raw: Any) -> None:
    """Returning settles nothing, in strict order the key waits; other threads settle, and the rest follows."""
    taken = Record()
    lanelog_client.publish_many("t", [("k", b"1")] * 3)
    subscription = lanelog_client.subscribe("t", "g", taken, ack_policy=AckPolicy.MANUAL, retry=QUICK)
    (message,) = taken.wait(1)
    assert watermark(raw, "g", "t", "k") == 0
    message.ack()
    assert watermark(raw, "g", "t", "k") == 1
    message = taken.wait(2)[1]
    message.nack(delay=0.01)
    message = taken.wait(3)[2]
    assert (message.offset, message.attempt) == (2, 2)
    message.reject("by hand")
    taken.wait(4)[3].ack()
    stats = subscription.stats()
    assert (stats.acked, stats.retried, stats.dead_lettered) == (2, 1, 1)
    assert watermark(raw, "g", "t", "k") == 3


def test_manual_raising_before_settling_settles_nothing(
    lanelog_client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception of a MANUAL handler is logged; the message stays the user's until its time-out."""
    taken = Record()

    def handle(message: Message) -> None:
        taken(message)
        raise ValueError("mine")

    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe("t", "g", handle, ack_policy=AckPolicy.MANUAL)
    (message,) = taken.wait(1)
    eventually(lambda: events(caplog, "handler.failed", logging.WARNING))
    message.ack()
    assert subscription.stats().acked == 1


def test_middleware_wraps_the_handler_first_one_outermost(lanelog_client: Client) -> None:
    """Each layer sees the message, what the inner one raised, and may turn an error into success."""
    seen = Record()

    def outer(message: Message, call_next: Callable[[Message], object]) -> object:
        seen("outer in")
        try:
            return call_next(message)
        except KeyError:
            seen("outer caught")
            return None

    def inner(message: Message, call_next: Callable[[Message], object]) -> object:
        seen("inner in")
        try:
            return call_next(message)
        finally:
            seen("inner out")

    def handle(message: Message) -> None:
        seen("handler")
        raise KeyError("x")

    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe("t", "g", handle, middleware=(outer, inner))
    eventually(lambda: subscription.stats().acked == 1)
    assert seen.items == ["outer in", "inner in", "handler", "inner out", "outer caught"]
    assert subscription.stats().retried == 0


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_base_exception_is_a_failure_like_any_other(lanelog_client: Client, error: type[BaseException]) -> None:
    """sys.exit() in a handler neither ends the worker nor acks the message."""
    seen = Record()

    def handle(message: Message) -> None:
        seen((message.offset, message.attempt, threading.current_thread().name))
        if message.attempt == 1:
            raise error

    lanelog_client.publish_many("t", [("k", b"1")] * 2)
    subscription = lanelog_client.subscribe("t", "g", handle, retry=QUICK, workers=1)
    eventually(lambda: subscription.stats().acked == 2)
    assert [(o, n) for o, n, _ in seen.items] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert len({name for _, _, name in seen.items}) == 1


@pytest.mark.thorough
def test_an_error_text_that_no_column_holds_is_stored_all_the_same(lanelog_client: Client, raw: Any) -> None:
    """Lone surrogates, four-byte characters and a megabyte of text must not prevent the settlement."""
    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe(
        "t", "g", raising(ValueError, "\ud800 \U0001f600 " + "x" * 1_000_000), retry=QUICK
    )
    eventually(lambda: subscription.stats().dead_lettered == 1)
    text = one(raw, "SELECT last_error FROM queue_messages WHERE topic = 't_dlq'")
    assert "\\ud800" in text
    assert "\U0001f600" in text
