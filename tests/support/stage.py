"""Actors: processes that do as a test tells them, and stop at points of their transactions that the test has armed.

It never looks into a transaction itself (`pauses` does, in the actor's process) but asks the server who waits for a
lock. The tests of interleavings direct it; `programs/actor.py` has the steps that an actor can be told.
"""

import json
import threading
from collections.abc import Sequence
from typing import Any

from attrs import define, field

from support.pauses import Point
from support.processes import Fleet, Line, Program
from support.sql import one
from support.waiting import eventually

REFRESHED = 0.15  # seconds: InnoDB renews its list of transactions only if nobody has read it for a tenth of a second


@define
class Call:
    """Something that an actor was asked to do."""

    actor: "Actor"
    number: int

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return bool(self._ended(self.actor.program.lines))

    def result(self, *, within: float = 30.0) -> Any:
        """Wait for its end; AssertionError with what it raised."""
        journal = self.actor.program.journal
        what = f"the end of call {self.number} of {self.actor}"
        (line,) = self._ended(journal.until(self._ended, within=within, what=what))
        assert line.event == "done", line["error"]
        return line["result"]

    def _ended(self, lines: Sequence[Line]) -> list[Line]:
        ends = [line for line in lines if line.process == self.actor.program.name and line.event in ("done", "failed")]
        return [line for line in ends if line["call"] == self.number]


@define
class Actor:
    """A process that does as it is told, and stops where it is told."""

    program: Program
    _calls: int = 0
    _armed: int = 0
    _paused: dict[str, int] = field(factory=dict)

    def __repr__(self) -> str:
        return f"<Actor {self.program.name}>"

    def pause(self, point: str, *containing: str) -> "Actor":
        """Arm a point; returns when it is armed."""
        Point.parse(point)
        self._tell("arm", point=point, containing=containing)
        self._armed += 1
        self.program.said("armed", count=self._armed)
        return self

    def call(self, step: str, **arguments: object) -> Call:
        """Ask for a step; does not wait for it."""
        self._calls += 1
        self._tell("do", step=step, call=self._calls, arguments=arguments)
        return Call(self, self._calls)

    def do(self, step: str, **arguments: object) -> Any:
        """Ask for a step, and wait for its result."""
        return self.call(step, **arguments).result()

    def paused(self, point: str, *, within: float = 20.0) -> "Actor":
        """Wait until it is stopped there."""
        self.program.journal.until(
            lambda lines: any(
                line.process == self.program.name and line.event == "paused" and line["point"] == point
                for line in lines
            ),
            within=within,
            what=f"{self} being paused {point}",
        )
        return self

    def go(self, point: str) -> None:
        """Let it go on."""
        self._tell("go", point=point)

    def _tell(self, command: str, **fields: object) -> None:
        self.program.tell(json.dumps({"command": command, **fields}))


class Stage:
    """The actors of one test."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def actor(self, name: str, **config: Any) -> Actor:
        """Start an actor; it is ready as soon as it answers."""
        return Actor(self.fleet.start(name, "actor.py", **config))

    def paused_in(self, point: str, step: str, *containing: str, name: str = "paused", **arguments: object) -> Any:
        """An actor that is stopped at a point of a step, and that step."""
        actor = self.actor(name).pause(point, *containing)
        call = actor.call(step, **arguments)
        actor.paused(point)
        return actor, call


def blocked(raw: Any) -> int:
    """How many transactions on this database wait for a lock at this moment."""
    threading.Event().wait(REFRESHED)
    return int(
        one(
            raw,
            "SELECT COUNT(*) FROM information_schema.innodb_trx AS t JOIN information_schema.processlist AS p"
            " ON p.id = t.trx_mysql_thread_id WHERE t.trx_state = 'LOCK WAIT' AND p.db = DATABASE()",
        )
    )


def wait_until_blocked(raw: Any, count: int = 1) -> None:
    """Wait until so many transactions wait for a lock."""
    eventually(lambda: blocked(raw) >= count, what=f"{count} waiting for a lock")
