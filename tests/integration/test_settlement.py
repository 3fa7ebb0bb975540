"""Explicit settlement, control flow, ack policies, retry policies and middleware."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tenacity import stop_after_attempt, wait_fixed

import lanelog
from lanelog import AckPolicy, AlreadySettled, Client, Message, RetryPolicy
from support.sql import delivery_rows, one, watermark
from support.waiting import Record, events, eventually

QUICK = RetryPolicy(stop=stop_after_attempt(3), wait=wait_fixed(0.05))


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="lanelog")


def looking(raw: Any, settle: Callable[[Message], object], seen: Record) -> Callable[[Message], None]:
    """A handler that settles and then looks into the tables at once."""

    def handle(message: Message) -> None:
        if message.attempt == 1 and not seen.items:
            settle(message)
            seen((watermark(raw, "g", "t", "k"), delivery_rows(raw, "g", "t")))

    return handle


def test_ack_returns_when_it_is_committed(lanelog_client: Client, raw: Any) -> None:
    """Right after ack() the watermark stands in the database."""
    seen = Record()
    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe("t", "g", looking(raw, Message.ack, seen))
    assert seen.wait(1) == [(1, [])]
    assert subscription.stats().acked == 1


def test_nack_returns_when_it_is_committed(lanelog_client: Client, raw: Any) -> None:
    """Right after nack() the attempt is counted, the wait is the given one, and the reason is kept."""
    seen = Record()
    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe(
        "t", "g", looking(raw, lambda m: m.nack(delay=0.3, reason="busy"), seen), retry=QUICK
    )
    ((acked, (row,)),) = seen.wait(1)
    assert acked == 0
    assert (row["message_offset"], row["acked"], row["retry_count"], row["lease_epoch"]) == (1, 0, 1, 0)
    assert row["last_error"] == "busy"
    eventually(lambda: subscription.stats().acked == 1)


def test_reject_returns_when_the_dead_letter_is_committed(lanelog_client: Client, raw: Any) -> None:
    """Right after reject() the message stands among the dead letters."""
    seen = Record()

    def handle(message: Message) -> None:
        message.reject("bad")
        seen(one(raw, "SELECT last_error FROM queue_messages WHERE topic = 't_dlq'"))

    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe("t", "g", handle)
    assert seen.wait(1) == ["bad"]
    eventually(lambda: watermark(raw, "g", "t", "k") == 1)
    assert subscription.stats().dead_lettered == 1


def test_postpone_returns_when_it_is_committed(lanelog_client: Client, raw: Any) -> None:
    """Right after postpone() its row says so."""
    seen = Record()
    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe("t", "g", looking(raw, lambda m: m.postpone(0.2), seen))
    ((acked, (row,)),) = seen.wait(1)
    assert (acked, row["retry_count"], row["postponed"], row["acked"]) == (0, 0, 1, 0)
    eventually(lambda: subscription.stats().acked == 1)


@pytest.mark.parametrize("first", ["ack", "nack", "reject", "postpone"])
def test_settling_twice_raises(lanelog_client: Client, first: str) -> None:
    """Whatever came first, everything after it raises AlreadySettled and changes nothing."""
    ways: dict[str, Callable[[Message], object]] = {
        "ack": Message.ack,
        "nack": lambda m: m.nack(delay=30),
        "reject": lambda m: m.reject("no"),
        "postpone": lambda m: m.postpone(30),
    }
    outcome = Record()

    def handle(message: Message) -> None:
        ways[first](message)
        for way in ways.values():
            try:
                way(message)
            except AlreadySettled as error:
                outcome(error)

    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe("t", "g", handle)
    outcome.wait(4)
    stats = subscription.stats()
    counted = (stats.acked, stats.retried, stats.dead_lettered, stats.postponed)
    assert counted == tuple(int(first == name) for name in ("ack", "nack", "reject", "postpone"))


def test_settling_and_then_raising_keeps_the_settlement(
    lanelog_client: Client, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The ack stands, the exception is logged with its traceback, and the next message runs."""

    def handle(message: Message) -> None:
        message.ack()
        raise ValueError("after the ack")

    lanelog_client.publish_many("t", [("k", b"1")] * 2)
    subscription = lanelog_client.subscribe("t", "g", handle, retry=QUICK)
    eventually(lambda: subscription.stats().acked == 2)
    eventually(lambda: len(events(caplog, "handler.raised_after_settling", logging.WARNING)) == 2)
    assert any(r.exc_info and "after the ack" in str(r.exc_info[1]) for r in caplog.records)
    assert watermark(raw, "g", "t", "k") == 2
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


def test_a_retry_beyond_the_policy_is_dead_lettered(lanelog_client: Client) -> None:
    """An explicit delay replaces only the wait: the policy's stop still holds."""
    attempts = Record()

    def handle(message: Message) -> None:
        attempts(message.attempt)
        if message.attempt == 2:
            message.nack(delay=0.01)
        else:
            raise lanelog.Retry(delay=0.01)

    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe("t", "g", handle, retry=QUICK)
    eventually(lambda: subscription.stats().dead_lettered == 1)
    assert attempts.items == [1, 2, 3]


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
    subscription = lanelog_client.subscribe("t", "g", handle, ack_policy=policy, retry=QUICK)

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
        try:
            message.nack()
        except AlreadySettled:
            seen((message.offset, passed))
        with message.transaction():
            pass

    lanelog_client.publish_many("t", [("k", b"1")] * 5)
    subscription = lanelog_client.subscribe("t", "g", handle, ack_policy=AckPolicy.ACK_FIRST)
    assert seen.wait(5) == [(n, True) for n in range(1, 6)]
    stats = eventually(lambda: subscription.stats() if subscription.stats().acked == 5 else None)
    assert (stats.handled, stats.retried, stats.running) == (5, 0, 0)
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
    """What a MANUAL handler raises is logged; the message stays the user's until its time-out."""
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


def test_arguments_of_settlements_are_checked_before_anything(lanelog_client: Client) -> None:
    """A wrong delay or reason is a ConfigurationError and leaves the message unsettled."""
    refused = Record()

    def handle(message: Message) -> None:
        for wrong in (
            lambda: message.nack(delay=-1),
            lambda: message.nack(delay=float("nan")),
            lambda: message.postpone(float("inf")),
            lambda: message.reject(7),  # type: ignore[arg-type]
            lambda: message.extend(0),
        ):
            try:
                wrong()
            except lanelog.ConfigurationError as error:
                refused(error)

    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe("t", "g", handle)
    eventually(lambda: subscription.stats().acked == 1)
    assert len(refused) == 5


def test_an_error_text_that_no_column_holds_is_stored_all_the_same(lanelog_client: Client, raw: Any) -> None:
    """Lone surrogates, four-byte characters and a megabyte of text must not prevent the settlement."""

    def fail(message: Message) -> None:
        raise ValueError("\ud800 \U0001f600 " + "x" * 1_000_000)

    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe("t", "g", fail, retry=QUICK)
    eventually(lambda: subscription.stats().dead_lettered == 1)
    text = one(raw, "SELECT last_error FROM queue_messages WHERE topic = 't_dlq'")
    assert "\\ud800" in text
    assert "\U0001f600" in text
