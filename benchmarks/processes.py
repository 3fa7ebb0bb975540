"""Handlers that take a millisecond of Python each, in one process of `lanelog worker` and in two.

One process has one interpreter lock: however many threads it has, its handlers share one core.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from benchmarks.bench import TOPIC

import lanelog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.bench import Bench

GROUP = "processes"
SECONDS = 0.001
"""Processor time of a handler."""
LANES = 64
THREADS = 4
PATIENCE = 60.0


def client() -> lanelog.Client:
    """Make the client that each process runs."""
    made = lanelog.connect()

    @made.subscriber(TOPIC, GROUP, workers=THREADS)
    def work(_message: lanelog.Message) -> None:
        until = time.thread_time() + SECONDS
        while time.thread_time() < until:
            pass

    return made


@contextmanager
def running(bench: Bench, processes: int) -> Iterator[None]:
    """Run so many processes within the block, which begins when each has its share of the lanes."""
    command = [sys.executable, "-m", "lanelog", "worker", "benchmarks.processes:run", "--processes", str(processes)]
    with subprocess.Popen(  # noqa: S603 - our own command
        command, env={**os.environ, "LANELOG_URL": bench.url}, stderr=subprocess.DEVNULL
    ) as command_line:
        try:
            _wait_for_shares(bench, processes)
            yield
        finally:
            command_line.send_signal(signal.SIGTERM)


def _wait_for_shares(bench: Bench, processes: int) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        members = [each for each in bench.client.admin.members(TOPIC, GROUP) if each.lanes]
        if len(members) == processes and {each.lanes for each in members} == {LANES // processes}:
            return
        if time.monotonic() > until:
            raise TimeoutError("the processes do not share the lanes")
        time.sleep(0.05)


if "LANELOG_URL" in os.environ:
    run = client()
