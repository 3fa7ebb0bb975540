"""What is measured in a client, declared once for both monitors: each number and each histogram.

Owns the names that Prometheus and OpenTelemetry have for it, its meaning and its buckets. Knows neither of them, and
measures nothing: `lanelog.measures` has the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import frozen

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 300.0)
"""The buckets of each duration: those that OpenTelemetry's conventions advise, and two for long waits."""
LANES: Final = (1.0, 10.0, 100.0, 1000.0)


@frozen
class Number:
    """A counter or a gauge."""

    field: str
    """Where `lanelog.measures` has its value."""
    prometheus: str
    opentelemetry: str
    help: str
    unit: str = "{message}"


@frozen
class Distribution:
    """A histogram."""

    prometheus: str
    opentelemetry: str
    help: str
    unit: str = "s"
    buckets: Sequence[float] = SECONDS


def _number(field: str, prometheus: str, opentelemetry: str, help_: str, unit: str = "{message}") -> Number:
    """A number with a name of this library in both. The rows below are short, so that they are a table."""
    return Number(field, f"lanelog_client_{prometheus}", f"lanelog.{opentelemetry}", help_, unit)


OUTCOMES: Final = (
    _number("acked", "messages", "messages.acked", "Messages acked."),
    _number("retried", "messages", "messages.retried", "Attempts that failed, where another one follows."),
    _number("postponed", "messages", "messages.postponed", "Messages postponed."),
    _number("dead_lettered", "messages", "messages.dead_lettered", "Dead letters."),
    _number("expired", "messages", "messages.expired", "Messages expired."),
    _number("timed_out", "messages", "messages.timed_out", "Attempts timed out."),
)
"""Counters in `Counters`. Prometheus has them in one metric, where the field is the label `outcome`."""
ATTEMPTS: Final = Number(
    "handled", "lanelog_client_attempts", "messaging.client.consumed.messages", "Attempts whose outcome was decided."
)
COUNTS_OF_GROUPS: Final = (
    ATTEMPTS,
    _number("refused", "settlements_refused", "settlements.refused", "Settlements that came too late."),
    _number("taken_over", "lanes_taken_over", "lanes.taken_over", "Lanes taken from members that were gone.", "{lane}"),
    _number("lost", "lanes_lost", "lanes.lost", "Lanes that others took, or given back after an error.", "{lane}"),
)
"""Other counters in `Counters`."""
GAUGES_OF_GROUPS: Final = (
    _number("lanes", "lanes", "lanes", "Lanes that this process has.", "{lane}"),
    _number("running", "in_flight_messages", "messages.in_flight", "Messages in handlers."),
    _number("waiting", "waiting_messages", "messages.waiting", "Messages that wait for another attempt."),
)
"""In `GroupMeasures`."""
COUNTS: Final = (
    _number("pool_waits", "pool_waits", "pool.waits", "How often a thread waited for the pool.", "{wait}"),
    _number("hints_sent", "hints_sent", "hints.sent", "Hints sent to other processes.", "{hint}"),
    _number("hints_lost", "hints_lost", "hints.lost", "Hints that could not be sent.", "{hint}"),
    _number("hints_heard", "hints_heard", "hints.heard", "Hints that came from other processes.", "{hint}"),
)
"""In `Measures`."""
GAUGES: Final = (
    _number("prefetched", "prefetched_messages", "messages.prefetched", "Messages in memory, those in handlers too."),
    _number("prefetched_bytes", "prefetched_bytes", "messages.prefetched.size", "Bytes of their payloads.", "By"),
)
"""In `Measures`."""
LOOP_TURNS: Final = _number("turns", "loop_turns", "loop.turns", "Runs of a background loop.", "{turn}")
LOOP_AGE: Final = _number("age", "loop_age_seconds", "loop.age", "Since the last run of a loop began.", "s")
"""In `LoopMeasures`."""

PUBLISH: Final = Distribution(
    "lanelog_client_publish_seconds", "messaging.client.operation.duration", "How long publishes took."
)
PROCESS: Final = Distribution(
    "lanelog_client_handler_seconds",
    "messaging.process.duration",
    "How long handlers took; pulled messages: until they were settled.",
)
WAIT: Final = Distribution(
    "lanelog_client_wait_seconds", "lanelog.wait.duration", "From the publish to the beginning of the first attempt."
)
END_TO_END: Final = Distribution(
    "lanelog_client_end_to_end_seconds",
    "lanelog.end_to_end.duration",
    "From the publish to the end of the handler that succeeded.",
)
FLUSH: Final = Distribution(
    "lanelog_client_flush_lanes", "lanelog.flush.lanes", "Lanes whose progress one transaction wrote.", "{lane}", LANES
)
