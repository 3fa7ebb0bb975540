"""The arithmetic of a soak: which figures are measured, when a series is flat, and percentiles of counted latencies.

Owns the tolerances; it is pure and never measures. The runner judges with it, the report shows what it says, and the
workers count their latencies in its buckets.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from attrs import frozen

RATIO: Final = 1.05
"""Each bucket of latencies is so much wider than the one below: a percentile is exact to 5 %."""

FLOOR: Final = 0.0001
"""Seconds; anything faster is in the first bucket."""

ENOUGH: Final = 9
"""Samples after the warm-up, at least: three in each third."""


@frozen(kw_only=True)
class Figure:
    """One measured series: how it is called, and how much its last third may lie above its middle third.

    `relative` is a share of the middle third, `absolute` is in the figure's unit; the larger one counts. `falls` says
    that the figure is a rate, which must not fall by more instead. Without both, it is only shown.
    """

    title: str
    unit: str = ""
    relative: float = 0.0
    absolute: float = 0.0
    falls: bool = False

    @property
    def judged(self) -> bool:
        """Whether a tolerance is stated."""
        return bool(self.relative or self.absolute)


MIB: Final = 1024 * 1024

FIGURES: Final[dict[str, Figure]] = {
    "published": Figure(title="published", unit="1/s", relative=0.05, falls=True),
    "handled_plain": Figure(title="handled, group plain", unit="1/s", relative=0.05, falls=True),
    "handled_retried": Figure(title="handled, group retried", unit="1/s", relative=0.05, falls=True),
    "latency_p50": Figure(title="publish to handler, p50", unit="ms", relative=0.5, absolute=25),
    "latency_p99": Figure(title="publish to handler, p99", unit="ms", relative=1.0, absolute=250),
    "lag": Figure(title="lag, both groups", unit="messages", relative=0.5, absolute=500),
    "rows_messages": Figure(title="rows, queue_messages", relative=0.1, absolute=2000),
    "rows_delivery_state": Figure(title="rows, queue_delivery_state", relative=0.5, absolute=200),
    "rows_lanes": Figure(title="rows of lanes: heads, offsets, leases", relative=0.1, absolute=100),
    "rows_heartbeats": Figure(title="rows, heartbeats and groups", absolute=2),
    "disk": Figure(title="tables on disk", unit="MiB", relative=0.1, absolute=4),
    "history_list": Figure(title="history list", unit="transactions", relative=0.5, absolute=1500),
    "connections": Figure(title="connections of the server", absolute=3),
    "memory_server": Figure(title="memory, server", unit="MiB", relative=0.05, absolute=16),
    "memory_workers": Figure(title="memory, workers", unit="MiB", relative=0.05, absolute=8),
    "memory_publishers": Figure(title="memory, publishers", unit="MiB", relative=0.05, absolute=8),
    "threads": Figure(title="threads, workers and publishers", absolute=3),
    "files": Figure(title="open files, workers and publishers", absolute=4),
    "load": Figure(title="load average of the machine"),  # what others do at the same time says much about the pace
}


@frozen(kw_only=True)
class Judgement:
    """What a series did: the medians of its middle and last third, and how far the last may be from the middle."""

    middle: float
    last: float
    allowed: float
    flat: bool


def judge(times: Sequence[float], values: Sequence[float], figure: Figure, warm_up: float) -> Judgement:
    """Compare the last third with the middle third of what was measured after `warm_up` seconds.

    Medians, so that one slow interval or the teeth of a saw decide nothing. Raises ValueError when there are too few
    samples to say anything.
    """
    kept = [value for at, value in zip(times, values, strict=True) if at >= warm_up]
    if len(kept) < ENOUGH:
        raise ValueError(f"{len(kept)} samples after {warm_up:g} s of warm-up, at least {ENOUGH} are needed")
    third = len(kept) // 3
    middle, last = median(kept[-2 * third : -third]), median(kept[-third:])
    allowed = max(figure.relative * abs(middle), figure.absolute)
    moved = middle - last if figure.falls else last - middle
    return Judgement(middle=middle, last=last, allowed=allowed, flat=moved <= allowed)


def flat(times: Sequence[float], values: Sequence[float], figure: Figure, warm_up: float) -> bool:
    """Whether a series neither grows nor, for a rate, falls."""
    return judge(times, values, figure, warm_up).flat


def thinned(items: Sequence[float], most: int) -> list[float]:
    """Every n-th item, so that at most `most` are left, the last one among them."""
    step = max(1, math.ceil(len(items) / most))
    return list(items[::-1][::step][::-1])


def bucket(seconds: float) -> int:
    """The bucket of a latency."""
    return max(0, math.ceil(math.log(max(seconds, FLOOR) / FLOOR, RATIO)))


def percentile(counts: Mapping[int, int], share: float) -> float:
    """The latency in seconds that so large a share of those counted does not exceed; nan when none was counted."""
    left = share * sum(counts.values())
    for number in sorted(counts):
        left -= counts[number]
        if left <= 0:
            return float(FLOOR * RATIO**number)
    return math.nan
