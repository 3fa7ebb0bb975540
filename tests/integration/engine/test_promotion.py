"""Failover to a replica that lacks the last commits, and was started in the same second as its primary."""

import logging
import threading
import time
from contextlib import ExitStack, closing
from typing import Any

import pytest

import lanelog
from lanelog import Message
from lanelog._engine.handler_transaction import HandlerTransaction
from lanelog._engine.leasing import loading
from support.promotion import Pair
from support.settling import create_effects, effects
from support.sql import rows, watermark
from support.switching import Switch
from support.waiting import Record, events, eventually

KEYS = ("a", "b", "c")
WITHIN = 5.0
"""Seconds after a promotion within which everything is delivered."""


def publish(client: lanelog.Client, what: str, number: int) -> dict[str, list[bytes]]:
    """So many to each key; what was published, by key."""
    sent = {key: [f"{what} {n}".encode() for n in range(number)] for key in KEYS}
    client.publish_many("t", [(key, payload) for key, payloads in sent.items() for payload in payloads])
    return sent


@pytest.mark.thorough
def test_what_is_published_after_a_promotion_is_delivered_whatever_the_tail_was(pair: Pair) -> None:
    """Offsets that the lost tail had are given to other messages, which nothing in memory may pass.

    Within five seconds of the promotion they are handled, in order, by the worker that had acked the tail.
    """
    seen = Record()
    with ExitStack() as stack:
        client = stack.enter_context(lanelog.connect(pair.url))
        stack.enter_context(closing(raw := pair.open(pair.primary)))
        client.subscribe("t", "g", lambda message: seen((message.key, message.payload)))
        publish(client, "kept", 10)
        eventually(lambda: all(watermark(raw, "g", "t", key) == 10 for key in KEYS))
        pair.copy()
        publish(client, "lost", 20)
        eventually(lambda: all(watermark(raw, "g", "t", key) == 30 for key in KEYS))
        pair.promote()
        promoted = time.monotonic()
        sent = publish(client, "new", 10)
        after = seen.until(lambda items: sum(b"new" in payload for _, payload in items) >= 30, within=15.0)
        assert time.monotonic() - promoted < WITHIN
    for key in KEYS:
        assert [payload for at, payload in after if at == key and b"new" in payload] == sent[key]


@pytest.mark.thorough
@pytest.mark.parametrize("goes", ["by the heartbeat", "up to a lower head", "beyond what memory has acked"])
def test_a_proxy_that_changes_servers_behind_living_connections_is_found_out(
    pair: Pair, caplog: pytest.LogCaptureFixture, goes: str
) -> None:
    """No connection breaks: the keeper asks with its heartbeat who answers, the fetcher by the heads that it sees.

    A flush is told by its fence, before it acks 31 to 35 on a server that was never asked for 11 to 30.
    """
    seen = Record()
    number = 10 if goes == "up to a lower head" else 25
    with ExitStack() as stack:
        raw, other = (stack.enter_context(closing(pair.open(each))) for each in (pair.primary, pair.replica))
        switch = Switch(pair.target(pair.primary))
        stack.callback(switch.close)
        client = stack.enter_context(lanelog.connect(switch.url))
        publisher, later = (stack.enter_context(lanelog.connect(each.url)) for each in (pair.primary, pair.replica))
        client.subscribe("t", "g", lambda message: seen((message.key, message.payload)))
        publish(publisher, "kept", 10)
        eventually(lambda: all(watermark(raw, "g", "t", key) == 10 for key in KEYS))
        pair.copy()
        publish(publisher, "lost", 20)
        eventually(lambda: all(watermark(raw, "g", "t", key) == 30 for key in KEYS))
        switch.switch(pair.target(pair.replica))
        if goes == "by the heartbeat":
            eventually(lambda: events(caplog, "server.changed", logging.WARNING))
        sent = publish(later, "new", number)
        enough = number * len(KEYS)
        after = seen.until(lambda items: len({item for item in items if b"new" in item[1]}) >= enough, within=15.0)
        eventually(lambda: all(watermark(other, "g", "t", key) == 10 + number for key in KEYS))
    for key in KEYS:
        new = [payload for at, payload in after if at == key and b"new" in payload]
        assert new[-number:] == sent[key]


