"""Deliveries that outlive their time: given up, fenced, extended, or reported as slow."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from tenacity import stop_after_attempt, wait_fixed

from lanelog import AckPolicy, Client, LeaseLost, Message, RetryPolicy, Subscription
from support.elapsed import let_pass
from support.settling import create_effects, effects, have_effect
from support.sql import delivery_rows, one, watermark
from support.turns import Turns
from support.waiting import Gate, Record, events, eventually

pytestmark = pytest.mark.usefixtures("logged")

QUICK = RetryPolicy(stop=stop_after_attempt(5), wait=wait_fixed(0.05))
FIXED = {"auto_extend": False, "visibility_timeout": 30.0, "retry": QUICK}
TOO_LONG = 40.0
"""More seconds than FIXED gives a delivery; they pass for those that run when the test says so, and for no other."""


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    return Turns(monkeypatch)


def pass_by(seconds: float, subscription: Subscription, turns: Turns) -> None:
    """Let time pass for what runs, and the keeper look at it."""
    let_pass(subscription, seconds)
    for _ in range(2):  # in the first turn it may have looked already
        turns.pass_by([subscription])


class Sleeper:
    """A handler whose first attempt sleeps until released, and then tries to settle; the second waits as well."""

    def __init__(self, settle: Callable[[Message], object]) -> None:
        self.settle = settle
        self.first, self.second, self.outcome = Gate(), Gate(), Record()

    def __call__(self, message: Message) -> None:
        if message.attempt > 1:
            self.second()
            return
        self.first()
        try:
            self.settle(message)
        except BaseException as error:
            self.outcome(error)
            raise
        self.outcome("settled")


def in_transaction(message: Message) -> None:
    with message.transaction() as connection:
        have_effect(connection, message)


WAYS: dict[str, Callable[[Message], object]] = {
    "ack": Message.ack,
    "nack": Message.nack,
    "reject": lambda m: m.reject("late"),
    "postpone": lambda m: m.postpone(1.0),
    "extend": lambda m: m.extend(5.0),
    "transaction": in_transaction,
}


@pytest.mark.parametrize(
    ("how", "order", "finished"),
    [
        ("ack", "strict", False),
        ("transaction", "concurrent", True),
        pytest.param("transaction", "strict", False, marks=pytest.mark.thorough),
        pytest.param("ack", "serial", True, marks=pytest.mark.thorough),
        *(pytest.param(how, "strict", True, marks=pytest.mark.thorough) for how in WAYS),
    ],
)
def test_a_superseded_attempt_can_settle_nothing(
    lanelog_client: Client, raw: Any, how: str, order: str, *, finished: bool
) -> None:
    """The handler outsleeps its time-out: whatever it then tries raises LeaseLost.

    In the middle of attempt 2, which has the same epoch, as well as after that has been acked.
    """
    create_effects(raw)
    sleeper = Sleeper(WAYS[how])
    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe("t", "g", sleeper, order=order, **FIXED)
    with sleeper.first, sleeper.second:
        sleeper.first.reached()
        let_pass(subscription, TOO_LONG)
        sleeper.second.reached()
        if finished:
            sleeper.second.open()
            eventually(lambda: watermark(raw, "g", "t", "k") == 1)
        sleeper.first.open()
        (outcome,) = sleeper.outcome.wait(1)
        assert isinstance(outcome, LeaseLost)
        assert watermark(raw, "g", "t", "k") == int(finished)
    stats = eventually(lambda: s if (s := subscription.stats()).refused and s.acked else None)
    assert (stats.acked, stats.timed_out, stats.dead_lettered) == (1, 1, 0)
    assert effects(raw) == []
    eventually(lambda: not delivery_rows(raw, "g", "t"))


def test_a_transaction_entered_in_time_is_refused_at_its_end(lanelog_client: Client, raw: Any) -> None:
    """The block is rolled back: its effects are attempt 2's, once."""
    create_effects(raw)
    gate, outcome = Gate(), Record()

    def handle(message: Message) -> None:
        try:
            with message.transaction() as connection:
                have_effect(connection, message)
                if message.attempt == 1:
                    gate()
        except LeaseLost as error:
            outcome(error)
            raise

    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe("t", "g", handle, **FIXED)
    with gate:
        gate.reached()
        let_pass(subscription, TOO_LONG)
        eventually(lambda: subscription.stats().acked == 1)
    outcome.wait(1)
    assert effects(raw, "attempt") == [(2,)]


