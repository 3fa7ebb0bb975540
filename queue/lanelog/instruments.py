"""The metrics of a client by OpenTelemetry. Needs `lanelog[otel]`, which is its API alone.

Owns their names, which follow the semantic conventions for messaging where these have one. Exports nothing: that is the
application's SDK, whose views may change the bounds of histograms that are advised here. The number of series is
bounded by the SDK alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from attrs import define
from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Observation

if TYPE_CHECKING:
    from lanelog.client import Client
    from lanelog.measures import GroupMeasures, Handlings

Attributes = dict[str, str]

SYSTEM: Final = "lanelog"

_DESTINATION: Final = "messaging.destination.name"
_GROUP: Final = "messaging.consumer.group.name"
_OPERATION: Final = "messaging.operation.name"
_CONSUMED: Final = "messaging.client.consumed.messages"

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The bounds that the conventions advise for durations in seconds."""
WAITS: Final = (*SECONDS, 30.0, 300.0, 3600.0)
LANES: Final = (1.0, 10.0, 100.0, 1000.0)


def _of_group(topic: str, group: str) -> Attributes:
    return {"messaging.system": SYSTEM, _DESTINATION: topic, _GROUP: group}


@define(eq=False)
class _Times:
    """The observer that records times."""

    provider: metrics.MeterProvider | None
    _sent: Counter
    _publish: Histogram
    _process: Histogram
    _wait: Histogram
    _total: Histogram
    _flush: Histogram

    def handled(self, topic: str, group: str, handlings: Handlings) -> None:
        """Handlers have ended."""
        attributes = _of_group(topic, group)
        processing = {**attributes, _OPERATION: "process"}
        for number, seconds in enumerate(handlings.seconds):
            error = handlings.errors.get(number)
            self._process.record(seconds, processing if error is None else {**processing, "error.type": error})
        for wait in handlings.waits:
            self._wait.record(wait, attributes)
        for total in handlings.totals:
            self._total.record(total, attributes)

    def published(self, topic: str, messages: int, seconds: float, error: str | None) -> None:
        """A publish has ended."""
        attributes = {"messaging.system": SYSTEM, _DESTINATION: topic, _OPERATION: "publish"}
        if error is not None:
            attributes["error.type"] = error
        self._publish.record(seconds, attributes)
        self._sent.add(messages, attributes)

    def flushed(self, topic: str, group: str, lanes: int) -> None:
        """A transaction has written the progress of `lanes` lanes."""
        self._flush.record(lanes, _of_group(topic, group))


_COUNTS: Final[tuple[tuple[str, str, str, Callable[[GroupMeasures], int]], ...]] = (
    (_CONSUMED, "{message}", "Attempts whose outcome was decided.", lambda each: each.counters.handled),
    ("lanelog.messages.acked", "{message}", "Messages acked.", lambda each: each.counters.acked),
    ("lanelog.messages.retried", "{message}", "Attempts that failed.", lambda each: each.counters.retried),
    ("lanelog.messages.postponed", "{message}", "Messages postponed.", lambda each: each.counters.postponed),
    ("lanelog.messages.dead_lettered", "{message}", "Dead letters.", lambda each: each.counters.dead_lettered),
    ("lanelog.messages.expired", "{message}", "Messages expired.", lambda each: each.counters.expired),
    ("lanelog.messages.timed_out", "{message}", "Attempts timed out.", lambda each: each.counters.timed_out),
    ("lanelog.settlements.refused", "{message}", "Settlements too late.", lambda each: each.counters.refused),
    ("lanelog.lanes.taken_over", "{lane}", "Lanes of members gone.", lambda each: each.counters.taken_over),
    ("lanelog.lanes.lost", "{lane}", "Lanes lost.", lambda each: each.counters.lost),
)
_GAUGES: Final[tuple[tuple[str, str, str, Callable[[GroupMeasures], int]], ...]] = (
    ("lanelog.lanes", "{lane}", "Lanes that this process has.", lambda each: each.lanes),
    ("lanelog.messages.in_flight", "{message}", "Messages in handlers.", lambda each: each.running),
    ("lanelog.messages.waiting", "{message}", "Messages that wait for another attempt.", lambda each: each.waiting),
)


