"""`message.transaction()`: the handler's writes, its publishes and the ack, all or nothing."""

import threading
from typing import Any

import pymysql
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool
from tenacity import stop_after_attempt, wait_fixed

import lanelog
from lanelog import AlreadySettled, Client, ConfigurationError, LanelogError, LeaseLost, Message, RetryPolicy
from lanelog._database import Executor
from lanelog._engine.caller_ack import Delivered
from lanelog._engine.handler_transaction import HandlerTransaction
from lanelog.errors import DatabaseError
from support.drivers import DRIVERS
from support.proxy import DOOM, proxy_to
from support.settling import create_effects, effects, have_effect
from support.sql import delivery_rows, one, owners, rows, take_lanes, watermark
from support.stage import thorough
from support.waiting import Gate, Record, eventually, raising

QUICK = RetryPolicy(stop=stop_after_attempt(5), wait=wait_fixed(0.05))


@pytest.fixture(autouse=True)
def _effects(raw: Any) -> None:
    create_effects(raw)


@pytest.mark.parametrize("order", ["strict", *thorough("serial", "concurrent")])
def test_effects_happen_once_and_a_failed_block_leaves_none(lanelog_client: Client, raw: Any, order: str) -> None:
    """Every third message fails after its writes at first: in the end each has exactly one effect."""

    def handle(message: Message) -> None:
        with message.transaction() as connection:
            have_effect(connection, message)
            if message.offset % 3 == 0 and message.attempt == 1:
                raise ValueError("after the write")

    lanelog_client.publish_many("t", [("a", b"x")] * 30)
    subscription = lanelog_client.subscribe("t", "g", handle, order=order, retry=QUICK)
    eventually(lambda: subscription.stats().acked == 30)
    assert sorted(effects(raw, "o, attempt")) == [(n, 2 if n % 3 == 0 else 1) for n in range(1, 31)]
    eventually(lambda: watermark(raw, "g", "t", "a") == 30)
    eventually(lambda: not delivery_rows(raw, "g", "t"))


def test_the_ack_is_committed_with_the_block(lanelog_client: Client, raw: Any) -> None:
    """Right after the block the settlement stands in the database, and settling again raises AlreadySettled."""
    outcome = Record()

    def handle(message: Message) -> None:
        with message.transaction() as connection:
            have_effect(connection, message)
        outcome([r["acked"] for r in delivery_rows(raw, "g", "t")] == [1] or watermark(raw, "g", "t", "a") == 1)
        with pytest.raises(AlreadySettled):
            message.ack()
        with pytest.raises(AlreadySettled), message.transaction():
            pass
        outcome("refused")

    lanelog_client.publish("t", "a", b"x")
    subscription = lanelog_client.subscribe("t", "g", handle)
    assert outcome.wait(2) == [True, "refused"]
    eventually(lambda: (subscription.stats().acked, subscription.stats().handled) == (1, 1))


@pytest.mark.parametrize("driver", DRIVERS)
def test_its_end_is_left_to_the_block(lanelog_url: str, raw: Any, driver: str) -> None:
    """A commit or rollback, also a session's, is refused before it is sent, by an error that names the other way."""
    refused = Record()

    def handle(message: Message) -> None:
        with message.transaction() as connection:
            have_effect(connection, message)
            for end in (connection.commit, connection.rollback):
                with pytest.raises(ConfigurationError) as caught:
                    end()
                refused("message.ack(connection=)" in str(caught.value))
            if message.attempt == 1:
                engine = create_engine("mysql+pymysql://", creator=lambda: connection, poolclass=StaticPool)
                with pytest.raises(ConfigurationError) as caught, Session(engine) as session:
                    session.execute(text("SELECT 1"))  # it begins with a rollback of its own
                    session.commit()
                refused("message.ack(connection=)" in str(caught.value))
                raise caught.value

    with lanelog.connect(lanelog_url, driver=driver) as client:
        client.publish("t", "a", b"x")
        client.subscribe("t", "g", handle, retry=QUICK)
        assert refused.wait(5) == [True] * 5
        eventually(lambda: watermark(raw, "g", "t", "a") == 1)
    assert effects(raw, "o, attempt") == [(1, 2)]


@pytest.mark.thorough
def test_the_next_stage_is_published_with_the_ack(lanelog_client: Client, raw: Any) -> None:
    """A publish in the block is visible if and only if the message is acked; its subscriber is woken at once."""
    merged = Record()

    def build(message: Message) -> None:
        with message.transaction() as connection:
            have_effect(connection, message)
            lanelog_client.publish("merge", message.key, message.payload, connection=connection)
            if message.attempt == 1 and message.offset % 2:
                raise ValueError("after the publish")

    lanelog_client.subscribe("merge", "g", lambda m: merged((m.key, m.payload)))
    lanelog_client.publish_many("build", [(key, f"{n}") for n in range(10) for key in ("a", "b")])
    build_group = lanelog_client.subscribe("build", "g", build, retry=QUICK)
    items = merged.wait(20)
    for key in ("a", "b"):
        assert [p for k, p in items if k == key] == [f"{n}".encode() for n in range(10)]
    eventually(lambda: build_group.stats().acked == 20)
    assert one(raw, "SELECT COUNT(*) FROM queue_messages WHERE topic = 'merge'") == 20


