"""The processes of a chaos run: workers that come and go, some with a wrong clock, and how a program is started.

Owns the worker processes; it never decides what happens to them. The nemesis does that, the runner fills and drains it.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from attrs import define, field, frozen

from chaos.history import Fault

DRAINS_WITHIN: Final = 90.0
STARTS_WITHIN: Final = 30.0
TESTS: Final = Path(__file__).parents[1]


@frozen(eq=False, kw_only=True)
class Worker:
    """One process. `proxied`: its connections go through the nemesis's proxy; `clock`: hours by which it is wrong."""

    name: str
    process: subprocess.Popen[bytes]
    proxied: bool
    clock: int
    ready: Path
    started: float = field(factory=time.monotonic)

    def wait_until_ready(self) -> None:
        """Wait until it answers signals as a worker does."""
        never, until = threading.Event(), time.monotonic() + STARTS_WITHIN
        while not self.ready.exists() and self.process.poll() is None and time.monotonic() < until:
            never.wait(0.02)


@define(eq=False)
class Fleet:
    """The workers, each at its place; a new one has a new name. Those at even places go through the proxy."""

    start: Callable[[str, bool, int], subprocess.Popen[bytes]]
    directory: Path
    workers: list[Worker] = field(factory=list, init=False)
    failures: list[str] = field(factory=list, init=False)
    wrong_clocks: list[Fault] = field(factory=list, init=False)
    """Of workers that have ended."""
    _started: int = field(default=0, init=False)

    def fill(self, size: int) -> None:
        """Start so many workers."""
        for _ in range(size):
            self.add()

    def add(self, clock: int = 0) -> str:
        """Start one more, at the end."""
        self.workers.append(self._one(len(self.workers), clock))
        return self.workers[-1].name

    def replace(self, place: int, clock: int = 0) -> None:
        """Start another one where a process has ended."""
        self._note_end(self.workers[place])
        self.workers[place] = self._one(place, clock)

    def remove(self) -> str:
        """Drain the last one, for good; its name."""
        self.drain(len(self.workers) - 1)
        worker = self.workers.pop()
        self._note_end(worker)
        return worker.name

    def kill(self, place: int) -> None:
        """SIGKILL; a process that had ended by itself is a failure."""
        worker = self.workers[place]
        status = worker.process.poll()
        if status is not None:
            self.failures.append(f"{worker.name} had ended by itself with status {status}")
        worker.process.kill()
        worker.process.wait()

    def drain(self, place: int) -> None:
        """End a worker as a deployment does, and note it when that fails."""
        worker = self.workers[place]
        worker.wait_until_ready()
        worker.process.terminate()
        try:
            status = worker.process.wait(DRAINS_WITHIN)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()
            self.failures.append(f"{worker.name} had not drained after {DRAINS_WITHIN:g} s")
        else:
            if status != 0:
                self.failures.append(f"{worker.name} ended with status {status}")

    def drain_all(self) -> None:
        """End the run."""
        for place, worker in enumerate(self.workers):
            self.drain(place)
            self._note_end(worker)
        self.workers = []

    def kill_all(self) -> None:
        """Leave nothing behind."""
        for worker in self.workers:
            worker.process.kill()
            worker.process.wait()

    def alive(self) -> set[str]:
        """The workers that run."""
        return {worker.name for worker in list(self.workers) if worker.process.poll() is None}

    def proxied(self) -> tuple[str, ...]:
        """The workers behind the proxy."""
        return tuple(worker.name for worker in self.workers if worker.proxied)

    def _one(self, place: int, clock: int) -> Worker:
        self._started += 1
        name, proxied = f"w{self._started}", place % 2 == 0
        return Worker(
            name=name,
            process=self.start(name, proxied, clock),
            proxied=proxied,
            clock=clock,
            ready=self.directory / f"{name}.ready",
        )

    def _note_end(self, worker: Worker) -> None:
        if worker.clock:
            end = time.monotonic()
            self.wrong_clocks.append(Fault(kind="clock", start=worker.started, end=end, processes=(worker.name,)))


def launch(
    module: str, directory: Path, name: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a program of this directory, with what it says in a file beside its journal."""
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    with (directory / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", f"chaos.{module}", arguments[0], str(directory), name, *arguments[1:]],
            stdout=log,
            stderr=log,
            env={**os.environ, **(environment or {}), "PYTHONPATH": path},
        )


def faketime() -> Path | None:
    """The library that gives a process another clock, if it is there (.ci/setup-clocks)."""
    return next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)


def wrong_clock(library: Path | None, hours: int) -> dict[str, str]:
    """An environment in which the wall clock is wrong, and the monotonic one is not: the history is written by it."""
    if library is None or not hours:
        return {}
    unmoved = {"DONT_FAKE_MONOTONIC": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    return {"LD_PRELOAD": str(library), "FAKETIME": f"{hours:+d}h", **unmoved}
