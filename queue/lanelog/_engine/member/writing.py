"""The settler's side of a member: it gives out writes and takes in commits.

Owns the content of one flush, and the runs and waiters that its commit releases. Never writes to the database.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from attrs import define

from lanelog._base.text import summary
from lanelog._engine.member.state import Side, step
from lanelog._facts.engine import settler as facts
from lanelog._stores.consumers.history import Ended

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lanelog._engine.lane.values import Term
    from lanelog._engine.lane.writes import DeadLetterWrite, LaneWrite


@define(eq=False, repr=False)
class WritingSide(Side):
    """What the settler may do with a member. Every method takes the lock itself."""

    @step
    def collect(self, limit: int) -> list[LaneWrite]:
        """The writes of one flush: at most `limit` lanes. Lanes that changed first come first."""
        now = time.monotonic()
        writes: list[LaneWrite] = []
        for lane in list(self.state.dirty)[: limit * 2]:
            if len(writes) >= limit:
                break
            if lane.progress.flushing:
                continue
            del self.state.dirty[lane]
            write = lane.progress.write(now)
            if write is not None:
                writes.append(write)
        return writes

    @step
    def is_gone(self, dead_letter: DeadLetterWrite) -> bool:
        """Whether its lane is not ours any more, so that nothing of it may be written."""
        return self.state.lane_of(dead_letter.term) is None

    def announce_dropped(self) -> None:
        """Log the messages that were given up without a dead letter. Needs no lock: a log handler is user code."""
        state = self.state
        while state.dropped:
            attempt, error, raised = state.dropped.popleft()
            context = state.about(attempt)
            if attempt.expired:
                context["attempt"] = 0
                facts.message_expired_dropped(state.signals.notices, **context, dead_letter_topic=None)
            else:
                why = summary(error)
                facts.message_dropped(state.signals.notices, **context, error=why, exc_info=raised)

    @property
    def has_writes(self) -> bool:
        """Whether the settler has something to write."""
        return bool(self.state.dirty or self.state.dead_letters)

    @step
    def committed(self, writes: Sequence[LaneWrite]) -> None:
        """The flush is committed: give its runs to the workers, and resolve its waiters."""
        now = time.monotonic()
        for write in writes:
            lane = self.state.lane_of(write.term)
            if lane is None:
                self._send_settled_locked(write)
                continue
            for run in lane.progress.written(write):
                self.state.send(run)
            if write.waiters:
                self.state.effects.resolve(write.waiters)
            if lane.state.closing:
                self.state.effects.needs.add(
                    self.state.signals.wake_keeper
                )  # the lane may be idle now, and be released
            self.state.changed_locked(lane, now)

    def _send_settled_locked(self, write: LaneWrite) -> None:
        """Send out the runs of a flush whose lane was lost meanwhile, under ACK_FIRST.

        The flush has acked these messages, so they must run, or they are lost. A lane that was loaded again has taken
        its runs over (`run.term` says so), and writes their acks again first.
        """
        if self.state.rules.ack_first:
            for run in write.runs:
                if run.term == write.term and run.attempts and not run.recalled:
                    self.state.send(run)

    @step
    def uncommitted(self, writes: Iterable[LaneWrite]) -> None:
        """The flush failed, or its outcome is unknown: everything is to be written again."""
        for write in writes:
            lane = self.state.lane_of(write.term)
            if lane is not None and lane.progress.unwritten(write):
                self.state.dirty[lane] = None

    @step
    def flushed_watermarks(self) -> list[tuple[str, int]]:
        """(key, watermark in the database) of every lane, for the janitor."""
        return [(lane.key, lane.progress.flushed) for lane in self.state.lanes.values()]

    @step
    def buried(self, dead_letter: DeadLetterWrite, term: Term) -> bool:
        """A dead letter is committed together with its settlement, while the lane was loaded under `term`.

        False: the lane was loaded again meanwhile, perhaps from a server that lacks the commit. The caller must repeat
        the move, which finds its own copy if there is one.
        """
        if dead_letter.term != term:
            return False
        lane = self.state.lane_of(term)
        attempt = None if lane is None else lane.state.running.get(dead_letter.offset)
        if lane is not None and attempt is not None:
            lane.dispatch.succeeded(attempt, time.monotonic(), stored=True)
            self.state.counters.dead_lettered += 1
            self.state.counters.expired += dead_letter.ended is Ended.EXPIRED
            self.state.changed_locked(lane)
        self.state.effects.resolve(dead_letter.waiters)
        return True
