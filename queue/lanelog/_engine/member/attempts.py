"""What attempts are told, and what they tell: start, outcome, explicit settlement, time-out, claim.

Owns the transitions of an attempt in the hands of workers and users; lanes come and go elsewhere (`Member`, its
subclass). Between attempts of one lease epoch this memory decides: the same epoch means the same process.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from lanelog._engine.lane.flush_waiter import FlushWaiter
from lanelog._engine.lane.policy import Outcome, Verb
from lanelog._engine.lane.run import Attempt, Run, State
from lanelog._engine.member.isolation import PATIENCE
from lanelog._engine.member.state import MemberState
from lanelog._telemetry import get_logger
from lanelog.config import AckPolicy
from lanelog.errors import AlreadySettled, LanelogError, LeaseLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from lanelog._engine.lane.lane import Lane

log = get_logger("worker")


class Settlements(MemberState):
    """Every method takes the lock itself unless its name ends in `_locked`."""

    def may_start(self, lane: Lane, now: float) -> bool:
        """Whether a handler may start on this lane: it is ours, by a read-back that is not too old."""
        return self.has_authority(now) and not (lane.lost or lane.closing or lane.paused)

    def mark(self, run: Run, until: float | None = None) -> bool | None:
        """Write down that the caller, who is inside the isolation, has taken this late run, and wait for the commit.

        False: it must not start. It was taken back meanwhile, or its lane is lost: a flush that is refused for that
        marks nothing, so that no other owner counts it. A flush of unknown outcome is no commit, it is written again.

        None: not yet, by `until` (monotonic) or after as long as the isolation has patience: the database is away,
        and a suspect of another client must not wait for it as well. The mark stays due; asked again, this waits on for
        it. Only a suspect waits as long as it takes: it may not let others in while its row may say that it is alone.

        Between the commit and the handler the caller has to ask `may_start`: who slept there too long has lost the
        lane, and its next owner has counted the attempt as a crash.
        """
        longest = PATIENCE if until is None else min(PATIENCE, max(0.0, until - time.monotonic()))
        patience = None if run.alone else longest
        with self.lock:
            if run.waiter is None:
                waiter = FlushWaiter()
                if not run.lane.mark(run, waiter):
                    return False
                run.waiter = waiter
                self._after_change_locked(run.lane, time.monotonic())
            waiter = run.waiter
        self.signals.wake_settler()
        try:
            return waiter.wait(patience) or None
        except LanelogError:
            return False

    def wait_written(self, run: Run) -> None:
        """Wait until what became of a suspect is committed, but not longer than the isolation has patience.

        Until then its row says that it runs alone: if others were let in and the process died of one of them, it would
        be dead-lettered for that, even if its handler had returned.
        """
        waiter = FlushWaiter()
        with self.lock:
            lane = run.lane
            if lane.lost:
                return
            burial = next((lane.burials[a.offset] for a in run.attempts if a.offset in lane.burials), None)
            (lane.waiters if burial is None else burial.waiters).append(waiter)
            self._after_change_locked(lane, time.monotonic())
        self.signals.wake_settler()
        with suppress(LanelogError):
            waiter.wait(PATIENCE)

    def finish(self, run: Run, *, seconds: float | None = None, complete: bool = True) -> None:
        """Take a run's outcomes over; `complete`: the worker is done with it, the rest goes back."""
        now = time.monotonic()
        refused: list[Attempt] = []
        with self.lock:
            lane = run.lane
            outcomes = run.take_outcomes()
            if seconds is not None:
                self.rules.measured(run.started, seconds)
            if complete:
                lane.take_back([run])
                lane.finished(run)
            for attempt, outcome in outcomes:
                if attempt.state is State.RUNNING:
                    self._apply_locked(attempt, outcome, now)
                elif attempt.state is State.SUPERSEDED:
                    self.counters.refused += 1
                    refused.append(attempt)
            self._after_change_locked(lane, now)
        self.signals.wake_settler()
        for attempt in refused:
            log.warning("settlement.refused", **self.context(attempt), why="the delivery was given up or the lane lost")

    def relieve(self, run: Run) -> None:
        """A run takes long: settle what it has done, and take back what it has not begun.

        Other workers may have that, in concurrent order; in any order it is not marked any longer, so that a crash does
        not count an attempt for it.
        """
        with self.lock:
            run.lane.take_back([run])
        self.finish(run, complete=False)

    def settle(self, attempt: Attempt, outcome: Outcome) -> FlushWaiter:
        """An explicit settlement; the waiter resolves when it is committed. Raises LeaseLost, AlreadySettled."""
        with self.lock:
            self._check_locked(attempt)
            waiter = FlushWaiter(self._release_later_locked(attempt))
            lane = attempt.lane
            self._harvest_locked(attempt)
            self._apply_locked(attempt, outcome, time.monotonic())
            burial = lane.burials.get(attempt.offset)
            (lane.waiters if burial is None else burial.waiters).append(waiter)
            self._finish_detached_locked(attempt)
            self._after_change_locked(lane, time.monotonic())
        self.signals.wake_settler()
        return waiter

    def _release_later_locked(self, attempt: Attempt) -> Callable[[], None] | None:
        """What a suspect in the user's hands holds until its settlement is committed; see `wait_written`."""
        if attempt not in self.detached or attempt.run is None or not attempt.run.alone:
            return None
        release, attempt.on_release = attempt.on_release, None
        return release

    def detach(self, attempt: Attempt, leave: Callable[[], None]) -> bool:
        """The message is the user's now: its run ends when it is settled. False when that has happened already."""
        with self.lock:
            if attempt.state is not State.RUNNING:
                return False
            attempt.on_release = leave
            self.detached[attempt] = None
            return True

    def _finish_detached_locked(self, attempt: Attempt) -> bool:
        if attempt not in self.detached:
            return False
        del self.detached[attempt]
        self.rules.measured(1, time.monotonic() - attempt.started)  # what users do at once need not be marked late
        if attempt.run is not None:
            attempt.lane.finished(attempt.run)
        attempt.release()
        return True

    def hand_back(self, *, forgotten: bool = False) -> None:
        """What the user was handed and has not settled goes back, as if never delivered.

        `forgotten`: only what nobody can settle any more. Any other message may be in the hands of another thread.
        """
        now = time.monotonic()
        with self.lock:
            back = [a for a in self.detached if a.state is State.RUNNING and (a.forgotten or not forgotten)]
            for attempt in back:
                attempt.lane.returned(attempt, now)
                attempt.state = State.SUPERSEDED
                self._finish_detached_locked(attempt)
                self._after_change_locked(attempt.lane, now)
        if back:
            self.signals.wake_settler()

    def cut_off(self) -> list[Attempt]:
        """The process is about to end while handlers still run: what they have goes back, as if never delivered.

        Their attempts are fenced: what they still settle is refused. What is acked before its handler cannot go back;
        it is returned, too, for somebody to say that it is lost. Only of lanes that are closing, in which nothing new
        starts.
        """
        now = time.monotonic()
        cut: list[Attempt] = []
        with self.lock:
            for lane in list(self.lanes.values()):
                runs = [run for run in lane.runs if run.attempts]
                # First: from then on no worker starts another one of them.
                unstarted = [each for run in runs for each in run.recall()] if self.rules.ack_first else []
                running = [each for run in runs for each in run.attempts if each.state is State.RUNNING] + unstarted
                for run in runs:
                    lane.take_back([run])
                    lane.finished(run)
                    for attempt, outcome in run.take_outcomes():
                        if attempt.state is State.RUNNING:
                            running.remove(attempt)
                            self._apply_locked(attempt, outcome, now)
                for attempt in running:
                    lane.returned(attempt, now)
                    attempt.state = State.SUPERSEDED
                    self._finish_detached_locked(attempt)
                self._after_change_locked(lane, now)
                cut += running
        self.signals.wake_settler()
        self.signals.wake_keeper()
        return cut

    def give_up(self, attempt: Attempt, outcome: Outcome) -> bool:
        """The delivery timed out: fence the attempt and go on without it. False when it was settled just now."""
        with self.lock:
            if attempt.state is not State.RUNNING:
                return False
            lane, run = attempt.lane, attempt.run
            if run is not None:
                lane.take_back([run])
                lane.finished(run)
                self._harvest_locked(attempt)
            attempt.state = State.SUPERSEDED
            self.counters.timed_out += 1
            self._apply_locked(attempt, outcome, time.monotonic())
            self._finish_detached_locked(attempt)
            self._after_change_locked(lane, time.monotonic())
        self.signals.wake_settler()
        return True

    def _harvest_locked(self, attempt: Attempt) -> None:
        """Take over what the same run has decided before: the watermark then passes it without a row of its own."""
        if attempt.run is None:
            return
        for other, decided in attempt.run.take_outcomes():
            if other.state is State.RUNNING and other is not attempt:
                self._apply_locked(other, decided, time.monotonic())

    def check(self, attempt: Attempt, *, settling: bool = True) -> None:
        """Raise LeaseLost or AlreadySettled unless the attempt is still the handler's; `settling`: to settle, too."""
        with self.lock:
            self._check_locked(attempt, settling=settling)

    def claim(self, attempt: Attempt) -> Lane:
        """Reserve the settlement for a transaction that is about to commit it; the lane that it is reserved in.

        Raises LeaseLost, AlreadySettled.
        """
        with self.lock:
            self._check_locked(attempt)
            attempt.state = State.CLAIMED
            return attempt.lane

    def unclaim(self, attempt: Attempt) -> bool:
        """That transaction did not commit; False: the handler has returned, so `resolve_left` must say what follows."""
        with self.lock:
            if attempt.state is State.CLAIMED and attempt.left:
                return False  # stays claimed, so that nobody else decides it before
            if attempt.state is State.CLAIMED:
                attempt.state = State.RUNNING
            return True

    def leave_claimed(self, attempt: Attempt, leave: Callable[[], None]) -> bool:
        """The handler has returned while another thread commits its message. False: that has been decided by now.

        The run ends with that decision, and nothing behind the message starts before.
        """
        with self.lock:
            if attempt.state is not State.CLAIMED:
                return False
            if attempt.run is not None:
                self._harvest_locked(attempt)
                attempt.lane.take_back([attempt.run])
            attempt.left = self.config.ack_policy is not AckPolicy.MANUAL  # else the user may settle it once more
            attempt.on_release = leave
            self.detached[attempt] = None
            self._after_change_locked(attempt.lane, time.monotonic())
        self.signals.wake_settler()
        return True

    def resolve_left(self, attempt: Attempt, outcome: Outcome) -> None:
        """What becomes of a message whose handler has returned and whose transaction did not commit."""
        now = time.monotonic()
        with self.lock:
            if attempt.state is not State.CLAIMED:
                return  # its lane was lost meanwhile
            attempt.state = State.RUNNING
            self._apply_locked(attempt, outcome, now)
            self._finish_detached_locked(attempt)
            self._after_change_locked(attempt.lane, now)
        self.signals.wake_settler()

    def claimed(self, attempt: Attempt, lane: Lane) -> bool:
        """That transaction did commit, while `lane` was the message's.

        False: the lane was loaded again meanwhile, perhaps from a server that lacks that commit. Nothing is decided.
        """
        with self.lock:
            if attempt.lane is not lane:
                return False
            self._harvest_locked(attempt)
            attempt.lane.succeeded(attempt, time.monotonic(), stored=True)
            self.counters.handled += 1
            self.counters.acked += 1
            self._finish_detached_locked(attempt)
            self._after_change_locked(attempt.lane, time.monotonic())
        self.signals.wake_settler()
        return True

    def _check_locked(self, attempt: Attempt, *, settling: bool = True) -> None:
        if attempt.state is State.SUPERSEDED or attempt.lane.lost:
            self.counters.refused += 1
            raise LeaseLost(
                f"attempt {attempt.number} at {self.topic}/{attempt.lane.key}/{attempt.offset} is not group "
                f"{self.group!r}'s any more: it timed out or its lane was lost; another attempt has taken its place"
            )
        # Under ACK_FIRST it was settled before its handler started.
        if attempt.state is not State.RUNNING or (settling and self.rules.ack_first):
            raise AlreadySettled(
                f"attempt {attempt.number} at {self.topic}/{attempt.lane.key}/{attempt.offset} is settled already"
            )

    def _apply_locked(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        lane, state = attempt.lane, attempt.state
        if outcome.verb is not Verb.ACK and lane.running.get(attempt.offset) is not attempt:
            return  # acked before its handler ran: there is nothing left to decide
        if outcome.verb is not Verb.ACK and lane.rules.strict and attempt.run is not None:
            lane.take_back([attempt.run])  # nothing of the key may start before this is through
        settled = State.SUPERSEDED if state is State.SUPERSEDED else State.SETTLED
        self.counters.handled += not attempt.expired
        if outcome.verb is Verb.ACK:
            lane.succeeded(attempt, now)
            self.counters.acked += 1
        elif outcome.verb is Verb.BURY and self.config.dead_letter_suffix is None:
            lane.succeeded(attempt, now, ended=outcome.ended, error=outcome.error)
            self._dropped.append((attempt, outcome.error or "", outcome.raised))
        elif outcome.verb is Verb.BURY:
            buried = State.SUPERSEDED if state is State.SUPERSEDED else State.BURYING
            failures = 0 if attempt.expired else attempt.number
            burial = lane.bury(attempt, failures, outcome.error or "", outcome.ended, buried)
            burial.raised = outcome.raised
            self.burials.append(burial)
        else:
            postponed = outcome.verb is Verb.POSTPONE
            due, error = now + outcome.wait, outcome.error
            lane.failed(attempt, due=due, error=error, state=settled, postponed=postponed, last=outcome.last)
            self._note_due_locked(due, lane)
            if postponed:
                self.counters.postponed += 1
            else:
                self.counters.retried += 1
