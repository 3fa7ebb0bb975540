"""Subscriptions and clients from start to stop: what is released, what is kept, and what they say about themselves."""

import gc
import logging
import threading
from typing import Any

import pytest

import lanelog
from lanelog import Client, ClosedError, ConfigurationError, Message
from support.processes import Fleet
from support.sql import delivery_rows, one, owners, rows, watermark
from support.waiting import Record, accept, events, eventually, never

REGISTERED = "SELECT COUNT(*) FROM queue_subscriber_heartbeats WHERE deregistered_at = 0"


class Held:
    """A handler that holds its first message until it is told to go on."""

    def __init__(self) -> None:
        self.inside, self.release, self.seen = threading.Event(), threading.Event(), Record()

    def __call__(self, message: Message) -> None:
        self.seen((message.key, message.offset, message.attempt))
        if len(self.seen) == 1:
            self.inside.set()
            assert self.release.wait(30)


def test_pause_hands_out_nothing_and_keeps_the_lanes(lanelog_client: Client, raw: Any) -> None:
    """The running handler finishes and settles; what was marked is unmarked; resume goes on, every attempt is 1."""
    held = Held()
    lanelog_client.publish_many("t", [(f"k{n % 3}", b"x") for n in range(60)])
    subscription = lanelog_client.subscribe("t", "g", held, workers=2)
    assert held.inside.wait(10)
    subscription.pause()
    subscription.pause()
    assert subscription.state == "paused"
    held.release.set()
    # The other worker may have been in a handler as well; after these, nothing starts.
    eventually(lambda: subscription.stats().running == 0)
    before = len(held.seen)
    assert before < 60
    lanelog_client.publish("t", "new", b"x")
    never(lambda: len(held.seen) > before, during=0.5, what="a handler while paused")
    marks = "SELECT COUNT(*) FROM queue_offsets WHERE consumer_group = 'g' AND marked_through > offset_acked"
    eventually(lambda: one(raw, marks) == 0)
    assert {owners(raw, "g", "t")[f"k{n}"] for n in range(3)} == {subscription.owner}
    subscription.resume()
    subscription.resume()
    assert subscription.state == "running"
    items = held.seen.wait(61)
    assert {attempt for _, _, attempt in items} == {1}
    assert len(set(items)) == 61
    for key in ("k0", "k1", "k2"):
        assert [offset for k, offset, _ in items if k == key] == list(range(1, 21))


@pytest.mark.parametrize("what", ["group", "lane"])
def test_an_operators_pause_is_the_groups_own(lanelog_client: Client, raw: Any, what: str) -> None:
    """The flag in the tables stops the group's handlers (or the lane's), and no other group's."""
    a_seen, b_seen = Record(), Record()
    lanelog_client.publish_many("t", [("k", b"1"), ("l", b"1")])
    a = lanelog_client.subscribe("t", "a", lambda m: a_seen((m.key, m.offset)))
    lanelog_client.subscribe("t", "b", lambda m: b_seen((m.key, m.offset)))
    a_seen.wait(2)
    eventually(lambda: watermark(raw, "a", "t", "k") == 1)
    if what == "group":
        sql, paused = "UPDATE queue_groups SET paused_at = %s WHERE consumer_group = 'a'", {"k", "l"}
    else:
        sql = "UPDATE queue_offsets SET paused_at = %s WHERE consumer_group = 'a' AND partition_key = 'k'"
        paused = {"k"}
    rows(raw, sql, 1)
    lanes = a.memberships[0].lanes  # an idle lane that is paused is given back
    eventually(lambda: all((lane := lanes.get(key)) is None or lane.paused for key in paused))
    lanelog_client.publish_many("t", [("k", b"2"), ("l", b"2")])
    b_seen.wait(4)
    never(lambda: any(key in paused for key, _ in a_seen.items[2:]), during=0.4, what="a handler of a paused lane")
    rows(raw, sql, 0)
    assert sorted(a_seen.wait(4)) == [("k", 1), ("k", 2), ("l", 1), ("l", 2)]


