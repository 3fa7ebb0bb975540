"""A chaos run: `PYTHONPATH=tests python -m chaos.run --server=local --seed=1 --seconds=60`.

Owns the order of a run: faults, drain, judgement, result. Exits with 1 if an anomaly was found that no fault explains,
a group did not drain or a process failed; the same seed gives the same schedule of faults.
"""

import signal
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from chaos.account import LEASE, History
from chaos.checker import check, unexplained
from chaos.disk import isolate
from chaos.hints import DROPPED, of_seed
from chaos.history import Event
from chaos.report import about, result, summary, write
from chaos.schedule import SERVERS, WEIGHTS, operations, schedule
from chaos.stage import stage
from chaos.worker import EFFECTS

SHOWN: Final = 20
DISK: Final = 1000, 0.3
"""Megabytes of the disk at the least, and megabytes for each second of the run."""


def _kinds(text: str) -> list[str]:
    kinds = text.split(",")
    if unknown := set(kinds) - set(WEIGHTS):
        raise ValueError(f"no such faults: {', '.join(sorted(unknown))}")
    return kinds


def arguments() -> Namespace:
    """What is asked for."""
    parser = ArgumentParser(prog="chaos.run", description="Break everything around lanelog, then check its history.")
    parser.add_argument("--server", default="local", help="local, mysql-local or docker:IMAGE (default: local)")
    parser.add_argument("--seed", type=int, default=1, help="of the schedule of faults (default: 1)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults go on (default: 60)")
    parser.add_argument("--faults", type=_kinds, default=list(WEIGHTS), help="only these, separated by commas")
    parser.add_argument("--lease", type=float, default=LEASE, help=f"the workers' lease_duration (default: {LEASE:g})")
    parser.add_argument("--keys", type=int, default=200, help="lanes (default: 200)")
    parser.add_argument("--hints", choices=DROPPED, help="what becomes of hints (default: the seed says it)")
    parser.add_argument("--directory", type=Path, help="where journals and logs go (default: a new one in /tmp)")
    parser.add_argument("--output", type=Path, help="where chaos-….json and .png go (default: beside the journals)")
    asked = parser.parse_args()
    asked.hints = asked.hints or of_seed(asked.seed)
    return asked


def main() -> int:
    """Run, judge, print; the exit status."""
    asked = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leave nothing behind
    console = Console(width=120)
    no_disk = isolate() or ""
    directory = asked.directory or Path(tempfile.mkdtemp(prefix="lanelog-chaos-"))
    plan = schedule(asked.seed, asked.seconds, asked.lease, asked.faults)
    with stage(
        asked.server,
        directory,
        console,
        workers=plan.workers,
        lease=asked.lease,
        keys=asked.keys,
        seed=asked.seed,
        hints=asked.hints,
        megabytes=round(DISK[0] + DISK[1] * asked.seconds),
        no_disk=no_disk,
        servers=[kind for kind in asked.faults if kind in SERVERS],
    ) as play:
        server = play.server
        console.print(
            f"{server.family} {server.version}, seed {asked.seed}, hints {asked.hints}, journals in {directory}"
        )
        console.print("schedule:", " ".join(planned.kind for planned in plan.faults))
        with play.operated(operations(asked.seed, asked.seconds, asked.keys)):
            play.play(plan)
        events: list[Event] = play.end()
        head = about(server, asked.lease)
    known = {**head, "seed": asked.seed, "seconds": asked.seconds, "keys": asked.keys, "hints": asked.hints}
    return judge(events, known, play.failures, play.impossible, asked.output or directory, console)


def judge(
    events: list[Event],
    known: Mapping[str, Any],
    failures: Sequence[str],
    impossible: Mapping[str, str],
    output: Path,
    console: Console,
) -> int:
    """Check the history of a run, write what was found beside what is known, and print it; the exit status."""
    anomalies = check(events, effect_groups=[EFFECTS], lease=known["lease"])
    history = History(events, frozenset([EFFECTS]), lease=known["lease"])
    found = result(history, anomalies, failures, impossible)
    server = "{family} {version}".format(**known["server"])
    title = f"chaos: {server}, seed {known['seed']}, hints {known['hints']}, {known['seconds']:g} s of faults"
    name = f"chaos-{server.replace(' ', '-')}-seed-{known['seed']}"
    write(output, name, {**known, **found}, history, title)
    console.print(summary(found, title))
    broken = unexplained(anomalies)
    for anomaly in broken[:SHOWN]:
        console.print(f"{anomaly.kind} {anomaly.group} {anomaly.topic}/{anomaly.key} {anomaly.id}: {anomaly.detail}")
    for failure in failures:
        console.print(f"[red]{failure}[/]")
    return 1 if broken or failures else 0


if __name__ == "__main__":
    sys.exit(main())
