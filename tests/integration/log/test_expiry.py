"""Expiry: a message whose handler has not started in time goes to the dead letters instead, for that group alone."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from tenacity import stop_after_attempt, wait_fixed

from lanelog import AckPolicy, Client, Message, RetryPolicy
from lanelog._engine.lane.run import Attempt
from lanelog.admin import MessageState
from lanelog.message import Postpone
from support.dead_letters import fates
from support.processes import Fleet
from support.situations import NOW
from support.sql import delivery_rows, one, rows, watermark
from support.stage import thorough
from support.turns import Turns
from support.waiting import Gate, Record, accept, events, eventually

pytestmark = pytest.mark.usefixtures("logged")

ORDERS = ["strict", *thorough("serial", "concurrent")]
QUICK = RetryPolicy(stop=stop_after_attempt(5), wait=wait_fixed(0.05))


def expire(raw: Any, seconds: float, *offsets: int, topic: str = "t") -> None:
    """Let messages expire so many seconds from now."""
    for offset in offsets:
        sql = f"UPDATE queue_messages SET expires_at = {NOW} + %s WHERE topic = %s AND `offset` = %s"
        rows(raw, sql, int(seconds * 1000), topic, offset)


def expired(raw: Any, offset: int, topic: str = "t") -> bool:
    """By the only clock that counts."""
    sql = f"SELECT expires_at <= {NOW} FROM queue_messages WHERE topic = %s AND `offset` = %s"
    return bool(one(raw, sql, topic, offset))


@pytest.fixture
def let_pass(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets so many seconds pass for what waits in memory."""
    really, passed = Attempt.overdue, [0.0]
    monkeypatch.setattr(Attempt, "overdue", lambda attempt, now: really(attempt, now + sum(passed)))
    return passed.append


def left(raw: Any, group: str = "g") -> list[tuple[Any, ...]]:
    sql = "SELECT message_offset, outcome, attempts, first_delivered_at > 0, last_error FROM queue_history"
    return rows(raw, f"{sql} WHERE consumer_group = %s ORDER BY message_offset", group)


@pytest.mark.parametrize("policy", [AckPolicy.NACK_ON_ERROR, AckPolicy.ACK_FIRST, AckPolicy.MANUAL])
@pytest.mark.parametrize("order", ORDERS)
def test_what_expired_before_it_was_read_is_never_handled(
    lanelog_client: Client, raw: Any, caplog: pytest.LogCaptureFixture, order: str, policy: AckPolicy
) -> None:
    """Late messages become dead letters without an attempt; the others are handled, in their order."""
    seen = Record()
    lanelog_client.publish_many("t", [("k", b"x")] * 6)
    expire(raw, -1, 1, 3, 4)
    expire(raw, 3600, 2, 5)

    def handle(message: Message) -> None:
        seen((message.offset, message.attempt))
        if policy is AckPolicy.MANUAL:
            message.ack()

    options = {"order": order, "ack_policy": policy, "history": True}
    with lanelog_client.subscribe("t", "g", handle, **options) as subscription:
        seen.wait(3)  # acked first, a message is behind the watermark before its handler begins
        eventually(lambda: watermark(raw, "g", "t", "k") == 6)
        assert sorted(seen.items) == [(2, 1), (5, 1), (6, 1)]
        stats = subscription.stats()
        assert (stats.dead_lettered, stats.retried) == (3, 0)
        assert policy is AckPolicy.ACK_FIRST or stats.handled == 3
        eventually(lambda: not delivery_rows(raw, "g", "t"))
    assert sorted(fates(raw)) == [("g", offset, 0, "expired", 0) for offset in (1, 3, 4)]
    late, handled = ("expired", 0, 0, "expired"), ("success", 1, 1, None)
    assert left(raw) == [(offset, *(late if offset in (1, 3, 4) else handled)) for offset in range(1, 7)]
    assert len(events(caplog, "message.expired", logging.WARNING)) == 3
    assert not events(caplog, "message.dead_lettered")


