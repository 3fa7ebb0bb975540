"""Another process, which publishes: one message for each key that it reads, and it says when it began.

`Neighbour` starts it and talks to it. Times are of the machine's monotonic clock, which its processes share.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attrs import frozen
from benchmarks.bench import PAYLOAD, TOPIC

import lanelog

if TYPE_CHECKING:
    from collections.abc import Iterator


@frozen
class Neighbour:
    """The process, as the measurement sees it."""

    _process: subprocess.Popen[str]

    @classmethod
    @contextmanager
    def on(cls, url: str, *, wake: bool) -> Iterator[Neighbour]:
        """Start it, and end it afterwards."""
        command = [sys.executable, "-m", "benchmarks.neighbour", url, str(int(wake))]
        with subprocess.Popen(  # noqa: S603 - this module, with arguments of our own
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            yield cls(process)
            process.communicate()

    def publish(self, key: str) -> float:
        """Have it publish; when it began."""
        assert self._process.stdin is not None  # noqa: S101 - for the type checker: they are pipes
        assert self._process.stdout is not None  # noqa: S101 - the same
        self._process.stdin.write(key + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def main(url: str, wake: str) -> None:
    """Publish for each line."""
    with lanelog.connect(url, wake=wake == "1") as client:
        for line in sys.stdin:
            began = time.monotonic()
            client.publish(TOPIC, line.strip(), PAYLOAD)
            print(began, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
