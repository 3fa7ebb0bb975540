"""Subscriptions and clients from start to stop: what is released, what is kept, and what they say about themselves."""

import gc
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

import lanelog
from lanelog import Client, ClosedError, ConfigurationError, Message
from lanelog._engine.settling.settler import Settler
from support.processes import Fleet
from support.sql import delivery_rows, one, owners, rows, watermark
from support.turns import Turns
from support.waiting import Record, accept, events, eventually

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


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held()
    yield held
    held.release.set()


@contextmanager
def in_a_thread(call: Callable[[], object]) -> Iterator[Record]:
    """What `call` gives, once it has."""
    outcome = Record()
    thread = threading.Thread(target=lambda: outcome(call()))
    thread.start()
    try:
        yield outcome
    finally:
        thread.join(30)


@pytest.mark.thorough
def test_pause_hands_out_nothing_and_keeps_the_lanes(
    lanelog_client: Client, raw: Any, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The running handler finishes and settles; what was marked is unmarked; resume goes on, every attempt is 1."""
    turns = Turns(monkeypatch)
    lanelog_client.publish_many("t", [(f"k{n % 3}", b"x") for n in range(60)])
    subscription = lanelog_client.subscribe("t", "g", held, workers=2)
    assert held.inside.wait(20)
    subscription.pause()
    subscription.pause()
    assert subscription.state == "paused"
    held.release.set()
    # The other worker may have been in a handler as well; after these, nothing starts.
    eventually(lambda: subscription.stats().running == 0)
    before = len(held.seen)
    assert before < 60
    lanelog_client.publish("t", "new", b"x")
    for _ in range(2):
        turns.pass_by([subscription])
    assert len(held.seen) == before
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


@pytest.mark.thorough
def test_stop_that_times_out_keeps_the_lane_until_its_handler_ends(
    lanelog_client: Client, lanelog_url: str, raw: Any, caplog: pytest.LogCaptureFixture, held: Held
) -> None:
    """False, and lease and heartbeat go on, so that nobody runs the key twice; idle lanes are released at once."""
    caplog.set_level(logging.INFO, logger="lanelog")
    elsewhere, options = Record(), {"lease_renewal": 0.1}
    lanelog_client.publish("t", "a", b"x")
    subscription = lanelog_client.subscribe("t", "g", held, **options)
    assert held.inside.wait(20)
    lanelog_client.publish_many("t", [("b", b"x"), ("a", b"y")])
    eventually(lambda: watermark(raw, "g", "t", "b") == 1)
    assert subscription.stop(0.2) is False
    assert subscription.state == "stopping"
    assert events(caplog, "subscription.still_draining", logging.WARNING)
    beat = "SELECT heartbeat_at FROM queue_subscriber_heartbeats WHERE subscriber_name = %s AND deregistered_at = 0"
    with lanelog.connect(lanelog_url) as other:
        other.subscribe("t", "g", lambda m: elsewhere((m.key, m.offset)), **options)
        for _ in range(3):
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


def test_stop_may_be_called_by_many_and_leaves_no_thread_of_its_own(lanelog_client: Client) -> None:
    """Ten at once, and again afterwards: all get True; workers end with their subscription, loops with their client."""

    def threads(prefix: str) -> list[str]:
        return [t.name for t in threading.enumerate() if t.name.startswith(prefix)]

    subscription = lanelog_client.subscribe("t", "only-here", accept, workers=5)
    assert len(threads("lanelog-worker-only-here")) == 5
    with ThreadPoolExecutor(10) as pool:
        assert all(pool.map(lambda _: subscription.stop(20), range(10)))
    assert subscription.stop() is True
    for use in (subscription.start, subscription.pause):
        with pytest.raises(ClosedError):
            use()
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


def test_close_that_times_out_ends_when_the_handler_does(lanelog_url: str, raw: Any, held: Held) -> None:
    """False; the lane stays protected by lease and heartbeat; all is released when the handler ends."""
    client = lanelog.connect(lanelog_url)
    client.publish("t", "a", b"x")
    subscription = client.subscribe("t", "g", held)
    assert held.inside.wait(20)
    assert client.close(0.2) is False
    assert owners(raw, "g", "t") == {"a": subscription.owner}
    assert one(raw, REGISTERED) == 1
    held.release.set()
    eventually(lambda: owners(raw, "g", "t") == {"a": ""})
    eventually(lambda: one(raw, REGISTERED) == 0)
    assert watermark(raw, "g", "t", "a") == 1
    assert client.close() is True
    eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("lanelog-")])


@pytest.mark.parametrize("what", ["client", "subscription"])
def test_a_second_end_waits_for_the_first(lanelog_client: Client, held: Held, what: str) -> None:
    """While one thread closes or stops it, another one's call is False at its own time-out, or True with the first."""
    lanelog_client.publish("t", "a", b"x")
    subscription = lanelog_client.subscribe("t", "g", held)
    assert held.inside.wait(20)
    end = lanelog_client.close if what == "client" else subscription.stop
    with in_a_thread(end) as first:
        eventually(lambda: subscription.state == "stopping")
        assert end(timeout=0.1) is False
        with in_a_thread(lambda: (end(), subscription.state)) as second:
            held.release.set()
            assert second.wait(1) == [(True, "stopped")]
            assert first.wait(1) == [True]


def test_a_signal_handler_that_closes_while_the_main_thread_does(lanelog_client: Client, held: Held) -> None:
    """The handler returns without waiting: the call that it interrupted closes the client, and must go on first."""
    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe("t", "g", held)
    assert held.inside.wait(20)
    nested = Record()

    def on_signal(_number: int, _frame: object) -> None:
        nested(lanelog_client.close(3600.0))
        held.release.set()

    def interrupt() -> None:
        eventually(lambda: subscription.state == "stopping")  # the main thread is inside close()
        os.kill(os.getpid(), signal.SIGUSR1)

    previous = signal.signal(signal.SIGUSR1, on_signal)
    try:
        with in_a_thread(interrupt):
            assert lanelog_client.close(60)
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert nested.items == [False]


def test_what_is_settled_during_the_drain_counts(lanelog_client: Client, lanelog_url: str, raw: Any) -> None:
    """An explicit ack is committed and returns; of a handler that fails the next owner continues with attempt 2."""
    acked, seen, release = Record(), Record(), threading.Event()
    inside = Record()

    def handle(message: Message) -> None:
        inside(message.key)
        assert release.wait(30)
        if message.key == "fails":
            raise ValueError("no")
        message.ack()
        acked(watermark(raw, "g", "t", "acks"))

    lanelog_client.publish_many("t", [("acks", b"x"), ("fails", b"x")])
    policy = lanelog.RetryPolicy(wait=lambda _state: 0.05)
    subscription = lanelog_client.subscribe("t", "g", handle, retry=policy)
    inside.wait(2)
    subscription._core.ask_to_stop()
    release.set()
    assert acked.wait(1) == [1]
    assert subscription.stop(10)
    assert [(r["partition_key"], r["retry_count"]) for r in delivery_rows(raw, "g", "t")] == [("fails", 1)]
    with lanelog.connect(lanelog_url) as other:
        other.subscribe("t", "g", lambda m: seen((m.key, m.attempt)))
        assert seen.wait(1) == [("fails", 2)]


@pytest.mark.parametrize("comes_late", [True, False], ids=["late", "too late"])
def test_what_is_settled_after_a_failure_is_written_by_a_settler_that_comes_late(
    lanelog_client: Client, raw: Any, held: Held, monkeypatch: pytest.MonkeyPatch, comes_late: bool
) -> None:
    """The keeper leaves it some seconds; then it gives the lane back, and the next owner delivers again."""
    turns, settling, really = Turns(monkeypatch), threading.Event(), Settler.turn

    def turn(self: Settler, now: float) -> float:
        assert settling.wait(30)
        return really(self, now)

    settling.set()
    monkeypatch.setattr(Settler, "turn", turn)
    lanelog_client.publish("t", "a", b"x")
    subscription = lanelog_client.subscribe("t", "g", held, lease_renewal=0.1)
    if not comes_late:
        subscription._core.members[0].leasing.settler_grace = 0.0
    assert held.inside.wait(20)
    settling.clear()
    subscription._core.members[0].fail(RuntimeError("out of order"))
    held.release.set()
    eventually(lambda: subscription.stats().running == 0)
    if comes_late:
        turns.pass_by([subscription])
    else:
        eventually(lambda: owners(raw, "g", "t") == {"a": ""})
    settling.set()
    assert subscription.stop(20)
    assert watermark(raw, "g", "t", "a") == comes_late
    lanelog_client.subscribe("t", "g", held)
    lanelog_client.publish("t", "a", b"y")
    expected = [("a", 1, 1), ("a", 2, 1)] if comes_late else [("a", 1, 1), ("a", 1, 2), ("a", 2, 1)]
    assert held.seen.wait(len(expected)) == expected


@pytest.mark.thorough
def test_the_settler_of_a_client_without_subscriptions_keeps_its_connection(lanelog_client: Client, raw: Any) -> None:
    """The server would drop it after 15 s in silence, and the first flush of the next subscription would fail."""
    lanelog_client.publish("t", "a", b"x")
    subscription = lanelog_client.subscribe("t", "g", accept)
    eventually(lambda: watermark(raw, "g", "t", "a") == 1)
    assert subscription.stop(20)
    turns = [loop._turn.__self__ for loop in lanelog_client._engine._loops]
    (settler,) = (each for each in turns if isinstance(each, Settler))
    settler.session._wire._used -= 60.0  # as after a minute
    eventually(lambda: settler.session._wire.idle() < 30.0)


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


@pytest.mark.thorough
def test_run_returns_when_the_client_is_closed(lanelog_url: str, raw: Any) -> None:
    """In another thread than the main one there are no signals; close() ends it."""
    client = lanelog.connect(lanelog_url)
    client.subscriber("t", "g")(accept)
    with in_a_thread(client.run) as returned:
        eventually(lambda: one(raw, REGISTERED) == 1)
        client.close()
        returned.wait(1)
    assert one(raw, REGISTERED) == 0


@pytest.mark.thorough
def test_sigterm_drains_and_exits_with_0(fleet: Fleet, lanelog_client: Client, raw: Any) -> None:
    """client.run() in a process of its own: the handler in flight ends, the rest is left at attempt 1, all released."""
    lanelog_client.publish_many("t", [("idle", {}), ("a", {"wait": "w1"})])
    worker = fleet.worker("w1")
    worker.said("waiting")
    worker.said("handled")
    lanelog_client.publish_many("t", [("a", {})] * 20)
    worker.terminate()
    eventually(lambda: owners(raw, "g", "t")["idle"] == "")  # it drains
    assert owners(raw, "g", "t")["a"]
    worker.tell("go")
    assert worker.ended() == 0
    assert ("a", 1) in [(line["key"], line["offset"]) for line in worker.lines if line.event == "handled"]
    (drained,) = worker.said("drained")
    assert drained["closed"] is True
    assert owners(raw, "g", "t") == {"a": "", "idle": ""}
    assert one(raw, REGISTERED) == 0
    done = watermark(raw, "g", "t", "a")
    rest = Record()
    lanelog_client.subscribe("t", "g", lambda m: rest((m.offset, m.attempt)))
    assert rest.wait(21 - done) == [(n, 1) for n in range(done + 1, 22)]


@pytest.mark.thorough
def test_a_drain_that_has_taken_long_enough_cuts_handlers_off(fleet: Fleet, lanelog_client: Client, raw: Any) -> None:
    """Running messages go back with an attempt that does not count; the process ends; the next gets them at once."""
    lanelog_client.publish_many("t", [("a", {"wait": "w1"}), ("a", {}), ("b", {"wait": "w1"})])
    worker = fleet.worker("w1", run={"drain_timeout": 0.2}, starts=True)
    worker.said("waiting", count=2)
    worker.terminate()
    assert worker.ended() == 0
    worker.said("drained")
    logged = [line["text"] for line in worker.lines if line.event == "log"]
    assert sum("handler.cut_off topic=t key=" in line for line in logged) == 2
    assert owners(raw, "g", "t") == {"a": "", "b": ""}
    assert one(raw, REGISTERED) == 0
    assert rows(raw, "SELECT MAX(retry_count), MAX(crashed) FROM queue_delivery_state WHERE acked = 0") == [(0, 0)]
    seen = Record()
    lanelog_client.subscribe("t", "g", lambda m: seen((m.key, m.offset, m.attempt)))
    assert sorted(seen.wait(3)) == [("a", 1, 1), ("a", 2, 1), ("b", 1, 1)]


@pytest.mark.thorough
@pytest.mark.parametrize("policy", ["MANUAL", "NACK_ON_ERROR", "ACK_FIRST"])
def test_a_handler_that_was_cut_off_settles_nothing(
    lanelog_client: Client, lanelog_url: str, caplog: pytest.LogCaptureFixture, policy: str
) -> None:
    """Another process may have settled its message. Under ACK_FIRST the message is lost, and an event says so."""
    started, go, refused = Record(), threading.Event(), Record()

    def handle(message: Message) -> None:
        started(message.offset)
        go.wait(30)
        try:
            with message.transaction():
                pass
        except lanelog.LanelogError as error:
            refused(type(error))

    lanelog_client.publish_many("t", [("a", b"1"), ("a", b"2")])
    subscription = lanelog_client.subscribe("t", "g", handle, ack_policy=lanelog.AckPolicy[policy], workers=1)
    started.wait(1)
    assert not subscription.stop(0)
    subscription._core.cut_off()
    assert subscription.stop(20)
    assert events(caplog, "handler.cut_off")
    seen = Record()
    with lanelog.connect(lanelog_url) as other, other.subscribe("t", "g", lambda m: seen((m.offset, m.attempt))):
        left = [(2, 1)] if policy == "ACK_FIRST" else [(1, 1), (2, 1)]
        assert seen.wait(len(left)) == left
    go.set()
    assert refused.wait(1) == [lanelog.LeaseLost]
    assert started.items == [1]


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
    subscription._core._engine.close()
    database.close()


def test_stats_and_repr_say_what_is_going_on(lanelog_url: str, held: Held) -> None:
    """Counters, lanes and states."""
    with lanelog.connect(lanelog_url) as client:
        assert repr(client).startswith("<Client of mysql://")
        assert "0 subscriptions" in repr(client)
        client.publish_many("t", [("a", b"xx"), ("a", b"yyy"), ("b", b"z")])
        subscription = client.subscribe("t", "g", held, workers=1, name="me")
        assert repr(subscription) == "<Subscription 'g' on 't': running>"
        assert subscription.owner.startswith("me:")
        assert held.inside.wait(20)
        stats = eventually(lambda: s if (s := subscription.stats()).lanes == 2 and s.prefetched == 3 else None)
        assert (stats.state, stats.acked, stats.prefetched_bytes) == ("running", 0, 6)
        held.release.set()
        stats = eventually(lambda: s if (s := subscription.stats()).acked == 3 else None)
        assert (stats.running, stats.waiting, stats.prefetched, stats.prefetched_bytes) == (0, 0, 0, 0)
        assert (stats.handled, stats.retried, stats.refused, stats.timed_out) == (3, 0, 0, 0)
    assert "closed" in repr(client)
    assert repr(subscription) == "<Subscription 'g' on 't': stopped>"
