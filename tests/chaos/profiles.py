"""Measured profiles: `PYTHONPATH=tests python -m chaos.profiles kills --server=local` (or `restarts`).

Owns the bounds and how they are measured, under a steady load on many lanes; exits with 1 if a bound is missed, an
anomaly was found or a process failed. `kills`: SIGKILL of workers, with the default lease of 30 s. `restarts`: SIGKILL
of the database server.
"""

import signal
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from bisect import bisect_left, bisect_right
from collections import Counter
from pathlib import Path
from statistics import mean, median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from chaos.account import History
from chaos.checker import check
from chaos.history import Fault
from chaos.report import about, result, summary, write
from chaos.schedule import Plan, Planned
from chaos.stage import stage
from chaos.worker import EFFECTS
from lanelog.config import SubscriptionConfig

LEASE: Final = SubscriptionConfig().lease_duration
WORKERS: Final = 4
PAUSES: Final = {"kills": 7.0, "restarts": 20.0}
COUNTS: Final = {"kills": 20, "restarts": 5}
MEDIAN, WORST = 3.0, 6.0
"""Seconds until all lanes of a killed worker move again, over all kills."""

SHARE, WITHIN, STAYS = 0.9, 10.0, 5
"""After a restart the groups handle this share of what they did before, within so many seconds, and for so many."""

BEFORE: Final = 10
"""Seconds before a fault whose mean is what throughput was."""


