"""`batch=`: a handler gets several messages at once, and decides about each of them."""

import os
import subprocess
import sys
import threading
from contextlib import closing
from typing import Any

import pytest
from tenacity import stop_after_attempt, wait_fixed

import lanelog
from lanelog import (
    AlreadySettled,
    Batch,
    Client,
    ConfigurationError,
    DatabaseError,
    LanelogError,
    LeaseLost,
    Messages,
    Postpone,
    Reject,
    Retry,
    RetryPolicy,
)
from lanelog._engine.handler_transaction import HandlerTransaction
from support.settling import create_effects, effects
from support.sql import connect, delivery_rows, rows, watermark
from support.waiting import Gate, Record, events, eventually, never

QUICK = RetryPolicy(stop=stop_after_attempt(3), wait=wait_fixed(0.05))
LONG = 30.0
"""Seconds for which no test waits: what comes before has not waited for its batch to be full."""


def offsets(messages: Messages) -> tuple[int, ...]:
    """What a batch is known by, when all of it has one key."""
    return tuple(message.offset for message in messages)


def named(messages: Messages) -> list[tuple[str, int]]:
    """What a batch is known by."""
    return [(message.key, message.offset) for message in messages]


@pytest.mark.parametrize("order", ["strict", "serial", "concurrent"])
@pytest.mark.parametrize("across", ["lane", "lanes"])
def test_batches_have_all_messages_in_the_order_of_their_keys(
    lanelog_client: Client, raw: Any, order: str, across: str
) -> None:
    """A return acks all of a batch; batches of one lane have one key, others several, and none is larger than asked."""
    seen = Record()
    lanelog_client.publish_many("t", [(f"k{number % 4}", b"x") for number in range(200)])
    batch = Batch(size=20, wait=0.05, across=across)
    subscription = lanelog_client.subscribe("t", "g", lambda messages: seen(named(messages)), order=order, batch=batch)
    eventually(lambda: subscription.stats().acked == 200)
    assert max(len(each) for each in seen.items) == 20
    for key in (f"k{number}" for number in range(4)):
        mine = [offset for each in seen.items for name, offset in each if name == key]
        assert sorted(mine) == list(range(1, 51))
        assert order == "concurrent" or mine == sorted(mine)
        eventually(lambda key=key: watermark(raw, "g", "t", key) == 50)
    assert across == "lanes" or all(len({key for key, _ in each}) == 1 for each in seen.items)
    eventually(lambda: not delivery_rows(raw, "g", "t"))


def test_a_full_batch_goes_out_at_once_and_another_one_after_its_wait(lanelog_client: Client) -> None:
    """Messages that come one after the other are handed out together, when the batch is full or its time is over."""
    seen = Record()
    subscription = lanelog_client.subscribe("t", "g", lambda messages: seen(offsets(messages)), batch=Batch(3, LONG))
    for number in range(3):
        eventually(lambda number=number: subscription.stats().prefetched == number)
        lanelog_client.publish("t", "k", b"x")
    assert seen.wait(1) == [(1, 2, 3)]
    lanelog_client.subscribe("t", "h", lambda messages: seen(offsets(messages)), batch=Batch(4, 0.3))
    assert seen.wait(2)[1:] == [(1, 2, 3)]


@pytest.mark.parametrize("across", ["lane", "lanes"])
def test_a_batch_fills_on_while_no_worker_is_free(lanelog_client: Client, across: str) -> None:
    """What comes during the handler of the only worker makes one batch."""
    seen = Record()
    with Gate() as gate:

        def handle(messages: Messages) -> None:
            seen(named(messages))
            gate()

        subscription = lanelog_client.subscribe("t", "g", handle, workers=1, batch=Batch(10, 0.0, across))
        lanelog_client.publish("t", "k", b"x")
        gate.reached()
        for number in range(5):
            lanelog_client.publish("t", "k" if across == "lane" else f"k{number}", b"x")
        eventually(lambda: subscription.stats().prefetched == 6)
    assert len(seen.wait(2)[1]) == 5


