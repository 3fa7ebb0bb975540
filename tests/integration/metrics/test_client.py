"""The metrics of a client: what it publishes and handles, how long that takes, and what it holds."""

import threading
from contextlib import ExitStack
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint
from prometheus_client import CollectorRegistry, generate_latest

import lanelog
from lanelog import Client, Message, Postpone, Reject, Retry, instruments, metrics
from lanelog._base.places import GroupTopic
from lanelog._facts import measured
from lanelog.measures import Counters, Handlings
from support.forking import exit_status_of
from support.prometheus import Series, series_of
from support.telemetry import metrics_of
from support.waiting import Gate, Record, eventually


def scraped(registry: CollectorRegistry) -> Series:
    return series_of(generate_latest(registry).decode())


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
    bounds = {at[2] for at in found if at[0] == "lanelog_client_handler_seconds_bucket"}
    assert bounds == {*map(str, measured.SECONDS), "+Inf"}
    assert found["lanelog_client_wait_seconds_count", "t", "g"] == 4  # the second attempt waits for the first
    assert found["lanelog_client_end_to_end_seconds_count", "t", "g"] == 3
    assert found["lanelog_client_flush_lanes_count", "t", "g"] >= 1
    assert found["lanelog_client_lanes", "t", "g"] == 0


def test_a_pulled_message_takes_until_it_is_settled(lanelog_client: Client, registry: CollectorRegistry) -> None:
    """A pulled message takes the time from the pull to its settlement, as a handler does from call to return."""
    metrics.observe(lanelog_client, registry)
    lanelog_client.publish("t", "a", b"x")
    with lanelog_client.deliveries("t", "g") as deliveries:
        message = next(iter(deliveries))
        message.ack()
        found = scraped(registry)
    assert found["lanelog_client_handler_seconds_count", "t", "g"] == 1
    assert found["lanelog_client_end_to_end_seconds_count", "t", "g"] == 1


def test_measures_count_what_is_held(lanelog_client: Client, registry: CollectorRegistry) -> None:
    """Messages that run, those that are read ahead with their bytes, those that wait for another attempt."""
    metrics.observe(lanelog_client, registry)
    gate = Gate()

    def wait(message: Message) -> None:
        if message.key == "waits":
            raise Retry(delay=60)
        gate()

    lanelog_client.publish("t", "waits", b"x")
    lanelog_client.publish_many("t", [("a", b"12345")] * 4)

    def told() -> list[float]:
        found = scraped(registry)
        of_group = [found.get((f"lanelog_client_{each}_messages", "t", "g"), 0) for each in ("in_flight", "waiting")]
        return of_group + [found[f"lanelog_client_prefetched_{each}",] for each in ("messages", "bytes")]

    with lanelog_client.subscribe("t", "g", wait), gate:
        gate.reached()
        eventually(lambda: told() == [1, 1, 4, 20])
        gate.open()
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


