"""The side of a member for workers and users: start, outcome, explicit settlement, time-out, and a transaction's claim.

Owns every change of an attempt in their hands. Each attempt carries the term of its lane: key, epoch and generation.
When the lane of that term is gone, or was loaded again, the attempt settles nothing. Within one term, this memory alone
decides which attempt is still valid.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from attrs import define

from lanelog._base.text import summary
from lanelog._engine.lane.flush_waiter import FlushWaiter
from lanelog._engine.lane.run import Attempt, CallerAck, Run, State
from lanelog._engine.lane.values import ACKED, Outcome, Verb
from lanelog._engine.member.isolation import HOLD
from lanelog._engine.member.state import Side, step
from lanelog._facts.engine import worker as facts
from lanelog.config import AckPolicy
from lanelog.errors import AlreadySettled, LanelogError, LeaseLost

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lanelog._engine.lane.lane import Lane
    from lanelog._engine.lane.values import Term


REFUSED = "the delivery was given up or the lane lost"


@define(eq=False, repr=False)
class Attempts(Side):
    """What workers and users may do with a member. A method whose name ends in `_locked` is called under its lock."""

    hold_seconds: float = HOLD.first
    """The longest wait, in seconds, for the commit of a mark or of an outcome."""

    def may_start(self, term: Term, now: float) -> bool:
        """Whether a handler may start on this lane: a recent read-back says it is ours, and nothing holds it back."""
        lane = self.state.lane_of(term) if self.state.has_authority(now) else None
        return lane is not None and not (lane.state.closing or lane.state.paused)

    def detached(self) -> list[Attempt]:
        """The attempts in the users' hands: their messages were pulled, or are settled by hand."""
        return list(self.state.detached)

    def mark(self, run: Run, until: float | None = None) -> bool | None:
        """Let the next flush mark this late run, and wait for the commit. The caller has entered the isolation.

        True: the mark is committed. Before the handler, the caller must ask `may_start`: a thread may sleep there until
        the lane is lost, and the next owner has counted the attempt as a crash.

        False: the run must not start. It was taken back meanwhile, or its lane is lost. The refused flush marks
        nothing. A flush of unknown outcome is no commit: it is written again.

        None: the mark was not committed by `until` (monotonic), or within `hold_seconds`: a quarantined message of
        another client must not wait for a database that is away. The mark stays due, and a second call waits for it
        again. Only a quarantined message waits without limit: its row may say that it runs alone.
        """
        longest = self.hold_seconds if until is None else min(self.hold_seconds, max(0.0, until - time.monotonic()))
        patience = None if run.alone else longest
        waiter = self.ask_mark(run)
        try:
            return waiter is not None and (waiter.wait(patience) or None)
        except LanelogError:
            return False

    @step
    def ask_mark(self, run: Run, size: int | None = None) -> FlushWaiter | None:
        """Let the next flush mark this late run, without a wait. None: as False of `mark`.

        `size`: of a batch. The run is cut to it, or filled with what is ready.
        """
        if run.waiter is None:
            waiter, lane = FlushWaiter(), self.state.lane_of(run.term)
            if lane is not None and size is not None:
                lane.dispatch.fit(run, size, time.monotonic())
            if lane is None or not lane.dispatch.mark(run, waiter):
                return None
            run.waiter = waiter
            self.state.changed_locked(lane)
        return run.waiter

    def wait_written(self, run: Run) -> None:
        """Wait until the outcome of a quarantined message is committed, but not longer than `hold_seconds`.

        Until then its row says that it runs alone: if another one killed the process now, it would be dead-lettered.
        """
        waiter = self._wait_written(run)
        with suppress(LanelogError):
            if waiter is not None:
                waiter.wait(self.hold_seconds)

    @step
    def _wait_written(self, run: Run) -> FlushWaiter | None:
        lane = self.state.lane_of(run.term)
        if lane is None:
            return None
        waiter = FlushWaiter()
        lane.dispatch.wait_for(run.attempts, waiter)
        self.state.changed_locked(lane)
        return waiter

    def finish(
        self,
        run: Run,
        *,
        seconds: float | None = None,
        complete: bool = True,
        give_back: bool = False,
        together: int = 0,
    ) -> None:
        """Apply the outcomes of a run to its lane; what it has not begun goes back. `complete`: the worker is done.

        `give_back`: what it has begun and not decided goes back uncounted. A later settlement of it is refused.
        `together`: with how many others of a batch that comes again at most, see `Waiting`.
        """
        for attempt in self._finish(run, seconds, complete=complete, back=together if give_back else None):
            facts.settlement_refused(**self.state.about(attempt), why=REFUSED)

    @step
    def _finish(self, run: Run, seconds: float | None, *, complete: bool, back: int | None) -> list[Attempt]:
        """Returns the attempts whose settlement is refused."""
        lane = self.state.lane_of(run.term)
        outcomes = run.take_outcomes()
        if seconds is not None:
            self.state.rules.measured(run.started, seconds)
        _take_back(lane, run)
        if complete and lane is not None:
            lane.dispatch.finished(run)
        refused = self._apply_all_locked(lane, outcomes)
        if back is not None:
            for attempt in run.attempts:
                if attempt.state is State.CLAIMED:
                    self._leave_locked(attempt)
            undecided, now = [a for a in run.attempts if a.state is State.RUNNING and a.hung is None], time.monotonic()
            for attempt in undecided:
                attempt.together = back or attempt.together
                if lane is not None:
                    lane.dispatch.returned(attempt, now, body=attempt.row)  # so that nothing behind it goes before it
            self.state.supersede_locked(undecided)
        if complete:
            run.let_go()
        self.state.changed_locked(lane)
        return refused

    def relieve(self, run: Run) -> None:
        """A run takes long: settle its decided messages, and take back those that it has not begun.

        In concurrent order, other workers may take those that come back. In any order, a crash counts no attempt for
        them any more.
        """
        self.finish(run, complete=False)

    @step
    def settle(self, attempt: Attempt, outcome: Outcome) -> FlushWaiter:
        """Settle explicitly. The returned waiter resolves when that is committed. Raises LeaseLost, AlreadySettled."""
        lane = self.check_locked(attempt)
        waiter = FlushWaiter(self._release_later_locked(attempt))
        self._harvest_locked(lane, attempt)
        self.apply_locked(lane, attempt, outcome, time.monotonic())
        lane.dispatch.wait_for([attempt], waiter)
        self.state.finish_detached_locked(attempt)
        self.state.changed_locked(lane)
        return waiter

    def _release_later_locked(self, attempt: Attempt) -> Callable[[], None] | None:
        """The release of a quarantined message in the user's hands. It is due when the settlement is committed.

        `wait_written` says why it waits so long.
        """
        if attempt not in self.state.detached or attempt.run is None or not attempt.run.alone:
            return None
        release, attempt.on_release = attempt.on_release, None
        return release

    @step
    def detach(self, attempt: Attempt, leave: Callable[[], None]) -> bool:
        """Give the message to the user: its run ends when the user settles it. False when it is settled already."""
        if attempt.state is not State.RUNNING:
            return False
        attempt.on_release = leave
        self.state.detached[attempt] = None
        return True

    @step
    def give_up(self, attempt: Attempt, outcome: Outcome) -> bool:
        """The delivery timed out: supersede the attempt and apply `outcome`.

        False when it was settled just now, or when its process ends because of it.
        """
        if attempt.state is not State.RUNNING or attempt.hung is not None:
            return False
        lane, run = self.state.lane_of(attempt.term), attempt.run
        if run is not None:
            _take_back(lane, run)
            if lane is not None:
                lane.dispatch.finished(run)
            self._harvest_locked(lane, attempt)
        attempt.move(State.SUPERSEDED)
        self.state.counters.timed_out += 1
        why = summary(outcome.error)
        facts.attempt_timed_out(self.state.signals.notices, **self.state.about(attempt), error=why)
        self.apply_locked(lane, attempt, outcome, time.monotonic())
        self.state.finish_detached_locked(attempt)
        self.state.changed_locked(lane)
        return True

    def _harvest_locked(self, lane: Lane | None, attempt: Attempt) -> None:
        """Apply the earlier outcomes of the same run: the watermark then passes them without rows of their own."""
        if attempt.run is None:
            return
        for other, decided in attempt.run.take_outcomes():
            if other.state is State.RUNNING and other is not attempt:
                self.apply_locked(lane, other, decided, time.monotonic())
            elif other.state is State.CLAIMED:
                self._leave_locked(other)

    def _leave_locked(self, attempt: Attempt) -> None:
        """Another thread has claimed a message just when the worker recorded its outcome: that thread decides."""
        attempt.left = self.state.config.ack_policy is not AckPolicy.MANUAL  # else the user may settle it once more
        self.state.detached[attempt] = None
        self.state.effects.needs.add(self.state.signals.wake_settler)

    @step
    def check(self, attempt: Attempt, *, settling: bool = True) -> None:
        """Raise LeaseLost or AlreadySettled unless the handler still has the attempt.

        `settling`: the handler is about to settle it, which under ACK_FIRST is already done.
        """
        self.check_locked(attempt, settling=settling)

    @step
    def claim(self, attempt: Attempt) -> Term:
        """Reserve the settlement for a transaction that is about to commit it, and return the lane's present term.

        Raises LeaseLost, AlreadySettled.
        """
        self.check_locked(attempt)
        attempt.move(State.CLAIMED)
        return attempt.term

    @step
    def unclaim(self, attempt: Attempt, *, ack: CallerAck | None = None) -> bool:
        """The transaction of `claim` did not commit. False: the handler has returned, so `resolve_left` must follow.

        `ack`: the one in a caller's transaction that was asked about. If it is another one by now, nothing happens.
        """
        if ack is not None and attempt.ack is not ack:
            return True
        if attempt.state is State.CLAIMED and attempt.left:
            return False  # it stays claimed, so that no other thread decides it before
        attempt.ack = None
        if attempt.state is State.CLAIMED:
            attempt.move(State.RUNNING)
        return True

    @step
    def leave_claimed(self, attempt: Attempt, leave: Callable[[], None]) -> bool:
        """The handler has returned while another thread commits its message. False: that thread has decided by now.

        The run ends with that decision. No later message of the run starts before it.
        """
        if attempt.state is not State.CLAIMED:
            return False
        lane = self.state.lane_of(attempt.term)
        if attempt.run is not None:
            self._harvest_locked(lane, attempt)
            _take_back(lane, attempt.run)
        self._leave_locked(attempt)
        if attempt.ack is None or (attempt.run is not None and attempt.run.alone):
            attempt.on_release = leave
        else:
            leave()  # its caller may take long, and no handler runs
        self.state.changed_locked(lane)
        return True

    @step
    def resolve_left(self, attempt: Attempt, outcome: Outcome) -> None:
        """Apply the outcome of a message whose handler has returned and whose transaction did not commit."""
        if attempt.state is not State.CLAIMED:
            return  # its lane was lost meanwhile
        attempt.ack = None
        attempt.move(State.RUNNING)
        lane = self.state.lane_of(attempt.term)
        self.apply_locked(lane, attempt, outcome, time.monotonic())
        self.state.finish_detached_locked(attempt)
        self.state.changed_locked(lane)

    @step
    def claimed(self, attempt: Attempt, term: Term, *, ack: CallerAck | None = None) -> bool:
        """The transaction of `claim` committed, while the lane was loaded under `term`. `ack`: as in `unclaim`.

        False: the lane was loaded again meanwhile, perhaps from a server that lacks the commit. Nothing is decided.
        """
        if attempt.term != term or (ack is not None and attempt.ack is not ack):
            return False
        attempt.ack = None
        lane = self.state.lane_of(term)
        self._harvest_locked(lane, attempt)
        if lane is not None:
            lane.dispatch.succeeded(attempt, time.monotonic(), stored=True)
        self.state.counters.handled += 1
        self.state.counters.acked += 1
        self.state.finish_detached_locked(attempt)
        self.state.changed_locked(lane)
        return True

    def check_locked(self, attempt: Attempt, *, settling: bool = True) -> Lane:
        """See `check`."""
        lane = self.state.lane_of(attempt.term)
        if attempt.state is State.SUPERSEDED or lane is None:
            self.state.counters.refused += 1
            raise LeaseLost(
                f"{_which(self.state.at.topic, attempt)} is not group {self.state.at.group!r}'s any more: it timed out "
                "or its lane was lost; another attempt has replaced it"
            )
        # Under ACK_FIRST it was settled before its handler started.
        if attempt.state is not State.RUNNING or (settling and self.state.rules.ack_first):
            raise AlreadySettled(f"{_which(self.state.at.topic, attempt)} is settled already")
        return lane

    def _apply_all_locked(self, lane: Lane | None, outcomes: Sequence[tuple[Attempt, Outcome]]) -> list[Attempt]:
        """Apply what a worker has recorded. Returns the attempts whose settlement is refused."""
        refused: list[Attempt] = []
        if lane is None or not self._acked_together_locked(lane, outcomes):
            now = time.monotonic()  # what failed together is due together
            for attempt, outcome in outcomes:
                if attempt.state is State.RUNNING:
                    self.apply_locked(lane, attempt, outcome, now)
                elif attempt.state is State.CLAIMED:
                    self._leave_locked(attempt)
                elif attempt.state is State.SUPERSEDED:
                    self.state.counters.refused += 1
                    refused.append(attempt)
        return refused

    def _acked_together_locked(self, lane: Lane, outcomes: Sequence[tuple[Attempt, Outcome]]) -> bool:
        """Apply the outcomes at once if all are acks in order, as nearly always. False: nothing was done."""
        for attempt, outcome in outcomes:
            if outcome is not ACKED or attempt.state is not State.RUNNING:
                return False
        if not outcomes or not lane.dispatch.succeeded_in_order([attempt for attempt, _ in outcomes]):
            return False
        self.state.counters.handled += len(outcomes)  # none has expired: an expired message is buried, not acked
        self.state.counters.acked += len(outcomes)
        return True

    def apply_locked(self, lane: Lane | None, attempt: Attempt, outcome: Outcome, now: float) -> None:
        """Apply an outcome. `lane` None: it is gone, and only an ack can still be counted."""
        if lane is None:
            if outcome.verb is Verb.ACK:
                self.state.counters.handled += not attempt.expired
                self.state.counters.acked += 1
                attempt.move(State.SETTLED)
            return
        if outcome.verb is not Verb.ACK and lane.state.running.get(attempt.offset) is not attempt:
            return  # acked before its handler ran: there is nothing left to decide
        if outcome.verb is not Verb.ACK and self.state.rules.strict and attempt.run is not None:
            lane.dispatch.take_back([attempt.run])  # no later message of the lane may start before this one is settled
        self.state.counters.handled += not attempt.expired
        if outcome.verb is Verb.ACK:
            lane.dispatch.succeeded(attempt, now)
            self.state.counters.acked += 1
        elif outcome.verb is Verb.BURY and self.state.config.dead_letter_suffix is None:
            lane.dispatch.succeeded(attempt, now, ended=outcome.ended, error=outcome.error)
            self.state.drop_locked(attempt, outcome.error or "", outcome.raised)
        elif outcome.verb is Verb.BURY:
            failures = 0 if attempt.expired else attempt.number
            dead_letter = lane.dispatch.bury(attempt, failures, outcome.error or "", outcome.ended)
            dead_letter.raised = outcome.raised
            self.state.bury_locked(dead_letter)
        else:
            postponed = outcome.verb is Verb.POSTPONE
            due, error, last = now + outcome.wait, outcome.error, outcome.next_is_last
            lane.dispatch.failed(attempt, due=due, error=error, postponed=postponed, next_is_last=last)
            self.state.note_due_locked(due, lane)
            if postponed:
                self.state.counters.postponed += 1
            else:
                self.state.counters.retried += 1
                why = summary(error)
                facts.attempt_retried(self.state.signals.notices, **self.state.about(attempt), error=why)


def _which(topic: str, attempt: Attempt) -> str:
    return f"attempt {attempt.number} at {topic}/{attempt.term.key}/{attempt.offset}"


def _take_back(lane: Lane | None, run: Run) -> None:
    """Return the unstarted messages of a run to its lane, if the lane is still there."""
    if lane is None:
        run.recall()
    else:
        lane.dispatch.take_back([run])
