"""A process that begins to consume where a million messages wait: how soon it handles one, and what memory it takes.

`measured` runs it. It is a process of its own because memory is a process's.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen
from benchmarks.bench import TOPIC

import lanelog

if TYPE_CHECKING:
    from benchmarks.bench import Bench

HANDLED = 100_000
"""Messages after which the memory is read: all lanes have been acquired long before."""


@frozen
class Began:
    """What the process says of itself."""

    first_ms: float
    """Milliseconds from `subscribe` to the first message."""
    memory_mib: float
    """The most memory that it ever had (MiB), with all its libraries."""


def measured(bench: Bench, messages: int) -> Began:
    """Run it until it has handled so many messages."""
    command = [sys.executable, "-m", "benchmarks.behind", bench.url, str(messages)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603 - this module
    first, memory = map(float, done.stdout.split())
    return Began(first, memory)


def main(url: str, messages: str) -> None:
    """Consume, and say what it took."""
    first: list[float] = []
    enough = threading.Event()
    left = iter(range(int(messages) - 1))

    def handle(_message: lanelog.Message) -> None:
        if not first:
            first.append(time.perf_counter())
        if next(left, None) is None:
            enough.set()

    with lanelog.connect(url) as client:
        began = time.perf_counter()
        with client.subscribe(TOPIC, "group", handle):
            enough.wait()
    print(1000 * (min(first) - began), _most_memory())


def _most_memory() -> float:
    """Return the most memory that this program had (MiB). `getrusage` counts the process that started it, too."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1]) / 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
