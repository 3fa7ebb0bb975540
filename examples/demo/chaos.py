"""Kills one worker while it works, and measures the time until its lanes move again.

Owns the choice of the victim, the moment, and the measurement. Does nothing by itself: `turn` is called every few
hundredths of a second.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from attrs import define, evolve, field, frozen

from demo.fleet import Fleet
from demo.view import plural
from demo.watch import LaneRow, Watch

KILL_AFTER: Final = 1.5
"""Seconds after the last worker registered. By then the lanes are shared out fairly."""


@frozen(kw_only=True)
class Takeover:
    """The lanes of a killed worker. Times are seconds since its death; None: it has not happened."""

    worker: str
    lanes: int
    first: float | None = None
    every: float | None = None


def choose_victim(lanes: Mapping[str, LaneRow]) -> str | None:
    """Return the worker with the most lanes in progress."""
    busy = Counter(row.owner for row in lanes.values() if row.in_progress)
    return min(busy, key=lambda name: (-busy[name], name)) if busy else None


def unfinished(lanes: Mapping[str, LaneRow], worker: str) -> dict[str, LaneRow]:
    """Return the lanes of a worker that have unsettled messages."""
    return {lane: row for lane, row in lanes.items() if row.owner == worker and row.acked < row.head}


def moved(before: Mapping[str, LaneRow], now: Mapping[str, LaneRow]) -> set[str]:
    """Return the lanes that made progress under another owner, judged by the lease's epoch and the offset."""
    return {
        lane
        for lane, row in before.items()
        if lane in now and now[lane].owner != row.owner and now[lane].epoch > row.epoch and now[lane].acked > row.acked
    }


@define(eq=False)
class Chaos:
    """Kills one worker when all are at work, starts another, and watches the lanes."""

    fleet: Fleet
    watch: Watch
    say: Callable[[str], None]
    takeover: Takeover | None = field(default=None, init=False)
    _wanted: int = field(init=False)
    _complete_since: float | None = field(default=None, init=False)
    _before: dict[str, LaneRow] = field(factory=dict, init=False)
    _dead_since: float = field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self._wanted = len(self.fleet.workers)

    @property
    def killed(self) -> bool:
        """Whether a worker was killed at work."""
        return self.takeover is not None

    @property
    def done(self) -> bool:
        """Whether all of the killed worker's lanes have moved again."""
        return self.takeover is not None and self.takeover.every is not None

    def turn(self) -> None:
        """Do the next step, if it is due."""
        if self.takeover is None:
            self._kill_when_ready()
        elif self.takeover.every is None:
            self._measure(self.takeover)

    def _kill_when_ready(self) -> None:
        now = time.monotonic()
        if self._complete_since is None:
            if len(self.watch.present()) >= self._wanted:
                self._complete_since = now
            return
        victim = choose_victim(self.watch.lanes()) if now - self._complete_since >= KILL_AFTER else None
        if victim is None or victim not in self.fleet.workers:
            return
        killed = self.fleet.kill(victim)
        self._dead_since = time.monotonic()
        self._before = unfinished(self.watch.lanes(), victim)
        successor = self.fleet.start()
        if not self._before:
            self.say(f"{victim} had just finished when it was killed; {successor.name} takes its place")
            self._complete_since = None
            return
        self.fleet.release()
        self.takeover = Takeover(worker=victim, lanes=len(self._before))
        self.say(
            f"{victim} (process {killed.process.pid}) was killed with SIGKILL at work; {successor.name} was started in "
            f"its place; {plural(len(self._before), 'lane')} left unfinished"
        )

    def _measure(self, takeover: Takeover) -> None:
        done = moved(self._before, self.watch.lanes())
        seconds = time.monotonic() - self._dead_since
        if done and takeover.first is None:
            takeover = evolve(takeover, first=seconds)
            self.say(f"the first of them moved again {seconds:.2f} s after the death of {takeover.worker}")
        if len(done) == len(self._before):
            takeover = evolve(takeover, every=seconds)
            self.say(f"all of them ({plural(takeover.lanes, 'lane')}) had moved after {seconds:.2f} s")
        self.takeover = takeover