def test_stop_drains_and_releases(lanelog_client: Client, lanelog_url: str, raw: Any) -> None:
    """The running handler ends and its ack commits; nothing else starts; no lease and no registration is left."""
    held = Held()
    lanelog_client.publish_many("t", [("a", b"x")] * 50)
    subscription = lanelog_client.subscribe("t", "g", held)
    assert held.inside.wait(10)
    stopped = Record()
    stopper = threading.Thread(target=lambda: stopped(subscription.stop(20)))
    stopper.start()
    eventually(lambda: subscription.state == "stopping")
    held.release.set()
    assert stopped.wait(1) == [True]
    stopper.join(10)
    assert held.seen.items == [("a", 1, 1)]
    assert subscription.state == "stopped"
    assert watermark(raw, "g", "t", "a") == 1
    assert owners(raw, "g", "t") == {"a": ""}
    assert one(raw, REGISTERED) == 0
    with lanelog.connect(lanelog_url) as other:
        rest = Record()
        other.subscribe("t", "g", lambda m: rest((m.offset, m.attempt)))
        assert rest.wait(49) == [(n, 1) for n in range(2, 51)]


def test_stop_that_times_out_keeps_the_lane_until_its_handler_ends(
    lanelog_client: Client, lanelog_url: str, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """False, and lease and heartbeat go on, so that nobody runs the key twice; idle lanes are released at once."""
    caplog.set_level(logging.INFO, logger="lanelog")
    held, elsewhere = Held(), Record()
    options = {"lease_renewal": 0.3}
    lanelog_client.publish("t", "a", b"x")
    subscription = lanelog_client.subscribe("t", "g", held, **options)
    assert held.inside.wait(10)
    lanelog_client.publish_many("t", [("b", b"x"), ("a", b"y")])
    eventually(lambda: watermark(raw, "g", "t", "b") == 1)
    assert subscription.stop(0.2) is False
    assert subscription.state == "stopping"
    assert events(caplog, "subscription.still_draining", logging.WARNING)
    beat = "SELECT heartbeat_at FROM queue_subscriber_heartbeats WHERE subscriber_name = %s AND deregistered_at = 0"
    with lanelog.connect(lanelog_url) as other:
        other.subscribe("t", "g", lambda m: elsewhere((m.key, m.offset)), **options)
        for _ in range(4):
            last = one(raw, beat, subscription.owner)
            assert last
            eventually(lambda last=last: one(raw, beat, subscription.owner) > last)
        assert owners(raw, "g", "t")["a"] == subscription.owner
        assert elsewhere.items == []
        held.release.set()
        assert subscription.stop(10) is True
        assert subscription.state == "stopped"
        assert elsewhere.wait(1) == [("a", 2)]
        assert one(raw, beat, subscription.owner) is None


def test_stop_is_idempotent_and_may_be_called_by_many(lanelog_client: Client) -> None:
    """Ten threads at once, and again afterwards: all get True."""
    lanelog_client.publish_many("t", [("a", b"x")] * 200)
    subscription = lanelog_client.subscribe("t", "g", accept)
    answers = Record()
    threads = [threading.Thread(target=lambda: answers(subscription.stop(20))) for _ in range(10)]
    for thread in threads:
        thread.start()
    assert answers.wait(10) == [True] * 10
    for thread in threads:
        thread.join(10)
    assert subscription.stop() is True
    with pytest.raises(ClosedError):
        subscription.start()
    with pytest.raises(ClosedError):
        subscription.pause()


def test_stop_leaves_no_thread_of_its_own(lanelog_client: Client) -> None:
    """Workers end with their subscription, loops with their client."""

    def threads(prefix: str) -> list[str]:
        return [t.name for t in threading.enumerate() if t.name.startswith(prefix)]

    subscription = lanelog_client.subscribe("t", "only-here", accept, workers=5)
    assert len(threads("lanelog-worker-only-here")) == 5
    assert subscription.stop(10)
    eventually(lambda: not threads("lanelog-worker-only-here"))
    lanelog_client.close()
    eventually(lambda: not threads("lanelog-"))


def test_context_managers_stop_and_close(lanelog_url: str, raw: Any) -> None:
    """Leaving the block of a subscription stops it, leaving the client's closes it, also by an exception."""
    with lanelog.connect(lanelog_url) as client:
        with client.subscribe("t", "g", accept) as subscription:
            assert subscription.state == "running"
        assert subscription.state == "stopped"
        second = client.subscribe("t", "g", accept)
    assert second.state == "stopped"
    assert one(raw, REGISTERED) == 0

    third = Record()
    with pytest.raises(ZeroDivisionError), lanelog.connect(lanelog_url) as client:
        third(client.subscribe("t", "g", accept))
        raise ZeroDivisionError
    assert third.items[0].state == "stopped"
    for use in (lambda: client.subscribe("t", "g", accept), lambda: client.publish("t", "a", b"x")):
        with pytest.raises(ClosedError):
            use()


def test_close_that_times_out_ends_when_the_handler_does(lanelog_url: str, raw: Any) -> None:
    """False; the lane stays protected by lease and heartbeat; all is released when the handler ends."""
    held = Held()
    client = lanelog.connect(lanelog_url)
    client.publish("t", "a", b"x")
    subscription = client.subscribe("t", "g", held)
    assert held.inside.wait(10)
    assert client.close(0.2) is False
    assert owners(raw, "g", "t") == {"a": subscription.owner}
    assert one(raw, REGISTERED) == 1
    held.release.set()
    eventually(lambda: owners(raw, "g", "t") == {"a": ""})
    eventually(lambda: one(raw, REGISTERED) == 0)
    assert watermark(raw, "g", "t", "a") == 1
    assert client.close() is True
    eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("lanelog-")])


