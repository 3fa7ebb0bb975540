"""What tests cost: processor seconds of a process and of all that it started, and the seconds that a test waited.

Owns the measuring and the sums. `conftest.py` asks for them, `.ci/heart` judges them.
"""

import json
import os
import statistics
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import asdict, define, field, frozen

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_TESTS_A_SPEED = 20
REFERENCE_SECONDS = 0.013
"""Processor seconds of the yardstick on the machine that the committed bounds are of, between the tests."""


@frozen
class Cost:
    """What one test cost, its fixtures included."""

    wall_seconds: float
    processor_seconds: float

    @property
    def waited_seconds(self) -> float:
        """Wall less processor; never below 0, where two processors worked for the test."""
        return max(0.0, self.wall_seconds - self.processor_seconds)


@define
class Costs:
    """Costs of the tests of one run."""

    tests: dict[str, Cost] = field(factory=dict)
    speeds: list[tuple[float, float]] = field(factory=list)
    """Processor and wall seconds that the yardstick took, measured throughout the run."""
    processor_seconds: float = 0.0
    """Of all processes of the run, what was no test's included: collecting, session fixtures."""

    @property
    def waited_seconds(self) -> float:
        """The waits of all tests, summed."""
        return sum(cost.waited_seconds for cost in self.tests.values())

    @property
    def slowness(self) -> float:
        """How many times as many processor seconds as on the reference machine the same work takes here."""
        return statistics.median([processor for processor, _ in self.speeds] or [1.0]) / REFERENCE_SECONDS

    @property
    def crowding(self) -> float:
        """How many times as long it takes by the clock: other processes have the processors meanwhile.

        The mean, because they come in bursts, of which a median would show none.
        """
        return statistics.mean([wall for _, wall in self.speeds] or [1.0]) / REFERENCE_SECONDS

    def add(self, values: Mapping[str, Any]) -> None:
        """Add what `as_values` of another process returned."""
        self.tests.update({name: Cost(**cost) for name, cost in values["tests"].items()})
        self.speeds += values["speeds"]
        self.processor_seconds += values["processor_seconds"]

    def as_values(self) -> dict[str, Any]:
        """Return plain values, for another process and for a file."""
        return asdict(self)

    @classmethod
    def read(cls, paths: Iterable[Path]) -> "Costs":
        """Add up the files of several runs."""
        found = cls()
        for path in paths:
            found.add(json.loads(path.read_text()))
        return found


@define
class Meter:
    """Measures the tests of this process, one after the other."""

    costs: Costs = field(factory=Costs)
    _begun: float = 0.0
    _worked: float = 0.0

    def begin(self) -> None:
        """Note that a test begins."""
        self._begun, self._worked = time.monotonic(), processor_seconds()

    def end(self, name: str) -> None:
        """Note that the test has ended, its fixtures included."""
        wall, worked = time.monotonic() - self._begun, processor_seconds() - self._worked
        self.costs.tests[name] = Cost(wall, max(0.0, worked))
        if len(self.costs.tests) % _TESTS_A_SPEED == 1:
            self.costs.speeds.append(yardstick())

    def finish(self) -> Costs:
        """Return all costs. Call it while session fixtures are there: their processes count."""
        self.costs.processor_seconds = processor_seconds()
        return self.costs


def processor_seconds() -> float:
    """Return the processor seconds of this process and of all that descend from it, ended ones included.

    A process whose parent has ended before it is no descendant any more: its seconds are missing.
    """
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            parents[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))  # its own and those of children it has waited for
    family: set[int] = set()
    generation = {os.getpid()}
    while generation:
        family |= generation
        generation = {pid for pid, parent in parents.items() if parent in generation}
    return sum(ticks[pid] for pid in family) / _TICKS_A_SECOND


def yardstick() -> tuple[float, float]:
    """Return processor and wall seconds that a fixed piece of work takes: how fast the machine is just now.

    It is long enough to be interrupted where others want the processor, too.
    """
    began, worked = time.monotonic(), time.thread_time()
    text = json.dumps({str(number): number for number in range(2_000)})
    for _ in range(40):
        json.loads(text)
    return time.thread_time() - worked, time.monotonic() - began
