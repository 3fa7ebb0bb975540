"""The metrics of several processes as those of one, for `lanelog worker --metrics`.

Owns the rule of how series of the same name and labels are joined. Asks the processes through a function, and knows
none of them.

Each process reports far more topics and groups than are shown, because no process knows which ones the others have. The
sum is bounded, in the order in which they appear.

Counters and histograms are added up, those of processes that have ended too: otherwise a counter would fall when a
process is replaced. Gauges are added up. Of times and facts, which have no sum, the greatest is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from attrs import define, field
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from lanelog.measures import Labels, capped
from lanelog.metrics.client import OF_A_CLIENT, SeriesBounds

Label = tuple[tuple[str, str], ...]

OF_A_PROCESS: Final = SeriesBounds(groups=200, topics=200)
"""What one process of several reports."""

_OURS: Final = "lanelog_client_"

_GROWING: Final = {"counter", "histogram", "summary"}
_NO_SUM: Final = ("_seconds", "_info")
"""Ends of the names of gauges that are times or facts."""
_SINCE: Final = "_created"
"""The end of the name of a series that says since when another one counts."""


@define
class _Family:
    """The series of one metric."""

    help: str
    kind: str
    values: dict[tuple[str, Label], float] = field(factory=dict)

    def add(self, name: str, labels: Label, value: float) -> None:
        before = self.values.get((name, labels))
        if before is not None:
            if name.endswith(_SINCE):
                value = min(before, value)
            elif self.kind == "gauge" and name.endswith(_NO_SUM):
                value = max(before, value)
            else:
                value += before
        self.values[name, labels] = value


_Families = dict[str, _Family]


@define(eq=False)
class SummedCollector(Collector):
    """The sum, for a registry of prometheus-client.

    Args:
        ask: Asks each process what it shows, in the text format of Prometheus. It calls its argument with the answers.
            No process may be retired during that call: it would be counted twice, or not at all.
    """

    _ask: Callable[[Callable[[Sequence[str]], _Families]], _Families]
    _ended: _Families = field(factory=dict, init=False)
    _groups: dict[Labels, None] = field(factory=dict, init=False)  # with series of their own
    _topics: dict[Labels, None] = field(factory=dict, init=False)

    def describe(self) -> Iterable[Metric]:
        """Return nothing. Otherwise a registry would ask the processes when the collector is registered."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the sums of this moment."""
        for name, family in sorted(self._ask(self._total).items()):
            shown = self._bounded(family) if name.startswith(_OURS) else family
            metric = Metric(name, shown.help, shown.kind)
            for (sample, labels), value in shown.values.items():
                metric.add_sample(sample, dict(labels), value)
            yield metric

    def _bounded(self, family: _Family) -> _Family:
        """Join the series of topics and groups beyond the bounds of a client."""
        shown = _Family(family.help, family.kind)
        for (sample, labels), value in family.values.items():
            named = dict(labels)
            if "group" in named:
                at = self._shown((named["topic"], named["group"]), self._groups, OF_A_CLIENT.groups)
                named["topic"], named["group"] = at
            elif "topic" in named:
                (named["topic"],) = self._shown((named["topic"],), self._topics, OF_A_CLIENT.topics)
            shown.add(sample, tuple(sorted(named.items())), value)
        return shown

    @staticmethod
    def _shown(labels: Labels, known: dict[Labels, None], most: int) -> Labels:
        if labels not in known:
            labels = capped(labels, known, most)
            known[labels] = None
        return labels

    def retire(self, text: str) -> None:
        """Keep the counts of a process that has ended, by what it showed last."""
        _add(self._ended, text, only=_GROWING)

    def _total(self, texts: Sequence[str]) -> _Families:
        total = {name: _Family(family.help, family.kind, dict(family.values)) for name, family in self._ended.items()}
        for text in texts:
            _add(total, text)
        return total


def exposed() -> str:
    """Return the metrics of this process: the default registry of prometheus-client."""
    return generate_latest(REGISTRY).decode()


def _add(total: _Families, text: str, *, only: set[str] | None = None) -> None:
    for metric in text_string_to_metric_families(text):
        if only is not None and metric.type not in only:
            continue
        family = total.setdefault(metric.name, _Family(metric.documentation, metric.type))
        for sample in metric.samples:
            family.add(sample.name, tuple(sorted(sample.labels.items())), sample.value)
