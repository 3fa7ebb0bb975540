"""The metrics of one client: what this process publishes and handles, how long it takes, and what it holds.

The counters are the engine's own, read at a scrape. Times are added up as they happen.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from attrs import define, field, frozen
from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from lanelog._database import register_shared
from lanelog._facts import measured
from lanelog.measures import OTHER, Counters, Labels, capped
from lanelog.metrics.series import Gauge, families

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from lanelog.client import Client
    from lanelog.measures import GroupMeasures, Handlings


@frozen
class SeriesBounds:
    """How many have series of their own. Those beyond are counted together."""

    groups: int = 10
    topics: int = 10


OF_A_CLIENT: Final = SeriesBounds()
"""With it a client has at most 1,000 series."""


@define(eq=False)
class _Buckets:
    """One histogram."""

    bounds: Sequence[float]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __attrs_post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, values: Sequence[float]) -> None:
        counts, bounds = self.counts, self.bounds
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self.total += sum(values)

    def shown(self) -> list[tuple[str, float]]:
        """SeriesBounds, and how many values were not above them."""
        seen = 0
        found: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            seen += count
            found.append((bound, seen))
        return found


@define(eq=False)
class _GroupTimes:
    """The histograms of one topic and group."""

    handler: _Buckets = field(factory=lambda: _Buckets(measured.PROCESS.buckets))
    wait: _Buckets = field(factory=lambda: _Buckets(measured.WAIT.buckets))
    total: _Buckets = field(factory=lambda: _Buckets(measured.END_TO_END.buckets))
    flush: _Buckets = field(factory=lambda: _Buckets(measured.FLUSH.buckets))


@define(eq=False)
class _Published:
    """The publishes of one topic."""

    messages: int = 0
    failed: int = 0
    seconds: _Buckets = field(factory=lambda: _Buckets(measured.PUBLISH.buckets))


_GAUGES: Final[tuple[Gauge[GroupMeasures], ...]] = tuple(
    Gauge(each.prometheus, each.help, attrgetter(each.field)) for each in measured.GAUGES_OF_GROUPS
)


@define(eq=False)
class ClientCollector(Collector):
    """The metrics of one client, for a registry of prometheus-client; and the observer that adds its times up."""

    _client: Client
    registry: CollectorRegistry
    bounds: SeriesBounds = OF_A_CLIENT
    _groups: dict[Labels, _GroupTimes] = field(factory=dict, init=False)
    _topics: dict[Labels, _Published] = field(factory=dict, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def __attrs_post_init__(self) -> None:
        register_shared(self)

    def abandon(self) -> None:
        """In a forked child: the times are the parent's, and another thread may hold the lock there."""
        self._lock = threading.Lock()
        self._groups, self._topics = {}, {}

    # -- the observer --------------------------------------------------------------------------------------------------

    def handled(self, topic: str, group: str, handlings: Handlings) -> None:
        """Handlers have ended."""
        with self._lock:
            times = self._times(topic, group)
            times.handler.add(handlings.seconds)
            times.wait.add(handlings.waits)
            times.total.add(handlings.totals)

    def published(self, topic: str, messages: int, seconds: float, error: str | None) -> None:
        """A publish has ended."""
        with self._lock:
            found = self._topics.get((topic,))
            if found is None:
                found = self._topics.setdefault(capped((topic,), self._topics, self.bounds.topics), _Published())
            found.messages += messages
            found.failed += error is not None
            found.seconds.add((seconds,))

    def flushed(self, topic: str, group: str, lanes: int) -> None:
        """A transaction has written the progress of `lanes` lanes."""
        with self._lock:
            self._times(topic, group).flush.add((lanes,))

    def _times(self, topic: str, group: str) -> _GroupTimes:
        found = self._groups.get((topic, group))
        if found is None:
            found = self._groups.setdefault(capped((topic, group), self._groups, self.bounds.groups), _GroupTimes())
        return found

    # -- the collector -------------------------------------------------------------------------------------------------

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the registry need not ask for values when the collector is registered."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of this moment."""
        measures = self._client.measures()
        # A topic or group has its own series here if it has them in the histograms.
        yield from self._counters(measures.groups)
        yield from families(_GAUGES, measures.groups, ("topic", "group"), self._labels, self.bounds.groups)
        yield from self._histograms()
        for each in measured.GAUGES:
            yield GaugeMetricFamily(each.prometheus, each.help, getattr(measures, each.field))
        for each in measured.COUNTS:
            yield CounterMetricFamily(each.prometheus, each.help, getattr(measures, each.field))
        turns = CounterMetricFamily(measured.LOOP_TURNS.prometheus, measured.LOOP_TURNS.help, labels=("loop",))
        age = GaugeMetricFamily(measured.LOOP_AGE.prometheus, measured.LOOP_AGE.help, labels=("loop",))
        for loop in measures.loops:
            turns.add_metric((loop.name,), loop.turns)
            if loop.age is not None:
                age.add_metric((loop.name,), loop.age)
        yield from (turns, age)

    def _labels(self, each: GroupMeasures) -> Labels:
        with self._lock:
            self._times(each.topic, each.group)  # in the order of their appearance
            return (each.topic, each.group) if (each.topic, each.group) in self._groups else (OTHER, OTHER)

    def _counters(self, groups: Sequence[GroupMeasures]) -> Iterator[Metric]:
        by_labels: dict[Labels, Counters] = {}
        for group in groups:
            by_labels.setdefault(self._labels(group), Counters()).add(group.counters)
        messages = CounterMetricFamily(
            "lanelog_client_messages", "Attempts by what became of them.", labels=("topic", "group", "outcome")
        )
        for labels, counters in by_labels.items():
            for each in measured.OUTCOMES:
                messages.add_metric((*labels, each.field), getattr(counters, each.field))
        yield messages
        for each in measured.COUNTS_OF_GROUPS:
            family = CounterMetricFamily(each.prometheus, each.help, labels=("topic", "group"))
            for labels, counters in by_labels.items():
                family.add_metric(labels, getattr(counters, each.field))
            yield family

    def _histograms(self) -> Iterator[Metric]:
        with self._lock:
            groups = {labels: deepcopy(times) for labels, times in self._groups.items()}
            topics = {labels: deepcopy(each) for labels, each in self._topics.items()}
        yield _family(measured.PROCESS, ("topic", "group"), {labels: each.handler for labels, each in groups.items()})
        yield _family(measured.WAIT, ("topic", "group"), {labels: each.wait for labels, each in groups.items()})
        yield _family(measured.END_TO_END, ("topic", "group"), {labels: each.total for labels, each in groups.items()})
        yield _family(measured.FLUSH, ("topic", "group"), {labels: each.flush for labels, each in groups.items()})
        yield _family(measured.PUBLISH, ("topic",), {labels: each.seconds for labels, each in topics.items()})
        published = CounterMetricFamily(
            "lanelog_client_published_messages", "New messages; repetitions with an id do not count.", labels=("topic",)
        )
        failed = CounterMetricFamily("lanelog_client_publishes_failed", "Publishes with an error.", labels=("topic",))
        for labels, each in topics.items():
            published.add_metric(labels, each.messages)
            failed.add_metric(labels, each.failed)
        yield from (published, failed)


def observe(
    client: Client, registry: CollectorRegistry = REGISTRY, *, bounds: SeriesBounds = OF_A_CLIENT
) -> ClientCollector:
    """Measure a client from now on, with series in a registry of prometheus-client. Idempotent.

    A registry takes one client. `lanelog worker --metrics` does this by itself.

    Example::

        client = lanelog.connect(url)
        lanelog.metrics.observe(client)
        prometheus_client.start_http_server(9464, "127.0.0.1")
    """
    for each in client.observers:
        if isinstance(each, ClientCollector) and each.registry is registry:
            return each
    collector = ClientCollector(client, registry, bounds)
    registry.register(collector)
    client.observe(collector)
    return collector


def _family(of: measured.Distribution, labels: Labels, found: dict[Labels, _Buckets]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(of.prometheus, of.help, labels=labels)
    for values, buckets in found.items():
        family.add_metric(values, buckets=buckets.shown(), sum_value=buckets.total)
    return family
