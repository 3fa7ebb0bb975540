"""Where a message's time goes in memory, without a database: `python -m benchmarks.stages` prints µs a message.

A worker's own code takes a backlog from the rows of an answer to the ack: rows become messages, a member takes them in,
collects what a flush would write, sends the runs out, and a worker handles them and settles them. All is done in one
thread. So nobody waits for the interpreter, and what a stage costs is its own. The figures are those of the best of
five rounds.
"""

from __future__ import annotations

import gc
import math
import queue
import threading
import time
from typing import TYPE_CHECKING, Any, cast

from attrs import define, field
from rich.console import Console
from rich.table import Table

from lanelog._base.places import GroupTopic
from lanelog._engine.lane.lane import Lane
from lanelog._engine.lane.values import Budget, LaneSnapshot
from lanelog._engine.member.member import Member
from lanelog._engine.member.rules import Signals, SubscriptionRules
from lanelog._engine.working.worker import Worker
from lanelog._engine.working.workers import Workers
from lanelog._stores.log import fetches
from lanelog.config import SubscriptionConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._engine.engine_context import EngineContext

MESSAGES = 100_000
LANES = (100, 1000, 10_000)
LANES_A_FETCH = 40
LANES_A_FLUSH = 1000
ROUNDS = 5
PAYLOAD = b"x" * 200
SECONDS = 1e-6
"""What a handler is said to take: a run is as long as it may be."""


@define(eq=False)
class Answer:
    """An `Executor` that has its answer."""

    rows: Sequence[tuple[Any, ...]] = ()

    def query(self, _sql: str, _args: Sequence[object]) -> Sequence[tuple[Any, ...]]:
        """Return the rows."""
        return self.rows


@define(eq=False)
class Round:
    """A member with lanes of its own, and one worker of it."""

    lanes: Sequence[Lane]
    member: Member
    workers: Workers
    seconds: dict[str, float] = field(factory=dict)
    handled: int = 0
    _answer: Answer = field(factory=Answer)
    _worker: Worker = field(factory=lambda: Worker(0))

    @classmethod
    def of(cls, lanes: int) -> Round:
        """With so many lanes, each loaded and empty."""
        config = SubscriptionConfig(prefetch=MESSAGES)
        rules = SubscriptionRules("group", config, False, SECONDS)  # noqa: FBT003 - singly
        budget, signals = Budget(), Signals(_nothing, _nothing, _nothing)
        runs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        member = Member(
            at=GroupTopic(topic="topic", group="group"),
            owner="owner",
            config=config,
            rules=rules,
            budget=budget,
            lock=threading.Lock(),
            signals=signals,
            runs=runs,
            failed=_fail,
            workers=config.workers,
        )
        member.leasing.grant_authority(math.inf, 0.0)
        member.attempts.hold_seconds = 0.0  # the thread that would wait for a flush is the one that flushes
        head = MESSAGES // lanes
        loaded = [
            Lane.load(
                LaneSnapshot(key=f"key-{number:05d}", epoch=1, generation=1, head=head, floor=0, offset_acked=0),
                rules,
                budget,
                time.monotonic(),
            )
            for number in range(lanes)
        ]
        for lane in loaded:
            member.leasing.open_lane(lane)
        # No message of this backlog asks its client for anything.
        made = cls(loaded, member, Workers("group", config, _nothing_with, runs, cast("EngineContext", None)))
        made.workers.handler = made._handle
        return made

    def _handle(self, _message: object) -> None:
        self.handled += 1

    def take(self) -> None:
        """Take the backlog, a batch of each lane after the other."""
        each, batch = MESSAGES // len(self.lanes), self.member.rules.batch_size
        for first in range(1, each + 1, batch):
            offsets = range(first, min(first + batch, each + 1))
            for at in range(0, len(self.lanes), LANES_A_FETCH):
                self._take(self.lanes[at : at + LANES_A_FETCH], offsets)
        if self.handled != MESSAGES or any(lane.progress.flushed != each for lane in self.lanes):
            raise RuntimeError("not every message was handled and acked: nothing was measured")

    def _take(self, lanes: Sequence[Lane], offsets: range) -> None:
        member = self.member
        self._answer.rows = [(lane.key, at, f"m{at}", PAYLOAD, None, at, None) for lane in lanes for at in offsets]
        behind = [fetches.Behind(lane.key, lane.state.cursor, len(offsets)) for lane in lanes]
        began = time.perf_counter()
        found = fetches.following(cast("Any", self._answer), member.at, behind, largest=1 << 20)
        began = self._took("rows to messages", began)
        for lane, rows in zip(lanes, found, strict=True):
            member.fetching.fetched(lane, lane.state.cursor, rows)
        began = self._took("taken in, and planned", began)
        while (writes := member.writing.collect(LANES_A_FLUSH)) or not self.workers.runs.empty():
            began = self._took("collected for a flush", began)
            member.writing.committed(writes)
            began = self._took("committed, and sent out", began)
            # After a pause of the machine runs are late. A late run comes back, and the next flush marks it.
            for _ in range(self.workers.runs.qsize()):
                self.workers._work(self._worker, *cast("tuple[Member, Any]", self.workers.runs.get()))  # noqa: SLF001 - a part of the library
            began = self._took("handled, and settled", began)

    def _took(self, stage: str, began: float) -> float:
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - began
        return now


def _nothing() -> None:
    """Wake nobody."""


def _nothing_with(_message: object) -> None:
    """Handle nothing."""


def _fail(error: BaseException) -> None:
    raise error


def measure(lanes: int) -> dict[str, float]:
    """µs a message in each stage, of the best round."""
    rounds: list[dict[str, float]] = []
    for _ in range(ROUNDS):
        taken = Round.of(lanes)
        gc.collect()
        taken.take()
        rounds.append(taken.seconds)
    best = min(rounds, key=lambda seconds: sum(seconds.values()))
    return {stage: 1e6 * seconds / MESSAGES for stage, seconds in best.items()}


def main() -> None:
    """Print a column for each number of lanes."""
    measured = [measure(lanes) for lanes in LANES]
    table = Table("stage", *(f"{lanes:,} lanes" for lanes in LANES), title="µs a message")
    for stage in measured[0]:
        table.add_row(stage, *(f"{each[stage]:.2f}" for each in measured))
    table.add_section()
    table.add_row("in all", *(f"{sum(each.values()):.2f}" for each in measured))
    Console().print(table)


if __name__ == "__main__":
    main()
