"""The metrics of a client by OpenTelemetry. Needs `lanelog[otel]`, which is its API alone.

Owns their names, which follow the semantic conventions for messaging where these have one. Exports nothing: that is the
application's SDK, whose views may change the bounds of histograms that are advised here. What appears after the first
topics, groups and kinds of failures is counted as `other`.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from attrs import define, field, frozen
from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Observation

from lanelog._database.fork import register_shared
from lanelog.measures import LANES, OTHER, SECONDS, Labels, place

if TYPE_CHECKING:
    from lanelog.client import Client
    from lanelog.measures import GroupMeasures, Handlings, Measures

Attributes = dict[str, str]

SYSTEM: Final = "lanelog"

_DESTINATION: Final = "messaging.destination.name"
_GROUP: Final = "messaging.consumer.group.name"
_OPERATION: Final = "messaging.operation.name"
_CONSUMED: Final = "messaging.client.consumed.messages"
_OTHER_ERROR: Final = "_OTHER"
"""What the conventions call the type of an error that is not named."""


@frozen
class InstrumentBounds:
    """How many have series of their own. Those beyond are counted together."""

    groups: int = 8
    topics: int = 5
    """Topics that are published to."""
    failures: int = 10
    """Kinds of failures: a topic, its group if a handler failed, and the type of the exception."""


OF_A_CLIENT: Final = InstrumentBounds()
"""With it a client has at most 1,000 series, where each bucket of a histogram counts as one."""


@define(eq=False)
class _Places:
    """Where things with labels are counted: the first ones by themselves, the others together. Thread-safe."""

    _most: int
    _known: dict[Labels, None] = field(factory=dict, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def __attrs_post_init__(self) -> None:
        register_shared(self)

    def abandon(self) -> None:
        """In a forked child: a thread that is gone may hold the lock."""
        self._lock = threading.Lock()

    def of(self, labels: Labels) -> Labels:
        """Return these labels, or those of the others."""
        if labels in self._known:
            return labels
        with self._lock:
            if labels not in self._known:
                labels = place(labels, self._known, self._most)
                self._known[labels] = None
            return labels


def _of_group(topic: str, group: str) -> Attributes:
    return {"messaging.system": SYSTEM, _DESTINATION: topic, _GROUP: group}


@define(eq=False)
class _Times:
    """The observer that records times."""

    provider: metrics.MeterProvider | None
    _groups: _Places
    _topics: _Places
    _failures: _Places
    _sent: Counter
    _publish: Histogram
    _process: Histogram
    _wait: Histogram
    _total: Histogram
    _flush: Histogram

    def handled(self, topic: str, group: str, handlings: Handlings) -> None:
        """Handlers have ended."""
        topic, group = self._groups.of((topic, group))
        attributes = _of_group(topic, group)
        processing = {**attributes, _OPERATION: "process"}
        for number, seconds in enumerate(handlings.seconds):
            error = handlings.errors.get(number)
            self._process.record(seconds, processing if error is None else self._failed(processing, error))
        for wait in handlings.waits:
            self._wait.record(wait, attributes)
        for total in handlings.totals:
            self._total.record(total, attributes)

    def published(self, topic: str, messages: int, seconds: float, error: str | None) -> None:
        """A publish has ended."""
        (topic,) = self._topics.of((topic,))
        attributes = {"messaging.system": SYSTEM, _DESTINATION: topic, _OPERATION: "publish"}
        self._publish.record(seconds, attributes if error is None else self._failed(attributes, error))
        self._sent.add(messages, attributes)

    def flushed(self, topic: str, group: str, lanes: int) -> None:
        """A transaction has written the progress of `lanes` lanes."""
        self._flush.record(lanes, _of_group(*self._groups.of((topic, group))))

    def _failed(self, attributes: Attributes, error: str) -> Attributes:
        """Return the attributes of a failure: these, and the type of the exception."""
        where = (_DESTINATION, _GROUP) if _GROUP in attributes else (_DESTINATION,)
        if self._failures.of((*[attributes[name] for name in where], error))[-1] == OTHER:
            return {**attributes, **dict.fromkeys(where, OTHER), "error.type": _OTHER_ERROR}
        return {**attributes, "error.type": error}


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


_COUNTS_OF_ALL: Final[tuple[tuple[str, str, str, Callable[[Measures], int]], ...]] = (
    (
        "lanelog.pool.waits",
        "{wait}",
        "How often a thread waited for a connection of the pool.",
        lambda each: each.pool_waits,
    ),
    ("lanelog.hints.sent", "{hint}", "Hints sent to other processes.", lambda each: each.hints_sent),
    ("lanelog.hints.lost", "{hint}", "Hints that could not be sent.", lambda each: each.hints_lost),
    ("lanelog.hints.heard", "{hint}", "Hints that came from other processes.", lambda each: each.hints_heard),
)
_GAUGES_OF_ALL: Final[tuple[tuple[str, str, str, Callable[[Measures], int]], ...]] = (
    (
        "lanelog.messages.prefetched",
        "{message}",
        "Messages in memory, those that handlers work on included.",
        lambda each: each.prefetched,
    ),
    ("lanelog.messages.prefetched.size", "By", "Bytes of their payloads.", lambda each: each.prefetched_bytes),
)


def observe(
    client: Client, meter_provider: metrics.MeterProvider | None = None, *, bounds: InstrumentBounds = OF_A_CLIENT
) -> None:
    """Measure a client from now on. Idempotent.

    Args:
        client: The client.
        meter_provider: Makes the instruments. None: the global one.
        bounds: How many topics, groups and kinds of failures have series of their own.

    Example::

        client = lanelog.connect(url)
        lanelog.instruments.observe(client)
    """
    if any(isinstance(each, _Times) and each.provider is meter_provider for each in client.observers):
        return
    meter = metrics.get_meter("lanelog", meter_provider=meter_provider)
    groups = _Places(bounds.groups)
    _observe_groups(client, meter, groups)
    _observe_all(client, meter)
    client.observe(
        _Times(
            meter_provider,
            groups,
            _Places(bounds.topics),
            _Places(bounds.failures),
            meter.create_counter("messaging.client.sent.messages", "{message}", "New messages."),
            _histogram(meter, "messaging.client.operation.duration", "s", "How long publishes took.", SECONDS),
            _histogram(meter, "messaging.process.duration", "s", "How long handlers took.", SECONDS),
            _histogram(meter, "lanelog.wait.duration", "s", "From the publish to the first attempt.", SECONDS),
            _histogram(meter, "lanelog.end_to_end.duration", "s", "From the publish to the handler's end.", SECONDS),
            _histogram(meter, "lanelog.flush.lanes", "{lane}", "Lanes that one transaction wrote.", LANES),
        )
    )


def _histogram(meter: metrics.Meter, name: str, unit: str, help_: str, bounds: Sequence[float]) -> Histogram:
    """Make one with bounds, unless the installed API cannot advise any. The SDK's own begin at 5 seconds."""
    if "explicit_bucket_boundaries_advisory" not in inspect.signature(meter.create_histogram).parameters:
        return meter.create_histogram(name, unit, help_)
    return meter.create_histogram(name, unit, help_, explicit_bucket_boundaries_advisory=bounds)


