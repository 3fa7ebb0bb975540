"""The next messages to go out of a lane, those that have expired, returned ones, and the effect of outcomes.

Owns the rules of the three orders and of redelivery. `quarantine` decides about messages that met a crash. Never
fetches and never loads. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define

from lanelog._engine.lane import quarantine
from lanelog._engine.lane.policy import own_cap
from lanelog._engine.lane.run import Attempt, Run, State, settled
from lanelog._engine.lane.values import CRASHED, Waiting
from lanelog._engine.lane.writes import DeadLetterWrite
from lanelog._log.bury import EXPIRED
from lanelog._stores.consumers.history import Ended

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._engine.lane.flush_waiter import FlushWaiter
    from lanelog._engine.lane.progress import Progress
    from lanelog._engine.lane.state import LaneState
    from lanelog._stores.log.fetches import Fetched


@define(eq=False, repr=False)
class Dispatcher:
    """Decides which messages of one lane may go out now, and applies outcomes to it."""

    state: LaneState
    progress: Progress

    def plan(self, now: float) -> Run | DeadLetterWrite | None:
        """The next run of this lane, or dead letter to write, if there is one.

        A late run may go to the workers at once: the worker that takes it calls `mark`. The next flush marks any other
        run. That run goes to the workers after the commit (`Progress.written`).
        """
        if not (self.state.ready or self.state.waiting) or self.state.held_back or self.full:
            return None
        again = self._plan_again(now)
        if again is not None:
            return again
        if self.state.rules.batch is not None and self.state.gathers(now):
            return None
        attempts = self._take_ready(self.state.rules.run_size(), now)
        if attempts and attempts[0].expired:
            return self._expire(attempts[0])
        if not attempts:
            return None
        return self._send_out(Run(self.state.term, attempts, first=True, late=self.state.rules.marks_late()), now)

    def _take_ready(self, size: int, now: float) -> list[Attempt]:
        """Take the next messages that are ready, `size` at most. A single one that has expired stands alone."""
        # In strict order a waiting message holds back everything after it.
        barrier = min(self.state.waiting) if self.state.rules.strict and self.state.waiting else None
        term, ready = self.state.term, self.state.ready
        attempts: list[Attempt] = []
        for row in ready[:size]:
            if barrier is not None and row.offset >= barrier:
                break
            attempt = Attempt(term, row, 1, None)
            if row.start_by is not None and attempt.overdue(now):
                if not attempts:
                    attempt.expired = True
                    attempts.append(attempt)
                break  # the next plan expires it, after the messages before it are out
            attempts.append(attempt)
        self.state.taken(len(attempts), now)
        return attempts

    def fit(self, run: Run, size: int, now: float) -> None:
        """Make a batch's run that no worker has begun and nothing has marked as long as it may be: cut it, or fill it.

        It is filled only if what is ready follows it. A message that has expired meanwhile is left to the next plan.
        """
        if run.recalled or not run.attempts or run not in self.state.runs:
            return
        self._make_ready(self._take_out(run, run.cut(size)))
        last = max((other.last_offset for other in self.state.runs), default=0)
        ready = self.state.ready
        if not run.first or run.last_offset != last or self.state.held_back:
            return
        if ready and not (ready[0].start_by is not None and now >= ready[0].start_by):
            more = self._take_ready(size - len(run.attempts), now)
            run.extend(more)
            self.state.running.update([(attempt.offset, attempt) for attempt in more])

    def _expire(self, attempt: Attempt) -> DeadLetterWrite:
        """Send an expired message to the dead letters, without a mark.

        A run mark above it may be written before the dead letter is committed. A crash between the two counts the
        message as handed out. Then it is delivered again, however late it is.
        """
        attempt.expired = True
        self.state.running[attempt.offset] = attempt
        return self.bury(attempt, 0, EXPIRED, Ended.EXPIRED)

    @property
    def full(self) -> bool:
        """Whether as many runs are out as may be at once. Rows that are read for it now could not go out."""
        return self._runs_out() >= self.state.rules.concurrency or len(self.state.running) > self._running_limit()

    def _runs_out(self) -> int:
        # A run whose mark is being written stands in neither list. Workers get it when that commits.
        being_marked = () if self.progress.writing is None else self.progress.writing.runs
        return (
            len(self.state.runs)
            + len(self.progress.runs)
            + sum(1 for run in being_marked if run.attempts and not run.recalled)
        )

    def _running_limit(self) -> int:
        # With a concurrency of 1, nothing else may be out, not even a message on its way to the dead letters.
        return 0 if self.state.rules.concurrency == 1 else 1_000_000

    def _plan_again(self, now: float) -> Run | DeadLetterWrite | None:
        for offset in sorted(self.state.waiting):
            if self.state.rules.strict and self.state.ready and self.state.ready[0].offset < offset:
                return None
            wait = self.state.waiting[offset]
            if wait.due <= now and wait.body is None:
                self.state.needs_payload = True
            elif wait.due <= now and offset <= self.state.cursor:
                attempts = _due_together(self.state, offset, now) if self.state.rules.batch is not None else []
                if len(attempts) < 2:  # noqa: PLR2004 - one alone needs nothing of this
                    return self._redeliver(offset, wait, now)
                for attempt in attempts:
                    del self.state.waiting[attempt.offset]
                return self._send_out(Run(self.state.term, attempts, first=False, late=True), now)
            if self.state.rules.strict:
                return None
        return None

    def _redeliver(self, offset: int, wait: Waiting, now: float) -> Run | DeadLetterWrite:
        row = wait.body
        assert row is not None  # noqa: S101 - the caller checked; narrows the type
        del self.state.waiting[offset]
        number = wait.attempts + 1
        own = own_cap(row)  # only the message's own metadata has it, so `Lane.load` did not know it
        limit = min((cap for cap in (self.state.rules.max_deliveries, own) if cap is not None), default=None)
        endless = bool(row.original_topic)  # a dead letter is retried without limit
        verdict = quarantine.judge_again(wait, own, endless=endless, ack_first=self.state.rules.ack_first)
        attempt = Attempt(
            self.state.term,
            row,
            number,
            wait.first_started,
            wait.crashed,
            wait.postponed,
            verdict.next_is_last,
            wait.released,
        )
        attempt.last_error, attempt.together = wait.last_error, wait.together
        if attempt.overdue(now):  # it was handed out, and no handler began
            return self._expire(attempt)
        capped = limit is not None and number > limit and not (wait.crashed or wait.released)
        if verdict.caused_crash or (capped and not endless):
            self.state.running[offset] = attempt
            ended = Ended.FAILED if capped else Ended.LOCK_EXPIRED
            return self.bury(attempt, wait.attempts, wait.last_error or CRASHED, ended)
        # A run after a crash is late even if the handler is fast, so that a second crash counts only messages that
        # really ran. And the database must not say `alone` while the message still waits for others to end.
        late = not self.state.rules.ack_first and (wait.crashed or self.state.rules.marks_late())
        return self._send_out(Run(self.state.term, [attempt], first=False, late=late, alone=verdict.alone), now)

    def mark(self, run: Run, waiter: FlushWaiter) -> bool:
        """A worker has taken this late run: let the next flush mark it, and resolve `waiter` with the commit.

        False when the lane is lost, or the run was taken back meanwhile. A process that dies before the commit counts
        nothing. A process that dies after the commit counts the attempt, whether or not the handler has started.
        """
        if self.state.lost or not run.attempts:
            return False
        run.marked = True
        self._write_rows_of(run)
        self.progress.waiters += (waiter,)
        return True

    def _write_rows_of(self, run: Run) -> None:
        if not run.first:  # the run mark covers first deliveries: see `Progress.handed`
            self.progress.dirty.update(dict.fromkeys(attempt.offset for attempt in run.attempts))

    def _send_out(self, run: Run, now: float) -> Run:
        self.state.running.update([(attempt.row.offset, attempt) for attempt in run.attempts])
        if run.late:
            self.state.runs += (run,)
            return run
        self._write_rows_of(run)
        self.progress.runs += (run,)
        if self.state.rules.ack_first:
            for attempt in list(run.attempts):
                self.succeeded(attempt, now)
        return run

    def recall(self) -> None:
        """Take back every message that no handler has seen. The next flush undoes their marks."""
        if self.state.rules.ack_first:
            return  # these messages are acked already: they must run, or they are lost
        being_marked = () if self.progress.writing is None else self.progress.writing.runs
        self.take_back([*self.state.runs, *self.progress.runs, *being_marked])

    def take_back(self, runs: list[Run]) -> None:
        """Take back the unstarted rest of these runs."""
        returned: list[Fetched] = []
        begun = True
        for run in runs:
            rest = run.recall()
            begun = begun and not rest and bool(run.attempts)
            returned += self._take_out(run, rest)
        if begun:  # nothing has changed
            return
        self.progress.runs = tuple(run for run in self.progress.runs if run.attempts)
        # A worker that finds an empty run in the queue skips it.
        self.state.runs = tuple(run for run in self.state.runs if run.attempts)
        self._make_ready(returned)

    def _take_out(self, run: Run, rest: Sequence[Attempt]) -> list[Fetched]:
        """Take attempts of a run that no handler has seen out of `running`. Returns the rows of first deliveries."""
        returned: list[Fetched] = []
        for attempt in rest:
            if self.state.running.pop(attempt.offset, None) is None:
                continue
            if run.first:
                returned.append(attempt.row)
            else:
                self._wait_again(attempt, 0.0, attempt.row)
        return returned

    def _make_ready(self, returned: Sequence[Fetched]) -> None:
        if not returned:
            return
        # Every ready message lies above every first delivery that is out, because the lane reads on from the first one.
        handed = max(self.progress.handed(), *(run.last_offset for run in self.state.runs if run.first), 0)
        for row in returned:
            if row.offset < handed:  # the run mark may cover it and cannot be lowered, so a row must say: no attempt
                self.state.waiting[row.offset] = Waiting(0, 0.0, None, body=row, id=row.id)
                self.progress.dirty[row.offset] = None
        kept = sorted((row for row in returned if row.offset >= handed), key=lambda row: row.offset)
        self.state.ready[:0] = kept

    def _wait_again(self, attempt: Attempt, due: float, body: Fetched | None) -> None:
        self.state.waiting[attempt.offset] = Waiting(
            attempt.number - 1,
            due,
            attempt.first_started,
            attempt.crashed,
            next_is_last=attempt.last,
            postponed=attempt.postponed,
            last_error=attempt.last_error,
            released=attempt.released,
            together=attempt.together,
            body=body,
            id=attempt.row.id,
        )
        self.progress.dirty[attempt.offset] = None

    def wait_for(self, attempts: Sequence[Attempt], waiter: FlushWaiter) -> None:
        """Resolve `waiter` with the dead letter of one of these attempts, or with the next flush."""
        buried = [self.state.dead_letters[a.offset] for a in attempts if a.offset in self.state.dead_letters]
        holder = buried[0] if buried else self.progress
        holder.waiters += (waiter,)

    def finished(self, run: Run) -> None:
        """A worker is done with a run, whether or not it started all its messages."""
        if run in self.state.runs:
            self.state.runs = tuple(other for other in self.state.runs if other is not run)
        if run.first:
            self.state.started_top = max(self.state.started_top, run.last_offset)

    # -- outcomes ------------------------------------------------------------------------------------------------------

    def succeeded(
        self,
        attempt: Attempt,
        now: float,
        *,
        stored: bool = False,
        ended: Ended = Ended.SUCCESS,
        error: str | None = None,
    ) -> None:
        """Settle a message. `ended` and `error` say why, when a message is given up and there are no dead letters.

        `stored`: a transaction of its own has committed its settlement and its history.
        """
        attempt.move(State.SETTLED)
        if self.state.running.pop(attempt.offset, None) is None:
            return
        self.state.dead_letters.pop(attempt.offset, None)
        self.state.budget.give(attempt.row)
        if stored:
            self.progress.stored[attempt.offset] = None
            self.progress.durable[attempt.offset] = None
        elif self.state.rules.history:
            self.progress.left += (attempt.left_as(ended, error or attempt.last_error, now),)
        self.progress.settle(attempt.offset, attempt.row.id)

    def succeeded_in_order(self, attempts: Sequence[Attempt]) -> bool:
        """Settle running messages at once, if each follows the one before and the first follows the watermark.

        The effect is that of `succeeded` for each. False: something stands in the way, and nothing was done.
        """
        state, running = self.state, self.state.running
        first = attempts[0].row.offset
        if state.rules.history or first != state.watermark + 1:
            return False
        for offset, attempt in enumerate(attempts, first):
            if running.get(offset) is not attempt:
                return False
        rows = settled(attempts)
        for row in rows:
            del running[row.offset]
        state.budget.give(*rows)
        self.progress.settle_in_order(rows)
        return True

    def failed(
        self,
        attempt: Attempt,
        *,
        due: float,
        error: str | None,
        postponed: bool = False,
        next_is_last: bool = False,
    ) -> None:
        """Keep a message for another attempt. `postponed`: it starts again as attempt 1."""
        attempt.move(State.SETTLED)
        if self.state.running.pop(attempt.offset, None) is None:
            return
        self.state.budget.give(attempt.row)
        self.state.waiting[attempt.offset] = Waiting(
            attempts=0 if postponed else attempt.number,
            due=due,
            first_started=None if postponed else attempt.first_started,
            crashed=attempt.crashed and not postponed,
            next_is_last=next_is_last and not postponed,
            postponed=attempt.postponed + 1 if postponed else attempt.postponed,
            last_error=error,
            id=attempt.row.id,
        )
        self.progress.dirty[attempt.offset] = None
        if self.state.rules.strict:
            self.state.drop_ready()  # these rows would only take room while the lane waits

    def hung(self, attempt: Attempt, why: str) -> None:
        """Let the row of a running message say why its process ends. The next owner counts a crash."""
        attempt.hung = why
        self.progress.dirty[attempt.offset] = None

    def returned(self, attempt: Attempt, now: float, *, body: Fetched | None = None) -> None:
        """Take back a message that was handed out. Its attempt does not count, even if a handler has begun.

        `body`: keep it, so that the message goes out again at once.
        """
        if self.state.running.pop(attempt.offset, None) is not None:
            self.state.budget.give(*([] if body else [attempt.row]))
            self._wait_again(attempt, now, body)

    def bury(self, attempt: Attempt, failures: int, error: str, ended: Ended) -> DeadLetterWrite:
        """Send a message to the dead letters. It stays in `running` until the outcome of that transaction is known.

        `failures`: the attempts whose handler began. The hook, the history and the log get this number.
        """
        attempt.move(State.BURYING)
        attempt.number = failures
        dead_letter = DeadLetterWrite(self.state.term, attempt.offset, failures, error, ended, attempt, attempt.row)
        self.state.dead_letters[attempt.offset] = dead_letter
        return dead_letter


def _due_together(state: LaneState, first: int, now: float) -> list[Attempt]:
    """The messages from an offset on that are due again and go together, for a handler that gets several at once.

    What met a crash goes alone, and so does what has its own rules. Strict order lets none pass another.
    """
    attempts: list[Attempt] = []
    most = state.rules.batch.size if state.rules.batch else 0
    for offset in sorted(offset for offset in state.waiting if offset >= first):
        wait = state.waiting[offset]
        most = min(most, wait.together or most)
        blocked = state.rules.strict and state.ready and state.ready[0].offset < offset
        if len(attempts) >= most or blocked:
            break
        alone = wait.crashed or wait.died_alone or wait.released or wait.next_is_last
        row = wait.body
        if row is None or row.special is not None or alone or wait.due > now or offset > state.cursor:
            if state.rules.strict or offset == first:
                break
            continue
        attempt = Attempt(state.term, row, wait.attempts + 1, wait.first_started, postponed=wait.postponed)
        attempt.together, attempt.last_error = wait.together, wait.last_error
        if attempt.overdue(now) or attempt.number > (state.rules.max_deliveries or attempt.number):
            break
        attempts.append(attempt)
    return attempts
