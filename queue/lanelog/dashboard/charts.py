"""Charts of throughput, lag, age, latency and handlers' times, drawn from samples and history as lines of SVG.

Owns the arithmetic from samples to points. Takes no sample, reads no history, and writes no HTML.

Latency is the mean time from publish to settlement by Little's law (J. D. C. Little, 1961): messages that are there,
divided by messages that leave in a second. It holds on average, so it is shown for intervals in which messages leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby, pairwise
from typing import Final

from attrs import frozen

from lanelog._base.places import GroupTopic
from lanelog._base.text import NOTHING, age
from lanelog.dashboard.handler_times import BUCKETS, SAMPLE, HandlerTimes, Percentiles
from lanelog.dashboard.samples import Sample

WIDTH: Final = 600
HEIGHT: Final = 120
COLUMNS: Final = 120
"""Points of a line at most."""
GAP: Final = 180.0
"""Seconds without a sample after which a line is broken. A large log is read once a minute at least."""
_FEW: Final = 10
"""Below this, a rate is shown with its tenths."""
_NICE: Final = (1, 2, 5)
_NICE_SHORT: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
_NICE_SECONDS: Final = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14_400, 43_200, 86_400)


@frozen(kw_only=True)
class ChartLine:
    """One line, in pieces: where nothing is known it is broken."""

    name: str
    tone: str
    """A class of the style sheet."""
    pieces: tuple[str, ...]
    """Each the points of a polyline, in a box of WIDTH by HEIGHT."""
    now: str
    """The last value, as text."""


@frozen(kw_only=True)
class Chart:
    """One chart."""

    title: str
    top: str
    """The value at its upper edge; the lower edge is 0."""
    begin: str
    end: str
    lines: tuple[ChartLine, ...]
    note: str = ""
    """Where its values are from, if not from the samples."""


@frozen(kw_only=True)
class _Interval:
    """The changes between two samples, or between several that follow each other."""

    end: float
    """Seconds since the first moment of the chart."""
    seconds: float
    published: int
    settled: int
    waited: float
    """Messages not settled, times the seconds that they were so."""
    lag: int
    oldest: float

    def and_then(self, other: _Interval) -> _Interval:
        """Return both together."""
        return _Interval(
            end=other.end,
            seconds=self.seconds + other.seconds,
            published=self.published + other.published,
            settled=self.settled + other.settled,
            waited=self.waited + other.waited,
            lag=max(self.lag, other.lag),
            oldest=max(self.oldest, other.oldest),
        )


_Point = tuple[float, float] | None
"""Where a line goes, each as a part of the box. None: it is broken."""
_Reading = Callable[[_Interval], float | None]


def draw(samples: Sequence[Sample], chosen: Callable[[GroupTopic], bool]) -> list[Chart]:
    """Return the charts of some groups together. Without two samples that follow each other there is none."""
    found = list(_columns(samples, chosen)) if samples else []
    if not found:
        return []
    drawn = _Drawn(
        begin=samples[0].at,
        end=samples[-1].at,
        columns=found,
        newest=_interval(samples[-2], samples[-1], 0.0, chosen),
    )
    return [
        _chart("Messages a second", drawn, rate_text, ("published", _published), ("settled", _settled)),
        _chart("Lag, in messages", drawn, _count_text, ("lag", lambda each: each.lag)),
        _chart("Age of the oldest message", drawn, age, ("age", lambda each: each.oldest)),
        _chart("Latency, from publish to settlement", drawn, age, ("latency", _latency)),
    ]


def draw_times(times: HandlerTimes) -> Chart:
    """Return the chart of handlers' times. A bucket is a step of its width, so that a single one can be seen."""
    lines: tuple[tuple[str, Callable[[Percentiles], float]], ...] = (
        ("p50", lambda each: each.p50),
        ("p99", lambda each: each.p99),
    )
    across = (times.end - times.begin).total_seconds()
    top = _above_short(max((each.p99 for each in times.buckets if each is not None), default=0.0))
    recent = next((each for each in times.buckets[:-3:-1] if each is not None), None)
    return _made(
        "Handlers, at the first attempt",
        short_age(top),
        times,
        *(
            (name, _steps(times, read, across, top), NOTHING if recent is None else short_age(read(recent)))
            for name, read in lines
        ),
        note=f"From the group's history: of each of {BUCKETS} intervals, the last {SAMPLE} messages that ended in it, "
        "without those that had more than one attempt.",
    )


def _made(
    title: str,
    top: str,
    over: HandlerTimes | _Drawn,
    *lines: tuple[str, Iterable[_Point], str],
    note: str = "",
) -> Chart:
    """Return a chart of some lines: the name of each, its points, and its last value."""
    made = [
        ChartLine(name=name, tone=f"line{n}", pieces=tuple(_pieces(points)), now=now)
        for n, (name, points, now) in enumerate(lines, 1)
    ]
    begin, end = (f"{each:%H:%M} UTC" for each in (over.begin, over.end))
    return Chart(title=title, top=top, begin=begin, end=end, lines=tuple(made), note=note)


