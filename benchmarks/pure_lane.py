"""What a message costs in memory alone, without a database: `python -m benchmarks.pure_lane` prints µs a message.

A batch of 1,000 messages is fetched, handed out, acked, written and committed: once by a lane that nobody shares, and
once by a member as its loops do, with its lock and its work lists. The figure is the median of seven rounds,
in time of the processor.
"""

from __future__ import annotations

import gc
import math
import queue
import threading
import time
from statistics import median
from typing import TYPE_CHECKING

from lanelog._engine.lane.lane import Lane
from lanelog._engine.lane.outcome import ACKED
from lanelog._engine.lane.values import Budget, LaneSnapshot
from lanelog._engine.member.member import Member
from lanelog._engine.member.rules import Signals, SubscriptionRules
from lanelog._stores.fetches import Fetched
from lanelog.config import SubscriptionConfig

if TYPE_CHECKING:
    from collections.abc import Callable

MESSAGES = 1000
BATCHES = 50
ROUNDS = 7
PAYLOAD = b"x" * 200
SECONDS = 0.0005
"""What a handler is said to take: 40 messages are one run."""


def of_lane(batches: list[list[Fetched]]) -> float:
    """Seconds that a lane takes for these batches."""
    config = SubscriptionConfig(batch_size=MESSAGES, prefetch=64 * MESSAGES)
    rules = SubscriptionRules("group", config, False, SECONDS)  # noqa: FBT003 - singly
    lane = Lane.load(
        LaneSnapshot(key="key", epoch=1, generation=1, head=0, floor=0, offset_acked=0), rules, Budget(), 0.0
    )
    now, began = 0.0, time.process_time()
    for rows in batches:
        now += 1.0
        lane.fetched(rows, now)
        while lane.dispatch.plan(now) is not None or lane.writes.needs_write:
            write = lane.writes.write(now)
            assert write is not None  # noqa: S101 - for the type checker: it is needed
            for run in lane.writes.written(write):
                while (attempt := run.start_next(now, 60.0)) is not None:
                    lane.dispatch.succeeded(attempt, now)
                lane.dispatch.take_back([run])
                lane.dispatch.finished(run)
    took = time.process_time() - began
    assert lane.writes.flushed == lane.state.watermark == batches[-1][-1].offset  # noqa: S101 - else nothing was measured
    return took


def of_member(batches: list[list[Fetched]]) -> float:
    """Seconds that a member takes for these batches, turned as by its loops."""
    config = SubscriptionConfig(batch_size=MESSAGES, prefetch=64 * MESSAGES)
    rules = SubscriptionRules("group", config, False, SECONDS)  # noqa: FBT003 - singly
    runs: queue.SimpleQueue[object] = queue.SimpleQueue()
    budget, signals = Budget(), Signals(_nothing, _nothing, _nothing)
    member = Member(
        group="group",
        topic="topic",
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
    lane = Lane.load(
        LaneSnapshot(key="key", epoch=1, generation=1, head=0, floor=0, offset_acked=0), rules, budget, time.monotonic()
    )
    member.leasing.grant_authority(math.inf, 0.0)
    member.leasing.open_lane(lane)
    began = time.process_time()
    for rows in batches:
        member.fetching.fetched(lane, lane.state.cursor, rows)
        while writes := member.writing.collect(1000):
            member.writing.committed(writes)
            while not runs.empty():
                _, run = runs.get()  # type: ignore[misc] # a pair, by what the queue holds
                while (attempt := run.start_next(0.0, 60.0)) is not None:
                    run.record(attempt, ACKED)
                member.attempts.finish(run)
    took = time.process_time() - began
    assert lane.writes.flushed == lane.state.watermark == batches[-1][-1].offset  # noqa: S101 - else nothing was measured
    return took


def _nothing() -> None:
    """Wake nobody."""


def _fail(error: BaseException) -> None:
    raise error


def _batches() -> list[list[Fetched]]:
    return [
        [
            Fetched("key", offset, f"m{offset}", PAYLOAD, len(PAYLOAD), None, 0)
            for offset in range(first, first + MESSAGES)
        ]
        for first in range(1, BATCHES * MESSAGES, MESSAGES)
    ]


def measure(of: Callable[[list[list[Fetched]]], float]) -> float:
    """µs a message, the median of the rounds."""
    batches = _batches()
    of(batches[:1])
    rounds = []
    for _ in range(ROUNDS):
        gc.collect()
        rounds.append(of(batches))
    return 1e6 * median(rounds) / (BATCHES * MESSAGES)


def main() -> None:
    """Print the two figures."""
    for name, of in (("lane", of_lane), ("lane under its member", of_member)):
        print(f"{name}: {measure(of):.2f} µs a message")


if __name__ == "__main__":
    main()