def test_a_crowded_pool_is_logged_once_with_the_number_to_set(
    lanelog_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One WARNING, once there were many waits, names the size with which none of the threads would have waited."""
    monkeypatch.setattr("lanelog._database.pool.crowd.MANY", 64)

    def work(client: Client) -> None:
        for _ in range(3):
            with client.transaction():
                pass

    with lanelog.connect(lanelog_url, pool_size=8) as client:
        with ExitStack() as held:
            for _ in range(8):
                held.enter_context(client.transaction())
            threads = [threading.Thread(target=work, args=(client,)) for _ in range(64)]
            for thread in threads:
                thread.start()
            eventually(lambda: client._database.waits >= 64)
        for thread in threads:
            thread.join(60)
    (told,) = [each for each in caplog.records if each.getMessage().startswith("pool.too_small")]
    assert told.levelname == "WARNING"
    assert "needed=72 " in told.getMessage()
    assert "connect(pool_size=72)" in told.getMessage()


def test_lanes_and_settlements_that_are_lost_are_counted(lanelog_client: Client) -> None:
    """An operator takes the lane away while its handler runs."""
    gate = Gate()
    lanelog_client.publish("t", "a", b"x")
    with lanelog_client.subscribe("t", "g", gate), gate:
        gate.reached()
        lanelog_client.admin.release("t", "g", "a", dry_run=False)
        eventually(lambda: lanelog_client.measures().groups[0].counters.lost)
        gate.open()
        eventually(lambda: lanelog_client.measures().groups[0].counters.refused)


def test_many_topics_are_one_series(lanelog_client: Client, registry: CollectorRegistry) -> None:
    """No more than a thousand series, of counters and gauges too, and no number is lost."""
    collector = metrics.observe(lanelog_client, registry)
    gate = Gate()
    for number in range(40):
        lanelog_client._meter.count(GroupTopic(topic=f"t{number}", group="g"), Counters(handled=1, acked=1, lost=1))
        collector.published(f"t{number}", 1, 0.1, None)
        collector.handled(f"t{number}", "g", Handlings([0.1], [0.1], [0.2]))
        collector.flushed(f"t{number}", "g", 1)
    lanelog_client.publish("late", "a", b"x")
    with lanelog_client.subscribe("late", "g", gate), gate:
        gate.reached()
        found = scraped(registry)
    assert len(found) <= 1000

    def total(wanted: str) -> float:
        return sum(value for (name, *_), value in found.items() if name == wanted)

    assert total("lanelog_client_published_messages_total") == 41
    assert found["lanelog_client_handler_seconds_count", "other", "other"] == 31
    assert found["lanelog_client_publish_seconds_count", "other"] == 32
    for name in ("attempts", "lanes_lost", "messages"):
        assert total(f"lanelog_client_{name}_total") == 40
    assert found["lanelog_client_messages_total", "other", "acked", "other"] == 31
    for name in ("lanes", "in_flight_messages"):
        assert total(f"lanelog_client_{name}") == found[f"lanelog_client_{name}", "other", "other"] == 1


def exported(reader: InMemoryMetricReader) -> dict[tuple[str, ...], tuple[float, int]]:
    """By metric, topic, group, error and loop: the value, or how often it was recorded; and as how many series."""
    found = {}
    for metric in metrics_of(reader):
        for point in metric.data.data_points:
            named = dict(point.attributes or {})
            names = ("messaging.destination.name", "messaging.consumer.group.name", "error.type", "loop")
            at = (metric.name, *(str(named[name]) for name in names if name in named))
            if isinstance(point, HistogramDataPoint):
                found[at] = float(point.count), len(point.bucket_counts) + 2  # its sum and its count
            else:
                assert isinstance(point, NumberDataPoint)
                found[at] = float(point.value), 1
    return found


def fill(client: Client) -> None:
    """Count and time something in forty topics, each of which fails in its own way."""
    for number in range(40):
        topic, error = f"t{number}", f"Error{number}"
        client._meter.count(GroupTopic(topic=topic, group="g"), Counters(handled=1, acked=1))
        for observer in client.observers:
            observer.handled(topic, "g", Handlings([0.1, 0.2], [0.1], [0.2], {1: error}))
            observer.flushed(topic, "g", 1)
            observer.published(topic, 1, 0.1, None)
            observer.published(topic, 0, 0.1, error)


def test_many_topics_are_one_series_of_opentelemetry_too(lanelog_client: Client) -> None:
    """Groups, topics and kinds of failures that come later are counted together, and no number is lost."""
    reader = InMemoryMetricReader()
    instruments.observe(lanelog_client, MeterProvider([reader]))
    lanelog_client.subscribe("t0", "g", handle)
    eventually(lambda: all(each.age is not None for each in lanelog_client.measures().loops))
    fill(lanelog_client)
    found = exported(reader)
    assert sum(size for _, size in found.values()) <= 1000

    def total(wanted: str) -> float:
        return sum(value for (name, *_), (value, _) in found.items() if name == wanted)

    assert total("messaging.process.duration") == total("messaging.client.operation.duration") == 80
    for name in ("lanelog.wait.duration", "lanelog.flush.lanes", "lanelog.messages.acked"):
        assert total(name) == total("messaging.client.sent.messages") == 40
        assert (found[name, "t0", "g"][0], found[name, "other", "other"][0]) == (1, 33)
    assert found["messaging.process.duration", "other", "other"][0] == 33
    assert found["messaging.process.duration", "t0", "g", "Error0"][0] == 1
    assert found["messaging.process.duration", "other", "other", "_OTHER"][0] == 35
    assert found["messaging.client.operation.duration", "t3", "Error3"][0] == 1
    assert found["messaging.client.operation.duration", "other", "_OTHER"][0] == 36
    assert found["messaging.client.sent.messages", "other"][0] == 36


def test_whoever_wants_more_series_of_opentelemetry_says_so(lanelog_client: Client) -> None:
    """With `InstrumentBounds` of 100, each of 40 topics has its own series."""
    reader = InMemoryMetricReader()
    bounds = instruments.InstrumentBounds(groups=100, topics=100, failures=100)
    instruments.observe(lanelog_client, MeterProvider([reader]), bounds=bounds)
    fill(lanelog_client)
    found = exported(reader)
    assert found["messaging.process.duration", "t39", "g", "Error39"][0] == 1
    assert not [at for at in found if {"other", "_OTHER"} & {*at}]


def test_an_attempt_that_times_out_has_another_outcome_too(lanelog_client: Client, registry: CollectorRegistry) -> None:
    """The outcomes of `lanelog_client_messages_total` therefore do not add up to the attempts."""
    metrics.observe(lanelog_client, registry)
    gate = Gate()
    lanelog_client.publish("t", "a", b"x")
    options: Any = {"visibility_timeout": 0.2, "auto_extend": False, "max_deliveries": 1}
    with lanelog_client.subscribe("t", "g", gate, **options), gate:
        eventually(lambda: lanelog_client.measures().groups[0].counters.dead_lettered)
        found = scraped(registry)
    assert found["lanelog_client_attempts_total", "t", "g"] == 1
    for outcome in ("timed_out", "dead_lettered"):
        assert found["lanelog_client_messages_total", "t", outcome, "g"] == 1


def test_an_observer_that_raises_changes_nothing(
    lanelog_client: Client, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """The exception is logged, and the other observers still get the event."""

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
    points = {metric.name: metric.data.data_points for metric in metrics_of(reader)}
    found = {
        name: [(dict(each.attributes or {}), getattr(each, "value", getattr(each, "count", None))) for each in its]
        for name, its in points.items()
    }
    bounds = {name: tuple(getattr(each, "explicit_bounds", ())) for name, its in points.items() for each in its}
    group = {"messaging.system": "lanelog", "messaging.destination.name": "t", "messaging.consumer.group.name": "g"}
    topic = {"messaging.system": "lanelog", "messaging.destination.name": "t", "messaging.operation.name": "publish"}
    assert found["messaging.client.sent.messages"] == [(topic, 4)]
    assert found["messaging.client.operation.duration"] == [(topic, 1)]
    processing = {**group, "messaging.operation.name": "process"}
    assert found["messaging.client.consumed.messages"] == [(processing, 5)]
    durations = found["messaging.process.duration"]
    outcomes = {attributes.pop("error.type", ""): number for attributes, number in durations}
    assert outcomes == {"": 3, "Reject": 1, "Retry": 1}
    assert all(attributes == processing for attributes, _ in durations)
    assert found["lanelog.wait.duration"] == [(group, 4)]
    assert found["lanelog.end_to_end.duration"] == [(group, 3)]
    assert found["lanelog.messages.acked"] == [(group, 3)]
    for name in ("messaging.process", "messaging.client.operation", "lanelog.wait", "lanelog.end_to_end"):
        assert bounds[f"{name}.duration"] == measured.SECONDS
    assert bounds["lanelog.flush.lanes"] == measured.LANES
    counted = ("retried", "dead_lettered", "postponed", "expired", "timed_out", "in_flight", "waiting", "prefetched")
    told = {name: [value for _, value in found[f"lanelog.messages.{name}"]] for name in (*counted, "prefetched.size")}
    assert told == {name: [int(name in ("retried", "dead_lettered"))] for name in told}
    for name in ("lanelog.lanes", "lanelog.lanes.lost", "lanelog.lanes.taken_over", "lanelog.settlements.refused"):
        assert found[name] == [(group, 0)]
    for name in ("pool.waits", "hints.sent", "hints.lost", "hints.heard"):
        assert found[f"lanelog.{name}"] == [({}, 0)]
    loops = {attributes["loop"]: value for attributes, value in found["lanelog.loop.turns"]}
    assert loops.keys() == {"fetcher", "janitor", "keeper", "scheduler", "settler"}
    assert loops["keeper"] >= 1
    assert {attributes["loop"] for attributes, age in found["lanelog.loop.age"] if age >= 0} == loops.keys()


def test_a_forked_child_measures_itself(lanelog_client: Client, registry: CollectorRegistry) -> None:
    """The child publishes although a thread of its parent had the locks at the fork, and counts from zero."""
    collector = metrics.observe(lanelog_client, registry)
    instruments.observe(lanelog_client, MeterProvider())
    (times,) = (each for each in lanelog_client.observers if isinstance(each, instruments._Times))
    lanelog_client.publish("t", "a", b"x")

    def child() -> int:
        lanelog_client.publish("new", "a", b"x")
        lanelog_client.publish("t", "a", b"x")
        return int(scraped(registry)["lanelog_client_published_messages_total", "t"])

    with collector._lock, times._topics._lock:  # as a scrape, and the first publish to a topic, have them
        assert exit_status_of(child) == 1
