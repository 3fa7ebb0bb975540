"""`make bench`: measures this machine, prints a table, and writes the figures to `benchmarks/results/`.

It asserts nothing: figures of another machine, or of a busy one, say little. The ratios do, since the library
and raw SQL are measured alternately, in one run. A figure is the best of its rounds, a ratio their median.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.report import Report
from benchmarks.scenarios import PLAN
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lanelog import devserver

RESULTS = Path(__file__).parent / "results"
WIDTH = 110
"""Characters of the table in a file or pipe."""


def main() -> None:
    """Run the plan on one server."""
    arguments = _arguments()
    # Connections that the plan itself cuts, and messages about them, are no result.
    logging.getLogger("lanelog").setLevel(logging.ERROR)
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    columns = (TextColumn("{task.description:<34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with devserver.start(arguments.server) as server, Progress(*columns, console=console) as progress:
        report = Report.begin(server, rounds=arguments.rounds, scale=arguments.scale)
        chosen = [step for step in PLAN if not arguments.only or arguments.only in step.__name__]
        task = progress.add_task("", total=arguments.rounds * len(chosen))
        for _ in range(arguments.rounds):
            for step in chosen:
                progress.update(task, description=(step.__doc__ or "").partition("\n")[0].rstrip("."))
                with Bench.on(server, arguments.scale) as bench:
                    for name, value in step(bench):
                        report.add(name, value)
                progress.advance(task)
        report.end()
    console.print(report.table())
    if not arguments.only:
        target = report.write(arguments.output)
        console.print(f"written to {target.name}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--server", default="auto", metavar="KIND", help="auto, local, mysql-local, docker:IMAGE or a mysql:// URL"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds; the best of each figure counts (default: 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of messages (default: 1)")
    parser.add_argument("--only", metavar="STEP", help="only steps whose name contains this; writes no file")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="DIRECTORY", help="where the JSON file goes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
