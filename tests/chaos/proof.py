"""The evidence: `PYTHONPATH=tests python -m chaos.proof`: ten seeds and both profiles on each server family.

Owns which runs there are and what of them is kept: `benchmarks/results/chaos-<family>-<version>.json`, and a timeline
of each seed and profile. A run that fails is written down and the others go on; the exit status is 1 then.
"""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from attrs import define, field
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from chaos.profiles import COUNTS

RESULTS: Final = Path(__file__).parents[2] / "benchmarks/results"
SERVERS: Final = ("local", "mysql-local")
PROFILES: Final = tuple(sorted(COUNTS))
KEPT: Final = ("measured_at", "lanelog", "server", "python", "cores", "lease", "left_out")
"""What the runs of a family have in common: taken from the first."""

TAIL: Final = 30
"""Lines of a failed run that are shown."""


def arguments(args: Sequence[str] | None = None) -> Namespace:
    """What is asked for."""
    parser = ArgumentParser(prog="chaos.proof", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--server", action="append", help="local, mysql-local or docker:IMAGE, repeatable (default: the first two)"
    )
    parser.add_argument("--seeds", type=_seeds, default="1-10", help="such as 1-10 or 1,5,9 (default: 1-10)")
    parser.add_argument("--seconds", type=float, default=220.0, help="of faults in each run (default: 220)")
    parser.add_argument("--profiles", default=",".join(PROFILES), help="kills, restarts, both (default) or '' for none")
    parser.add_argument(
        "--output", type=Path, default=RESULTS, help="where the results go (default: benchmarks/results)"
    )
    parser.add_argument("--directory", type=Path, help="where journals and logs go (default: a new one in /tmp)")
    parser.add_argument(
        "--again", action="store_true", help="judge the seeds in --directory anew: run what is not there"
    )
    return parser.parse_args(args)


def _seeds(text: str) -> list[int]:
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


@define(eq=False)
class Family:
    """The runs on one server, and what came out."""

    server: str
    runs: dict[int, dict[str, Any]] = field(factory=dict)
    profiles: dict[str, dict[str, Any]] = field(factory=dict)
    failed: dict[str, str] = field(factory=dict)
    """The runs that ended with another status than 0, and the end of what they said."""
    pictures: dict[str, Path] = field(factory=dict)

    def write(self, asked: Namespace) -> str:
        """Write the JSON and the pictures; how the file is called."""
        one = next(iter([*self.runs.values(), *self.profiles.values()]), None)
        if one is None:
            return ""
        name = f"{one['server']['family']}-{one['server']['version']}"
        asked.output.mkdir(parents=True, exist_ok=True)
        (asked.output / f"chaos-{name}.json").write_text(json.dumps(self.as_json(one, asked), indent=2) + "\n")
        for label, picture in self.pictures.items():
            shutil.copyfile(picture, asked.output / f"chaos-{label}-{name}.png")
        return f"chaos-{name}.json"

    def as_json(self, one: Mapping[str, Any], asked: Namespace) -> dict[str, Any]:
        """Everything that is kept."""
        causes: Counter[tuple[str, str]] = Counter()
        for run in self.runs.values():
            causes.update({(row["kind"], row["cause"]): row["count"] for row in run["explained"]})
        return {
            "command": f"python -m chaos.proof --server={self.server} --seconds={asked.seconds:g}",
            **{key: one[key] for key in KEPT},
            "seeds": list(self.runs),
            "seconds": asked.seconds,
            "anomalies": {str(seed): run["anomalies"] for seed, run in self.runs.items()},
            "failures": {**self.failed, **{str(s): run["failures"] for s, run in self.runs.items() if run["failures"]}},
            "published": sum(run["counts"]["published"] for run in self.runs.values()),
            "acknowledged": sum(run["counts"]["acknowledged"] for run in self.runs.values()),
            "handled": sum(
                group["deliveries"] for run in self.runs.values() for group in run["counts"]["handled"].values()
            ),
            "explained": [
                {"kind": kind, "cause": cause, "count": count} for (kind, cause), count in sorted(causes.items())
            ],
            "recovery": recovered(fault for run in self.runs.values() for fault in run["faults"]),
            "profiles": {
                name: {
                    key: found[key] for key in ("command", "rate", "keys", "workers", "bounds", "measured", "missed")
                }
                | {"each": found["each"], "anomalies": found["anomalies"]}
                for name, found in self.profiles.items()
            },
            "runs": [
                {"seed": seed, "counts": run["counts"], "explained": run["explained"], "faults": run["faults"]}
                for seed, run in self.runs.items()
            ],
        }


