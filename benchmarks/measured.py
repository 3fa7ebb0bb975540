"""What metrics and traces cost: the same work without them and with them, alternately, each with a client of its own.

The figures are medians, and the order changes from round to round. Publishing takes turns of twenty messages, and
connects anew in each round: the machine changes by more in a second than a trace costs, and so do two connections.

A span costs more than the library spends on a message whose handler does nothing: traces are measured with handlers
that take a millisecond, and spans are exported in batches, as an application does it.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from benchmarks.bench import PAYLOAD, TOPIC
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

import lanelog
from lanelog import instruments, metrics
from lanelog.tracing import Tracing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.bench import Bench
    from opentelemetry import trace

ROUNDS = 5
TURNS = 3
"""So many runs of handlers that do something in a round, each of a second or two."""
LANES = 1000
A_TURN = 20
"""Messages that a publisher publishes before the next publisher does."""
SECONDS = 0.001
"""Processor time of a handler that does something."""
PATIENCE = 120.0

Values = dict[str, list[float]]


def figures(bench: Bench) -> Iterator[tuple[str, float]]:
    """Yield the median of each way."""
    many, few = bench.messages(50_000), bench.messages(1000)
    bench.backlog(many, LANES)
    values: Values = {}
    for number in range(ROUNDS * TURNS):
        turn = -1 if number % 2 else 1
        for which in ("nothing", "prometheus", "otel")[::turn] if number % TURNS == 0 else ():
            values.setdefault(f"consume_measured_{which}", []).append(_consumed(bench, which, many, 0.0))
        for which in ("nothing", "bare_spans", "everything")[::turn]:
            values.setdefault(f"handle_measured_{which}", []).append(_consumed(bench, which, few, SECONDS))
    for name, found in values.items():
        yield name, statistics.median(found)
    for which, rate in _published(bench, ("nothing", "prometheus", "otel", "traces", "spans"), 3 * few).items():
        yield f"publish_measured_{which}", rate


def _provider() -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    return provider


def _client(bench: Bench, which: str) -> tuple[lanelog.Client, Tracing | None]:
    """Return a client that is measured, and how its spans are made."""
    tracing = None
    if which in ("traces", "spans", "everything"):
        tracing = Tracing(_provider(), publish_spans=which == "spans")
    client = lanelog.connect(bench.url, middleware=(tracing.publish,) if tracing else ())
    if which in ("prometheus", "everything"):
        metrics.observe(client, CollectorRegistry())
    if which == "otel":
        instruments.observe(client, MeterProvider([InMemoryMetricReader()]))
    return client, tracing


def _consumed(bench: Bench, which: str, messages: int, seconds: float) -> float:
    """Messages a second of a new group, from its first on."""
    ended = threading.Event()
    count = itertools.count(1)
    began: list[float] = []

    def handle(_message: lanelog.Message) -> None:
        until = time.thread_time() + seconds
        number = next(count)
        if number == 1:
            began.append(time.perf_counter())
        while seconds and time.thread_time() < until:
            pass
        if number == messages:
            ended.set()

    client, tracing = _client(bench, which)
    with client:
        middleware: tuple[Callable[..., object], ...] = (tracing.handle,) if tracing else ()
        if which == "bare_spans":
            middleware = (_in_bare_span(_provider().get_tracer("bench")),)
        group = f"{which}-{time.monotonic_ns()}"
        with client.subscribe(TOPIC, group, handle, middleware=middleware):
            if not ended.wait(PATIENCE):
                raise TimeoutError(f"{messages} messages were not handled within {PATIENCE:g} s")
            taken = time.perf_counter() - began[0]
        client.admin.delete_group(TOPIC, group, dry_run=False)
    return messages / taken


def _in_bare_span(tracer: trace.Tracer) -> Callable[[lanelog.Message, Callable[[lanelog.Message], object]], object]:
    """Return the least middleware that has a span for each message, without an attribute: what the SDK alone takes."""

    def handle(message: lanelog.Message, call_next: Callable[[lanelog.Message], object]) -> object:
        span = tracer.start_span("handle")
        try:
            return call_next(message)
        finally:
            span.end()

    return handle


def _published(bench: Bench, ways: Sequence[str], messages: int) -> dict[str, float]:
    """Messages a second of one thread, below a span of the application's own, which is not measured."""
    taken: dict[str, list[float]] = {which: [] for which in ways}
    for _ in range(ROUNDS):
        with ExitStack() as stack:
            clients = {which: stack.enter_context(_client(bench, which)[0]) for which in ways}
            stack.enter_context(TracerProvider().get_tracer("bench").start_as_current_span("request"))
            for turn in range(messages // ROUNDS // A_TURN):
                first = turn % len(ways)
                for which in (*ways[first:], *ways[:first]):
                    for number in range(A_TURN):
                        began = time.perf_counter()
                        clients[which].publish("published", f"key-{number}", PAYLOAD)
                        taken[which].append(time.perf_counter() - began)
    return {which: 1 / statistics.median(each) for which, each in taken.items()}