def test_a_settlement_that_waits_is_not_left_alone_by_stop(lanelog_client: Client, raw: Any) -> None:
    """An explicit ack during the drain is committed and returns."""
    outcome, inside, release = Record(), threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        inside.set()
        assert release.wait(30)
        message.ack()
        outcome(watermark(raw, "g", "t", "a"))

    lanelog_client.publish("t", "a", b"x")
    subscription = lanelog_client.subscribe("t", "g", handle)
    assert inside.wait(10)
    subscription.ask_to_stop()
    release.set()
    assert outcome.wait(1) == [1]
    assert subscription.stop(10)


def test_a_failing_message_during_the_drain_keeps_its_count(lanelog_client: Client, lanelog_url: str, raw: Any) -> None:
    """The handler fails while stopping: the next owner continues with attempt 2."""
    held, seen = Held(), Record()

    def handle(message: Message) -> None:
        held(message)
        raise ValueError("no")

    lanelog_client.publish("t", "a", b"x")
    policy = lanelog.RetryPolicy(wait=lambda _state: 0.05)
    subscription = lanelog_client.subscribe("t", "g", handle, retry=policy)
    assert held.inside.wait(10)
    subscription.ask_to_stop()
    held.release.set()
    assert subscription.stop(10)
    assert [(r["message_offset"], r["retry_count"]) for r in delivery_rows(raw, "g", "t")] == [(1, 1)]
    with lanelog.connect(lanelog_url) as other:
        other.subscribe("t", "g", lambda m: seen((m.offset, m.attempt)))
        assert seen.wait(1) == [(1, 2)]


def test_the_decorator_sends_nothing_before_start(lanelog_client: Client, raw: Any) -> None:
    """Registering is free; start() starts what was registered, once; the handler stays an ordinary function."""
    seen = Record()

    @lanelog_client.subscriber("t", "g", workers=2)
    def handle(message: Message) -> str:
        seen(message.offset)
        return "handled"

    assert one(raw, "SELECT COUNT(*) FROM queue_groups") == 0
    lanelog_client.start()
    lanelog_client.start()
    assert one(raw, "SELECT COUNT(*) FROM queue_groups") == 1
    lanelog_client.publish("t", "a", b"x")
    assert seen.wait(1) == [1]
    assert callable(handle)


