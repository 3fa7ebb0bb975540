"""What goes wrong in a chaos run, and when: the schedule is drawn from the seed alone, then carried out fault by fault.

Owns the faults; it never looks at what they do to the messages. The runner gives it the fleet and the server, and takes
from it the faults as they happened.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pymysql
from attrs import define, field, frozen

from chaos.history import Fault, FaultKind
from lanelog.devserver import DevServer

WEIGHTS: Final[dict[FaultKind, int]] = {"kill": 4, "stop": 2, "term": 2, "connections": 3, "server": 2}
DRAINS_WITHIN: Final = 60.0
SHARE: Final = 0.5
"""The chance of each session to be killed by a `connections` fault."""


@frozen(kw_only=True)
class Planned:
    """One fault to come: `pause` seconds after the last one was over, and lasting `hold` seconds where it can."""

    kind: FaultKind
    pause: float
    hold: float
    victim: int
    seed: int


def schedule(seed: int, seconds: float, workers: int, lease: float) -> list[Planned]:
    """The faults of a run. The same arguments give the same schedule."""
    dice = random.Random(seed)
    plan, spent = [], 0.0
    while True:
        kind = dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        pause = dice.uniform(1.5, 4)
        outage, overtime = dice.uniform(0, 1), dice.uniform(1, 3)
        hold = {"stop": lease + overtime, "server": outage}.get(kind, 0.0)
        planned = Planned(kind=kind, pause=pause, hold=hold, victim=dice.randrange(workers), seed=dice.getrandbits(32))
        spent += pause + hold
        if spent > seconds:
            return plan
        plan.append(planned)


@define(eq=False)
class Fleet:
    """The worker processes, each at its place; a new one has a new name."""

    start: Callable[[str], subprocess.Popen[bytes]]
    size: int
    workers: list[tuple[str, subprocess.Popen[bytes]]] = field(factory=list, init=False)
    failures: list[str] = field(factory=list, init=False)
    _started: int = field(default=0, init=False)

    def fill(self) -> None:
        """Start all workers."""
        self.workers = [self._one() for _ in range(self.size)]

    def replace(self, place: int) -> None:
        """Start another one where a process has ended."""
        self.workers[place] = self._one()

    def drain(self, place: int) -> None:
        """End a worker as a deployment does, and note it when that fails."""
        name, process = self.workers[place]
        process.terminate()
        try:
            status = process.wait(DRAINS_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self.failures.append(f"{name} had not drained after {DRAINS_WITHIN:g} s")
        else:
            if status != 0:
                self.failures.append(f"{name} ended with status {status}")

    def kill_all(self) -> None:
        """Leave nothing behind."""
        for _, process in self.workers:
            process.kill()
            process.wait()

    def _one(self) -> tuple[str, subprocess.Popen[bytes]]:
        self._started += 1
        name = f"w{self._started}"
        return name, self.start(name)


@define(eq=False)
class Nemesis:
    """Carries out a schedule."""

    fleet: Fleet
    server: DevServer
    connect: Callable[[], pymysql.Connection]
    say: Callable[[str], None]
    _never: threading.Event = field(factory=threading.Event, init=False)

    def run(self, plan: list[Planned]) -> Iterator[Fault]:
        """Do one fault after the other, and give each as it happened."""
        for planned in plan:
            self._never.wait(planned.pause)
            process = None if planned.kind in {"connections", "server"} else self.fleet.workers[planned.victim][0]
            start = time.monotonic()
            getattr(self, f"_{planned.kind}")(planned)
            end = time.monotonic()
            self.say(f"{planned.kind} {process or ''} {end - start:.2f} s")
            yield Fault(kind=planned.kind, start=start, end=end, process=process)

    def _kill(self, planned: Planned) -> None:
        process = self.fleet.workers[planned.victim][1]
        process.kill()
        process.wait()
        self.fleet.replace(planned.victim)

    def _term(self, planned: Planned) -> None:
        self.fleet.drain(planned.victim)
        self.fleet.replace(planned.victim)

    def _stop(self, planned: Planned) -> None:
        process = self.fleet.workers[planned.victim][1]
        os.kill(process.pid, signal.SIGSTOP)
        self._never.wait(planned.hold)
        os.kill(process.pid, signal.SIGCONT)

    def _server(self, planned: Planned) -> None:
        self.server.kill()
        self._never.wait(planned.hold)
        self.server.restart()

    def _connections(self, planned: Planned) -> None:
        dice = random.Random(planned.seed)
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
            )
            for (session,) in sorted(cursor.fetchall()):
                if dice.random() < SHARE:
                    try:
                        cursor.execute(f"KILL CONNECTION {int(session)}")
                    except pymysql.err.OperationalError:
                        continue  # it had just ended


def launch(module: str, directory: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a program of this directory, with what it says in a file beside its journal."""
    with (directory / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", f"chaos.{module}", arguments[0], str(directory), name, *arguments[1:]],
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *_path()])},
        )


def _path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