def observe(client: Client, meter_provider: metrics.MeterProvider | None = None) -> None:
    """Measure a client from now on. Idempotent.

    Args:
        client: The client.
        meter_provider: Makes the instruments. None: the global one.

    Example::

        client = lanelog.connect(url)
        lanelog.instruments.observe(client)
    """
    if any(isinstance(each, _Times) and each.provider is meter_provider for each in client.observers):
        return
    meter = metrics.get_meter("lanelog", meter_provider=meter_provider)
    _observe_counters(client, meter)
    client.observe(
        _Times(
            meter_provider,
            meter.create_counter("messaging.client.sent.messages", "{message}", "New messages."),
            _histogram(meter, "messaging.client.operation.duration", "s", "How long publishes took.", SECONDS),
            _histogram(meter, "messaging.process.duration", "s", "How long handlers took.", SECONDS),
            _histogram(meter, "lanelog.wait.duration", "s", "From the publish to the first attempt.", WAITS),
            _histogram(meter, "lanelog.end_to_end.duration", "s", "From the publish to the handler's end.", WAITS),
            _histogram(meter, "lanelog.flush.lanes", "{lane}", "Lanes that one transaction wrote.", LANES),
        )
    )


def _histogram(meter: metrics.Meter, name: str, unit: str, help_: str, bounds: Sequence[float]) -> Histogram:
    """Make one with bounds, unless the installed API cannot advise any. The SDK's own begin at 5 seconds."""
    if "explicit_bucket_boundaries_advisory" not in inspect.signature(meter.create_histogram).parameters:
        return meter.create_histogram(name, unit, help_)
    return meter.create_histogram(name, unit, help_, explicit_bucket_boundaries_advisory=bounds)


def _observe_counters(client: Client, meter: metrics.Meter) -> None:
    """Let the SDK read what the engine counts itself."""

    def by_group(
        value: Callable[[GroupMeasures], int], more: Attributes
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def look(_options: CallbackOptions) -> Iterator[Observation]:
            for each in client.measures().groups:
                yield Observation(value(each), {**_of_group(each.topic, each.group), **more})

        return look

    for name, unit, help_, value in _COUNTS:
        more = {_OPERATION: "process"} if name == _CONSUMED else {}
        meter.create_observable_counter(name, [by_group(value, more)], unit=unit, description=help_)
    for name, unit, help_, value in _GAUGES:
        meter.create_observable_gauge(name, [by_group(value, {})], unit=unit, description=help_)
    meter.create_observable_gauge(
        "lanelog.messages.prefetched",
        [lambda _options: [Observation(client.measures().prefetched)]],
        unit="{message}",
        description="Messages in memory, those that handlers work on included.",
    )
    meter.create_observable_gauge(
        "lanelog.messages.prefetched.size",
        [lambda _options: [Observation(client.measures().prefetched_bytes)]],
        unit="By",
        description="Bytes of their payloads.",
    )
    meter.create_observable_counter(
        "lanelog.pool.waits",
        [lambda _options: [Observation(client.measures().pool_waits)]],
        unit="{wait}",
        description="How often a thread waited for a connection of the pool.",
    )
    meter.create_observable_counter(
        "lanelog.loop.turns",
        [lambda _options: [Observation(each.turns, {"loop": each.name}) for each in client.measures().loops]],
        unit="{turn}",
        description="Turns of the background loops.",
    )
    meter.create_observable_gauge(
        "lanelog.loop.age",
        [
            lambda _options: [
                Observation(each.age, {"loop": each.name}) for each in client.measures().loops if each.age is not None
            ]
        ],
        unit="s",
        description="Since the last turn of a background loop began.",
    )