def test_publishing_beside_the_open_transaction_is_refused(lanelog_client: Client, raw: Any) -> None:
    """Without connection= it would wait for a lock of its own thread; nothing is written."""
    done = Record()

    def handle(message: Message) -> None:
        with message.transaction():
            with pytest.raises(LanelogError, match="connection="):
                lanelog_client.publish("next", "a", b"x")
            with pytest.raises(LanelogError, match="connection="):
                lanelog_client.publish_many("next", [("a", b"x")])
        done(message.attempt)

    lanelog_client.publish("t", "a", b"x")
    lanelog_client.subscribe("t", "g", handle)
    assert done.wait(1) == [1]
    assert one(raw, "SELECT COUNT(*) FROM queue_messages WHERE topic = 'next'") == 0


@pytest.mark.thorough
def test_held_open_for_longer_than_the_lease_it_costs_no_lane(
    lanelog_client: Client, lanelog_url: str, raw: Any
) -> None:
    """Heartbeats renew it, and a second member that waits for lanes steals nothing: the block commits."""
    gate, attempts, others = Gate(), Record(), Record()

    def handle(message: Message) -> None:
        attempts(message.attempt)
        with message.transaction() as connection:
            have_effect(connection, message)
            gate()

    options = {"lease_duration": 3.0, "lease_renewal": 0.3}
    lanelog_client.publish("t", "a", b"x")
    subscription = lanelog_client.subscribe("t", "g", handle, **options)
    with gate:
        gate.reached()
        beat = "SELECT {} FROM queue_subscriber_heartbeats WHERE subscriber_name = %s"
        with lanelog.connect(lanelog_url) as other:
            other.subscribe("t", "g", others, **options)
            ends = one(raw, beat.format("expires_at"), subscription.owner)
            eventually(lambda: one(raw, beat.format("heartbeat_at"), subscription.owner) > ends)
            assert owners(raw, "g", "t") == {"a": subscription.owner}
            gate.open()
            eventually(lambda: watermark(raw, "g", "t", "a") == 1)
    assert attempts.items == [1]
    assert others.items == []
    assert sorted(effects(raw, "o, attempt")) == [(1, 1)]


def test_a_lost_lease_rolls_the_block_back(lanelog_client: Client, raw: Any) -> None:
    """Somebody took the lane meanwhile: LeaseLost at the end of the block, and no effect."""
    gate, outcome = Gate(), Record()

    def handle(message: Message) -> None:
        try:
            with message.transaction() as connection:
                have_effect(connection, message)
                gate()
        except LeaseLost as error:
            outcome(error)

    lanelog_client.publish("t", "a", b"x")
    lanelog_client.subscribe("t", "g", handle)
    with gate:
        gate.reached()
        take_lanes(raw, "thief:1")
    outcome.wait(1)
    assert sorted(effects(raw, "o, attempt")) == []
    assert watermark(raw, "g", "t", "a") == 0


@pytest.mark.parametrize("then", ["swallows the error", *thorough("goes on", "ends")])
def test_a_connection_killed_under_the_block_fails_the_attempt(lanelog_client: Client, raw: Any, then: str) -> None:
    """The first writes are gone, whether the handler notices, swallows the error, or only the COMMIT fails."""
    attempts = Record()

    def handle(message: Message) -> None:
        attempts(message.attempt)
        with message.transaction() as connection:
            have_effect(connection, message)
            if message.attempt == 1:
                cursor = connection.cursor()
                rows(raw, f"KILL {one(connection, 'SELECT CONNECTION_ID()')}")
                if then == "goes on":
                    cursor.execute("SELECT 1")
                elif then == "swallows the error":
                    with pytest.raises(pymysql.err.Error):
                        cursor.execute("SELECT 1")

    lanelog_client.publish("t", "a", b"x")
    subscription = lanelog_client.subscribe("t", "g", handle, retry=QUICK)
    eventually(lambda: subscription.stats().acked == 1)
    assert attempts.items == [1, 2]
    assert sorted(effects(raw, "o, attempt")) == [(1, 2)]


