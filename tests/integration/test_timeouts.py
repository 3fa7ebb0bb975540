"""Deliveries that outlive their time: given up, fenced, extended, or reported as slow."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tenacity import stop_after_attempt, wait_fixed

from lanelog import AckPolicy, AlreadySettled, Client, LeaseLost, Message, RetryPolicy
from support.elapsed import let_pass
from support.sql import delivery_rows, one, rows, watermark
from support.waiting import Record, events, eventually, never

QUICK = RetryPolicy(stop=stop_after_attempt(5), wait=wait_fixed(0.05))
FIXED = {"auto_extend": False, "visibility_timeout": 30.0, "retry": QUICK}
TOO_LONG = 40.0
"""More seconds than FIXED gives a delivery; they pass for those that run when the test says so, and for no other."""


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="lanelog")


class Sleeper:
    """A handler whose first attempt sleeps until it is told, and then tries to settle."""

    def __init__(self, settle: Callable[[Message], object] | None) -> None:
        self.settle = settle
        self.first = threading.Event()
        self.wake = threading.Event()
        self.second = threading.Event()
        self.outcome = Record()

    def __call__(self, message: Message) -> None:
        if message.attempt > 1:
            self.second.set()
            return
        self.first.set()
        assert self.wake.wait(30)
        if self.settle is None:
            self.outcome("returned")
            return
        try:
            self.settle(message)
        except BaseException as error:
            self.outcome(error)
            raise
        self.outcome("settled")


def in_transaction(message: Message) -> None:
    with message.transaction() as connection:
        connection.cursor().execute("INSERT INTO effects (who) VALUES ('the first attempt')")


@pytest.mark.parametrize(
    ("settle", "order"),
    [
        (Message.ack, "strict"),
        (Message.nack, "strict"),
        (lambda m: m.reject("late"), "strict"),
        (lambda m: m.postpone(1.0), "strict"),
        (lambda m: m.extend(5.0), "strict"),
        (in_transaction, "strict"),
        (Message.ack, "serial"),
        (in_transaction, "concurrent"),
    ],
    ids=["ack", "nack", "reject", "postpone", "extend", "transaction", "ack-serial", "transaction-concurrent"],
)
def test_a_superseded_attempt_can_settle_nothing(
    lanelog_client: Client, raw: Any, settle: Callable[[Message], object], order: str
) -> None:
    """The handler outsleeps its time-out: attempt 2 runs; whatever attempt 1 then tries raises LeaseLost."""
    rows(raw, "CREATE TABLE effects (who VARCHAR(40)) ENGINE=InnoDB")
    sleeper = Sleeper(settle)
    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe("t", "g", sleeper, order=order, **FIXED)
    try:
        assert sleeper.first.wait(10)
        let_pass(subscription, TOO_LONG)
        assert sleeper.second.wait(10), "attempt 2 did not run"
        eventually(lambda: watermark(raw, "g", "t", "k") == 1)
    finally:
        sleeper.wake.set()
    (outcome,) = sleeper.outcome.wait(1)
    assert isinstance(outcome, LeaseLost)
    assert one(raw, "SELECT COUNT(*) FROM effects") == 0
    stats = eventually(lambda: subscription.stats() if subscription.stats().refused else None)
    assert (stats.acked, stats.timed_out, stats.dead_lettered) == (1, 1, 0)
    assert delivery_rows(raw, "g", "t") == []


@pytest.mark.parametrize("settle", [Message.ack, in_transaction], ids=["ack", "transaction"])
def test_a_superseded_attempt_is_refused_while_the_second_runs(
    lanelog_client: Client, raw: Any, settle: Callable[[Message], object]
) -> None:
    """The zombie comes back in the middle of attempt 2, with the same epoch: memory refuses it."""
    rows(raw, "CREATE TABLE effects (who VARCHAR(40)) ENGINE=InnoDB")
    first, wake, second, finish = (threading.Event() for _ in range(4))
    outcome = Record()

    def handle(message: Message) -> None:
        if message.attempt == 1:
            first.set()
            assert wake.wait(30)
            try:
                settle(message)
            except LeaseLost as error:
                outcome(error)
                raise
        else:
            second.set()
            assert finish.wait(30)

    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe("t", "g", handle, **FIXED)
    try:
        assert first.wait(10)
        let_pass(subscription, TOO_LONG)
        assert second.wait(10)
        wake.set()
        outcome.wait(1)
        assert watermark(raw, "g", "t", "k") == 0
        assert one(raw, "SELECT COUNT(*) FROM effects") == 0
    finally:
        wake.set()
        finish.set()
    eventually(lambda: subscription.stats().acked == 1)


def test_a_transaction_entered_in_time_is_refused_at_its_end(lanelog_client: Client, raw: Any) -> None:
    """The block is rolled back: its effects are attempt 2's, once."""
    rows(raw, "CREATE TABLE effects (attempt INT) ENGINE=InnoDB")
    inside, wake, outcome = threading.Event(), threading.Event(), Record()

    def handle(message: Message) -> None:
        try:
            with message.transaction() as connection:
                connection.cursor().execute("INSERT INTO effects VALUES (%s)", (message.attempt,))
                if message.attempt == 1:
                    inside.set()
                    assert wake.wait(30)
        except LeaseLost as error:
            outcome(error)
            raise

    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe("t", "g", handle, **FIXED)
    try:
        assert inside.wait(10)
        let_pass(subscription, TOO_LONG)
        eventually(lambda: subscription.stats().acked == 1)
    finally:
        wake.set()
    outcome.wait(1)
    assert rows(raw, "SELECT attempt FROM effects") == [(2,)]


