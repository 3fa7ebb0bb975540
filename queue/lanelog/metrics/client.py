"""The metrics of one client: what this process publishes and handles, how long it takes, and what it holds.

Owns their names. The counters are the engine's own, read at a scrape. Times are added up as they happen.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Final

from attrs import define, field, frozen
from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from lanelog._database.fork import register_shared
from lanelog.measures import LANES, OTHER, SECONDS, Counters, Labels, place
from lanelog.metrics.series import Gauge, families

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from lanelog.client import Client
    from lanelog.measures import GroupMeasures, Handlings, Measures


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


def _seconds() -> _Buckets:
    return _Buckets(SECONDS)


@define(eq=False)
class _GroupTimes:
    """The histograms of one topic and group."""

    handler: _Buckets = field(factory=_seconds)
    wait: _Buckets = field(factory=_seconds)
    total: _Buckets = field(factory=_seconds)
    flush: _Buckets = field(factory=lambda: _Buckets(LANES))


@define(eq=False)
class _Published:
    """The publishes of one topic."""

    messages: int = 0
    failed: int = 0
    seconds: _Buckets = field(factory=_seconds)


@frozen
class _Count:
    """A counter of a group."""

    name: str
    help: str
    value: Callable[[Counters], int]


_OUTCOMES: Final[tuple[tuple[str, Callable[[Counters], int]], ...]] = (
    ("acked", lambda each: each.acked),
    ("retried", lambda each: each.retried),
    ("postponed", lambda each: each.postponed),
    ("dead_lettered", lambda each: each.dead_lettered),
    ("expired", lambda each: each.expired),
    ("timed_out", lambda each: each.timed_out),
)
_COUNTS: Final = (
    _Count("lanelog_client_attempts", "Attempts whose outcome was decided.", lambda each: each.handled),
    _Count("lanelog_client_settlements_refused", "Settlements that came too late.", lambda each: each.refused),
    _Count("lanelog_client_lanes_taken_over", "Lanes taken from members that were gone.", lambda each: each.taken_over),
    _Count("lanelog_client_lanes_lost", "Lanes that others took, or given up after an error.", lambda each: each.lost),
)
_COUNTS_OF_ALL: Final[tuple[tuple[str, str, Callable[[Measures], int]], ...]] = (
    (
        "lanelog_client_pool_waits",
        "How often a thread waited for a connection of the pool.",
        lambda each: each.pool_waits,
    ),
    ("lanelog_client_hints_sent", "Hints sent to other processes.", lambda each: each.hints_sent),
    ("lanelog_client_hints_lost", "Hints that could not be sent.", lambda each: each.hints_lost),
    ("lanelog_client_hints_heard", "Hints that came from other processes.", lambda each: each.hints_heard),
)
_GAUGES: Final[tuple[Gauge[GroupMeasures], ...]] = (
    Gauge("lanelog_client_lanes", "Lanes that this process has.", lambda each: each.lanes),
    Gauge("lanelog_client_in_flight_messages", "Messages in handlers.", lambda each: each.running),
    Gauge("lanelog_client_waiting_messages", "Messages that wait for another attempt.", lambda each: each.waiting),
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
                found = self._topics.setdefault(place((topic,), self._topics, self.bounds.topics), _Published())
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
            found = self._groups.setdefault(place((topic, group), self._groups, self.bounds.groups), _GroupTimes())
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
        yield GaugeMetricFamily(
            "lanelog_client_prefetched_messages",
            "Messages in memory, those that handlers work on included.",
            measures.prefetched,
        )
        yield GaugeMetricFamily(
            "lanelog_client_prefetched_bytes", "Bytes of their payloads.", measures.prefetched_bytes
        )
        for name, help_, value in _COUNTS_OF_ALL:
            yield CounterMetricFamily(name, help_, value(measures))
        turns = CounterMetricFamily("lanelog_client_loop_turns", "Turns of a background loop.", labels=("loop",))
        age = GaugeMetricFamily("lanelog_client_loop_age_seconds", "Since its last turn began.", labels=("loop",))
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
        for each in groups:
            by_labels.setdefault(self._labels(each), Counters()).add(each.counters)
        messages = CounterMetricFamily(
            "lanelog_client_messages", "Attempts by what became of them.", labels=("topic", "group", "outcome")
        )
        for labels, counters in by_labels.items():
            for outcome, value in _OUTCOMES:
                messages.add_metric((*labels, outcome), value(counters))
        yield messages
        for count in _COUNTS:
            family = CounterMetricFamily(count.name, count.help, labels=("topic", "group"))
            for labels, counters in by_labels.items():
                family.add_metric(labels, count.value(counters))
            yield family

    def _histograms(self) -> Iterator[Metric]:
        with self._lock:
            groups = {labels: deepcopy(times) for labels, times in self._groups.items()}
            topics = {labels: deepcopy(each) for labels, each in self._topics.items()}
        by_group = ("topic", "group")
        yield _family(
            "lanelog_client_handler_seconds",
            "How long handlers took; pulled messages: until they were settled.",
            by_group,
            {labels: times.handler for labels, times in groups.items()},
        )
        yield _family(
            "lanelog_client_wait_seconds",
            "From the publish to the beginning of the first attempt.",
            by_group,
            {labels: times.wait for labels, times in groups.items()},
        )
        yield _family(
            "lanelog_client_end_to_end_seconds",
            "From the publish to the end of the handler that succeeded.",
            by_group,
            {labels: times.total for labels, times in groups.items()},
        )
        yield _family(
            "lanelog_client_flush_lanes",
            "Lanes whose progress one transaction wrote.",
            by_group,
            {labels: times.flush for labels, times in groups.items()},
        )
        yield _family(
            "lanelog_client_publish_seconds",
            "How long publishes took.",
            ("topic",),
            {labels: each.seconds for labels, each in topics.items()},
        )
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


def _family(name: str, help_: str, labels: Labels, found: dict[Labels, _Buckets]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, help_, labels=labels)
    for values, buckets in found.items():
        family.add_metric(values, buckets=buckets.shown(), sum_value=buckets.total)
    return family