@pytest.mark.parametrize("order", ["strict", "serial"])
def test_a_list_decides_about_each_message(lanelog_client: Client, raw: Any, order: str) -> None:
    """Strict order: the first failure stops its lane, and what follows comes again as it was. Serial: it passes."""
    seen = Record()

    def handle(messages: Messages) -> list[Exception | None]:
        seen([(message.key, message.offset, message.attempt) for message in messages])
        return [Retry(0.05) if message.payload == b"late" and message.attempt == 1 else None for message in messages]

    lanelog_client.publish_many("t", [("a", b"x"), ("a", b"late"), ("a", b"x"), ("b", b"x"), ("b", b"x")])
    subscription = lanelog_client.subscribe("t", "g", handle, order=order, batch=Batch(5, 1.0, "lanes"))
    eventually(lambda: subscription.stats().acked == 5)
    first, *later = seen.items
    assert sorted(first) == [("a", 1, 1), ("a", 2, 1), ("a", 3, 1), ("b", 1, 1), ("b", 2, 1)]
    again = [each for batch in later for each in batch]
    assert again == ([("a", 2, 2), ("a", 3, 1)] if order == "strict" else [("a", 2, 2)])
    assert subscription.stats().retried == 1
    eventually(lambda: (watermark(raw, "g", "t", "a"), watermark(raw, "g", "t", "b")) == (3, 2))


@pytest.mark.thorough
def test_a_list_may_reject_and_postpone(lanelog_client: Client, raw: Any) -> None:
    """A rejected message is a dead letter, and a postponed one comes again as attempt 1."""
    seen = Record()

    def handle(messages: Messages) -> list[Exception | None]:
        seen([(message.offset, message.attempt) for message in messages])
        if len(seen) > 1:
            return [None] * len(messages)
        return [None, Reject("never"), Postpone(0.05), None]

    lanelog_client.publish_many("t", [("a", b"x")] * 4)
    subscription = lanelog_client.subscribe("t", "g", handle, order="serial", batch=Batch(4, LONG))
    eventually(lambda: (subscription.stats().acked, subscription.stats().dead_lettered) == (3, 1))
    assert seen.items == [[(1, 1), (2, 1), (3, 1), (4, 1)], [(3, 1)]]
    assert rows(raw, "SELECT original_offset, last_error FROM queue_messages WHERE topic = 't_dlq'") == [(2, "never")]


@pytest.mark.thorough
@pytest.mark.parametrize("wrong", [[None], (None, None), [None, "no"], 7])
def test_a_return_that_means_nothing_is_an_error_of_all_messages(
    lanelog_client: Client, caplog: pytest.LogCaptureFixture, wrong: object
) -> None:
    """The handler has done its work already, so it is not called with halves; the error says what it may return."""
    seen = Record()

    def handle(messages: Messages) -> object:
        seen([(message.offset, message.attempt) for message in messages])
        return wrong if len(seen) == 1 else None

    lanelog_client.publish_many("t", [("a", b"x")] * 2)
    subscription = lanelog_client.subscribe("t", "g", handle, retry=QUICK, batch=Batch(2, LONG))
    eventually(lambda: subscription.stats().acked == 2)
    assert seen.items == [[(1, 1), (2, 1)], [(1, 2), (2, 2)]]
    assert "Retry, Postpone or Reject" in events(caplog, "handler.failed")[0]


