"""The report's plots: SVG that takes its colours and its font from the page, so that it fits light and dark.

Owns lines, bars and axes. Never draws a word of the log: names stand in the page, which escapes them. Reads nothing,
and keeps no state: the same figures give the same bytes.

matplotlib gets placeholder colours, which become variables of the style sheet: --ink, --rule and --c1 … --c6. Sizes of
text become multiples of --em, a unit of the drawing. The margins fit a phone. If a plot is shown wider, the style sheet
makes its text smaller against its lines.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from lanelog.spark.report.text import short_count, short_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS: Final = 6
"""The most series that a plot has colours for."""

_WIDTH, _HEIGHT = 370.0, 215.0  # points: little more than the pixels of a phone
_POINTS_PER_INCH = 72
_INK, _RULE = "#00000a", "#00000b"
_SERIES = tuple(f"#0000c{n}" for n in range(1, COLOURS + 1))
_MOST_ATTEMPTS = 10
_LOG_FROM = 30  # if the tallest bar is this many times the lowest, the axis is logarithmic
_CURVE_POINTS = 200
_FEWEST_STEPS = 12
_BYTE_TICKS = 4
_TIMES = {
    1: "1 ms", 10: "10 ms", 100: "0.1 s", 1000: "1 s", 10_000: "10 s", 60_000: "1 min", 600_000: "10 min",
    3_600_000: "1 h", 36_000_000: "10 h", 86_400_000: "1 d", 864_000_000: "10 d", 8_640_000_000: "100 d",
}  # fmt: skip
_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
_TICKS = (
    *(100, 200, 500),
    *(n * _SECOND for n in (1, 2, 5, 10, 15, 30)),
    *(n * _MINUTE for n in (1, 2, 5, 10, 15, 30)),
    *(n * _HOUR for n in (1, 2, 3, 6, 12)),
    *(n * _DAY for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)),
)
_MOST_TICKS = 5
_MOST_SECONDS, _MOST_FRACTIONS = 4, 3  # their labels are longer
_STYLE: Any = {  # Any: matplotlib types its names as literals
    "svg.fonttype": "none",
    "svg.hashsalt": "lanelog",
    "font.family": "sans-serif",
    "font.size": 13.0,
    "axes.labelsize": 11.0,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _RULE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.unicode_minus": False,
    "grid.color": _RULE,
    "grid.linewidth": 0.8,
    "xtick.color": _RULE,
    "ytick.color": _RULE,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "xtick.minor.visible": False,
    "ytick.minor.visible": False,
    "ytick.left": False,
}


def over_time(
    points: Sequence[tuple[int, int]], step_ms: int, within: tuple[int, int], *, colour: int = 0, sizes: bool = False
) -> str:
    """Draw bars over time.

    Args:
        points: Beginning of each step in epoch milliseconds, and its count.
        step_ms: Milliseconds of a step.
        within: The first and the last moment of the log, the same for all topics of a report.
        colour: Number of the colour, from 0.
        sizes: Whether bytes were counted.
    """
    begin, end = axis_of(within, step_ms)

    def draw(axes: Axes) -> None:
        axes.bar(
            [ms - begin for ms, _ in points],
            [value for _, value in points],
            width=step_ms * (0.86 if len(points) < _CURVE_POINTS / 2 else 1.0),
            align="edge",
            color=_SERIES[colour],
        )
        axes.set_xlim(0, end - begin)
        ticks = ticks_within(begin, end)
        axes.set_xticks([ms - begin for ms, _ in ticks], [label for _, label in ticks])
        axes.set_xlabel(days_of(*within), loc="right")
        _from_zero(axes)
        if sizes:
            axes.yaxis.set_major_locator(FixedLocator(byte_ticks(max(value for _, value in points))))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short_size(value)))

    return _svg(draw)


def axis_of(within: tuple[int, int], step_ms: int) -> tuple[int, int]:
    """Return the beginning and the end of the axis: whole steps, with room at both sides."""
    first, last = within[0] - within[0] % step_ms, within[1] - within[1] % step_ms + step_ms
    room = max(step_ms // 2, (_FEWEST_STEPS * step_ms - (last - first)) // 2)  # a single bar must not fill the plot
    return first - room, last + room


def ticks_within(begin_ms: int, end_ms: int) -> list[tuple[int, str]]:
    """Return round moments from `begin_ms` to `end_ms`, five at most, and their labels at an axis, UTC."""
    step = next((each for each in _TICKS if (end_ms - begin_ms) / each <= _most_ticks(each)), _TICKS[-1])
    within = "%H:%M:%S" if step < _MINUTE else "%H:%M"
    midnight = "%d %b" if step < 200 * _DAY else "%b %Y"
    tenths = step < _SECOND

    def label(ms: int) -> str:
        text = f"{datetime.fromtimestamp(ms // 1000, UTC):{within if ms % _DAY else midnight}}"
        return f"{text}.{ms % _SECOND // 100}" if tenths and ms % _DAY else text

    moments = range(begin_ms + -begin_ms % step, end_ms + 1, step)[:_MOST_TICKS]
    return [(ms, label(ms)) for ms in moments]


def _most_ticks(step_ms: int) -> int:
    return _MOST_TICKS if step_ms >= _MINUTE else _MOST_SECONDS if step_ms >= _SECOND else _MOST_FRACTIONS


def byte_ticks(highest: int) -> list[int]:
    """Return zero, and at most four multiples of a power of two, up to `highest` bytes."""
    step = 1 << max(0, ((highest - 1) // _BYTE_TICKS).bit_length())
    return list(range(0, highest + 1, step))


def days_of(begin_ms: int, end_ms: int) -> str:
    """Return the day, or the first and the last of several: `2026-06-01 to 2026-06-04`."""
    days = [f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d}" for ms in (begin_ms, end_ms)]
    return " to ".join(dict.fromkeys(days))


def cumulative_shares(curves: Sequence[tuple[int, Sequence[tuple[int, int]]]]) -> str:
    """Draw cumulative shares over a logarithmic time.

    A curve: its colour, and upper bounds of classes in milliseconds, ascending, with their counts.
    """

    def draw(axes: Axes) -> None:
        for colour, curve in curves:
            total, seen = sum(number for _, number in curve), 0
            xs, ys = [max(1, curve[0][0]) / 2], [0.0]
            for bound, number in curve:
                seen += number
                xs.append(max(1, bound))
                ys.append(100 * seen / total)
            axes.plot(xs, ys, color=_SERIES[colour], linewidth=2, marker="o", markersize=3.5)
        axes.set_xscale("log")
        lowest, highest = axes.get_xlim()
        inside = [ms for ms in _TIMES if lowest <= ms <= highest]
        ticks = inside[:: max(1, round(len(inside) / 5))]
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(ticks, [_TIMES[ms] for ms in ticks])
        axes.set_xlabel("time to the first success")
        axes.set_ylabel("share of the messages")
        _per_cent(axes)

    return _svg(draw)


def tries(series: Sequence[tuple[int, Mapping[int, int]]]) -> str:
    """Draw bars side by side: how many messages needed how many attempts. The last bar holds all that needed more.

    A series: its colour, and messages by attempts.
    """

    def draw(axes: Axes) -> None:
        names, heights = _bars([each for _, each in series])
        width = 0.8 / len(series)
        for index, ((colour, _), values) in enumerate(zip(series, heights, strict=True)):
            left = [bar - 0.4 + width * (index + 0.5) for bar in range(len(names))]
            axes.bar(left, values, width=width * 0.92, color=_SERIES[colour])
        if is_logarithmic([each for _, each in series]):
            least = min(value for values in heights for value in values if value)
            axes.set_yscale("log")
            axes.set_ylim(bottom=min(1, least) * 0.7)
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short_count(value)))
        else:
            _from_zero(axes)
        axes.set_xticks(range(len(names)), names)
        axes.set_xlim(-0.7, max(len(names), 3) - 0.3)
        axes.set_xlabel("attempts")
        axes.set_ylabel("messages")

    return _svg(draw)


def is_logarithmic(series: Sequence[Mapping[int, int]]) -> bool:
    """Return whether `tries` draws the series on a logarithmic axis, which the page must say."""
    values = [value for heights in _bars(series)[1] for value in heights if value]
    return max(values) >= _LOG_FROM * min(values)


def _bars(series: Sequence[Mapping[int, int]]) -> tuple[list[str], list[list[int]]]:
    """Return the names of the bars, and their heights in each series."""
    highest = max(max(each) for each in series)
    last = min(highest, _MOST_ATTEMPTS)
    bars = range(min(last, *(min(each) for each in series)), last + 1)
    names = [f"{bar}+" if bar == last < highest else str(bar) for bar in bars]
    return names, [
        [sum(number for tried, number in each.items() if min(tried, last) == bar) for bar in bars] for each in series
    ]


def unevenness(curves: Sequence[Sequence[tuple[int, int]]]) -> str:
    """Draw Lorenz curves: the share of the messages that the smallest lanes hold.

    A curve: sizes, ascending, and lanes.
    """

    def draw(axes: Axes) -> None:
        for colour, curve in zip(_SERIES, curves, strict=False):
            axes.plot(*zip(*lorenz(curve), strict=True), color=colour, linewidth=2)
        # Drawn above the curves, because the curve of an even topic lies on it.
        axes.plot([0, 100], [0, 100], color=_INK, linewidth=1, linestyle=(0, (4, 4)), zorder=3)
        axes.set_xlim(0, 100)
        axes.xaxis.set_major_locator(FixedLocator([0, 25, 50, 75, 100]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} %"))
        axes.set_xlabel("share of the lanes, the smallest first")
        axes.set_ylabel("share of the messages")
        _per_cent(axes)

    return _svg(draw)


def lorenz(sizes: Sequence[tuple[int, int]], most: int = _CURVE_POINTS) -> list[tuple[float, float]]:
    """Return points of a Lorenz curve in per cent, from (0, 0) to (100, 100), about `most` of them at most."""
    lanes, messages = sum(n for _, n in sizes), sum(size * n for size, n in sizes)
    points, seen, held = [(0.0, 0.0)], 0, 0
    for size, number in sizes:
        seen, held = seen + number, held + size * number
        if (
            seen == lanes
            or (seen / lanes - points[-1][0] / 100) * most >= 1
            or (held / messages - points[-1][1] / 100) * most >= 1
        ):
            points.append((100 * seen / lanes, 100 * held / messages))
    return points


def _from_zero(axes: Axes) -> None:
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True, min_n_ticks=1))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short_count(value)))


def _per_cent(axes: Axes) -> None:
    axes.set_ylim(0, 103)
    axes.yaxis.set_major_locator(FixedLocator([0, 25, 50, 75, 100]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} %"))


def _svg(draw: Any) -> str:
    """Return an SVG element without a size of its own, without metadata, and with the page's colours and font."""
    out = io.StringIO()
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH / _POINTS_PER_INCH, _HEIGHT / _POINTS_PER_INCH), layout="constrained")
        figure.patch.set_visible(False)
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        axes.patch.set_visible(False)
        draw(axes)
        figure.savefig(out, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<svg [^>]*?viewBox", '<svg aria-hidden="true" viewBox', svg, count=1)
    svg = re.sub(r"(viewBox=\"[^\"]*\")[^>]*>", r"\1>", svg, count=1)
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<g id=\"[^\"]*\"", "<g", svg)  # ids would be the same in every plot of a page
    svg = re.sub(r"font-family: [^;\"]*", "font-family: var(--font)", svg)
    svg = re.sub(r"font-size: ([0-9.]+)px", r"font-size: calc(\1 * var(--em))", svg)
    svg = svg.replace("xlink:href", "href")
    for placeholder, name in ((_INK, "ink"), (_RULE, "rule"), *((s, f"c{n}") for n, s in enumerate(_SERIES, 1))):
        svg = svg.replace(placeholder, f"var(--{name})")
    return svg.strip()
