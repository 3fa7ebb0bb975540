"""A member with its loops turned by hand: no database, no threads, and a clock that the test moves."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from lanelog._base.places import GroupTopic
from lanelog._engine.lane import reload
from lanelog._engine.lane.lane import Lane
from lanelog._engine.lane.values import Budget, LaneSnapshot
from lanelog._engine.lane.writes import LaneWrite
from lanelog._engine.leasing.loading import GENERATIONS
from lanelog._engine.member import attempts, fetching, handing_back, member, state, writing
from lanelog._engine.member.rules import Signals, SubscriptionRules
from lanelog.config import SubscriptionConfig
from support.lanes import Rows, row

if TYPE_CHECKING:
    import pytest

    from lanelog._engine.lane.run import Attempt, Run


class Clock:
    """A `time` whose hand is moved by the test."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def drive(self, monkeypatch: pytest.MonkeyPatch) -> Clock:
        """Let members read this clock."""
        for module in (state, fetching, writing, attempts, handing_back):
            monkeypatch.setattr(module, "time", self)
        return self


class Engine:
    """The loops around one member, turned by hand; `rows` is what its flushes left, lane by lane."""

    def __init__(self, clock: Clock, *, singly: bool = False, seconds: float | None = None, **options: Any) -> None:
        self.clock = clock
        config = SubscriptionConfig(name="me", **options)
        self.woken: Counter[str] = Counter()
        self.failures: list[BaseException] = []
        self.runs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.member = member.Member(
            at=GroupTopic(topic="merge", group="builders"),
            owner="me:1",
            config=config,
            rules=SubscriptionRules("builders", config, singly, seconds),
            budget=Budget(),
            lock=threading.Lock(),
            signals=Signals(
                *(lambda name=name: self.woken.update([name]) for name in ("fetcher", "settler", "keeper"))
            ),
            runs=self.runs,
            failed=self.failures.append,
        )
        self.member.authority_until = clock.now + 1e6
        self.rows: dict[str, Rows] = {}

    def open(self, key: str = "key", *, head: int = 0) -> Lane:
        m = self.member
        snapshot = LaneSnapshot(key=key, epoch=3, generation=next(GENERATIONS), head=head, floor=0, offset_acked=0)
        lane = Lane.load(snapshot, m.rules, m.budget, self.clock.now)
        self.rows[key] = Rows(acked=0)
        m.leasing.open_lane(lane)
        self.fetch(lane)
        return lane

    def reload(self, old: Lane, *, acked: int = 0, lacks: int = 0) -> Lane:
        """The server has restarted, with a group that is at `acked`, and maybe without a message."""
        m = self.member
        snapshot = LaneSnapshot(
            key=old.key, epoch=3, generation=next(GENERATIONS), head=old.state.head, floor=0, offset_acked=acked
        )
        fresh = Lane.load(snapshot, m.rules, m.budget, self.clock.now)
        ids = {offset: name for offset, name in reload.vouched(old).items() if offset != lacks}
        assert not m.leasing.replace_lane(old, fresh, ids, {})
        return fresh

    def fetch(self, lane: Lane) -> None:
        rows = [row(offset) for offset in range(lane.state.cursor + 1, lane.state.head + 1)]
        self.member.fetching.fetched(lane, lane.state.cursor, rows)

    def collect(self) -> list[LaneWrite]:
        return self.member.writing.collect(1000)

    def flush(self) -> None:
        while writes := self.collect():
            for write in writes:
                self.rows[write.term.key].commit(write, self.clock.now)
            self.member.writing.committed(writes)

    def run(self) -> Run:
        """The next run that a worker gets."""
        self.flush()
        _, run = self.runs.get_nowait()
        return run

    def start(self, run: Run) -> Attempt:
        attempt = run.start_next(self.clock.now, 60.0)
        assert attempt is not None
        return attempt

    def offsets(self) -> list[int]:
        """What the next run consists of."""
        return [attempt.offset for attempt in self.run().attempts]


def fast(clock: Clock, **options: Any) -> Engine:
    """An engine whose handlers are known to be fast, so that a run has many messages."""
    return Engine(clock, seconds=0.001, **options)


def running(clock: Clock, messages: int, **options: Any) -> tuple[Engine, Lane, Run]:
    """A fast engine with one lane of so many messages, and its first run."""
    engine = fast(clock, **options)
    lane = engine.open(head=messages)
    return engine, lane, engine.run()