def test_a_commit_whose_answer_is_lost_is_decided_by_reading(lanelog_url: str, raw: Any) -> None:
    """The server has committed without an answer: the message is acked, the handler returns, nothing happens twice."""
    attempts, outcome = Record(), Record()

    def handle(message: Message) -> None:
        attempts((message.offset, message.attempt))
        with message.transaction() as connection:
            have_effect(connection, message)
            client.publish("next", "a", b"x", connection=connection)
            if message.offset == 1:
                connection.cursor().execute(DOOM)
        outcome(message.offset)

    with proxy_to(lanelog_url) as proxy, lanelog.connect(proxy.url) as client:
        client.publish_many("t", [("a", b"x")] * 2)
        subscription = client.subscribe("t", "g", handle, retry=QUICK)
        assert outcome.wait(2) == [1, 2]
        assert proxy.cuts == 1
        eventually(lambda: subscription.stats().acked == 2)
    assert attempts.items == [(1, 1), (2, 1)]
    assert sorted(effects(raw, "o, attempt")) == [(1, 1), (2, 1)]
    assert one(raw, "SELECT COUNT(*) FROM queue_messages WHERE topic = 'next'") == 2
    assert watermark(raw, "g", "t", "a") == 2


def test_a_commit_that_was_lost_is_not_mistaken_for_the_next_owners(
    lanelog_url: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The COMMIT never arrived, and another owner settled the message before anybody could ask: LeaseLost."""
    was_committed, gate, outcome = HandlerTransaction._was_committed, Gate(), Record()

    def ask_late(transaction: HandlerTransaction, each: Delivered) -> bool:
        gate()
        return was_committed(transaction, each)

    def handle(message: Message) -> None:
        try:
            with message.transaction() as connection:
                have_effect(connection, message)
                connection.cursor().execute(DOOM)
        except LanelogError as error:
            outcome(error)
            raise
        outcome(None)

    monkeypatch.setattr(HandlerTransaction, "_was_committed", ask_late)
    with proxy_to(lanelog_url) as proxy, lanelog.connect(proxy.url) as client, gate:
        proxy.deliver = False
        client.publish("t", "a", b"x")
        client.subscribe("t", "g", handle)
        gate.reached()
        take_lanes(raw, "heir:1")
        rows(raw, "UPDATE queue_offsets SET offset_acked = 1, marked_through = 1 WHERE consumer_group = 'g'")
        gate.open()
        (error,) = outcome.wait(1)
    assert isinstance(error, LeaseLost)
    assert sorted(effects(raw, "o, attempt")) == []


def test_a_block_in_a_thread_of_the_handlers_own(lanelog_client: Client, raw: Any) -> None:
    """A MANUAL message may be settled by a transaction in another thread."""
    taken = Record()
    lanelog_client.publish_many("t", [("a", b"x")] * 3)
    subscription = lanelog_client.subscribe("t", "g", taken, ack_policy=lanelog.AckPolicy.MANUAL)
    for n in range(1, 4):
        message = taken.wait(n)[-1]
        with message.transaction() as connection:
            have_effect(connection, message)
    eventually(lambda: subscription.stats().acked == 3)
    assert sorted(effects(raw, "o, attempt")) == [(1, 1), (2, 1), (3, 1)]


@pytest.mark.thorough
def test_a_neighbour_about_to_commit_is_refused_once_the_lane_is_read_again(
    lanelog_client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome of a COMMIT is unknown: the lane goes on under another token, and each effect is there once.

    The neighbour was claimed before the lane was lost, and commits after another attempt has.
    """
    claimed, release, undecided, begun = threading.Event(), threading.Event(), threading.Event(), Record()
    settle = HandlerTransaction._settle

    def settles(self: HandlerTransaction, cx: Executor) -> None:
        if self.messages[0].attempt.offset == 2 and not claimed.is_set():
            claimed.set()
            assert release.wait(20)
        settle(self, cx)
        if self.messages[0].attempt.offset == 1 and not undecided.is_set():
            undecided.set()
            raise DatabaseError("no answer", code=2013, retriable=True, outcome_unknown=True)

    def handle(message: Message) -> None:
        begun((message.offset, message.fencing_token))
        assert message.offset == 2 or claimed.wait(20)
        with message.transaction() as connection:
            have_effect(connection, message)

    monkeypatch.setattr(HandlerTransaction, "_settle", settles)
    monkeypatch.setattr(
        HandlerTransaction, "_was_committed", raising(DatabaseError, "denied", code=1142, retriable=False)
    )
    lanelog_client.publish_many("t", [("k", b"1"), ("k", b"2")])
    lanelog_client.subscribe("t", "g", handle, order="concurrent", workers=4, retry=QUICK)
    try:
        eventually(lambda: {offset for offset, _ in begun.items[2:]} == {1, 2})
        eventually(lambda: one(raw, "SELECT COUNT(*) FROM effects") == 2)
    finally:
        release.set()
    eventually(lambda: watermark(raw, "g", "t", "k") == 2)
    lanelog_client.close()
    assert sorted(effects(raw)) == [(1,), (2,)]
    tokens = [token for _, token in begun.items]
    assert min(tokens[2:]) > max(tokens[:2])
