"""The metrics of several processes as those of one."""

from collections.abc import Callable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

from lanelog.metrics.summed import SummedCollector


class Played:
    """A process: its counter, its histogram, gauges and a fact."""

    def __init__(self, *, counted: int, took: Sequence[float], running: int, age: float) -> None:
        self.registry = CollectorRegistry()
        Counter("done", "Done.", ["group"], registry=self.registry).labels("g").inc(counted)
        histogram = Histogram("took_seconds", "Took.", registry=self.registry, buckets=(1.0, 2.0))
        for each in took:
            histogram.observe(each)
        Gauge("running", "Running.", registry=self.registry).set(running)
        Gauge("age_seconds", "Age.", registry=self.registry).set(age)
        Info("python", "Version.", registry=self.registry).info({"version": "3"})

    @property
    def text(self) -> str:
        return generate_latest(self.registry).decode()


def summed(living: list[str]) -> tuple[SummedCollector, CollectorRegistry]:
    def ask(read: Callable[[Sequence[str]], Any]) -> Any:
        return read(living)

    registry, collector = CollectorRegistry(), SummedCollector(ask)
    registry.register(collector)
    return collector, registry


def test_counts_are_added_up_and_of_times_and_facts_the_greatest_is_shown() -> None:
    """By name and labels, buckets included; what says since when something counts is the earliest."""
    one = Played(counted=3, took=[0.5, 1.5], running=2, age=7.0)
    two = Played(counted=4, took=[5.0], running=1, age=9.0)
    _, registry = summed([one.text, two.text])
    value = registry.get_sample_value
    assert value("done_total", {"group": "g"}) == 7
    assert [value("took_seconds_bucket", {"le": le}) for le in ("1.0", "2.0", "+Inf")] == [1, 2, 3]
    assert (value("took_seconds_sum"), value("took_seconds_count")) == (7.0, 3)
    assert (value("running"), value("age_seconds"), value("python_info", {"version": "3"})) == (3, 9.0, 1)
    assert value("done_created", {"group": "g"}) == one.registry.get_sample_value("done_created", {"group": "g"})
    assert b"# TYPE took_seconds histogram" in generate_latest(registry)


def test_the_counts_of_a_process_that_has_ended_stay() -> None:
    """The process's gauges do not stay: it has nothing in work any more. One that was never asked leaves nothing."""
    first = Played(counted=3, took=[0.5], running=2, age=7.0)
    living = [first.text]
    collector, registry = summed(living)
    for text in (first.text, ""):
        collector.retire(text)
    living[:] = [Played(counted=1, took=[], running=1, age=1.0).text]
    for _ in range(2):  # a look changes nothing
        assert registry.get_sample_value("done_total", {"group": "g"}) == 4
        assert registry.get_sample_value("took_seconds_count") == 1
        assert registry.get_sample_value("running") == 1


def test_the_sum_of_many_processes_keeps_to_the_bound_of_one() -> None:
    """Each has met other topics first. A series that is shown has all its counts, and the others are in `other`."""
    names = [f"t{number:02}" for number in range(60)]
    living = []
    for first in (0, 15, 30, 45):
        registry = CollectorRegistry()
        acked = Counter("lanelog_client_messages", "Attempts.", ["topic", "group", "outcome"], registry=registry)
        published = Counter("lanelog_client_published_messages", "New.", ["topic"], registry=registry)
        for topic in names[first:] + names[:first]:
            acked.labels(topic, "g", "acked").inc()
            published.labels(topic).inc()
        living.append(generate_latest(registry).decode())
    _, registry = summed(living)
    for name, most in (("lanelog_client_messages", 10), ("lanelog_client_published_messages", 10)):
        (family,) = (each for each in registry.collect() if each.name == name)
        counts = {s.labels["topic"]: s.value for s in family.samples if s.name.endswith("_total")}
        assert len(counts) == most
        assert counts.pop("other") == 4 * (60 - most + 1)
        assert set(counts.values()) == {4}