def _observe_groups(client: Client, meter: metrics.Meter, groups: _Places) -> None:
    """Let the SDK read what the engine counts itself, by topic and group."""

    def by_group(
        value: Callable[[GroupMeasures], int], more: Attributes
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def look(_options: CallbackOptions) -> Iterator[Observation]:
            found: dict[Labels, int] = {}
            for each in client.measures().groups:
                labels = groups.of((each.topic, each.group))
                found[labels] = found.get(labels, 0) + value(each)
            for (topic, group), total in found.items():
                yield Observation(total, {**_of_group(topic, group), **more})

        return look

    for name, unit, help_, value in _COUNTS:
        more = {_OPERATION: "process"} if name == _CONSUMED else {}
        meter.create_observable_counter(name, [by_group(value, more)], unit=unit, description=help_)
    for name, unit, help_, value in _GAUGES:
        meter.create_observable_gauge(name, [by_group(value, {})], unit=unit, description=help_)


def _observe_all(client: Client, meter: metrics.Meter) -> None:
    """Let the SDK read what belongs to no group."""

    def of_all(value: Callable[[Measures], int]) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _options: [Observation(value(client.measures()))]

    for name, unit, help_, value in _COUNTS_OF_ALL:
        meter.create_observable_counter(name, [of_all(value)], unit=unit, description=help_)
    for name, unit, help_, value in _GAUGES_OF_ALL:
        meter.create_observable_gauge(name, [of_all(value)], unit=unit, description=help_)
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
