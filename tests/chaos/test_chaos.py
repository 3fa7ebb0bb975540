"""The chaos run itself: its schedule, its arithmetic, and a short cut of it on a real server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.checker import History
from chaos.history import Begin, End, Fault
from chaos.nemesis import WEIGHTS, schedule
from chaos.report import recovery

TESTS = Path(__file__).parents[1]


def test_the_same_seed_gives_the_same_schedule() -> None:
    """Faults and their times depend on the seed alone; every kind of fault comes up, and none beyond the time given."""
    plan = schedule(7, 600, 3, 6.0)
    assert plan == schedule(7, 600, 3, 6.0)
    assert plan != schedule(8, 600, 3, 6.0)
    assert {planned.kind for planned in plan} == set(WEIGHTS)
    assert sum(planned.pause + planned.hold for planned in plan) <= 600


def test_recovery_is_the_time_until_the_lanes_that_were_met_move_again() -> None:
    """It counts the lanes whose handler was cut off, and not those that were idle or belonged to others."""

    def begin(at: float, process: str, key: str, offset: int) -> Begin:
        run = f"{process}/{at}"
        place = {"topic": "t", "key": key, "offset": offset, "id": str(offset), "attempt": 1, "epoch": 1}
        return Begin(at=at, run=run, process=process, group="g", **place)  # type: ignore[arg-type]

    kill = Fault(kind="kill", start=2, end=2.1, process="p1")
    events = [
        kill,
        begin(1, "p1", "a", 1),
        begin(4.5, "p2", "a", 1),
        begin(1, "p2", "b", 1),
        End(at=1.5, run="p2/1", outcome="returned"),
        begin(60, "p2", "b", 2),
    ]
    assert recovery(History(events), kill) == 2.5
    assert recovery(History([kill]), kill) is None


@pytest.mark.chaos
@pytest.mark.timeout(240)
def test_a_short_run_has_no_unexplained_anomaly(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Workers, connections and the server are killed for twenty seconds, and every promise holds."""
    server = request.config.getoption("--server", default=None) or "local"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "chaos.run",
            f"--server={server}",
            "--seed=5",
            "--seconds=20",
            f"--directory={tmp_path}",
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