def test_a_late_return_is_refused_and_logged(
    lanelog_client: Client, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A superseded handler that simply returns changes nothing: one WARNING settlement.refused."""
    sleeper = Sleeper(None)
    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe("t", "g", sleeper, **FIXED)
    try:
        assert sleeper.first.wait(10)
        let_pass(subscription, TOO_LONG)
        assert sleeper.second.wait(10)
        eventually(lambda: subscription.stats().acked == 1)
    finally:
        sleeper.wake.set()
    (line,) = eventually(lambda: events(caplog, "settlement.refused", logging.WARNING))
    for part in ("topic=t", "key=k", "group=g", "offset=1", "attempt=1"):
        assert part in line
    eventually(lambda: subscription.stats().refused == 1)
    assert watermark(raw, "g", "t", "k") == 1


def test_timeouts_count_as_failures(lanelog_client: Client, raw: Any) -> None:
    """A handler that always outsleeps its time-out is dead-lettered after the policy's attempts."""
    release, attempts = threading.Event(), Record()

    def handle(message: Message) -> None:
        attempts(message.attempt)
        release.wait(30)

    lanelog_client.publish("t", "k", b"1")
    options = {**FIXED, "retry": RetryPolicy(stop=stop_after_attempt(2), wait=wait_fixed(0.05))}
    subscription = lanelog_client.subscribe("t", "g", handle, workers=1, **options)
    try:
        for number in (1, 2):
            attempts.wait(number)
            let_pass(subscription, TOO_LONG)
        eventually(lambda: subscription.stats().dead_lettered == 1)
        assert attempts.items == [1, 2]
        assert "timed out" in one(raw, "SELECT last_error FROM queue_messages WHERE topic = 't_dlq'")
        # Both abandoned threads were replaced: the only worker still works.
        lanelog_client.publish("t", "other", b"1")
        assert attempts.wait(3) == [1, 2, 1]
    finally:
        release.set()


def test_a_living_handler_is_extended_and_reported_once(
    lanelog_client: Client, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """auto_extend: several time-outs long, one WARNING handler.slow, no second attempt."""
    attempts, release = Record(), threading.Event()

    def handle(message: Message) -> None:
        attempts(message.attempt)
        assert release.wait(30)

    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe("t", "g", handle, visibility_timeout=0.3, retry=QUICK)
    try:
        eventually(lambda: events(caplog, "handler.slow", logging.WARNING))
        never(lambda: len(attempts) > 1, during=1.5, what="a second attempt")
    finally:
        release.set()
    eventually(lambda: watermark(raw, "g", "t", "k") == 1)
    assert len(events(caplog, "handler.slow")) == 1
    assert subscription.stats().timed_out == 0


def test_max_handler_time_gives_a_living_handler_up(lanelog_client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """Extension has an end: after max_handler_time the attempt is abandoned and the message delivered again."""
    attempts, release = Record(), threading.Event()

    def handle(message: Message) -> None:
        attempts(message.attempt)
        if message.attempt == 1:
            assert release.wait(30)

    lanelog_client.publish("t", "k", b"1")
    lanelog_client.subscribe("t", "g", handle, visibility_timeout=0.3, max_handler_time=0.9, retry=QUICK, workers=1)
    try:
        assert attempts.wait(2) == [1, 2]
        (line,) = events(caplog, "handler.abandoned", logging.WARNING)
        assert "attempt=1" in line
    finally:
        release.set()
    eventually(lambda: events(caplog, "settlement.refused", logging.WARNING))


def test_extend_keeps_a_delivery(lanelog_client: Client) -> None:
    """Without auto_extend, extend() moves the end of the delivery, and no second attempt runs meanwhile."""
    attempts, release = Record(), threading.Event()

    def handle(message: Message) -> None:
        message.extend(TOO_LONG + 20.0)
        attempts(message.attempt)
        assert release.wait(30)

    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe("t", "g", handle, **FIXED)
    try:
        attempts.wait(1)
        let_pass(subscription, TOO_LONG)
        never(lambda: len(attempts) > 1, during=1.2, what="a second attempt")
    finally:
        release.set()
    eventually(lambda: subscription.stats().acked == 1)
    assert subscription.stats().timed_out == 0


def test_extend_by_hand_is_not_cut_by_the_time_out(lanelog_client: Client) -> None:
    """With auto_extend, too: extend() past max_handler_time is the handler's own word for it."""
    attempts, release = Record(), threading.Event()

    def handle(message: Message) -> None:
        message.extend(TOO_LONG + 20.0)
        attempts(message.attempt)
        assert release.wait(30)

    lanelog_client.publish("t", "k", b"1")
    options = {"visibility_timeout": 20.0, "max_handler_time": 30.0, "retry": QUICK}
    subscription = lanelog_client.subscribe("t", "g", handle, **options)
    try:
        attempts.wait(1)
        let_pass(subscription, TOO_LONG)
        never(lambda: len(attempts) > 1, during=1.2, what="a second attempt")
    finally:
        release.set()
    eventually(lambda: subscription.stats().acked == 1)


def test_extend_after_settling_is_refused(lanelog_client: Client) -> None:
    """There is nothing left to extend."""
    raised = Record()

    def handle(message: Message) -> None:
        message.ack()
        try:
            message.extend(5.0)
        except AlreadySettled as error:
            raised(error)

    lanelog_client.publish("t", "k", b"1")
    lanelog_client.subscribe("t", "g", handle)
    raised.wait(1)


def test_a_manual_message_that_nobody_settles_comes_again(
    lanelog_client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """MANUAL: returning settles nothing; after visibility_timeout it is given up, and the late ack is refused."""
    taken = Record()
    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe("t", "g", taken, ack_policy=AckPolicy.MANUAL, **FIXED)
    taken.wait(1)
    eventually(lambda: subscription.memberships[0].detached, what="a handler that has returned")
    let_pass(subscription, TOO_LONG)
    first, second = taken.wait(2)
    assert (first.attempt, second.attempt) == (1, 2)
    with pytest.raises(LeaseLost):
        first.ack()
    second.ack()
    assert events(caplog, "delivery.given_up", logging.WARNING)


def test_a_slow_handler_does_not_repeat_its_neighbours(lanelog_client: Client) -> None:
    """A run of fast messages with one sleeper: only the sleeper is delivered again, the rest once, in order."""
    seen, release = Record(), threading.Event()

    def handle(message: Message) -> None:
        seen((message.offset, message.attempt))
        if message.offset == 150 and message.attempt == 1:
            assert release.wait(30)

    lanelog_client.publish_many("t", [("k", b"x")] * 300)
    subscription = lanelog_client.subscribe("t", "g", handle, **FIXED)
    try:
        seen.wait(150)
        let_pass(subscription, TOO_LONG)
        eventually(lambda: subscription.stats().acked == 300)
    finally:
        release.set()
    wanted = [(offset, 1) for offset in range(1, 301)]
    wanted.insert(150, (150, 2))
    assert seen.items == wanted
