"""Ten processes that publish to one topic, and fifty clients in five processes that subscribe to it.

Each publisher has two clients, with hints and without, and publishes with either for a while. The subscribers always
listen, so that nothing but the publishers' hints differs between two runs.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from attrs import frozen
from benchmarks.bench import PAYLOAD, TOPIC

import lanelog

if TYPE_CHECKING:
    from collections.abc import Iterator

PUBLISHERS = 10
SUBSCRIBERS = 50
PROCESSES = 5
"""Processes of the subscribers."""

KEYS = 200
SECONDS = 4.0


@frozen
class Crowd:
    """The publishers, as the measurement sees them."""

    _publishers: list[subprocess.Popen[str]]

    @classmethod
    @contextmanager
    def on(cls, url: str) -> Iterator[Crowd]:
        """Start all of them, and end them afterwards."""
        with ExitStack() as stack:
            each = [("subscribe", str(SUBSCRIBERS // PROCESSES))] * PROCESSES
            each += [("publish", str(number)) for number in range(PUBLISHERS)]
            processes = [stack.enter_context(_started(role, url, argument)) for role, argument in each]
            for process in processes:
                _answer(process)
            yield cls(processes[PROCESSES:])

    def publish(self, *, wake: bool) -> float:
        """Messages a second that all publishers have published in one run."""
        for process in self._publishers:
            assert process.stdin is not None  # noqa: S101 - for the type checker: it is a pipe
            process.stdin.write(f"{int(wake)}\n")
            process.stdin.flush()
        return sum(float(_answer(process)) for process in self._publishers)


@contextmanager
def _started(role: str, url: str, argument: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "benchmarks.crowd", role, url, argument]
    with subprocess.Popen(  # noqa: S603 - this module, with arguments of our own
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.communicate()


def _answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None  # noqa: S101 - for the type checker: it is a pipe
    answer = process.stdout.readline()
    if not answer:
        raise RuntimeError("a process of the crowd has ended")
    return answer


def publish(url: str, number: int) -> None:
    """For each line publish for some seconds, with hints or without; messages a second."""
    keys = itertools.count(number)
    with lanelog.connect(url, wake=False) as mute, lanelog.connect(url, wake=True) as telling:
        print("ready", flush=True)
        for line in sys.stdin:
            client = telling if line.strip() == "1" else mute
            count, began = 0, time.monotonic()
            while time.monotonic() < began + SECONDS:
                client.publish(TOPIC, f"key-{next(keys) * 7 % KEYS}", PAYLOAD)
                count += 1
            print(count / (time.monotonic() - began), flush=True)


def subscribe(url: str, clients: int) -> None:
    """Handle messages in so many clients until standard input ends."""
    with ExitStack() as stack:
        for _ in range(clients):
            client = stack.enter_context(lanelog.connect(url, wake=True))
            stack.enter_context(client.subscribe(TOPIC, "crowd", lambda _message: None))
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    role, url, argument = sys.argv[1:]
    {"publish": publish, "subscribe": subscribe}[role](url, int(argument))