def test_what_raises_is_tried_again_in_halves_until_a_message_fails_alone(
    lanelog_client: Client, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The others are acked, as attempt 1, and the one that fails is a dead letter after its own attempts."""
    seen = Record()

    def handle(messages: Messages) -> None:
        seen([(message.offset, message.attempt) for message in messages])
        if any(message.payload == b"bad" for message in messages):
            raise ValueError("bad")

    lanelog_client.publish_many("t", [("a", b"bad" if number == 6 else b"x") for number in range(8)])
    subscription = lanelog_client.subscribe("t", "g", handle, order="serial", retry=QUICK, batch=Batch(8, LONG))
    eventually(lambda: (subscription.stats().acked, subscription.stats().dead_lettered) == (7, 1))
    calls = [[offset for offset, _ in each] for each in seen.items]
    assert calls == [[*range(1, 9)], [1, 2, 3, 4], [5, 6, 7, 8], [5, 6], [7, 8], [7], [8], [7], [7]]
    assert [attempt for each in seen.items for offset, attempt in each if offset == 7] == [1, 1, 1, 1, 2, 3]
    assert {attempt for each in seen.items for offset, attempt in each if offset != 7} == {1}
    assert len(events(caplog, "batch.halved")) == 3
    assert rows(raw, "SELECT failure_count FROM queue_messages WHERE topic = 't_dlq'") == [(3,)]


@pytest.mark.thorough
def test_a_message_that_is_left_over_has_not_failed_alone(lanelog_client: Client) -> None:
    """The other one of its batch was acked by a call, and the handler raised then: it is tried alone, uncounted."""
    seen = Record()

    def handle(messages: Messages) -> None:
        seen([(message.offset, message.attempt) for message in messages])
        if len(messages) == 2:
            messages[0].ack()
            raise ValueError

    lanelog_client.publish_many("t", [("a", b"x")] * 2)
    subscription = lanelog_client.subscribe("t", "g", handle, batch=Batch(2, LONG))
    eventually(lambda: subscription.stats().acked == 2)
    assert seen.items == [[(1, 1), (2, 1)], [(2, 1)]]


@pytest.mark.thorough
def test_the_wait_of_a_whole_batch_is_not_that_of_a_message_without_attempts(lanelog_client: Client) -> None:
    """The first message is buried, as its last attempt failed; the second one waits as the handler said."""
    seen = Record()

    def handle(messages: Messages) -> list[Exception | None]:
        seen([(message.offset, message.attempt) for message in messages])
        if len(seen) == 1:
            return [Retry(0.0), None, *[None] * (len(messages) - 2)]
        raise Retry(LONG)

    lanelog_client.publish_many("t", [("a", b"x")] * 2)
    retry = RetryPolicy(stop=stop_after_attempt(2), wait=wait_fixed(0.0))
    subscription = lanelog_client.subscribe("t", "g", handle, retry=retry, batch=Batch(2, LONG))
    eventually(lambda: subscription.stats().dead_lettered == 1)
    never(lambda: len(seen) > 2, during=0.5)
    assert seen.items == [[(1, 1), (2, 1)], [(1, 2), (2, 1)]]


@pytest.mark.thorough
def test_serial_order_hands_out_first_what_was_given_back(lanelog_client: Client) -> None:
    """A batch that times out goes before what is ready behind it: nothing of it has failed."""
    seen = Record()
    with Gate() as gate:

        def handle(messages: Messages) -> None:
            seen(offsets(messages))
            if len(seen) == 1:
                gate()

        lanelog_client.publish_many("t", [("a", b"x")] * 8)
        options: Any = {"visibility_timeout": 1.0, "auto_extend": False, "order": "serial"}
        subscription = lanelog_client.subscribe("t", "g", handle, batch=Batch(4, LONG), **options)
        eventually(lambda: subscription.stats().acked == 8)
    assert [offset for each in seen.items[1:] for offset in each] == list(range(1, 9))


@pytest.mark.thorough
def test_strict_order_stops_a_lane_at_the_message_that_fails(lanelog_client: Client) -> None:
    """What follows it in its lane is not handled before it is done, and no other lane waits."""
    seen = Record()

    def handle(messages: Messages) -> None:
        if any(message.key == "a" and message.offset == 2 and message.attempt < 3 for message in messages):
            raise ValueError("not yet")
        seen(named(messages))

    lanelog_client.publish_many("t", [(key, b"x") for key in ("a", "b") for _ in range(4)])
    subscription = lanelog_client.subscribe("t", "g", handle, retry=QUICK, batch=Batch(8, 0.3, "lanes"))
    eventually(lambda: subscription.stats().acked == 8)
    done = [each for batch in seen.items for each in batch]
    for key in ("a", "b"):
        assert [offset for name, offset in done if name == key] == [1, 2, 3, 4]


@pytest.mark.thorough
@pytest.mark.parametrize("ends", [Retry(0.05), Postpone(0.05)])
def test_what_is_raised_for_the_whole_batch_holds_for_all_of_it(lanelog_client: Client, ends: Exception) -> None:
    """`Retry` and `Postpone` are not halved: the same messages come again, as the next attempt or as the first."""
    seen = Record()

    def handle(messages: Messages) -> None:
        seen([(message.offset, message.attempt) for message in messages])
        if len(seen) == 1:
            raise ends

    lanelog_client.publish_many("t", [("a", b"x")] * 3)
    subscription = lanelog_client.subscribe("t", "g", handle, retry=QUICK, batch=Batch(3, LONG))
    eventually(lambda: subscription.stats().acked == 3)
    number = 2 if isinstance(ends, Retry) else 1
    assert seen.items == [[(1, 1), (2, 1), (3, 1)], [(1, number), (2, number), (3, number)]]


@pytest.mark.thorough
@pytest.mark.parametrize("order", ["strict", "serial"])
def test_a_batch_that_times_out_comes_again_in_halves(lanelog_client: Client, order: str) -> None:
    """The halves count no attempt, the message that hangs alone has failed, and a late return is nothing."""
    seen = Record()
    with Gate() as gate:

        def handle(messages: Messages) -> None:
            seen([(message.offset, message.attempt) for message in messages])
            if any(message.payload == b"hangs" and message.attempt == 1 for message in messages):
                gate()

        lanelog_client.publish_many("t", [("a", b"x"), ("a", b"x"), ("a", b"hangs"), ("a", b"x")])
        options: Any = {"visibility_timeout": 1.0, "auto_extend": False, "retry": QUICK, "order": order}
        subscription = lanelog_client.subscribe("t", "g", handle, batch=Batch(4, LONG), **options)
        eventually(lambda: subscription.stats().acked == 4)
        assert seen.items[0] == [(1, 1), (2, 1), (3, 1), (4, 1)]
        assert seen.items[1:3] == [[(1, 1), (2, 1)], [(3, 1), (4, 1)]]
        assert [attempt for each in seen.items for offset, attempt in each if offset == 3] == [1, 1, 1, 2]
        assert {attempt for each in seen.items for offset, attempt in each if offset != 3} == {1}
        assert (subscription.stats().timed_out, subscription.stats().dead_lettered) == (1, 0)


def test_the_transaction_of_a_batch_is_all_or_nothing(lanelog_client: Client, raw: Any) -> None:
    """A block that fails leaves no effect and no ack; in the end each message of each lane has exactly one effect."""
    create_effects(raw)

    def handle(messages: Messages) -> None:
        with messages.transaction() as connection:
            connection.cursor().executemany(
                "INSERT INTO effects (o, who) VALUES (%s, %s)", [(m.offset, m.key) for m in messages]
            )
            if len(messages) > 4:
                raise ValueError("after the writes")

    lanelog_client.publish_many("t", [(f"k{number % 3}", b"x") for number in range(30)])
    subscription = lanelog_client.subscribe("t", "g", handle, batch=Batch(16, 0.2, "lanes"), history=True)
    eventually(lambda: subscription.stats().acked == 30)
    assert sorted(effects(raw, "who, o")) == [(f"k{key}", offset) for key in range(3) for offset in range(1, 11)]
    for key in range(3):
        eventually(lambda key=key: watermark(raw, "g", "t", f"k{key}") == 10)
    eventually(lambda: not delivery_rows(raw, "g", "t"))
    assert rows(raw, "SELECT COUNT(*), MAX(attempts) FROM queue_history WHERE topic = 't'") == [(30, 1)]


@pytest.mark.thorough
def test_a_lane_that_is_lost_before_the_commit_takes_the_whole_transaction_with_it(
    lanelog_client: Client, raw: Any
) -> None:
    """Nothing is committed; the messages of the other lane come again, as attempt 1, and have one effect."""
    create_effects(raw)
    refused = Record()
    with Gate() as gate:

        def handle(messages: Messages) -> None:
            try:
                with messages.transaction() as connection:
                    connection.cursor().executemany(
                        "INSERT INTO effects (o, who, attempt) VALUES (%s, %s, %s)",
                        [(m.offset, m.key, m.attempt) for m in messages],
                    )
                    gate()
            except LeaseLost:
                refused(named(messages))
                raise

        lanelog_client.publish_many("t", [("a", b"x"), ("b", b"x")])
        subscription = lanelog_client.subscribe("t", "g", handle, batch=Batch(2, 0.5, "lanes"))
        gate.reached()
        rows(raw, "UPDATE queue_partition_leases SET lease_epoch = lease_epoch + 1 WHERE partition_key = 'a'")
        gate.open()
        eventually(lambda: subscription.stats().acked == 2)
    assert len(refused) >= 1
    assert sorted(effects(raw, "who, o, attempt")) == [("a", 1, 2), ("b", 1, 1)]


@pytest.mark.thorough
def test_after_a_crash_the_messages_come_alone(lanelog_client: Client, lanelog_url: str, raw: Any) -> None:
    """An attempt is counted for every message of the batch, since any of them may have been the cause."""
    seen = Record()
    lanelog_client.publish_many("t", [("a", b"x")] * 3)
    program = (
        "import lanelog, os, sys, threading\n"
        "client = lanelog.connect(sys.argv[1])\n"
        "client.subscribe('t', 'g', lambda messages: os._exit(9), batch=lanelog.Batch(3, 30))\n"
        "threading.Event().wait(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, lanelog_url], timeout=60, check=False, env=os.environ)
    assert done.returncode == 9
    subscription = lanelog_client.subscribe(
        "t", "g", lambda messages: seen([(m.offset, m.attempt) for m in messages]), batch=Batch(3, 0.5)
    )
    eventually(lambda: subscription.stats().acked == 3)
    assert seen.items == [[(1, 2)], [(2, 2)], [(3, 2)]]


@pytest.mark.thorough
def test_middleware_gets_the_batch_and_a_message_may_settle_itself(lanelog_client: Client) -> None:
    """What a handler has settled by a call stays; an ack in a transaction of its own is refused with a way out."""
    seen = Record()

    def counted(messages: Messages, call_next: Any) -> object:
        seen(len(messages))
        return call_next(messages)

    def handle(messages: Messages) -> None:
        messages[0].ack()
        with pytest.raises(ConfigurationError, match=r"messages\.ack"):
            messages[1].ack(connection=object())
        with pytest.raises(ConfigurationError, match="return a list"):
            messages[1].reject("no")

    lanelog_client.publish_many("t", [("a", b"x")] * 3)
    subscription = lanelog_client.subscribe(
        "t", "g", handle, order="serial", batch=Batch(3, LONG), middleware=(counted,)
    )
    eventually(lambda: subscription.stats().acked == 3)
    assert seen.items == [3]


@pytest.mark.thorough
def test_lanes_that_fill_the_memory_wait_for_nothing(lanelog_client: Client) -> None:
    """No more can come to a batch that waits when memory is full: what is there goes out at once."""
    seen = Record()
    lanelog_client.publish_many("t", [(f"k{number}", b"x") for number in range(40)])
    options: Any = {"prefetch": 16, "workers": 2}
    lanelog_client.subscribe("t", "g", lambda messages: seen(named(messages)), batch=Batch(4, LONG), **options)
    assert len(seen.until(lambda items: len(items) >= 24, within=10)) >= 24


@pytest.mark.thorough
def test_a_batch_across_lanes_that_times_out_comes_again_in_halves(lanelog_client: Client) -> None:
    """The message that hangs is found, and fails alone, although each has a lane of its own."""
    seen = Record()
    with Gate() as gate:

        def handle(messages: Messages) -> None:
            seen([(message.key, message.attempt) for message in messages])
            if any(message.key == "k2" and message.attempt == 1 for message in messages):
                gate()

        lanelog_client.publish_many("t", [(f"k{number}", b"x") for number in range(4)])
        options: Any = {"visibility_timeout": 1.0, "auto_extend": False, "retry": QUICK}
        subscription = lanelog_client.subscribe("t", "g", handle, batch=Batch(4, 0.5, "lanes"), **options)
        eventually(lambda: subscription.stats().acked == 4)
    hung = [len(each) for each in seen.items if ("k2", 1) in each]
    assert hung == sorted(hung, reverse=True)
    assert hung[-1] == 1
    assert subscription.stats().timed_out == 1


@pytest.mark.thorough
def test_a_message_settled_by_its_handler_lets_the_others_time_out(lanelog_client: Client) -> None:
    """The first one is acked by a call; then the handler hangs, and the second one comes again."""
    seen = Record()
    with Gate() as gate:

        def handle(messages: Messages) -> None:
            seen(offsets(messages))
            if len(messages) == 2:
                messages[0].ack()
                gate()

        lanelog_client.publish_many("t", [("a", b"x")] * 2)
        options: Any = {"visibility_timeout": 1.0, "auto_extend": False}
        lanelog_client.subscribe("t", "g", handle, batch=Batch(2, LONG), **options)
        assert seen.wait(2) == [(1, 2), (2,)]


@pytest.mark.thorough
def test_a_transaction_in_another_thread_outlives_the_handler_that_raised(lanelog_client: Client, raw: Any) -> None:
    """The claim of that thread is not forgotten when the batch is given up: it commits, or the messages come again."""
    create_effects(raw)
    entered, outcome, fail = threading.Event(), Record(), threading.Event()
    with Gate() as gate:

        def commit(messages: Messages) -> None:
            try:
                with messages.transaction() as connection:
                    connection.cursor().execute("INSERT INTO effects (o) VALUES (1)")
            except LanelogError as error:
                outcome(type(error))
            else:
                outcome("committed")

        def settled(self: HandlerTransaction, cx: Any) -> None:
            settle(self, cx)
            if not fail.is_set():
                fail.set()
                entered.set()
                gate()
                raise DatabaseError("cut", retriable=True)

        settle = HandlerTransaction._settle
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(HandlerTransaction, "_settle", settled)

            def handle(messages: Messages) -> None:
                if not entered.is_set():
                    threading.Thread(target=commit, args=(messages,)).start()
                    assert entered.wait(20)
                    raise TimeoutError

            lanelog_client.publish_many("t", [("a", b"x")] * 2)
            subscription = lanelog_client.subscribe("t", "g", handle, retry=QUICK, batch=Batch(2, LONG))
            gate.reached()
            (member,) = subscription._core.members
            eventually(lambda: len(member.attempts.detached()) == 2)
            gate.open()
            assert outcome.wait(1) == [DatabaseError]
            eventually(lambda: subscription.stats().acked == 2)
    assert effects(raw) == []


@pytest.mark.thorough
@pytest.mark.parametrize("order", ["strict", "serial"])
def test_a_batch_is_acked_in_a_transaction_of_the_handlers_own(
    lanelog_client: Client, lanelog_url: str, raw: Any, order: str
) -> None:
    """The commit settles all of it; what is rolled back, or never committed, comes again and has no effect."""
    create_effects(raw)
    seen = Record()

    def handle(messages: Messages) -> None:
        seen(named(messages))
        with closing(connect(lanelog_url, autocommit=False)) as connection:
            connection.cursor().executemany(
                "INSERT INTO effects (o, who) VALUES (%s, %s)", [(m.offset, m.key) for m in messages]
            )
            messages.ack(connection=connection)
            with pytest.raises(AlreadySettled):
                messages.ack(connection=connection)
            if len(seen) == 1:
                connection.rollback()
                raise ValueError
            if len(seen) > 2:
                connection.commit()

    lanelog_client.publish_many("t", [(key, b"x") for key in ("a", "b") for _ in range(4)])
    subscription = lanelog_client.subscribe(
        "t", "g", handle, order=order, retry=QUICK, batch=Batch(8, 0.5, "lanes"), history=True
    )
    eventually(lambda: subscription.stats().acked == 8)
    assert sorted(effects(raw, "who, o")) == [(key, offset) for key in ("a", "b") for offset in (1, 2, 3, 4)]
    eventually(lambda: (watermark(raw, "g", "t", "a"), watermark(raw, "g", "t", "b")) == (4, 4))
    eventually(lambda: not delivery_rows(raw, "g", "t"))
    assert subscription.stats().retried == 0


@pytest.mark.thorough
@pytest.mark.parametrize("commits", [True, False])
def test_a_batch_is_decided_by_a_transaction_that_outlives_its_handler(
    lanelog_client: Client, lanelog_url: str, raw: Any, commits: bool
) -> None:
    """Until it ends, nothing of its lanes is handed out. A commit settles the batch, and a rollback brings it back."""
    create_effects(raw)
    seen = Record()

    def handle(messages: Messages) -> None:
        connection = connect(lanelog_url, autocommit=False)
        connection.cursor().execute("INSERT INTO effects (o) VALUES (%s)", (len(messages),))
        messages.ack(connection=connection)
        if len(seen):
            connection.commit()
            connection.close()
        seen((connection, [(message.key, message.offset, message.attempt) for message in messages]))

    lanelog_client.publish_many("t", [("a", b"x"), ("b", b"x")])
    subscription = lanelog_client.subscribe("t", "g", handle, retry=QUICK, batch=Batch(2, 0.5, "lanes"))
    connection, _ = seen.wait(1)[0]
    lanelog_client.publish("t", "a", b"x")
    never(lambda: len(seen) > 1, during=0.5)
    (connection.commit if commits else connection.rollback)()
    connection.close()
    eventually(lambda: subscription.stats().acked == 3)
    again = [] if commits else [("a", 1, 2), ("b", 1, 2)]
    assert sorted(each for _, batch in seen.items[1:] for each in batch) == sorted([*again, ("a", 2, 1)])
    assert sum(count for (count,) in effects(raw)) == 3


@pytest.mark.thorough
def test_a_message_that_expires_sooner_does_not_wait_for_a_full_batch(lanelog_client: Client) -> None:
    """A batch goes out in time for each of its messages."""
    seen = Record()
    subscription = lanelog_client.subscribe("t", "g", lambda messages: seen(offsets(messages)), batch=Batch(2, LONG))
    lanelog_client.publish("t", "a", b"x", ttl=3.0)
    assert seen.wait(1, within=10) == [(1,)]
    assert subscription.stats().dead_lettered == 0


@pytest.mark.thorough
def test_a_subscription_that_stops_gives_back_what_its_batch_waits_with(lanelog_client: Client, raw: Any) -> None:
    """A batch that is not full yet is handed out by the next subscription, as attempt 1."""
    seen = Record()
    lanelog_client.publish("t", "a", b"x")
    waiting = lanelog_client.subscribe("t", "g", seen, batch=Batch(2, LONG))
    eventually(lambda: waiting.stats().prefetched == 1)
    assert waiting.stop(10)
    assert not seen.items
    lanelog_client.subscribe("t", "g", lambda message: seen((message.offset, message.attempt)))
    assert seen.wait(1) == [(1, 1)]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"batch": 100}, "lanelog.Batch"),
        ({"batch": Batch(), "ack_policy": "manual"}, "MANUAL"),
        ({"batch": Batch(), "ack_policy": "ack_first"}, "ACK_FIRST"),
        ({"batch": Batch(), "retry": 1}, "second attempt"),
        ({"batch": Batch(), "max_deliveries": 1}, "second attempt"),
        ({"batch": Batch(50), "prefetch": 40}, "prefetch"),
    ],
)
def test_options_that_contradict_a_batch_are_refused(lanelog_client: Client, options: Any, word: str) -> None:
    """The error names the option."""
    with pytest.raises(ConfigurationError, match=word):
        lanelog_client.subscribe("t", "g", lambda _messages: None, **options)


@pytest.mark.parametrize("wrong", [{"size": 0}, {"size": 10_001}, {"wait": -1}, {"across": "topics"}, {"size": 2.5}])
def test_a_batch_is_checked_where_it_is_made(wrong: Any) -> None:
    """Neither `subscribe` nor a worker meets a batch that cannot be."""
    with pytest.raises(ConfigurationError):
        Batch(**wrong)
    assert Batch(wait=lanelog.Batch().wait).across == "lane"