def recovered(faults: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each kind of fault how often it came, and the seconds until the lanes it met moved on."""
    by_kind: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for fault in faults:
        by_kind[fault["kind"]].append(fault)
    found = {}
    for kind, all_of_it in sorted(by_kind.items()):
        waits = [fault["recovery"] for fault in all_of_it if fault["recovery"] is not None and not fault["disturbed"]]
        found[kind] = {
            "count": len(all_of_it),
            "measured": len(waits),
            "median": round(median(waits), 3) if waits else None,
            "worst": max(waits, default=None),
        }
    return found


def run(module: str, directory: Path, *args: str) -> tuple[int, str, dict[str, Any] | None, Path | None]:
    """One run in a process of its own: status, the end of what it said, its result and its picture."""
    where = str(directory) if module == "judge" else f"--directory={directory}"
    command = [sys.executable, "-m", f"chaos.{module}", *args, where]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = "\n".join((done.stdout + done.stderr).splitlines()[-TAIL:])
    results, pictures = (next(iter(directory.glob(f"chaos-*.{kind}")), None) for kind in ("json", "png"))
    return done.returncode, said, json.loads(results.read_text()) if results else None, pictures


def prove(asked: Namespace, directory: Path, console: Console) -> list[Family]:
    """All runs, one after the other: two at once would measure each other."""
    families = [Family(server) for server in asked.server or SERVERS]
    profiles = [name for name in asked.profiles.split(",") if name]
    columns = (TextColumn("{task.description:<34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(families) * (len(asked.seeds) + len(profiles)))
        for family in families:
            for what in [*asked.seeds, *profiles]:
                label = f"seed {what}" if isinstance(what, int) else what
                progress.update(task, description=f"{family.server}, {label}")
                own = directory / f"{family.server.replace(':', '-').replace('/', '-')}-{what}"
                if isinstance(what, int) and asked.again and any(own.glob("chaos-*.json")):
                    options: tuple[Any, ...] = ("judge", own)
                elif isinstance(what, int):
                    options = ("run", own, f"--server={family.server}", f"--seed={what}", f"--seconds={asked.seconds}")
                else:
                    options = ("profiles", own, what, f"--server={family.server}")
                status, said, found, picture = run(*options)
                if status or found is None:
                    family.failed[label] = said
                    console.print(
                        f"{family.server}, {label} ended with status {status}; journals in {own}", style="red"
                    )
                    console.print(said, markup=False)
                if found is not None:
                    (family.runs if isinstance(what, int) else family.profiles)[what] = found  # type: ignore[index]
                    if picture is not None:
                        family.pictures[f"seed-{what:02}" if isinstance(what, int) else str(what)] = picture
                progress.advance(task)
            name = family.write(asked)  # what is done is done, should the next family not come to its end
            console.print(f"written to {name}" if name else f"no run on {family.server} came to its end")
    return families


def table(families: Iterable[Family]) -> Table:
    """What was proved."""
    shown = Table("server", "runs", "failed", "acknowledged", "deliveries", "anomalies", "kills", "restarts")
    for family in families:
        runs = family.runs.values()
        shown.add_row(
            family.server,
            str(len(family.runs) + len(family.profiles)),
            str(len(family.failed)),
            f"{sum(run['counts']['acknowledged'] for run in runs):,}",
            f"{sum(group['deliveries'] for run in runs for group in run['counts']['handled'].values()):,}",
            str(sum(sum(run["anomalies"].values()) for run in [*runs, *family.profiles.values()])),
            *(str(family.profiles[name]["measured"]) if name in family.profiles else "" for name in PROFILES),
        )
    return shown


def main() -> int:
    """Prove, write, print; the exit status."""
    asked = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leave nothing behind
    console = Console()
    directory = asked.directory or Path(tempfile.mkdtemp(prefix="lanelog-proof-"))
    console.print(f"journals in {directory}")
    families = prove(asked, directory, console)
    console.print(table(families))
    return 1 if any(family.failed for family in families) else 0


if __name__ == "__main__":
    sys.exit(main())