def test_a_late_return_is_refused_and_logged(
    lanelog_client: Client, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A superseded handler that simply returns changes nothing: one WARNING settlement.refused."""
    sleeper = Sleeper(lambda _: None)
    sleeper.second.open()
    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe("t", "g", sleeper, **FIXED)
    with sleeper.first:
        sleeper.first.reached()
        let_pass(subscription, TOO_LONG)
        eventually(lambda: subscription.stats().acked == 1)
    (line,) = eventually(lambda: events(caplog, "settlement.refused", logging.WARNING))
    for part in ("topic=t", "key=k", "group=g", "offset=1", "attempt=1"):
        assert part in line
    eventually(lambda: subscription.stats().refused == 1)
    eventually(lambda: watermark(raw, "g", "t", "k") == 1)  # the flush of the second attempt may still be under way


@pytest.mark.thorough
def test_timeouts_count_as_failures(lanelog_client: Client, raw: Any) -> None:
    """A handler that always outsleeps its time-out is dead-lettered after the policy's attempts."""
    gate, attempts = Gate(), Record()

    def handle(message: Message) -> None:
        attempts(message.attempt)
        gate()

    lanelog_client.publish("t", "k", b"1")
    options = {**FIXED, "retry": RetryPolicy(stop=stop_after_attempt(2), wait=wait_fixed(0.05))}
    subscription = lanelog_client.subscribe("t", "g", handle, workers=1, **options)
    with gate:
        for number in (1, 2):
            attempts.wait(number)
            let_pass(subscription, TOO_LONG)
        eventually(lambda: subscription.stats().dead_lettered == 1)
        assert attempts.items == [1, 2]
        assert "timed out" in one(raw, "SELECT last_error FROM queue_messages WHERE topic = 't_dlq'")
        # Both abandoned threads were replaced: the only worker still works.
        lanelog_client.publish("t", "other", b"1")
        assert attempts.wait(3) == [1, 2, 1]


def test_a_living_handler_is_extended_up_to_max_handler_time(
    lanelog_client: Client, raw: Any, caplog: pytest.LogCaptureFixture, turns: Turns
) -> None:
    """auto_extend: several time-outs long, with one WARNING handler.slow and its stack; then given up, and again."""
    attempts, gate = Record(), Gate()

    def handle(message: Message) -> None:
        attempts(message.attempt)
        if message.attempt == 1:
            gate()

    lanelog_client.publish("t", "k", b"1")
    options = {"visibility_timeout": 30.0, "max_handler_time": 200.0, "retry": QUICK, "workers": 1}
    subscription = lanelog_client.subscribe("t", "g", handle, **options)
    with gate:
        attempts.wait(1)
        for _ in range(3):
            pass_by(TOO_LONG, subscription, turns)
            assert attempts.items == [1]
            (slow,) = events(caplog, "handler.slow", logging.WARNING)
            assert "in Event.wait" in slow
            assert "in test_a_living_handler_is_extended_up_to_max_handler_time.<locals>.handle" in slow
            assert "workers.py" not in slow  # the engine's frames are left out
        assert not events(caplog, "handler.abandoned")
        let_pass(subscription, 100.0)
        assert attempts.wait(2) == [1, 2]
        (line,) = events(caplog, "handler.abandoned", logging.WARNING)
        assert "attempt=1" in line
    eventually(lambda: events(caplog, "settlement.refused", logging.WARNING))
    eventually(lambda: watermark(raw, "g", "t", "k") == 1)


@pytest.mark.thorough
def test_a_living_handler_that_ends_in_time_has_not_timed_out(lanelog_client: Client, turns: Turns) -> None:
    """A return after the time of several time-outs is an ack like any other."""
    sleeper = Sleeper(lambda _: None)
    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe("t", "g", sleeper, visibility_timeout=30.0, retry=QUICK)
    with sleeper.first:
        sleeper.first.reached()
        pass_by(TOO_LONG, subscription, turns)
    stats = eventually(lambda: s if (s := subscription.stats()).acked else None)
    assert (stats.acked, stats.timed_out, stats.refused) == (1, 0, 0)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            {"visibility_timeout": 20.0, "max_handler_time": 30.0, "retry": QUICK}, id="past max_handler_time"
        ),
        pytest.param(FIXED, id="without auto_extend", marks=pytest.mark.thorough),
    ],
)
def test_extend_keeps_a_delivery(lanelog_client: Client, turns: Turns, options: dict[str, Any]) -> None:
    """extend() moves the end of the delivery, and is the handler's own word against max_handler_time, too."""
    gate = Gate()

    def handle(message: Message) -> None:
        message.extend(TOO_LONG + 20.0)
        gate(message.attempt)

    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe("t", "g", handle, **options)
    with gate:
        gate.reached()
        pass_by(TOO_LONG, subscription, turns)
        assert gate.inside.items == [1]
    eventually(lambda: subscription.stats().acked == 1)
    assert subscription.stats().timed_out == 0


def test_a_manual_message_that_nobody_settles_comes_again(
    lanelog_client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """MANUAL: returning settles nothing; after visibility_timeout it is given up, and the late ack is refused."""
    taken = Record()
    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe("t", "g", taken, ack_policy=AckPolicy.MANUAL, **FIXED)
    taken.wait(1)
    eventually(subscription._core.members[0].attempts.detached, what="a handler that has returned")
    let_pass(subscription, TOO_LONG)
    first, second = taken.wait(2)
    assert (first.attempt, second.attempt) == (1, 2)
    with pytest.raises(LeaseLost):
        first.ack()
    second.ack()
    assert events(caplog, "delivery.given_up", logging.WARNING)


def test_a_slow_handler_does_not_repeat_its_neighbours(lanelog_client: Client) -> None:
    """A run of fast messages with one sleeper: only the sleeper is delivered again, the rest once, in order."""
    seen, gate = Record(), Gate()

    def handle(message: Message) -> None:
        seen((message.offset, message.attempt))
        if message.offset == 150 and message.attempt == 1:
            gate()

    lanelog_client.publish_many("t", [("k", b"x")] * 300)
    subscription = lanelog_client.subscribe("t", "g", handle, **FIXED)
    with gate:
        seen.wait(150)
        let_pass(subscription, TOO_LONG)
        eventually(lambda: subscription.stats().acked == 300)
    wanted = [(offset, 1) for offset in range(1, 301)]
    wanted.insert(150, (150, 2))
    assert seen.items == wanted