def _steps(times: HandlerTimes, read: Callable[[Percentiles], float], across: float, top: float) -> Iterator[_Point]:
    for number, each in enumerate(times.buckets):
        if each is None:
            yield None
            continue
        for edge in (number * times.width, min(across, (number + 1) * times.width)):
            yield edge / across, read(each) / top


def short_age(seconds: float) -> str:
    """Return a duration as `age` does, and less than a second in milliseconds."""
    return f"{seconds * 1000:.0f}ms" if seconds < 1 else age(seconds)


@frozen(kw_only=True)
class _Drawn:
    """What all charts of one answer are drawn from."""

    begin: datetime
    end: datetime
    columns: Sequence[_Interval]
    newest: _Interval
    """The interval between the last two samples."""

    def now(self, read: _Reading) -> float | None:
        """Return the last value. After a gap, nothing is known of what happened in the last seconds."""
        if read in (_published, _settled, _latency) and self.newest.seconds > GAP:
            return None
        return read(self.newest)


def _columns(samples: Sequence[Sample], chosen: Callable[[GroupTopic], bool]) -> Iterator[_Interval]:
    """Yield the intervals, those of one column together."""
    width = (samples[-1].at - samples[0].at).total_seconds() / COLUMNS
    last: _Interval | None = None
    for before, after in pairwise(samples):
        here = _interval(before, after, (after.at - samples[0].at).total_seconds(), chosen)
        if last is not None and here.seconds <= GAP and int(last.end / width) == int(here.end / width):
            last = last.and_then(here)
            continue
        if last is not None:
            yield last
        last = here if here.seconds <= GAP else None  # no sample was taken: what happened when is unknown
    if last is not None:
        yield last


def _interval(before: Sample, after: Sample, end: float, chosen: Callable[[GroupTopic], bool]) -> _Interval:
    seconds = (after.at - before.at).total_seconds()
    published: dict[str, int] = {}
    settled, lag, waited, oldest = 0, 0, 0.0, 0.0
    for place, now in after.groups.items():
        then = before.groups.get(place)
        if then is None or not chosen(place):
            continue
        published[place.topic] = max(0, now.head - then.head)
        settled += max(0, now.settled - then.settled)
        lag += now.lag
        waited += (then.lag + now.lag) / 2 * seconds
        oldest = max(oldest, now.oldest)
    return _Interval(
        end=end,
        seconds=seconds,
        published=sum(published.values()),
        settled=settled,
        waited=waited,
        lag=lag,
        oldest=oldest,
    )


def _published(each: _Interval) -> float:
    return each.published / each.seconds


def _settled(each: _Interval) -> float:
    return each.settled / each.seconds


def _latency(each: _Interval) -> float | None:
    """None: messages wait, and none has left."""
    if each.settled:
        return each.waited / each.settled
    return None if each.lag else 0.0


def rate_text(value: float | None) -> str:
    """Return a number in a second. None is not known."""
    return "-" if value is None else f"{value:,.{int(value < _FEW)}f}"


def _count_text(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _chart(title: str, drawn: _Drawn, text: Callable[[float | None], str], *readings: tuple[str, _Reading]) -> Chart:
    values = [[(each.end, read(each)) for each in drawn.columns] for _, read in readings]
    greatest = max((value for line in values for _, value in line if value is not None), default=0.0)
    top = _above(greatest, seconds=text is age)
    across = (drawn.end - drawn.begin).total_seconds()
    lines = zip(readings, values, strict=True)
    drawn_lines = ((name, _course(line, across, top), text(drawn.now(read))) for (name, read), line in lines)
    return _made(title, text(top), drawn, *drawn_lines)


def _course(line: Sequence[tuple[float, float | None]], across: float, top: float) -> Iterator[_Point]:
    last = 0.0
    for end, value in line:
        if end - last > GAP + across / COLUMNS:
            yield None
        yield None if value is None else (end / across, value / top)
        last = end


def _pieces(points: Iterable[_Point]) -> Iterator[str]:
    """Yield the polylines. One with a single point would not be drawn: twice, it is a dot."""
    for there, some in groupby(points, key=lambda point: point is not None):
        if there:
            piece = [f"{x * WIDTH:.1f},{HEIGHT * (1 - y):.1f}" for x, y in filter(None, some)]
            yield " ".join(piece if len(piece) > 1 else piece * 2)


def _above_short(seconds: float) -> float:
    """Return the next round duration that is not below this one, at least 10 ms."""
    return next((each for each in _NICE_SHORT if seconds <= each), _above(seconds, seconds=True))


def _above(value: float, *, seconds: bool) -> float:
    """Return the next round number that is not below the value, at least 1."""
    if seconds:
        for each in _NICE_SECONDS:
            if value <= each:
                return each
    power = 1
    while True:
        for digit in _NICE:
            if value <= digit * power:
                return digit * power
        power *= 10
