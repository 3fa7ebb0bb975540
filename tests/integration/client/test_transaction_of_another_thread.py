"""A handler that returns while another thread commits its message's transaction: the commit decides, or it failed."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tenacity import stop_after_attempt, wait_fixed

from lanelog import Client, LanelogError, Message, RetryPolicy
from lanelog._engine import handler_transaction
from lanelog._engine.delivery import Delivery
from lanelog.errors import DatabaseError
from support.settling import create_effects, effects, have_effect
from support.sql import delivery_rows, one, rows, watermark
from support.turns import Turns
from support.waiting import Record, events, eventually, raising

pytestmark = pytest.mark.usefixtures("logged")

QUICK = RetryPolicy(stop=stop_after_attempt(5), wait=wait_fixed(0.05))
LEASE = "SELECT * FROM queue_partition_leases WHERE consumer_group = 'g' AND topic = 't' FOR UPDATE"
WITHIN = 20.0


@pytest.fixture(autouse=True)
def _effects(raw: Any) -> None:
    create_effects(raw)


@pytest.fixture
def others() -> Iterator[list[threading.Thread]]:
    """The threads that handlers have started; they end with the test."""
    threads: list[threading.Thread] = []
    yield threads
    for thread in threads:
        thread.join(WITHIN)


class HandsOver:
    """Lets another thread commit the first attempt at the first message, and returns as soon as that has claimed it.

    `holder` keeps the lease row locked, so that the claim cannot commit before the test lets it.
    """

    def __init__(self, holder: Any, threads: list[threading.Thread], *, raises: bool = False) -> None:
        self.holder = holder
        self.threads = threads
        self.raises = raises
        self.seen = Record()
        self.returned = threading.Event()
        self.connections = Record()
        self.outcomes = Record()

    def __call__(self, message: Message) -> None:
        self.seen((message.offset, message.attempt))
        if (message.offset, message.attempt) != (1, 1):
            with message.transaction() as connection:
                have_effect(connection, message)
            return
        rows(self.holder, LEASE)
        thread = threading.Thread(target=self._commit, args=(message,))
        self.threads.append(thread)
        thread.start()
        handle = message._delivery
        assert isinstance(handle, Delivery)
        eventually(lambda: handle.attempt.state.value == "claimed", within=WITHIN)
        self.returned.set()
        if self.raises:
            raise ValueError("the handler does not know better")

    def _commit(self, message: Message) -> None:
        try:
            with message.transaction() as connection:
                have_effect(connection, message)
                self.connections(one(connection, "SELECT CONNECTION_ID()"))
        except LanelogError as error:
            self.outcomes(error)
        else:
            self.outcomes(None)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("order", "raises"), [("strict", False), ("strict", True), ("serial", True), ("concurrent", False)]
)
def test_a_commit_that_fails_after_the_handler_returned_is_a_failed_attempt(
    lanelog_client: Client, raw: Any, open_raw: Any, others: list[threading.Thread], order: str, raises: bool
) -> None:
    """The message is delivered again as the next attempt, soon, and the lane goes on."""
    handle = HandsOver(open_raw(), others, raises=raises)
    lanelog_client.publish_many("t", [("a", b"x")] * 3)
    subscription = lanelog_client.subscribe("t", "g", handle, order=order, retry=QUICK)
    assert handle.returned.wait(WITHIN)
    (number,) = handle.connections.wait(1)
    rows(raw, f"KILL {number}")
    (error,) = handle.outcomes.wait(1)
    assert isinstance(error, DatabaseError)
    handle.holder.rollback()
    eventually(lambda: subscription.stats().acked == 3, within=WITHIN)
    assert sorted(effects(raw, "o, attempt")) == [(1, 2), (2, 1), (3, 1)]
    if order == "strict":
        assert handle.seen.items == [(1, 1), (1, 2), (2, 1), (3, 1)]
    eventually(lambda: watermark(raw, "g", "t", "a") == 3)
    eventually(lambda: not delivery_rows(raw, "g", "t"))
    assert subscription.stats().running == 0


@pytest.mark.thorough
@pytest.mark.parametrize("order", ["strict", "serial"])
def test_nothing_of_the_key_starts_before_that_commit_is_through(
    lanelog_client: Client,
    raw: Any,
    open_raw: Any,
    others: list[threading.Thread],
    monkeypatch: pytest.MonkeyPatch,
    order: str,
) -> None:
    """While another thread still commits one message, the next one of its key waits, although the handler returned."""
    turns, handle = Turns(monkeypatch), HandsOver(open_raw(), others)
    lanelog_client.publish_many("t", [("a", b"x")] * 3)
    subscription = lanelog_client.subscribe("t", "g", handle, order=order, retry=QUICK)
    assert handle.returned.wait(WITHIN)
    turns.pass_by([subscription])
    assert len(handle.seen) == 1
    handle.holder.rollback()
    assert handle.outcomes.wait(1) == [None]
    eventually(lambda: subscription.stats().acked == 3, within=WITHIN)
    eventually(lambda: watermark(raw, "g", "t", "a") == 3)


def test_a_commit_of_unknown_outcome_that_nobody_can_read_is_decided_by_reloading_the_lane(
    lanelog_client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The attempt does not stay claimed for ever: the lane is read again, and its message delivered again."""
    seen = Record()

    def unknown(self: handler_transaction.HandlerTransaction, cx: Any) -> None:
        if self.messages[0].attempt.number == 1 and len(seen) == 1:
            raise DatabaseError("gone", code=2013, retriable=True, outcome_unknown=True)
        settle(self, cx)

    settle = handler_transaction.HandlerTransaction._settle
    monkeypatch.setattr(
        handler_transaction.HandlerTransaction,
        "_was_committed",
        raising(DatabaseError, "no privilege to read", code=1142, retriable=False),
    )
    monkeypatch.setattr(handler_transaction.HandlerTransaction, "_settle", unknown)

    def handle(message: Message) -> None:
        seen(message.offset)
        with message.transaction() as connection:
            have_effect(connection, message)

    lanelog_client.publish_many("t", [("a", b"x")] * 2)
    subscription = lanelog_client.subscribe("t", "g", handle, retry=QUICK)
    eventually(lambda: watermark(raw, "g", "t", "a") == 2, within=WITHIN)
    assert seen.items == [1, 1, 2]
    assert sorted(effects(raw)) == [(1,), (2,)]
    assert len(events(caplog, "lane.lost")) == 1
    eventually(lambda: subscription.stats().running == 0)
