"""`make bench-compare REV=…`: this commit and another one, side by side on the same machine and server.

The same program (`turn.py`) measures both, each round in a process and a database of its own. The two sides of a round
take each step one right after the other, and these two are compared: a machine that is slower for some seconds is
slower for both.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.progress import track
from rich.table import Column, Table

from lanelog import devserver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lanelog.devserver import DevServer

ROOT: Final = Path(__file__).parents[1]
SIDES: Final = ("other", "this")
UNITS: Final = {"rate": "/s", "cost": "µs", "start": "ms start", "median": "ms", "p95": "ms p95"}


def main() -> int:
    """Measure both, and print the ratios."""
    arguments = _arguments()
    with checked_out(arguments.rev) as other, devserver.start(arguments.server) as server:
        places = {"other": other, "this": ROOT}
        numbers = track(range(arguments.rounds), description="rounds", console=Console(stderr=True))
        rounds = [
            one_round(server, places, arguments.scale, SIDES if number % 2 else SIDES[::-1]) for number in numbers
        ]
    Console().print(table(rounds, arguments.rev))
    return 0


@contextmanager
def checked_out(rev: str) -> Iterator[Path]:
    """A working tree of another commit, removed at the end. Raises SystemExit for a commit that there is none of."""
    with tempfile.TemporaryDirectory(prefix="lanelog-compare-") as directory:
        tree = Path(directory) / "tree"
        added = _git("worktree", "add", "--quiet", "--detach", tree, rev)
        if added.returncode:
            raise SystemExit(f"git has no commit {rev!r}: {added.stderr.strip()}")
        try:
            if not (tree / "queue" / "lanelog").is_dir():
                raise SystemExit(f"{rev!r} has no package queue/lanelog to compare with")
            yield tree
        finally:
            _git("worktree", "remove", "--force", tree).check_returncode()


def one_round(
    server: DevServer, places: dict[str, Path], scale: float, order: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """What both sides find, step by step, in this order."""
    with ExitStack() as stack:
        sides = {side: stack.enter_context(asked(server, tree, scale)) for side, tree in places.items()}
        steps, _ = (answer() for _, answer in sides.values())
        found: dict[str, dict[str, Any]] = {side: {} for side in sides}
        for step in steps:
            for side in order:
                ask, answer = sides[side]
                ask(step)
                found[side][step] = answer()
        return found


@contextmanager
def asked(server: DevServer, tree: Path, scale: float) -> Iterator[tuple[Callable[[str], None], Callable[[], Any]]]:
    """`turn.py` with the package of a working tree: how to name a step to it, and its next line."""
    name = f"compare_{secrets.token_hex(6)}"
    try:
        with subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, Path(__file__).with_name("turn.py"), server.create_database(name), str(scale)],
            env={**os.environ, "PYTHONPATH": str(tree / "queue")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        ) as running:
            assert running.stdin is not None  # noqa: S101 - narrows the type
            assert running.stdout is not None  # noqa: S101 - narrows the type
            into, out = running.stdin, running.stdout

            def answer() -> Any:
                line = out.readline()
                if not line:
                    raise SystemExit(f"turn.py with the package of {tree} ended with status {running.wait()}")
                return json.loads(line)

            yield lambda step: print(step, file=into), answer
    finally:
        server.drop_database(name)


def table(rounds: list[dict[str, dict[str, Any]]], rev: str) -> Table:
    """Medians of both, and the median, least and greatest ratio of the rounds."""
    title = "messages a second; processor time (µs) a message; ms to the first message; ms from publish to handler"
    named = Column(no_wrap=True)  # wide figures wrap, so that a step can be searched for by its name
    shown = Table(named, rev, "this commit", "ratio", "from", "to", title=title)
    for name in rounds[0]["this"]:
        missing = [side for side in SIDES if any("missing" in found[side][name] for found in rounds)]
        if missing:
            why = rounds[0][missing[0]][name].get("missing", "in one round only")
            shown.add_row(name, f"not measured: {why}", style="dim")
            continue
        figures = rounds[0]["this"][name]
        for figure in figures:
            by_side = {side: [found[side][name][figure] for found in rounds] for side in SIDES}
            ratios = [this / other for this, other in zip(by_side["this"], by_side["other"], strict=True)]
            medians = (_text(statistics.median(by_side[side]), UNITS[figure]) for side in SIDES)
            spread = (f"{value:.2f}" for value in (statistics.median(ratios), min(ratios), max(ratios)))
            shown.add_row(name if figure == next(iter(figures)) else "", *medians, *spread)
    return shown


def _text(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}"  # noqa: PLR2004 - three digits are enough


def _git(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", ROOT, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - arguments of our own


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("rev", help="the other commit, as git names it")
    parser.add_argument("--server", default="auto", metavar="KIND", help="as for `python -m benchmarks`")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each side (default: 5)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of messages (default: 1)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
