"""The metrics of a client by OpenTelemetry. Needs `lanelog[otel]`, which is its API alone.

Their names are in `_facts.measured`. They follow the semantic conventions for messaging where these have one. Exports
nothing: that is the application's SDK, whose views may change the buckets that are advised here. What appears after the
first topics, groups and kinds of failures is counted as `other`.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from attrs import define, field, frozen
from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Observation

from lanelog._database import register_shared
from lanelog._facts import measured
from lanelog.measures import OTHER, Labels, capped

if TYPE_CHECKING:
    from lanelog.client import Client
    from lanelog.measures import Handlings

Attributes = dict[str, str]

SYSTEM: Final = "lanelog"

_DESTINATION: Final = "messaging.destination.name"
_GROUP: Final = "messaging.consumer.group.name"
_OPERATION: Final = "messaging.operation.name"
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
class _LabelSets:
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
                labels = capped(labels, self._known, self._most)
                self._known[labels] = None
            return labels


def _of_group(topic: str, group: str) -> Attributes:
    return {"messaging.system": SYSTEM, _DESTINATION: topic, _GROUP: group}


@define(eq=False)
class _Times:
    """The observer that records times."""

    provider: metrics.MeterProvider | None
    _groups: _LabelSets
    _topics: _LabelSets
    _failures: _LabelSets
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
    groups = _LabelSets(bounds.groups)
    _observe_groups(client, meter, groups)
    _observe_all(client, meter)
    client.observe(
        _Times(
            meter_provider,
            groups,
            _LabelSets(bounds.topics),
            _LabelSets(bounds.failures),
            meter.create_counter("messaging.client.sent.messages", "{message}", "New messages."),
            *(
                _histogram(meter, each)
                for each in (measured.PUBLISH, measured.PROCESS, measured.WAIT, measured.END_TO_END, measured.FLUSH)
            ),
        )
    )


def _histogram(meter: metrics.Meter, of: measured.Distribution) -> Histogram:
    """Make one with buckets, unless the installed API cannot advise any. The SDK's own begin at 5 seconds."""
    if "explicit_bucket_boundaries_advisory" not in inspect.signature(meter.create_histogram).parameters:
        return meter.create_histogram(of.opentelemetry, of.unit, of.help)
    return meter.create_histogram(of.opentelemetry, of.unit, of.help, explicit_bucket_boundaries_advisory=of.buckets)


def _observe_groups(client: Client, meter: metrics.Meter, groups: _LabelSets) -> None:
    """Let the SDK read what the engine counts itself, by topic and group."""

    def by_group(path: str, more: Attributes) -> Callable[[CallbackOptions], Iterable[Observation]]:
        value = attrgetter(path)

        def observe(_options: CallbackOptions) -> Iterator[Observation]:
            found: dict[Labels, int] = {}
            for each in client.measures().groups:
                labels = groups.of((each.topic, each.group))
                found[labels] = found.get(labels, 0) + value(each)
            for (topic, group), total in found.items():
                yield Observation(total, {**_of_group(topic, group), **more})

        return observe

    for each in (*measured.OUTCOMES, *measured.COUNTS_OF_GROUPS):
        more = {_OPERATION: "process"} if each is measured.ATTEMPTS else {}
        counted = by_group(f"counters.{each.field}", more)
        meter.create_observable_counter(each.opentelemetry, [counted], each.unit, each.help)
    for each in measured.GAUGES_OF_GROUPS:
        meter.create_observable_gauge(each.opentelemetry, [by_group(each.field, {})], each.unit, each.help)


def _observe_all(client: Client, meter: metrics.Meter) -> None:
    """Let the SDK read what belongs to no group."""

    def of_all(field: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _options: [Observation(getattr(client.measures(), field))]

    def of_loops(field: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _options: [
            Observation(value, {"loop": each.name})
            for each in client.measures().loops
            if (value := getattr(each, field)) is not None
        ]

    for each in measured.COUNTS:
        meter.create_observable_counter(each.opentelemetry, [of_all(each.field)], each.unit, each.help)
    for each in measured.GAUGES:
        meter.create_observable_gauge(each.opentelemetry, [of_all(each.field)], each.unit, each.help)
    turns, age = measured.LOOP_TURNS, measured.LOOP_AGE
    meter.create_observable_counter(turns.opentelemetry, [of_loops(turns.field)], turns.unit, turns.help)
    meter.create_observable_gauge(age.opentelemetry, [of_loops(age.field)], age.unit, age.help)
