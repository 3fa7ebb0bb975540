"""The metrics of a client: what it publishes and handles, how long that takes, and what it holds."""

import os
import signal
import threading
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import lanelog
from lanelog import Client, Message, Postpone, Reject, Retry, instruments, metrics
from lanelog.measures import Handlings
from support.waiting import Record, eventually

Series = dict[tuple[str, ...], float]


def scraped(registry: CollectorRegistry) -> Series:
    """By name and labels; the labels in the order topic, outcome, loop, le, group."""
    return {
        (sample.name, *(sample.labels[label] for label in sorted(sample.labels, reverse=True))): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def handle(message: Message) -> None:
    if message.payload == b"bad":
        raise Reject("no such branch")
    if message.payload == b"again" and message.attempt == 1:
        raise Retry(delay=0)
    if message.payload == b"later" and message.attempt == 1 and not message.metadata:
        raise Postpone(0.01)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_what_happens_is_counted_and_timed(lanelog_client: Client, registry: CollectorRegistry) -> None:
    """Publishes, attempts by outcome, the times of handlers, and what is held; also after the subscription's end."""
    metrics.observe(lanelog_client, registry)
    lanelog_client.publish("t", "a", b"good", id="x")
    assert lanelog_client.publish("t", "a", b"good", id="x").duplicate
    lanelog_client.publish_many("t", [("b", b"bad"), ("c", b"again"), ("d", b"x")])
    lanelog_client.publish("t", "e", b"too late", ttl=0.001)
    with pytest.raises(lanelog.LanelogError):
        lanelog_client.publish("t", "a", object())
    with lanelog_client.subscribe("t", "g", handle) as subscription:
        eventually(lambda: subscription.stats().acked == 3 and subscription.stats().dead_lettered == 2)
        found = scraped(registry)
        assert found["lanelog_client_lanes", "t", "g"] == 5
        assert found["lanelog_client_in_flight_messages", "t", "g"] == 0
        assert found["lanelog_client_loop_turns_total", "keeper"] >= 1
        assert found["lanelog_client_loop_age_seconds", "settler"] >= 0
    found = scraped(registry)
    assert found["lanelog_client_published_messages_total", "t"] == 5
    assert found["lanelog_client_publishes_failed_total", "t"] == 1
    assert found["lanelog_client_publish_seconds_count", "t"] == 5
    assert {
        outcome: found["lanelog_client_messages_total", "t", outcome, "g"]
        for outcome in ("acked", "retried", "postponed", "dead_lettered", "expired", "timed_out")
    } == {"acked": 3, "retried": 1, "postponed": 0, "dead_lettered": 2, "expired": 1, "timed_out": 0}
    assert found["lanelog_client_attempts_total", "t", "g"] == 5
    assert found["lanelog_client_handler_seconds_count", "t", "g"] == 5
    assert found["lanelog_client_wait_seconds_count", "t", "g"] == 4  # the second attempt waits for the first
    assert found["lanelog_client_end_to_end_seconds_count", "t", "g"] == 3
    assert found["lanelog_client_flush_lanes_count", "t", "g"] >= 1
    assert found["lanelog_client_lanes", "t", "g"] == 0


def test_a_pulled_message_takes_until_it_is_settled(lanelog_client: Client, registry: CollectorRegistry) -> None:
    """As a handler does, from the pull on."""
    metrics.observe(lanelog_client, registry)
    lanelog_client.publish("t", "a", b"x")
    with lanelog_client.deliveries("t", "g") as deliveries:
        message = next(iter(deliveries))
        message.ack()
        found = scraped(registry)
    assert found["lanelog_client_handler_seconds_count", "t", "g"] == 1
    assert found["lanelog_client_end_to_end_seconds_count", "t", "g"] == 1


def test_what_is_held_is_told(lanelog_client: Client, registry: CollectorRegistry) -> None:
    """Messages that run, those that are read ahead with their bytes, those that wait for another attempt."""
    metrics.observe(lanelog_client, registry)
    entered, go_on = threading.Event(), threading.Event()

    def wait(message: Message) -> None:
        if message.key == "waits":
            raise Retry(delay=60)
        entered.set()
        go_on.wait()

    lanelog_client.publish("t", "waits", b"x")
    lanelog_client.publish_many("t", [("a", b"12345")] * 4)

    def told() -> list[float]:
        found = scraped(registry)
        of_group = [found.get((f"lanelog_client_{each}_messages", "t", "g"), 0) for each in ("in_flight", "waiting")]
        return of_group + [found[f"lanelog_client_prefetched_{each}",] for each in ("messages", "bytes")]

    with lanelog_client.subscribe("t", "g", wait):
        assert entered.wait(15)
        eventually(lambda: told() == [1, 1, 4, 20])
        go_on.set()
        eventually(lambda: told() == [0, 1, 0, 0])


def test_who_waits_for_the_pool_is_counted(lanelog_url: str, registry: CollectorRegistry) -> None:
    """A publish waits while all connections of the pool are lent."""
    with lanelog.connect(lanelog_url, pool_size=2) as client:
        metrics.observe(client, registry)
        with client.transaction(), client.transaction():
            waits = threading.Thread(target=client.publish, args=("t", "a", b"x"))
            waits.start()
            eventually(lambda: scraped(registry)["lanelog_client_pool_waits_total",] == 1)
        waits.join(15)
    assert scraped(registry)["lanelog_client_published_messages_total", "t"] == 1


def test_lanes_and_settlements_that_are_lost_are_counted(lanelog_client: Client) -> None:
    """An operator takes the lane away while its handler runs."""
    entered, go_on = threading.Event(), threading.Event()

    def block(_message: Message) -> None:
        entered.set()
        go_on.wait()

    lanelog_client.publish("t", "a", b"x")
    with lanelog_client.subscribe("t", "g", block):
        assert entered.wait(15)
        lanelog_client.admin.release("t", "g", "a", dry_run=False)
        eventually(lambda: lanelog_client.measures().groups[0].counters.lost)
        go_on.set()
        eventually(lambda: lanelog_client.measures().groups[0].counters.refused)


def test_many_topics_are_one_series(lanelog_client: Client, registry: CollectorRegistry) -> None:
    """No more than a thousand series, and no number is lost."""
    collector = metrics.observe(lanelog_client, registry)
    for number in range(40):
        collector.published(f"t{number}", 1, 0.1, None)
        collector.handled(f"t{number}", "g", Handlings([0.1], [0.1], [0.2]))
        collector.flushed(f"t{number}", "g", 1)
    found = scraped(registry)
    assert len(found) <= 1000
    assert sum(value for (name, *_), value in found.items() if name == "lanelog_client_published_messages_total") == 40
    assert found["lanelog_client_handler_seconds_count", "other", "other"] == 28
    assert found["lanelog_client_publish_seconds_count", "other"] == 31


def test_an_observer_that_raises_changes_nothing(
    lanelog_client: Client, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and the other observers are told."""

    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise ZeroDivisionError(name)

    lanelog_client.observe(Broken())  # type: ignore[arg-type]
    metrics.observe(lanelog_client, registry)
    handled = Record()
    lanelog_client.publish("t", "a", b"x")
    with lanelog_client.subscribe("t", "g", handled):
        handled.wait(1)
        eventually(lambda: scraped(registry).get(("lanelog_client_flush_lanes_count", "t", "g")))
    assert {record.event for record in caplog.records if record.name == "lanelog.client"} >= {"observer.failed"}  # type: ignore[attr-defined]


def test_opentelemetry_gets_the_same(lanelog_client: Client) -> None:
    """By the names of the conventions, without keys; once, however often it is asked for."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    instruments.observe(lanelog_client, provider)
    instruments.observe(lanelog_client, provider)
    lanelog_client.publish_many("t", [("a", b"x"), ("b", b"y"), ("c", b"bad"), ("d", b"again")])
    with lanelog_client.subscribe("t", "g", handle) as subscription:
        eventually(lambda: (s := subscription.stats()).acked == 3 and s.dead_lettered == s.retried == 1)
    data = reader.get_metrics_data()
    assert data is not None
    found = {
        metric.name: [
            (dict(point.attributes or {}), getattr(point, "value", getattr(point, "count", None)))
            for point in metric.data.data_points
        ]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    bounds = {
        metric.name: tuple(getattr(point, "explicit_bounds", ()))
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }
    group = {"messaging.system": "lanelog", "messaging.destination.name": "t", "messaging.consumer.group.name": "g"}
    topic = {"messaging.system": "lanelog", "messaging.destination.name": "t", "messaging.operation.name": "publish"}
    assert found["messaging.client.sent.messages"] == [(topic, 4)]
    assert found["messaging.client.operation.duration"] == [(topic, 1)]
    processing = {**group, "messaging.operation.name": "process"}
    assert found["messaging.client.consumed.messages"] == [(processing, 5)]
    durations = found["messaging.process.duration"]
    assert {attributes.pop("error.type", ""): number for attributes, number in durations} == {
        "": 3, "Reject": 1, "Retry": 1,
    }  # fmt: skip
    assert all(attributes == processing for attributes, _ in durations)
    assert found["lanelog.wait.duration"] == [(group, 4)]
    assert found["lanelog.end_to_end.duration"] == [(group, 3)]
    assert found["lanelog.messages.acked"] == [(group, 3)]
    assert bounds["messaging.process.duration"] == bounds["messaging.client.operation.duration"] == instruments.SECONDS
    assert bounds["lanelog.flush.lanes"] == instruments.LANES
    counted = ("retried", "dead_lettered", "postponed", "expired", "timed_out", "in_flight", "waiting", "prefetched")
    told = {name: [value for _, value in found[f"lanelog.messages.{name}"]] for name in (*counted, "prefetched.size")}
    assert told == {name: [int(name in ("retried", "dead_lettered"))] for name in told}
    for name in ("lanelog.lanes", "lanelog.lanes.lost", "lanelog.lanes.taken_over", "lanelog.settlements.refused"):
        assert found[name] == [(group, 0)]
    assert found["lanelog.pool.waits"] == [({}, 0)]
    loops = {attributes["loop"]: value for attributes, value in found["lanelog.loop.turns"]}
    assert loops.keys() == {"fetcher", "janitor", "keeper", "scheduler", "settler"}
    assert loops["keeper"] >= 1
    assert {attributes["loop"] for attributes, age in found["lanelog.loop.age"] if age >= 0} == loops.keys()


def test_a_forked_child_measures_itself(lanelog_client: Client, registry: CollectorRegistry) -> None:
    """It publishes although a thread of its parent had the lock of the times at the fork, and counts from zero."""
    collector = metrics.observe(lanelog_client, registry)
    lanelog_client.publish("t", "a", b"x")
    with collector._lock:  # as a scrape has it while it copies
        child = os.fork()
        if child == 0:
            try:
                lanelog_client.publish("t", "a", b"x")
                found = scraped(registry)["lanelog_client_published_messages_total", "t"]
                os._exit(0 if found == 1 else 3)
            finally:
                os._exit(4)
    ended: list[int] = []

    def waited() -> bool:
        pid, status = os.waitpid(child, os.WNOHANG)
        ended.extend([os.waitstatus_to_exitcode(status)] if pid else [])
        return bool(pid)

    try:
        eventually(waited)
    finally:
        if not ended:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert ended == [0]
