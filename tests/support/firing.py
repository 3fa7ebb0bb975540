"""Processes that fire what is due when they are told how late it is: `programs/scheduling_at.py`.

They have loops of no client, so that a test decides who looks first.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import count

from attrs import define, field

from support.processes import Fleet, Program


@define
class Firing:
    """One of them."""

    program: Program
    _told: Iterator[int] = field(factory=lambda: count(1))

    @classmethod
    def start(cls, fleet: Fleet, name: str, environment: Mapping[str, str]) -> "Firing":
        """Start it, and wait until it is connected."""
        program = fleet.start(name, "scheduling_at.py", environment=environment)
        program.said("ready")
        return cls(program)

    def tell(self, **words: object) -> None:
        """Tell it what to do; it is done afterwards."""
        self.program.tell(json.dumps(words))
        self.program.said("done", count=next(self._told))
