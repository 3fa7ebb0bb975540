"""Series with few labels: their definitions, and the bound of their number.

Owns which things become `other`, and how their values are joined. Knows no database and no figure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from attrs import frozen
from prometheus_client.core import GaugeMetricFamily

from lanelog.measures import OTHER

T = TypeVar("T")


@frozen
class Gauge(Generic[T]):
    """One metric, and how its value is read from a thing such as a group."""

    name: str
    help: str
    value: Callable[[T], float]
    join: Callable[[Iterable[float]], float] = sum
    """How the values of several things become that of `other`: their sum, or for an age the greatest."""


def families(
    gauges: Sequence[Gauge[T]],
    things: Sequence[T],
    labels: Sequence[str],
    label: Callable[[T], tuple[str, ...]],
    most: int,
) -> Iterator[GaugeMetricFamily]:
    """Yield the metrics of some things.

    Args:
        gauges: The metrics.
        things: What they are metrics of, those first that must keep their names.
        labels: The names of the labels.
        label: The labels of a thing.
        most: The most series of each metric; what is more is one series, whose labels are `other`.
    """
    others = (OTHER,) * len(labels)
    by_label: dict[tuple[str, ...], list[T]] = {}
    for thing in things:
        shown = label(thing)
        if shown not in by_label and len(by_label) >= most - (others not in by_label):
            shown = others
        by_label.setdefault(shown, []).append(thing)
    for gauge in gauges:
        family = GaugeMetricFamily(gauge.name, gauge.help, labels=labels)
        for shown, found in by_label.items():
            family.add_metric(shown, gauge.join(map(gauge.value, found)))
        yield family
