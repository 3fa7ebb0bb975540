"""What of a lane goes out next, what comes back unstarted, and what an outcome changes.

Owns the rules of the three orders and of redelivery; never fetches and never loads (`Lane`, its subclass). Pure, like
`Lane`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from lanelog._engine.lane.pending_writes import Ledger
from lanelog._engine.lane.policy import own_cap
from lanelog._engine.lane.run import Attempt, Run, State
from lanelog._engine.lane.values import CRASHED, EXPIRED, Burial, Waiting
from lanelog._stores.history import Ended

if TYPE_CHECKING:
    from lanelog._engine.lane.flush_waiter import FlushWaiter
    from lanelog._engine.lane.lane import Lane
    from lanelog._stores.fetches import Fetched


class Handout(Ledger):
    """The middle of a lane: between what was fetched and what is to be flushed."""

    @property
    def _lane(self) -> Lane:
        return cast("Lane", self)

    def plan(self, now: float) -> Run | Burial | None:
        """Decide what goes out next, if anything.

        A late run may go to the workers at once: who takes it calls `mark`. Any other is marked by the next flush, and
        goes to them when that has committed (`written`).
        """
        if self.closing or self.paused or self.lost or self.adopting:
            return None
        if self.full:
            return None
        again = self._plan_again(now)
        if again is not None:
            return again
        size = self.rules.run_size()
        # In strict order a waiting message holds back everything behind it.
        barrier = min(self.waiting) if self.rules.strict and self.waiting else None
        attempts: list[Attempt] = []
        while self.ready and len(attempts) < size and (barrier is None or self.ready[0].offset < barrier):
            attempt = Attempt(self._lane, self.ready[0], 1, None)
            if attempt.row.start_by is not None and attempt.overdue(now):
                if not attempts:
                    self.ready.popleft()
                    return self._expire(attempt)
                break  # it comes next, when those before it are out
            self.ready.popleft()
            attempts.append(attempt)
        if not attempts:
            return None
        return self._send_out(Run(self._lane, attempts, first=True, late=self.rules.marks_late()), now)

    def _expire(self, attempt: Attempt) -> Burial:
        """To the dead letters without a mark.

        A crash before that is committed may count it as handed out, if a mark above it was set meanwhile: it is
        delivered again then, however late, as everything is that a crash may have interrupted.
        """
        attempt.expired = True
        self.running[attempt.offset] = attempt
        return self.bury(attempt, 0, EXPIRED, Ended.EXPIRED)

    @property
    def full(self) -> bool:
        """Whether as much of it is out as may be at once: what is read for it now could not go out."""
        return self._runs_out() >= self.rules.concurrency or len(self.running) > self._running_limit()

    def _runs_out(self) -> int:
        # A run whose mark is being written is in neither list, but workers have it as soon as that commits.
        being_marked = () if self.writing is None else self.writing.runs
        return len(self.runs) + len(self._pending) + sum(1 for run in being_marked if run.attempts and not run.recalled)

    def _running_limit(self) -> int:
        # strict and serial: nothing may be out at all, not even on its way to the dead letters
        return 0 if self.rules.concurrency == 1 else 1_000_000

    def _plan_again(self, now: float) -> Run | Burial | None:
        for offset in sorted(self.waiting):
            if self.rules.strict and self.ready and self.ready[0].offset < offset:
                return None
            wait = self.waiting[offset]
            if wait.due <= now and wait.body is None:
                self.needs_payload = True
            elif wait.due <= now and offset <= self.cursor:
                return self._redeliver(offset, wait, now)
            if self.rules.strict:
                return None
        return None

    def _redeliver(self, offset: int, wait: Waiting, now: float) -> Run | Burial:
        row = wait.body
        assert row is not None  # noqa: S101 - the caller checked; narrows the type
        del self.waiting[offset]
        number = wait.attempts + 1
        own = own_cap(row)  # unknown when the rest was asked: only the message itself says it
        limit = min((cap for cap in (self.rules.max_deliveries, own) if cap is not None), default=None)
        spent = wait.spent or (own is not None and wait.attempts >= own)
        last = wait.last or (own is not None and number >= own)
        endless = bool(row.original_topic)  # a dead letter is retried without limit
        attempt = Attempt(
            self._lane, row, number, wait.first_started, wait.crashed, wait.postponed, last, wait.released
        )
        attempt.last_error = wait.last_error
        if attempt.overdue(now):  # it was handed out and came back without a start
            return self._expire(attempt)
        capped = limit is not None and number > limit and not (wait.crashed or wait.released)
        if not endless and (capped or (wait.died_alone and spent)):
            self.running[offset] = attempt
            ended = Ended.FAILED if capped else Ended.LOCK_EXPIRED
            return self.bury(attempt, wait.attempts, wait.last_error or CRASHED, ended)
        alone = wait.crashed and last and not endless and not self.rules.ack_first
        # Late, so that a second crash counts only what really ran, however fast the handler is. And `alone` in the
        # database must never be true of one that still waits for the others to end.
        late = not self.rules.ack_first and (wait.crashed or self.rules.marks_late())
        return self._send_out(Run(self._lane, [attempt], first=False, late=late, alone=alone), now)

    def mark(self, run: Run, waiter: FlushWaiter) -> bool:
        """A worker has taken this late run: its mark is due, and `waiter` tells when it is committed.

        False when the run was taken back meanwhile. From here on a crash may count it, if its handler starts or not:
        a process that dies before the flush has committed counts nothing, one that dies behind it counts the attempt of
        a message that a worker had in its hands, and of no other.
        """
        if self.lost or not run.attempts:
            return False
        run.marked = True
        self._write_rows_of(run)
        self.waiters.append(waiter)
        return True

    def _write_rows_of(self, run: Run) -> None:
        if not run.first:  # else the run mark covers it: see `Ledger._handed`
            self._dirty.update(attempt.offset for attempt in run.attempts)

    def _send_out(self, run: Run, now: float) -> Run:
        for attempt in run.attempts:
            self.running[attempt.offset] = attempt
        if run.late:
            self.runs.append(run)
            return run
        self._write_rows_of(run)
        self._pending.append(run)
        if self.rules.ack_first:
            for attempt in list(run.attempts):
                self.succeeded(attempt, now)
        return run

    def recall(self) -> None:
        """Take back whatever no handler has seen, and undo its marks with the next flush."""
        if self.rules.ack_first:
            return  # acked before the handler: what is out must run, or it is lost
        being_marked = [] if self.writing is None else self.writing.runs
        self.take_back([*self.runs, *self._pending, *being_marked])

    def take_back(self, runs: list[Run]) -> None:
        """Take back the unstarted rest of these runs."""
        returned: list[Fetched] = []
        for run in runs:
            for attempt in run.recall():
                if self.running.pop(attempt.offset, None) is None:
                    continue
                if run.first:
                    returned.append(attempt.row)
                else:
                    self._wait_again(attempt)
        self._pending = [run for run in self._pending if run.attempts]
        self.runs = [run for run in self.runs if run.attempts]  # whoever finds an empty one in the queue passes it
        if not returned:
            return
        # What is ready lies behind all that is out, be it marked or not: the lane reads on from its first.
        handed = max(self._handed(), *(run.last_offset for run in self.runs if run.first), 0)
        for row in returned:
            if row.offset < handed:  # the run mark, which cannot be lowered, may cover it: a row that counts nothing
                self.waiting[row.offset] = Waiting(0, 0.0, None, body=row, id=row.id)
                self._dirty.add(row.offset)
        kept = sorted((row for row in returned if row.offset >= handed), key=lambda row: row.offset)
        self.ready.extendleft(reversed(kept))

    def _wait_again(self, attempt: Attempt) -> None:
        self.waiting[attempt.offset] = Waiting(
            attempt.number - 1,
            0.0,
            attempt.first_started,
            attempt.crashed,
            last=attempt.last,
            postponed=attempt.postponed,
            last_error=attempt.last_error,
            released=attempt.released,
            body=attempt.row,
            id=attempt.row.id,
        )
        self._dirty.add(attempt.offset)

    def finished(self, run: Run) -> None:
        """A worker is done with a run, whether or not it started all of it."""
        if run in self.runs:
            self.runs.remove(run)
        if run.first:
            self._started_top = max(self._started_top, run.last_offset)

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
        """Settle a message; `ended` and `error`: otherwise than by an ack, for want of dead letters.

        `stored`: its acked row is already committed (by a transaction of its own), and with it its history.
        """
        if attempt.state is not State.SUPERSEDED:
            attempt.state = State.SETTLED
        if self.running.pop(attempt.offset, None) is None:
            return
        self.burials.pop(attempt.offset, None)
        self.budget.give(attempt.row)
        if stored:
            self._stored.add(attempt.offset)
            self._durable.add(attempt.offset)
        elif self.rules.history:
            self.left.append(attempt.left_as(ended, error or attempt.last_error, now))
        self._settle(attempt.offset, attempt.row.id)

    def failed(
        self,
        attempt: Attempt,
        *,
        due: float,
        error: str | None,
        state: State = State.SETTLED,
        postponed: bool = False,
        last: bool = False,
    ) -> None:
        """Keep a message for another attempt; `postponed`: it starts again as attempt 1; `last`: as in `Waiting`."""
        attempt.state = state
        if self.running.pop(attempt.offset, None) is None:
            return
        self.budget.give(attempt.row)
        self.waiting[attempt.offset] = Waiting(
            attempts=0 if postponed else attempt.number,
            due=due,
            first_started=None if postponed else attempt.first_started,
            crashed=attempt.crashed and not postponed,
            last=last and not postponed,
            postponed=attempt.postponed + 1 if postponed else attempt.postponed,
            last_error=error,
            id=attempt.row.id,
        )
        self._dirty.add(attempt.offset)
        if self.rules.strict:
            self.drop_ready()  # it would only take room while the lane is held back

    def returned(self, attempt: Attempt, now: float) -> None:
        """A message that was handed out but not tried: its attempt does not count."""
        if self.running.pop(attempt.offset, None) is None:
            return
        self.budget.give(attempt.row)
        self.waiting[attempt.offset] = Waiting(
            attempt.number - 1,
            now,
            attempt.first_started,
            attempt.crashed,
            last=attempt.last,
            postponed=attempt.postponed,
            last_error=attempt.last_error,
            released=attempt.released,
            id=attempt.row.id,
        )
        self._dirty.add(attempt.offset)

    def bury(self, attempt: Attempt, failures: int, error: str, ended: Ended, state: State = State.BURYING) -> Burial:
        """Hand a message to the dead letters; it stays out until that transaction is known.

        `failures`: attempts that were made. One that is refused before its handler has begun is none of them, and
        whoever hears of it (the hook, the history, the log) is told of those that were.
        """
        attempt.state, attempt.number = state, failures
        burial = Burial(self._lane, attempt.offset, failures, error, ended, attempt, attempt.row)
        self.burials[attempt.offset] = burial
        return burial

    def drop_bodies(self) -> None:
        """Forget the payloads of what waits; each is read again when it is due and nothing holds it back."""
        for wait in self.waiting.values():
            if wait.body is not None:
                self.budget.give(wait.body)
                wait.body = None

    def drop_ready(self) -> None:
        """Forget what was fetched and not handed out; it is fetched again later."""
        if not self.ready:
            return
        self.cursor = self.ready[0].offset - 1
        for row in self.ready:
            self.budget.give(row)
        self.ready.clear()
