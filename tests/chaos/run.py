"""A chaos run: `PYTHONPATH=tests python -m chaos.run --server=local --seed=1 --seconds=60`.

Owns the order of a run: server, publishers and workers, faults, drain, judgement. Exits with 1 if an anomaly was found
that no fault explains, a group did not drain or a worker failed; the same seed gives the same schedule of faults.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from rich.console import Console

import lanelog
from chaos import database
from chaos.checker import check, unexplained
from chaos.history import Event, Journal, read
from chaos.nemesis import Fleet, Nemesis, launch, schedule
from chaos.report import summary
from chaos.worker import EFFECTS, RECORDS
from lanelog.devserver import DevServer, start

WORKERS, PUBLISHERS = 3, 2
DRAINS_WITHIN = 120.0
SHOWN = 20


def arguments() -> Namespace:
    """What is asked for."""
    parser = ArgumentParser(prog="chaos.run", description="Break everything around lanelog, then check its history.")
    parser.add_argument("--server", default="local", help="local, mysql-local or docker:IMAGE (default: local)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults go on")
    parser.add_argument("--lease", type=float, default=6.0, help="lease_duration of the workers, in seconds")
    parser.add_argument("--keys", type=int, default=200)
    parser.add_argument("--directory", type=Path, help="where journals and logs go (default: a new one in /tmp)")
    return parser.parse_args()


def publish_and_break(asked: Namespace, server: DevServer, directory: Path, console: Console) -> list[str]:
    """Run everything, with the faults, until the groups are drained; give what the processes failed with."""
    began = time.monotonic()

    def say(text: str) -> None:
        console.print(f"{time.monotonic() - began:7.1f}  {text}")

    with ExitStack() as stack:
        journal = stack.enter_context(Journal(directory / "nemesis.jsonl"))
        work = partial(launch, "worker", directory)
        fleet = Fleet(lambda name: work(name, server.url, str(asked.lease)), WORKERS)
        stack.callback(fleet.kill_all)
        fleet.fill()
        publishers = []
        for number in range(PUBLISHERS):
            process = launch("publishers", directory, f"p{number}", server.url, str(asked.seed), str(asked.keys))
            stack.callback(process.kill)
            publishers.append(process)
        nemesis = Nemesis(fleet, server, partial(database.connect, server.url), say)
        for fault in nemesis.run(schedule(asked.seed, asked.seconds, WORKERS, asked.lease)):
            journal.write(fault)
        failures = [*_end(publishers)]
        say("publishers have ended")
        drained = database.drain(server.url, DRAINS_WITHIN)
        journal.write(*drained)
        say(f"drained: {sorted(group.group for group in drained)}")
        failures += [f"{group} did not drain" for group in {EFFECTS, RECORDS} - {group.group for group in drained}]
        for place in range(WORKERS):
            fleet.drain(place)
        return failures + fleet.failures


def _end(publishers: list[subprocess.Popen[bytes]]) -> list[str]:
    """Stop the publishers, each after what it has begun."""
    for process in publishers:
        process.terminate()
    return [f"a publisher ended with {process.returncode}" for process in publishers if process.wait(DRAINS_WITHIN)]


def main() -> int:
    """Run, judge, print; the exit status."""
    asked = arguments()
    console = Console()
    directory = asked.directory or Path(tempfile.mkdtemp(prefix="lanelog-chaos-"))
    directory.mkdir(parents=True, exist_ok=True)
    with start(asked.server) as server:
        console.print(f"{server.family} {server.version}, seed {asked.seed}, journals in {directory}")
        with lanelog.connect(server.url) as client:
            client.migrate()
        database.rows(server.url, database.CREATE)
        failures = publish_and_break(asked, server, directory, console)
        events: list[Event] = [*read(sorted(directory.glob("*.jsonl"))), *database.outcome(server.url)]
    anomalies = check(events, effect_groups=[EFFECTS])
    console.print(summary(events, anomalies, [EFFECTS]))
    broken = unexplained(anomalies)
    for anomaly in broken[:SHOWN]:
        console.print(f"{anomaly.kind} {anomaly.group} {anomaly.topic}/{anomaly.key} {anomaly.id}: {anomaly.detail}")
    for failure in failures:
        console.print(f"[red]{failure}[/]")
    return 1 if broken or failures else 0


if __name__ == "__main__":
    sys.exit(main())
