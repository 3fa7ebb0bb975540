"""The benchmarks run; what they measure is for people."""

import subprocess
import sys

from lanelog.devserver import DevServer
from support.readme import ROOT


def test_a_step_of_the_benchmarks_runs(lanelog_server: DevServer) -> None:
    """The smallest step publishes, consumes, and prints its table."""
    command = [sys.executable, "-m", "benchmarks", "--server", lanelog_server.url, "--rounds", "1", "--scale", "0.01"]
    done = subprocess.run(
        [*command, "--only", "consume_100_lanes"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    for figure in ("raw SQL: read, 100 lanes", "consume, 100 lanes", "statements a message, 100 lanes"):
        assert figure in done.stdout