@pytest.mark.thorough
@pytest.mark.parametrize("settles", ["transaction", "dead letter"])
def test_what_a_transaction_of_its_own_has_settled_is_done_again_when_the_tail_is_lost(
    pair: Pair, settles: str
) -> None:
    """The primary dies between that COMMIT and the flush: effect and dead letter are gone, and so is the ack.

    Its client has the answer to that COMMIT. Without the answer a dead letter would be made again by itself.
    """
    seen, settled, go = Record(), Record(), threading.Event()

    def handle(message: Message) -> None:
        seen(message.offset)
        if message.offset == 2:
            assert go.wait(20)
        if settles == "dead letter":
            message.reject("never")
        else:
            with message.transaction() as connection:
                connection.cursor().execute("INSERT INTO effects (o) VALUES (%s)", (message.offset,))
        settled(message.offset)

    done = "SELECT COUNT(*) FROM " + ("effects" if settles == "transaction" else "queue_messages WHERE topic = 't_dlq'")
    with ExitStack() as stack:
        raw, locker = (stack.enter_context(closing(pair.open(pair.primary))) for _ in range(2))
        other = stack.enter_context(closing(pair.open(pair.replica)))
        for each in (raw, other):
            create_effects(each)
        client = stack.enter_context(lanelog.connect(pair.url))
        client.publish_many("t", [("a", b"first"), ("a", b"second")])
        client.subscribe("t", "g", handle)
        seen.wait(2)
        eventually(lambda: watermark(raw, "g", "t", "a") == 1)
        pair.copy()
        rows(locker, "START TRANSACTION")
        rows(locker, "SELECT 1 FROM queue_offsets WHERE consumer_group = 'g' FOR UPDATE")  # no flush passes this
        go.set()
        settled.wait(2)
        assert rows(raw, done) == [(2,)]
        assert watermark(raw, "g", "t", "a") == 1
        pair.promote()
        eventually(lambda: rows(other, done) == [(2,)], what="what is gone with the primary is done again")
        eventually(lambda: watermark(other, "g", "t", "a") == 2)
    assert seen.items == [1, 2, 2]


@pytest.mark.parametrize("comes", ["before the lane is in place", "after"])
def test_a_commit_while_its_lane_is_loaded_again_is_done_once(
    lanelog_url: str, raw: Any, monkeypatch: pytest.MonkeyPatch, comes: str
) -> None:
    """The commit comes after the rows were read: only a locking read can know of it, whichever thread asks."""
    create_effects(raw)
    seen, settled, go, committed = Record(), threading.Event(), threading.Event(), threading.Event()
    load, settle = loading.load, HandlerTransaction._settle

    def handle(message: Message) -> None:
        seen(message.offset)
        with message.transaction() as connection:
            connection.cursor().execute("INSERT INTO effects (o) VALUES (%s)", (message.offset,))
        committed.set()

    def settle_and_wait(delivery: HandlerTransaction, cx: Any) -> None:
        settle(delivery, cx)
        settled.set()
        assert go.wait(20)

    def load_and_let_commit(*args: Any) -> Any:
        lanes = load(*args)
        if comes != "after":
            go.set()
            assert committed.wait(20)
        return lanes

    monkeypatch.setattr(HandlerTransaction, "_settle", settle_and_wait)
    with lanelog.connect(lanelog_url) as client:
        client.publish("t", "a", b"first")
        subscription = client.subscribe("t", "g", handle)
        (member,) = subscription._core.members
        assert settled.wait(20)
        before = member.lanes["a"]
        monkeypatch.setattr(loading, "load", load_and_let_commit)
        keeper = rows(raw, "SELECT IS_USED_LOCK(liveness_lock) FROM queue_subscriber_heartbeats")[0][0]
        rows(raw, f"KILL CONNECTION {keeper}")
        eventually(lambda: member.lanes.get("a") not in (None, before))
        go.set()
        eventually(lambda: watermark(raw, "g", "t", "a") == 1)
        client.publish("t", "a", b"second")
        eventually(lambda: watermark(raw, "g", "t", "a") == 2)
        assert subscription.stop(10)
    assert seen.items == [1, 2]
    assert effects(raw) == [(1,), (2,)]