def test_without_dead_letters_it_is_dropped(lanelog_client: Client, raw: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Acked unhandled, with an ERROR."""
    seen = Record()
    lanelog_client.publish_many("t", [("k", b"x")] * 3)
    expire(raw, -1, 2)
    options: dict[str, Any] = {"dead_letter_suffix": None, "history": True}
    with lanelog_client.subscribe("t", "g", lambda m: seen(m.offset), **options):
        eventually(lambda: watermark(raw, "g", "t", "k") == 3)
    assert seen.items == [1, 3]
    assert left(raw)[1] == (2, "expired", 0, 0, "expired")
    assert fates(raw) == []
    (line,) = events(caplog, "message.expired", logging.ERROR)
    assert "offset=2" in line


def test_a_time_to_live_that_is_over_when_a_group_comes(lanelog_client: Client, raw: Any) -> None:
    """The time to live counts from the publish; the hook gets the message, and no attempt."""
    seen, told = Record(), Record()
    lanelog_client.publish("t", "k", b"late", ttl=0.05)
    lanelog_client.publish("t", "k", b"x", ttl=3600)
    lanelog_client.publish("t", "k", b"x")
    eventually(lambda: expired(raw, 1))
    hook = {"on_dead_letter": lambda message, error: told((message.payload, message.attempt, error))}
    with lanelog_client.subscribe("t", "g", lambda m: seen(m.offset), **hook):
        eventually(lambda: watermark(raw, "g", "t", "k") == 3)
        assert told.wait(1) == [(b"late", 0, "expired")]
    assert (seen.items, fates(raw)) == ([2, 3], [("g", 1, 0, "expired", 0)])


def test_two_groups_only_the_late_one_misses_it(lanelog_client: Client, raw: Any) -> None:
    """Expiry is per group: who has handled it in time has handled it."""
    seen = Record()
    lanelog_client.subscribe("t", "late", accept).stop()
    lanelog_client.publish("t", "k", b"x")
    expire(raw, 30, 1)
    with lanelog_client.subscribe("t", "early", lambda m: seen(m.offset)):
        eventually(lambda: watermark(raw, "early", "t", "k") == 1)
    expire(raw, -1, 1)
    with lanelog_client.subscribe("t", "late", lambda m: seen(m.offset)):
        eventually(lambda: watermark(raw, "late", "t", "k") == 1)
    assert seen.items == [1]
    assert fates(raw) == [("late", 1, 0, "expired", 0)]


@pytest.mark.parametrize("order", ORDERS)
def test_a_message_that_was_read_and_marked_in_time_expires_in_memory(
    lanelog_client: Client, raw: Any, let_pass: Callable[[float], None], order: str
) -> None:
    """The message waits behind a handler, and does not start when that ends."""
    seen, gate = Record(), Gate()

    def handle(message: Message) -> None:
        seen((message.offset, message.attempt))
        if message.offset == 21:
            gate()

    options: dict[str, Any] = {"order": order, "workers": 1, "history": True}
    if order == "concurrent":
        options["lane_concurrency"] = 3
    with lanelog_client.subscribe("t", "g", handle, **options), gate:
        lanelog_client.publish_many("t", [("k", b"x")] * 20)  # then a run is more than one message
        eventually(lambda: watermark(raw, "g", "t", "k") == 20)
        with lanelog_client.transaction() as connection:
            for _ in range(4):
                lanelog_client.publish("t", "k", b"x", connection=connection)
            with connection.cursor() as cursor:
                cursor.execute(f"UPDATE queue_messages SET expires_at = {NOW} + 3600000 WHERE `offset` IN (22, 23)")
        gate.reached()
        let_pass(7200)
        gate.open()
        eventually(lambda: watermark(raw, "g", "t", "k") == 24)
    assert seen.items[20:] == [(21, 1), (24, 1)]
    assert sorted(fates(raw)) == [("g", 22, 0, "expired", 0), ("g", 23, 0, "expired", 0)]
    assert [row[1] for row in left(raw)][20:] == ["success", "expired", "expired", "success"]


def test_what_was_started_in_time_is_tried_again_and_what_is_behind_expires(
    lanelog_client: Client, raw: Any, open_raw: Any
) -> None:
    """Failed or postponed, a message comes again however late; the one that it held back has never started."""
    seen, mine = Record(), open_raw(autocommit=True)
    lanelog_client.publish_many("t", [("k", b"x")] * 3)

    def handle(message: Message) -> None:
        seen((message.offset, message.attempt))
        if len(seen) == 1:
            expire(mine, -1, 1, 2, 3)
            raise ValueError("later")
        if len(seen) == 2:
            raise Postpone(0.05)

    with lanelog_client.subscribe("t", "g", handle, retry=QUICK, history=True):
        eventually(lambda: watermark(raw, "g", "t", "k") == 3)
    assert seen.items == [(1, 1), (1, 2), (1, 1)]
    assert [row[:3] for row in left(raw)] == [(1, "success", 1), (2, "expired", 0), (3, "expired", 0)]


@pytest.mark.thorough
def test_what_waits_for_another_attempt_is_not_shown_as_expired(lanelog_client: Client, raw: Any) -> None:
    """Administration shows what the engine will do: one that a handler has had is tried again, however late."""
    seen = Record()

    def handle(message: Message) -> None:
        seen(message.offset)
        raise ValueError

    def shown(offset: int) -> MessageState:
        found = lanelog_client.admin.message("t", "k", offset=offset)
        return found.states[0].state

    with lanelog_client.subscribe("t", "g", handle, retry=RetryPolicy(wait=wait_fixed(600))):
        lanelog_client.publish_many("t", [("k", b"x")] * 2)
        seen.wait(1)
        eventually(lambda: delivery_rows(raw, "g", "t"))
        eventually(lambda: shown(1) is MessageState.RETRYABLE)
        expire(raw, -1, 1, 2)
        states = [shown(1), shown(2)]
    assert states == [MessageState.RETRYABLE, MessageState.EXPIRED]


@pytest.mark.thorough
def test_a_message_that_killed_its_process_does_not_expire(fleet: Fleet, lanelog_client: Client, raw: Any) -> None:
    """The message had started: the next owner delivers it again, however late."""
    worker = fleet.worker("dies")
    lanelog_client.publish("t", "k", b'{"exit": true}')
    assert worker.ended() == 9
    expire(raw, -1, 1)
    seen = Record()
    with lanelog_client.subscribe("t", "g", lambda m: seen(m.attempt)):
        assert seen.wait(1, within=30) == [2]
    assert fates(raw) == []


@pytest.mark.thorough
@pytest.mark.parametrize("key", ["k", None])
def test_a_pause_beyond_the_time_to_live_expires_what_waits(
    lanelog_client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    """Nothing happens while it is paused; afterwards it is too late, and no attempt is counted."""
    turns, seen = Turns(monkeypatch), Record()
    lanelog_client.publish("t", "k", b"x")
    with lanelog_client.subscribe("t", "g", lambda m: seen(m.offset)) as subscription:
        eventually(lambda: watermark(raw, "g", "t", "k") == 1)
        lanelog_client.admin.pause("t", "g", key=key)
        turns.pass_by([subscription])
        lanelog_client.publish("t", "k", b"x", ttl=0.05)
        eventually(lambda: expired(raw, 2))
        turns.pass_by([subscription])
        assert fates(raw) == []
        lanelog_client.admin.resume("t", "g", key=key)
        eventually(lambda: fates(raw))
    assert (seen.items, fates(raw)) == ([1], [("g", 2, 0, "expired", 0)])


def test_a_pulled_message_expires_before_it_is_handed_over(
    lanelog_client: Client, raw: Any, let_pass: Callable[[float], None]
) -> None:
    """The message was read and marked, and nobody took it in time: the next one is handed out."""
    lanelog_client.publish_many("t", [("k", b"x")] * 3)
    expire(raw, 3600, 2)
    with lanelog_client.deliveries("t", "g", timeout=5.0) as deliveries:
        first = next(deliveries)
        first.ack()
        let_pass(7200)
        third = next(deliveries)
        third.ack()
        assert (first.offset, third.offset, third.attempt) == (1, 3, 1)
    assert fates(raw) == [("g", 2, 0, "expired", 0)]


def test_dead_letters_and_redriven_messages_do_not_expire(lanelog_client: Client, raw: Any) -> None:
    """A dead letter is read by its own consumers, and comes back when it is redriven."""
    seen = Record()
    lanelog_client.publish("t", "k", b"x")
    expire(raw, -1, 1)
    with (
        lanelog_client.subscribe("t", "g", lambda m: seen((m.topic, m.offset))),
        lanelog_client.subscribe("t_dlq", "alerts", lambda m: seen((m.topic, m.offset))),
    ):
        assert seen.wait(1) == [("t_dlq", 1)]
        lanelog_client.admin.redrive("t", "g", all=True, dry_run=False)
        assert seen.wait(2)[1] == ("t", 2)
    assert one(raw, "SELECT MAX(expires_at) FROM queue_messages WHERE topic = 't' AND `offset` = 2") == 0
