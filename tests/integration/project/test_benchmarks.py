"""The benchmarks run; what they measure is for people."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks import guard, stages
from benchmarks.bench import Bench

from lanelog.devserver import DevServer
from support.readme import ROOT
from support.scripts import ran

pytestmark = pytest.mark.one_family("mariadb")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("step", "figures"),
    [
        ("consume_100_lanes", ["raw SQL: read, 100 lanes", "consume, 100 lanes", "statements a message, 100 lanes"]),
        ("consume_open_lanes", ["consume, 64 open lanes", "statements a message, 64 open lanes"]),
        ("working", ["handle, 1 ms of Python each, 1 process ", "handle, 1 ms of Python each, 2 processes"]),
        ("million_behind", ["lanelog status, 1M behind, first", "lanelog status, 1M behind, again", "≤ 400"]),
    ],
)
def test_a_step_of_the_benchmarks_runs(lanelog_server: DevServer, step: str, figures: list[str]) -> None:
    """The smallest steps publish and consume, or look, and print their tables."""
    command = [sys.executable, "-m", "benchmarks", "--server", lanelog_server.url, "--rounds", "1", "--scale", "0.01"]
    done = ran(*command, "--only", step, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for figure in figures:
        assert figure in done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("paused", [0.0, 60.0])
def test_the_stages_of_a_message_are_timed(paused: float) -> None:
    """`python -m benchmarks.stages` takes a whole backlog through a worker's own code. Each stage has its time.

    When the machine stood still for a minute meanwhile, runs are late, and are marked by a flush of their own.
    """
    taken = stages.Round.of(1000)
    taken.member.rules.measured(1, paused)
    taken.take()
    assert len(taken.seconds) == 5
    assert all(taken.seconds.values())


@pytest.mark.thorough
@pytest.mark.parametrize(("times", "status"), [(1.4, 0), (1.6, 1)])
def test_the_guard_fails_when_a_message_costs_half_as_much_again(
    lanelog_server: DevServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    times: float,
    status: int,
) -> None:
    """The guard names what became dearer. It measures that again before: a disturbed machine is no reason."""
    recorded = tmp_path / "guard.json"
    recorded.write_text(json.dumps({"cheap": 2.0, "dear": 2.0}))
    measured: list[str] = []

    def measure(name: str, library: float) -> Callable[[Bench], guard.Cost]:
        return lambda _: measured.append(name) or guard.Cost(library, 1.0)  # type: ignore[func-returns-value]

    monkeypatch.setattr(guard, "MEASURES", {"cheap": measure("cheap", 2.0), "dear": measure("dear", 2.0 * times)})
    command = ["guard", "--server", lanelog_server.url, "--rounds", "1", "--recorded", str(recorded)]
    monkeypatch.setattr(sys, "argv", command)
    assert guard.main() == status
    assert measured == ["cheap", "dear", *["dear"] * guard.MORE * status]
    assert ("dearer than recorded: dear." in capsys.readouterr().err) == bool(status)


@pytest.mark.thorough
def test_two_commits_are_compared(lanelog_server: DevServer) -> None:
    """Each figure has a ratio and its spread; what git does not know is refused, and nothing is left behind."""
    command = [sys.executable, "-m", "benchmarks.compare", "--server", lanelog_server.url, "--rounds", "1"]
    done = ran(*command, "--scale", "0.01", "HEAD", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for figure in ("publish", "publish_many of 100", "consume, 10,000 lanes", "publish to handler"):
        assert figure in done.stdout
    assert "not measured" not in done.stdout
    refused = ran(*command, "no-such", cwd=ROOT)
    assert refused.returncode == 1
    assert "git has no commit 'no-such'" in refused.stderr
    left = ran("git", "worktree", "list", cwd=ROOT)
    assert "lanelog-compare-" not in left.stdout
