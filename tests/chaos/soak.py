"""A soak: `PYTHONPATH=tests python -m chaos.soak --server=local --minutes=30 --rate=1000 --output=benchmarks/results`.

Owns the order of a run: a private server, two publishers at a steady pace, two worker processes, samples, judgement.
Exits with 1 if a process failed, the groups did not drain, or a figure is not flat; it asserts nothing about speed.
"""

import sys
import tempfile
import threading
import time
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import lanelog
from chaos import soak_report
from chaos.soak_figures import ENOUGH, FIGURES, judge
from chaos.soak_sample import Process, Sampler
from chaos.soak_worker import PLAIN, RETRIED
from lanelog.devserver import start
from lanelog.devserver._local import LocalServer

PUBLISHERS, WORKERS = 2, 2
DRAINS_WITHIN = 60.0
WARM_UP_SHARE = 0.2
KEPT_PACE = 0.95
"""The least share of the asked rate at which the publishers must have published."""

Series = dict[str, list[float]]


def arguments() -> Namespace:
    """What is asked for."""
    parser = ArgumentParser(prog="chaos.soak", description="Steady traffic for long; everything must stay flat.")
    parser.add_argument("--server", default="local", choices=["local", "mysql-local"])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=1000.0, help="messages a second, of all publishers")
    parser.add_argument("--keys", type=int, default=200, help="keys that are used all the time")
    parser.add_argument("--retention", type=float, default=30.0, help="seconds for which acked messages are kept")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two samples")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"), help="where the results go")
    asked = parser.parse_args()
    # Messages live for the retention, short-lived lanes for as long again until they are purged.
    asked.warm_up = max(WARM_UP_SHARE * asked.minutes * 60, 3 * asked.retention)
    if asked.minutes * 60 - asked.warm_up < (ENOUGH + 2) * asked.every:
        parser.error(f"--minutes: {asked.warm_up:g} s are warm-up, and {ENOUGH} samples are needed after it")
    return asked


def soak(asked: Namespace, server: LocalServer, console: Console, directory: Path) -> tuple[Series, list[str]]:
    """Run it; the samples, and what went wrong."""
    with ExitStack() as stack:
        retention, rate = f"{asked.retention:g}", f"{asked.rate / PUBLISHERS:g}"
        workers, publishers = [], []
        for number in range(WORKERS):
            workers.append(Process.start("soak_worker", f"w{number}", directory, server.url, retention))
            stack.callback(workers[-1].kill)
        for number in range(PUBLISHERS):
            words = server.url, str(asked.seed), rate, str(asked.keys)
            publishers.append(Process.start("soak_publisher", f"p{number}", directory, *words))
            stack.callback(publishers[-1].kill)
        sampler = Sampler(server.url, server.family, server.pid, publishers, workers)
        stack.callback(sampler.close)
        series, failures = watch(asked, sampler, console)
        failures += [failure for process in publishers if (failure := process.end())]
        failures += _drained(sampler)
        failures += [failure for process in workers if (failure := process.end())]
        sampler.count()
        failures += _nothing_missing(sampler)
        console.print(f"published {sampler.published:,}; handled {dict(sampler.handled)}")
        return series, failures


def watch(asked: Namespace, sampler: Sampler, console: Console) -> tuple[Series, list[str]]:
    """Take samples until the time is over or a process has ended."""
    series: Series = {name: [] for name in ("at", *FIGURES)}
    never, began, whole = threading.Event(), time.monotonic(), asked.minutes * 60
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting", total=whole)
        while (spent := time.monotonic() - began) < whole:
            never.wait(asked.every - spent % asked.every)
            failures = [failure for process in sampler.processes if (failure := process.failure())]
            if failures:
                return series, failures
            sample = sampler.sample()
            series["at"].append(time.monotonic() - began)
            for name, value in sample.items():
                series[name].append(value)
            text = "{published:,.0f}/s published, lag {lag:,.0f}, p99 {latency_p99:,.0f} ms, {rows_messages:,} messages"
            progress.update(task, completed=time.monotonic() - began, description=text.format(**sample))
    return series, []


def _drained(sampler: Sampler) -> list[str]:
    never, until = threading.Event(), time.monotonic() + DRAINS_WITHIN
    while lag := sampler.lag():
        if time.monotonic() > until:
            return [f"{lag:,.0f} messages were not handled within {DRAINS_WITHIN:g} s after the last publish"]
        never.wait(0.25)
    return []


def _nothing_missing(sampler: Sampler) -> list[str]:
    return [
        f"group {group} handled {sampler.handled[group]:,} of {sampler.published:,} messages"
        for group in (PLAIN, RETRIED)
        if sampler.handled[group] < sampler.published
    ]


def main() -> int:
    """Run, judge, print, write; the exit status."""
    asked, console = arguments(), Console()
    if not console.is_terminal:
        console = Console(width=120)  # the table, whole, in a log
    with tempfile.TemporaryDirectory(prefix="lanelog-soak-") as directory, start(asked.server) as server:
        assert isinstance(server, LocalServer)
        known = soak_report.beginning(server, {name: vars(asked)[name] for name in vars(asked) if name != "output"})
        with lanelog.connect(server.url) as client:
            client.migrate()
        series, failures = soak(asked, server, console, Path(directory))
    judgements = {}
    if not failures:
        judgements = {
            name: judge(series["at"], series[name], figure, asked.warm_up)
            for name, figure in FIGURES.items()
            if figure.judged
        }
        if judgements["published"].last < KEPT_PACE * asked.rate:
            failures.append(f"published {judgements['published'].last:,.0f} a second, {asked.rate:,.0f} were asked for")
    console.print(soak_report.table(known, judgements))
    for failure in failures:
        console.print(f"[red]{failure}[/]")
    if series["at"]:
        for path in soak_report.write(asked.output, known, series, judgements, failures):
            console.print(f"written to {path}")
    return 1 if failures or not all(judged.flat for judged in judgements.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
