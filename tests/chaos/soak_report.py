"""What a soak leaves behind: one table, a JSON file and a plot.

Owns how results look; it never measures or judges. The runner calls it once, at the end.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import benchmarks.report
from rich.table import Table

from chaos import report
from chaos.soak_figures import FIGURES, Judgement, thinned
from lanelog.devserver import DevServer

POINTS: Final = 120
COLUMNS: Final = 3
CALM, ALARM, QUIET = "#2b6cb0", "#c53030", "#a0aec0"

Series = Mapping[str, Sequence[float]]


def beginning(server: DevServer, asked: Mapping[str, object]) -> dict[str, Any]:
    """What is known before the run: when, on what, by which command."""
    return {**benchmarks.report.about(server), **report.about(server), "asked": dict(asked)}


def write(
    directory: Path,
    known: Mapping[str, Any],
    series: Series,
    judgements: Mapping[str, Judgement],
    failures: Sequence[str],
) -> tuple[Path, Path]:
    """Write both files of this server's family and version, replacing those of an older run."""
    directory.mkdir(parents=True, exist_ok=True)
    server = known["server"]
    target = directory / f"soak-{server['family']}-{server['version']}.json"
    figures = {
        name: {
            "title": FIGURES[name].title,
            "unit": FIGURES[name].unit,
            "middle": round(judged.middle, 3),
            "last": round(judged.last, 3),
            "allowed": round(judged.allowed, 3),
            "flat": judged.flat,
        }
        for name, judged in judgements.items()
    }
    found = {
        **known,
        "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_average_after": round(os.getloadavg()[0], 2),
        "failures": list(failures),
        "figures": figures,
        "samples": {name: [round(value, 2) for value in thinned(values, POINTS)] for name, values in series.items()},
    }
    text = json.dumps(found, indent=1, ensure_ascii=False)
    # One list of numbers in one line: a result is read as a diff, too.
    target.write_text(re.sub(r"\[[^][{}]*\]", lambda numbers: " ".join(numbers[0].split()), text) + "\n")
    picture = target.with_suffix(".png")
    plot(picture, known, series, judgements)
    return target, picture


def table(known: Mapping[str, Any], judgements: Mapping[str, Judgement]) -> Table:
    """For people."""
    server = known["server"]
    shown = Table(title=f"soak, {server['family']} {server['version']}", title_justify="left")
    shown.add_column("figure", justify="left", no_wrap=True)
    for title in ("middle third", "last third", "may move"):
        shown.add_column(title, justify="right", no_wrap=True)
    shown.add_column("unit")
    shown.add_column("flat")
    for name, judged in judgements.items():
        numbers = (f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in (judged.middle, judged.last))
        verdict = "yes" if judged.flat else "[bold red]NO[/]"
        shown.add_row(FIGURES[name].title, *numbers, f"{judged.allowed:,.3g}", FIGURES[name].unit, verdict)
    return shown


def plot(target: Path, known: Mapping[str, Any], series: Series, judgements: Mapping[str, Judgement]) -> None:
    """Small multiples over the minutes of the run; the warm-up is shaded, what is not flat is red."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = [name for name in FIGURES if name in series]
    rows = -(-len(names) // COLUMNS)
    figure, axes = plt.subplots(rows, COLUMNS, figsize=(4.4 * COLUMNS, 2.1 * rows), sharex=True, squeeze=False)
    minutes = [at / 60 for at in series["at"]]
    for place, axis in enumerate(axes.flat):
        if place >= len(names):
            axis.set_visible(False)
            continue
        name = names[place]
        judged = judgements.get(name)
        colour = CALM if judged is None or judged.flat else ALARM
        axis.plot(minutes, series[name], color=colour, linewidth=1.1)
        axis.axvspan(0, known["asked"]["warm_up"] / 60, color=QUIET, alpha=0.2, linewidth=0)
        unit = f" [{FIGURES[name].unit}]" if FIGURES[name].unit else ""
        axis.set_title(f"{FIGURES[name].title}{unit}", fontsize=9, loc="left")
        axis.set_ylim(bottom=0, top=1.15 * max(*series[name], 1))
        axis.set_xlim(0, minutes[-1])
        axis.tick_params(labelsize=8)
        axis.grid(visible=True, color=QUIET, alpha=0.3, linewidth=0.5)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    for axis in axes.flat[max(0, len(names) - COLUMNS) : len(names)]:  # the lowest of each column
        axis.set_xlabel("minutes", fontsize=8)
        axis.tick_params(labelbottom=True)
    server, asked = known["server"], known["asked"]
    figure.suptitle(
        f"Soak: {server['family']} {server['version']}, {asked['rate']:g} messages/s to two groups for"
        f" {asked['minutes']:g} minutes, retention {asked['retention']:g} s (shaded: warm-up)",
        fontsize=11,
    )
    figure.tight_layout(rect=(0, 0, 1, 0.985))
    figure.savefig(target, dpi=90)
    plt.close(figure)
