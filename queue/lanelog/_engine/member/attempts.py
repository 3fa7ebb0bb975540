"""The side of a member that workers and users have: start, outcome, explicit settlement, time-out, claim.

Owns every change of an attempt in their hands. Between attempts of one lease epoch this memory decides: the same epoch
means the same process.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from attrs import define

from lanelog._engine.lane.flush_waiter import FlushWaiter
from lanelog._engine.lane.policy import Outcome, Verb
from lanelog._engine.lane.run import Attempt, Run, State
from lanelog._engine.member.isolation import PATIENCE
from lanelog._telemetry import get_logger
from lanelog.config import AckPolicy
from lanelog.errors import AlreadySettled, LanelogError, LeaseLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from lanelog._engine.lane.lane import Lane
    from lanelog._engine.lane.values import Term
    from lanelog._engine.member.state import MemberState

log = get_logger("worker")

REFUSED = "the delivery was given up or the lane lost"


@define(eq=False, repr=False)
class Attempts:
    """What workers and users may do with a member. A method whose name ends in `_locked` is called under its lock."""

    state: MemberState

    def may_start(self, term: Term, now: float) -> bool:
        """Whether a handler may start on this lane: it is ours, by a read-back that is not too old."""
        if not self.state.has_authority(now):
            return False
        lane = self.state.lane_of(term)
        return lane is not None and not (lane.state.closing or lane.state.paused)

    def detached(self) -> list[Attempt]:
        """What is in the users' hands: pulled, or to be settled by hand."""
        return list(self.state.detached)

    def mark(self, run: Run, until: float | None = None) -> bool | None:
        """Write down that the caller, who has entered the isolation, has taken this late run, and wait for the commit.

        False: it must not start. It was taken back meanwhile, or its lane is lost: a flush that is refused for that
        marks nothing, so that no other owner counts it. A flush of unknown outcome is no commit, it is written again.

        None: not yet, by `until` (monotonic) or after `PATIENCE`: the database is away,
        and a suspect of another client must not wait for it as well. The mark stays due; asked again, this waits on for
        it. Only a suspect waits as long as it takes: it may not let others in while its row may say that it is alone.

        Between the commit and the handler the caller has to ask `may_start`: who slept there too long has lost the
        lane, and its next owner has counted the attempt as a crash.
        """
        longest = PATIENCE if until is None else min(PATIENCE, max(0.0, until - time.monotonic()))
        patience = None if run.alone else longest
        with self.state.lock:
            if run.waiter is None:
                waiter = FlushWaiter()
                lane = self.state.lane_of(run.term)
                if lane is None or not lane.dispatch.mark(run, waiter):
                    return False
                run.waiter = waiter
                self.state.after_change_locked(lane, time.monotonic())
            waiter = run.waiter
        self.state.signals.wake_settler()
        try:
            return waiter.wait(patience) or None
        except LanelogError:
            return False

    def wait_written(self, run: Run) -> None:
        """Wait until what became of a suspect is committed, but not longer than `PATIENCE`.

        Until then its row says that it runs alone: if others were let in and the process died of one of them, it would
        be dead-lettered for that, even if its handler had returned.
        """
        waiter = FlushWaiter()
        with self.state.lock:
            lane = self.state.lane_of(run.term)
            if lane is None:
                return
            burial = next((lane.state.burials[a.offset] for a in run.attempts if a.offset in lane.state.burials), None)
            (lane.writes.waiters if burial is None else burial.waiters).append(waiter)
            self.state.after_change_locked(lane, time.monotonic())
        self.state.signals.wake_settler()
        with suppress(LanelogError):
            waiter.wait(PATIENCE)

    def finish(self, run: Run, *, seconds: float | None = None, complete: bool = True) -> None:
        """Take a run's outcomes over; `complete`: the worker is done with it, the rest goes back."""
        now = time.monotonic()
        refused: list[Attempt] = []
        with self.state.lock:
            lane = self.state.lane_of(run.term)
            outcomes = run.take_outcomes()
            if seconds is not None:
                self.state.rules.measured(run.started, seconds)
            if complete:
                self._take_back_locked(lane, run)
                if lane is not None:
                    lane.dispatch.finished(run)
            for attempt, outcome in outcomes:
                if attempt.state is State.RUNNING:
                    self._apply_locked(lane, attempt, outcome, now)
                elif attempt.state is State.SUPERSEDED:
                    self.state.counters.refused += 1
                    refused.append(attempt)
            if lane is not None:
                self.state.after_change_locked(lane, now)
        self.state.signals.wake_settler()
        for attempt in refused:
            log.warning("settlement.refused", **self.state.about(attempt), why=REFUSED)

    def relieve(self, run: Run) -> None:
        """A run takes long: settle what it has done, and take back what it has not begun.

        Other workers may have that, in concurrent order; in any order it is not marked any longer, so that a crash does
        not count an attempt for it.
        """
        with self.state.lock:
            self._take_back_locked(self.state.lane_of(run.term), run)
        self.finish(run, complete=False)

    @staticmethod
    def _take_back_locked(lane: Lane | None, run: Run) -> None:
        """What of a run no handler has seen goes back to its lane, if that is still there."""
        if lane is None:
            run.recall()
        else:
            lane.dispatch.take_back([run])

    def settle(self, attempt: Attempt, outcome: Outcome) -> FlushWaiter:
        """An explicit settlement; the waiter resolves when it is committed. Raises LeaseLost, AlreadySettled."""
        with self.state.lock:
            lane = self._check_locked(attempt)
            waiter = FlushWaiter(self._release_later_locked(attempt))
            self._harvest_locked(lane, attempt)
            self._apply_locked(lane, attempt, outcome, time.monotonic())
            burial = lane.state.burials.get(attempt.offset)
            (lane.writes.waiters if burial is None else burial.waiters).append(waiter)
            self.state.finish_detached_locked(attempt)
            self.state.after_change_locked(lane, time.monotonic())
        self.state.signals.wake_settler()
        return waiter

    def _release_later_locked(self, attempt: Attempt) -> Callable[[], None] | None:
        """What a suspect in the user's hands holds until its settlement is committed; see `wait_written`."""
        if attempt not in self.state.detached or attempt.run is None or not attempt.run.alone:
            return None
        release, attempt.on_release = attempt.on_release, None
        return release

    def detach(self, attempt: Attempt, leave: Callable[[], None]) -> bool:
        """The message is the user's now: its run ends when it is settled. False when that has happened already."""
        with self.state.lock:
            if attempt.state is not State.RUNNING:
                return False
            attempt.on_release = leave
            self.state.detached[attempt] = None
            return True

    def hand_back(self, *, forgotten: bool = False) -> None:
        """What the user was handed and has not settled goes back, as if never delivered.

        `forgotten`: only what nobody can settle any more. Any other message may be in the hands of another thread.
        """
        now = time.monotonic()
        with self.state.lock:
            back = [a for a in self.state.detached if a.state is State.RUNNING and (a.forgotten or not forgotten)]
            for attempt in back:
                lane = self.state.lane_of(attempt.term)
                if lane is not None:
                    lane.dispatch.returned(attempt, now)
                attempt.state = State.SUPERSEDED
                self.state.finish_detached_locked(attempt)
                if lane is not None:
                    self.state.after_change_locked(lane, now)
        if back:
            self.state.signals.wake_settler()

    def cut_off(self) -> list[Attempt]:
        """The process is about to end while handlers still run: what they have goes back, as if never delivered.

        Their attempts are fenced: what they still settle is refused. What is acked before its handler cannot go back;
        it is returned, too, for somebody to say that it is lost. Only of lanes that are closing, in which nothing new
        starts.
        """
        now = time.monotonic()
        cut: list[Attempt] = []
        with self.state.lock:
            for lane in list(self.state.lanes.values()):
                runs = [run for run in lane.state.runs if run.attempts]
                # First: from then on no worker starts another one of them.
                unstarted = [each for run in runs for each in run.recall()] if self.state.rules.ack_first else []
                running = [each for run in runs for each in run.attempts if each.state is State.RUNNING] + unstarted
                for run in runs:
                    lane.dispatch.take_back([run])
                    lane.dispatch.finished(run)
                    for attempt, outcome in run.take_outcomes():
                        if attempt.state is State.RUNNING:
                            running.remove(attempt)
                            self._apply_locked(lane, attempt, outcome, now)
                for attempt in running:
                    lane.dispatch.returned(attempt, now)
                    attempt.state = State.SUPERSEDED
                    self.state.finish_detached_locked(attempt)
                self.state.after_change_locked(lane, now)
                cut += running
        self.state.signals.wake_settler()
        self.state.signals.wake_keeper()
        return cut

    def give_up(self, attempt: Attempt, outcome: Outcome) -> bool:
        """The delivery timed out: fence the attempt and go on without it. False when it was settled just now."""
        with self.state.lock:
            if attempt.state is not State.RUNNING:
                return False
            lane, run = self.state.lane_of(attempt.term), attempt.run
            if run is not None:
                self._take_back_locked(lane, run)
                if lane is not None:
                    lane.dispatch.finished(run)
                self._harvest_locked(lane, attempt)
            attempt.state = State.SUPERSEDED
            self.state.counters.timed_out += 1
            self._apply_locked(lane, attempt, outcome, time.monotonic())
            self.state.finish_detached_locked(attempt)
            if lane is not None:
                self.state.after_change_locked(lane, time.monotonic())
        self.state.signals.wake_settler()
        return True

    def _harvest_locked(self, lane: Lane | None, attempt: Attempt) -> None:
        """Take over what the same run has decided before: the watermark then passes it without a row of its own."""
        if attempt.run is None:
            return
        for other, decided in attempt.run.take_outcomes():
            if other.state is State.RUNNING and other is not attempt:
                self._apply_locked(lane, other, decided, time.monotonic())

    def check(self, attempt: Attempt, *, settling: bool = True) -> None:
        """Raise LeaseLost or AlreadySettled unless the attempt is still the handler's; `settling`: to settle, too."""
        with self.state.lock:
            self._check_locked(attempt, settling=settling)

    def claim(self, attempt: Attempt) -> Term:
        """Reserve the settlement for a transaction that is about to commit it; the lane's term that it is reserved in.

        Raises LeaseLost, AlreadySettled.
        """
        with self.state.lock:
            self._check_locked(attempt)
            attempt.state = State.CLAIMED
            return attempt.term

    def unclaim(self, attempt: Attempt) -> bool:
        """That transaction did not commit; False: the handler has returned, so `resolve_left` must say what follows."""
        with self.state.lock:
            if attempt.state is State.CLAIMED and attempt.left:
                return False  # stays claimed, so that nobody else decides it before
            if attempt.state is State.CLAIMED:
                attempt.state = State.RUNNING
            return True

    def leave_claimed(self, attempt: Attempt, leave: Callable[[], None]) -> bool:
        """The handler has returned while another thread commits its message. False: that has been decided by now.

        The run ends with that decision, and nothing behind the message starts before.
        """
        with self.state.lock:
            if attempt.state is not State.CLAIMED:
                return False
            lane = self.state.lane_of(attempt.term)
            if attempt.run is not None:
                self._harvest_locked(lane, attempt)
                self._take_back_locked(lane, attempt.run)
            attempt.left = self.state.config.ack_policy is not AckPolicy.MANUAL  # else the user may settle it once more
            attempt.on_release = leave
            self.state.detached[attempt] = None
            if lane is not None:
                self.state.after_change_locked(lane, time.monotonic())
        self.state.signals.wake_settler()
        return True

    def resolve_left(self, attempt: Attempt, outcome: Outcome) -> None:
        """What becomes of a message whose handler has returned and whose transaction did not commit."""
        now = time.monotonic()
        with self.state.lock:
            if attempt.state is not State.CLAIMED:
                return  # its lane was lost meanwhile
            attempt.state = State.RUNNING
            lane = self.state.lane_of(attempt.term)
            self._apply_locked(lane, attempt, outcome, now)
            self.state.finish_detached_locked(attempt)
            if lane is not None:
                self.state.after_change_locked(lane, now)
        self.state.signals.wake_settler()

    def claimed(self, attempt: Attempt, term: Term) -> bool:
        """That transaction did commit, in the lane as it was loaded in `term`.

        False: the lane was loaded again meanwhile, perhaps from a server that lacks that commit. Nothing is decided.
        """
        with self.state.lock:
            if attempt.term != term:
                return False
            lane = self.state.lane_of(term)
            self._harvest_locked(lane, attempt)
            if lane is not None:
                lane.dispatch.succeeded(attempt, time.monotonic(), stored=True)
            self.state.counters.handled += 1
            self.state.counters.acked += 1
            self.state.finish_detached_locked(attempt)
            if lane is not None:
                self.state.after_change_locked(lane, time.monotonic())
        self.state.signals.wake_settler()
        return True

    def _check_locked(self, attempt: Attempt, *, settling: bool = True) -> Lane:
        lane = self.state.lane_of(attempt.term)
        if attempt.state is State.SUPERSEDED or lane is None:
            self.state.counters.refused += 1
            raise LeaseLost(
                f"{self._which(attempt)} is not group {self.state.at.group!r}'s any more: it timed out or its "
                "lane was lost; another attempt has taken its place"
            )
        # Under ACK_FIRST it was settled before its handler started.
        if attempt.state is not State.RUNNING or (settling and self.state.rules.ack_first):
            raise AlreadySettled(f"{self._which(attempt)} is settled already")
        return lane

    def _which(self, attempt: Attempt) -> str:
        return f"attempt {attempt.number} at {self.state.at.topic}/{attempt.term.key}/{attempt.offset}"

    def _apply_locked(self, lane: Lane | None, attempt: Attempt, outcome: Outcome, now: float) -> None:
        """`lane` None: it is gone; only what was acked before its handler can still be counted."""
        state = attempt.state
        if lane is None:
            if outcome.verb is Verb.ACK:
                self.state.counters.handled += not attempt.expired
                self.state.counters.acked += 1
                attempt.state = state if state is State.SUPERSEDED else State.SETTLED
            return
        if outcome.verb is not Verb.ACK and lane.state.running.get(attempt.offset) is not attempt:
            return  # acked before its handler ran: there is nothing left to decide
        if outcome.verb is not Verb.ACK and lane.state.rules.strict and attempt.run is not None:
            lane.dispatch.take_back([attempt.run])  # nothing of the key may start before this is through
        settled = State.SUPERSEDED if state is State.SUPERSEDED else State.SETTLED
        self.state.counters.handled += not attempt.expired
        if outcome.verb is Verb.ACK:
            lane.dispatch.succeeded(attempt, now)
            self.state.counters.acked += 1
        elif outcome.verb is Verb.BURY and self.state.config.dead_letter_suffix is None:
            lane.dispatch.succeeded(attempt, now, ended=outcome.ended, error=outcome.error)
            self.state.dropped.append((attempt, outcome.error or "", outcome.raised))
        elif outcome.verb is Verb.BURY:
            buried = State.SUPERSEDED if state is State.SUPERSEDED else State.BURYING
            failures = 0 if attempt.expired else attempt.number
            burial = lane.dispatch.bury(attempt, failures, outcome.error or "", outcome.ended, buried)
            burial.raised = outcome.raised
            self.state.burials.append(burial)
        else:
            postponed = outcome.verb is Verb.POSTPONE
            due, error = now + outcome.wait, outcome.error
            lane.dispatch.failed(attempt, due=due, error=error, state=settled, postponed=postponed, last=outcome.last)
            self.state.note_due_locked(due, lane)
            if postponed:
                self.state.counters.postponed += 1
            else:
                self.state.counters.retried += 1