def test_run_without_a_handler_is_refused(lanelog_client: Client) -> None:
    """Nothing to run would block for ever."""
    with pytest.raises(ConfigurationError, match="nothing to run"):
        lanelog_client.run()


def test_run_returns_when_the_client_is_closed(lanelog_url: str, raw: Any) -> None:
    """In another thread than the main one there are no signals; close() ends it."""
    client = lanelog.connect(lanelog_url)
    client.subscriber("t", "g")(accept)
    thread = threading.Thread(target=client.run)
    thread.start()
    eventually(lambda: one(raw, REGISTERED) == 1)
    client.close()
    thread.join(10)
    assert not thread.is_alive()
    assert one(raw, REGISTERED) == 0


def test_sigterm_drains_and_exits_with_0(fleet: Fleet, lanelog_client: Client, raw: Any) -> None:
    """client.run() in a process of its own: the handler in flight ends, the rest is left at attempt 1, all released."""
    lanelog_client.publish("t", "a", {"wait": "w1"})
    worker = fleet.worker("w1")
    worker.said("waiting")
    lanelog_client.publish_many("t", [("a", {})] * 20)
    worker.terminate()
    never(lambda: worker.popen.poll() is not None, during=0.7, what="an end before the handler's")
    assert set(owners(raw, "g", "t").values()) != {""}
    worker.tell("go")
    assert worker.ended() == 0
    assert next(line["offset"] for line in worker.lines if line.event == "handled") == 1
    (drained,) = worker.said("drained")
    assert drained["closed"] is True
    assert owners(raw, "g", "t") == {"a": ""}
    assert one(raw, REGISTERED) == 0
    done = watermark(raw, "g", "t", "a")
    rest = Record()
    lanelog_client.subscribe("t", "g", lambda m: rest((m.offset, m.attempt)))
    assert rest.wait(21 - done) == [(n, 1) for n in range(done + 1, 22)]


def drop(things: list[object]) -> None:
    """Let go of the last references."""
    things.clear()
    gc.collect()


def test_a_client_that_is_dropped_while_it_runs_warns(lanelog_url: str) -> None:
    """ResourceWarning names it; its subscription can still be stopped."""
    client = lanelog.connect(lanelog_url)
    subscription = client.subscribe("t", "g", accept)
    database = client._database
    left_over = [client]
    del client
    with pytest.warns(ResourceWarning, match="was never closed"):
        drop(left_over)
    assert subscription.stop(10)
    subscription._engine.close()
    database.close()


def test_stats_and_repr_say_what_is_going_on(lanelog_url: str) -> None:
    """Counters, lanes and states; the password is nowhere."""
    client = lanelog.connect(lanelog_url)
    held = Held()
    try:
        assert repr(client).startswith("<Client of mysql://")
        assert "0 subscriptions" in repr(client)
        client.publish_many("t", [("a", b"xx"), ("a", b"yyy"), ("b", b"z")])
        subscription = client.subscribe("t", "g", held, workers=1, name="me")
        assert repr(subscription) == "<Subscription 'g' on 't': running>"
        assert subscription.owner.startswith("me:")
        assert held.inside.wait(10)
        stats = eventually(lambda: s if (s := subscription.stats()).lanes == 2 and s.prefetched == 3 else None)
        assert (stats.state, stats.acked, stats.prefetched_bytes) == ("running", 0, 6)
        held.release.set()
        stats = eventually(lambda: s if (s := subscription.stats()).acked == 3 else None)
        assert (stats.running, stats.waiting, stats.prefetched, stats.prefetched_bytes) == (0, 0, 0, 0)
        assert (stats.handled, stats.retried, stats.refused, stats.timed_out) == (3, 0, 0, 0)
    finally:
        held.release.set()
        client.close()
    assert "closed" in repr(client)
    assert repr(subscription) == "<Subscription 'g' on 't': stopped>"
