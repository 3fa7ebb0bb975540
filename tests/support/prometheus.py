"""What Prometheus does with lanelog: it scrapes `lanelog metrics`, and its own checker reads the shipped rules."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lanelog.metrics import alert_rules

Series = dict[tuple[str, ...], float]


def series_of(text: str) -> Series:
    """By name and labels; the labels in the order topic, outcome, loop, le, group."""
    return {
        (sample.name, *(sample.labels[label] for label in sorted(sample.labels, reverse=True))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def check_rules(place: Path, verb: str, text: str) -> None:
    """Give the shipped rules and a file to Prometheus' own checker. Without it the test is skipped, in CI it fails."""
    promtool = shutil.which("promtool")
    if promtool is None:
        reason = "promtool is missing: apt-get install prometheus (Debian), or run .ci/setup-promtool as root"
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    (place / "rules.yaml").write_text(alert_rules())
    (place / "asked.yaml").write_text(text)
    command = [promtool, verb, "rules", str(place / "asked.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def serving(url: str) -> Iterator[str]:
    """`lanelog metrics` in a process of its own, ended as systemd ends it; the address that it prints."""
    command = [sys.executable, "-m", "lanelog", "metrics", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, env={**os.environ, "LANELOG_URL": url}, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child.stdout.readline().strip()
        finally:
            child.send_signal(signal.SIGTERM)
            assert child.wait(20) == 0