def arguments() -> Namespace:
    """What is asked for."""
    parser = ArgumentParser(prog="chaos.profiles", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("profile", choices=sorted(COUNTS))
    parser.add_argument("--server", default="local", help="local, mysql-local or docker:IMAGE (default: local)")
    parser.add_argument("--faults", type=int, help="how many (default: 20 kills, 5 restarts)")
    parser.add_argument("--rate", type=float, default=200.0, help="messages published each second (default: 200)")
    parser.add_argument("--keys", type=int, default=200, help="lanes (default: 200)")
    parser.add_argument("--directory", type=Path, help="where journals and logs go (default: a new one in /tmp)")
    parser.add_argument("--output", type=Path, help="where the JSON and PNG go (default: beside the journals)")
    return parser.parse_args()


def plan(profile: str, count: int) -> Plan:
    """Its faults, evenly spaced; the first comes when the load is steady."""
    kind = "kill" if profile == "kills" else "server"
    pause = PAUSES[profile]
    faults = [
        Planned(kind=kind, pause=pause + (BEFORE if number == 0 else 0), hold=0.5, victim=number % WORKERS, seed=number)  # type: ignore[arg-type]
        for number in range(count)
    ]
    return Plan(workers=WORKERS, faults=tuple(faults))


def moved(history: History, fault: Fault) -> float | None:
    """Seconds from a kill until every lane that the worker owned, and that has something to do, moves; None: no lane.

    A lane belongs to whoever began its latest message. It counts from the kill, or from when its next message was
    acknowledged if that was later; one that never had a next message is not waited for.
    """
    waits = []
    for (_, (topic, key)), runs in history.lanes.items():
        later = bisect_right(runs, fault.start, key=lambda run: run.at)
        if not 0 < later < len(runs) or not fault.met((runs[later - 1].begin.process,)):
            continue
        begin = runs[later].begin
        published = history.acknowledged.get((topic, key, begin.id))
        waits.append(max(0.0, begin.at - max(fault.start, published.at if published else 0.0)))
    return max(waits, default=None)


def regained(history: History, fault: Fault) -> tuple[float, float | None]:
    """What was handled each second before the fault, and the seconds after it until it is that again.

    That is: the first second of `SHARE` of it or more, of which the same is true for the mean of `STAYS` seconds.
    """
    ends = sorted(
        run.end.at for runs in history.lanes.values() for run in runs if run.end and run.end.outcome == "returned"
    )
    before = [
        bisect_left(ends, fault.start - back) - bisect_left(ends, fault.start - back - 1) for back in range(BEFORE)
    ]
    usual = mean(before)
    after = Counter(int(at - fault.end) for at in ends if at >= fault.end)
    for second in range(int(WITHIN) + 20):
        stretch = [after[second + more] for more in range(STAYS)]
        if after[second] >= SHARE * usual and mean(stretch) >= SHARE * usual:
            return usual, float(second)
    return usual, None


def measure(history: History, profile: str) -> tuple[list[dict[str, Any]], dict[str, Any], list[str]]:
    """Each fault's figures, all of them together, and what misses its bound."""
    began = min(publish.at for publish in history.acknowledged.values())
    faults = sorted(
        (fault for fault in history.faults if fault.kind in {"kill", "server"}), key=lambda fault: fault.start
    )
    figures: list[dict[str, Any]] = []
    if profile == "kills":
        for fault in faults:
            seconds = moved(history, fault)
            figures.append(
                {"at": round(fault.start - began, 3), "recovery": None if seconds is None else round(seconds, 3)}
            )
        waits = [figure["recovery"] for figure in figures if figure["recovery"] is not None]
        together = {"median": round(median(waits), 3), "worst": max(waits)} if waits else {}
        missed = [] if len(waits) == len(figures) else [f"{len(figures) - len(waits)} kills met no lane"]
        missed += [f"median of {together['median']:g} s"] if waits and together["median"] >= MEDIAN else []
        missed += [f"worst of {together['worst']:g} s"] if waits and together["worst"] >= WORST else []
        return figures, together, missed
    for fault in faults:
        usual, back = regained(history, fault)
        figures.append({"at": round(fault.start - began, 3), "down": round(fault.end - fault.start, 3)})
        figures[-1] |= {"per_second_before": round(usual, 1), "seconds_to_90_percent": back}
    late = [f for f in figures if f["seconds_to_90_percent"] is None or f["seconds_to_90_percent"] >= WITHIN]
    known = [f["seconds_to_90_percent"] for f in figures if f["seconds_to_90_percent"] is not None]
    return figures, {"worst": max(known, default=None)}, [f"{len(late)} restarts took longer"] if late else []


def main() -> int:
    """Run, measure, judge, print; the exit status."""
    asked = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leave nothing behind
    console = Console(width=120)
    count = asked.faults or COUNTS[asked.profile]
    directory = asked.directory or Path(tempfile.mkdtemp(prefix=f"lanelog-{asked.profile}-"))
    with stage(
        asked.server, directory, console, workers=WORKERS, lease=LEASE, keys=asked.keys, seed=0, rate=asked.rate
    ) as play:
        server = play.server
        console.print(f"{server.family} {server.version}, {asked.profile}, journals in {directory}")
        play.play(plan(asked.profile, count))
        play.rest(PAUSES[asked.profile])  # the last fault is not to be disturbed by the end of the run either
        events = play.end()
        head = about(server, LEASE)
    history = History(events, frozenset([EFFECTS]), lease=LEASE)
    anomalies = check(events, effect_groups=[EFFECTS], lease=LEASE)
    found = result(history, anomalies, play.failures, play.impossible)
    figures, together, missed = measure(history, asked.profile)
    bounds = {"median": MEDIAN, "worst": WORST} if asked.profile == "kills" else {"share": SHARE, "within": WITHIN}
    measured = {"profile": asked.profile, "rate": asked.rate, "keys": asked.keys, "workers": WORKERS}
    measured |= {"bounds": bounds, "measured": together, "missed": missed, "each": figures}
    title = f"{asked.profile}: {server.family} {server.version}, {asked.rate:g} messages a second"
    name = f"chaos-{asked.profile}-{server.family}-{server.version}"
    write(asked.output or directory, name, {**head, **measured, **found}, history, title)
    table = Table(*figures[0])
    for figure in figures:
        table.add_row(*map(str, figure.values()))
    console.print(f"{title}: {', '.join(f'{name} {value} s' for name, value in together.items())}", highlight=False)
    console.print(table)
    console.print(summary(found, title))
    for failure in [*missed, *play.failures, *(str(detail) for detail in found["anomaly_details"][:20])]:
        console.print(failure, style="red", markup=False)
    return 1 if missed or play.failures or found["anomalies"] else 0


if __name__ == "__main__":
    sys.exit(main())
