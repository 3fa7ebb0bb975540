"""The benchmarks run; what they measure is for people."""

import subprocess
import sys

import pytest

from lanelog.devserver import DevServer
from support.readme import ROOT


@pytest.mark.parametrize(
    ("step", "figures"),
    [
        ("consume_100_lanes", ["raw SQL: read, 100 lanes", "consume, 100 lanes", "statements a message, 100 lanes"]),
        ("consume_open_lanes", ["consume, 64 open lanes", "statements a message, 64 open lanes"]),
        pytest.param(
            "admin_status",
            ["lanelog status, 1M behind, first", "lanelog status, 1M behind, again", "≤ 1,000"],
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_a_step_of_the_benchmarks_runs(lanelog_server: DevServer, step: str, figures: list[str]) -> None:
    """The smallest steps publish and consume, or look, and print their tables."""
    command = [sys.executable, "-m", "benchmarks", "--server", lanelog_server.url, "--rounds", "1", "--scale", "0.01"]
    done = subprocess.run(
        [*command, "--only", step], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    for figure in figures:
        assert figure in done.stdout
