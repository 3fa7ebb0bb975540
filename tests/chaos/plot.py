"""The timeline of a run as a picture: throughput of publishers and groups, second by second, and the faults below.

Owns the picture alone; what it shows comes from the history. `run` and `profiles` call it.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from chaos.account import History
from chaos.history import Fault, FaultKind, Publish

COLOURS: Final[dict[FaultKind, str]] = {
    "kill": "#c0392b", "stop": "#e67e22", "term": "#7f8c8d", "grow": "#95a5a6", "shrink": "#95a5a6",
    "clock": "#16a085", "connections": "#8e44ad", "exhaustion": "#9b59b6", "cut": "#2980b9", "half-close": "#3498db",
    "stall": "#1f618d", "snapshot": "#b7950b", "disk": "#6e2c00", "server": "#000000", "restarts": "#424949",
    "promote": "#ff0000", "restore": "#ff7f0e", "freeze": "#17202a", "step": "#27ae60", "revoke": "#d4ac0d",
    "vanish": "#7b241c", "shortage": "#4a235a", "queries": "#bb8fce", "interrupt": "#117864", "fork": "#73c6b6",
    "forgetful": "#a04000", "alternate": "#0e6655", "copy": "#e5e7e9", "astray": "#5dade2", "slow": "#d0d3d4",
    "expiry": "#f1948a",
}  # fmt: skip
LINES: Final = ("#1b7837", "#d95f02", "#7570b3")
SHORTEST: Final = 0.004
"""Of the width of the picture: a fault without duration is drawn as wide as this."""


def timeline(history: History, title: str, path: Path) -> None:
    """Draw the run into a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    began, ended = _span(history)
    kinds = [kind for kind in COLOURS if any(fault.kind == kind for fault in history.faults)]
    figure = Figure(figsize=(13, 5.4 + 0.24 * len(kinds)), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=[2.2, 2.2, 0.3 + 0.24 * len(kinds)])
    published = _per_second((p.at for p in history.acknowledged.values()), began, ended)
    top.step(*published, where="post", color=LINES[0], linewidth=1.3, label="published")
    for colour, group in zip(LINES[1:], sorted(history.groups), strict=False):
        done = (
            run.end.at
            for (of, _), runs in history.lanes.items()
            if of == group
            for run in runs
            if run.end and run.end.outcome == "returned"
        )
        middle.step(*_per_second(done, began, ended), where="post", color=colour, linewidth=1.3, label=group)
    for axes, label in ((top, "acknowledged / s"), (middle, "handled / s")):
        axes.set_ylabel(label)
        axes.set_ylim(0, 1.18 * axes.get_ylim()[1])  # room for the legend
        axes.grid(axis="y", alpha=0.25)
        axes.legend(loc="upper right", fontsize=8, framealpha=0.9, ncols=3)
        for fault in history.faults:
            _shade(axes, fault, began)
    _strip(bottom, history.faults, kinds, began, ended)
    for axes in (top, middle, bottom):
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.savefig(path)


def _span(history: History) -> tuple[float, float]:
    times = [event.at for event in history.events if isinstance(event, Publish)]
    times += [run.at for run in history.runs.values()]
    times += [fault.end for fault in history.faults if fault.kind != "clock"]
    return (min(times), max(times)) if times else (0.0, 1.0)


def _per_second(times: Iterable[float], began: float, ended: float) -> tuple[list[int], list[int]]:
    found = Counter(int(at - began) for at in times if at >= began)
    seconds = list(range(int(ended - began) + 1))
    return seconds, [found[second] for second in seconds]


def _shade(axes: Any, fault: Fault, began: float) -> None:
    """What stops everybody as a span, what happens at once as a line; what changes nothing at all not here."""
    if fault.kind in {"clock", "snapshot", "grow", "shrink", "term", "slow", "expiry", "copy"}:
        return
    colour = COLOURS[fault.kind]
    if fault.end - fault.start < 0.5:
        axes.axvline(fault.start - began, color=colour, alpha=0.55, linewidth=1.1)
    else:
        axes.axvspan(fault.start - began, fault.end - began, color=colour, alpha=0.12, linewidth=0)


def _strip(axes: Any, faults: Iterable[Fault], kinds: list[FaultKind], began: float, ended: float) -> None:
    least = SHORTEST * (ended - began)
    for row, kind in enumerate(reversed(kinds)):
        spans = [
            (fault.start - began, max(least, min(fault.end, ended) - fault.start))
            for fault in faults
            if fault.kind == kind
        ]
        axes.broken_barh(spans, (row - 0.32, 0.64), color=COLOURS[kind])
    axes.set_yticks(range(len(kinds)), list(reversed(kinds)), fontsize=9)
    axes.set_ylim(-0.6, len(kinds) - 0.4)
    axes.set_xlim(0, ended - began)
    axes.set_xlabel("seconds")
    axes.grid(axis="both", alpha=0.2)
    axes.tick_params(axis="y", length=0)
