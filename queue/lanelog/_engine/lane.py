"""One leased lane in memory: what is settled, what is out, what waits, and what the next flush has to write.

A pure state machine: it owns the arithmetic of watermark, cursor, marks and rows; it never does I/O, takes a lock,
starts a thread or reads a clock (`now` is monotonic seconds, handed in). `Membership` calls it, under the
membership's lock.

Offsets above the watermark are in exactly one place: `settled` (spans acked ahead), `waiting` (a delivery row: failed,
postponed, crashed or handed back), `running` (a run is out, or the dead letters are taking it), `ready` (fetched, not
handed out), or not fetched yet (above `cursor`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._engine.ledger import Ledger
from lanelog._engine.records import CRASHED, Burial, Waiting
from lanelog._engine.run import Attempt, Run, State

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lanelog._engine.records import Budget, LaneSnapshot, Rules
    from lanelog._engine.ticket import Ticket
    from lanelog._stores.deliveries import DeliveryRow
    from lanelog._stores.fetches import Fetched

MAX_WAITING = 1000
"""A lane with this many messages waiting for another attempt fetches no new ones until some are through."""


class Lane(Ledger):
    """See the module."""

    # -- taking over ---------------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, snapshot: LaneSnapshot, rules: Rules, budget: Budget, now: float) -> Lane:
        """Rebuild a lane from its rows.

        What another epoch had in flight (its rows, and the offsets below its run mark that no row covers) counts one
        attempt and is due at once; the lane stays `adopting` until these rows are written, so that a second crash
        counts only what really ran.
        """
        watermark = max(snapshot.offset_acked or 0, snapshot.floor)
        lane = cls(snapshot.key, snapshot.epoch, rules, budget, watermark=watermark, head=snapshot.head)
        lane.paused = snapshot.paused
        lane._flushed = snapshot.offset_acked if snapshot.offset_acked is not None else -1
        lane._mark = snapshot.marked_through
        covered: set[int] = set()
        for row in sorted(snapshot.rows, key=lambda r: r.offset):
            lane._load_row(row, covered, now)
        if snapshot.marked_epoch != snapshot.epoch:
            first_started = now - snapshot.marked_age
            # A policy of one attempt marks one by one, and a crash was that attempt.
            last = rules.exhausted(1, 0.0)
            for offset in range(watermark + 1, min(snapshot.marked_through, snapshot.head) + 1):
                if offset not in covered:
                    lane.waiting[offset] = Waiting(
                        1, now, first_started, crashed=True, died_alone=last, last_error=CRASHED
                    )
                    lane._dirty.add(offset)
        lane._advance()
        lane.adopting = snapshot.offset_acked is None or bool(lane._dirty) or lane._mark > lane.watermark
        return lane

    def _load_row(self, row: DeliveryRow, covered: set[int], now: float) -> None:
        self._stored.add(row.offset)
        if row.acked:
            first = max(row.offset, self.watermark + 1)
            covered.update(range(first, row.through + 1))
            if first != row.offset:
                self._dirty.add(row.offset)
            if first <= row.through:
                changed = self.settled.add(first, row.through)
                self._dirty.update(changed if len(changed) > 1 else ())  # merged with a neighbour
            return
        if row.offset <= self.watermark:
            self._dirty.add(row.offset)
            return
        covered.add(row.offset)
        crashed_now = row.lease_epoch not in (0, self.epoch)
        self.waiting[row.offset] = Waiting(
            attempts=row.retry_count,
            due=now if crashed_now else now + row.due_in,
            first_started=None if row.first_age is None else now - row.first_age,
            crashed=row.crashed or crashed_now,
            died_alone=row.alone and row.lease_epoch != self.epoch,
            postponed=row.postponed,
            last_error=CRASHED if crashed_now else row.last_error,
        )
        if crashed_now:
            self._dirty.add(row.offset)

    def carry_over(self, old: Lane, ids: dict[int, str]) -> None:
        """After the server restarted: keep what `old` has running or buffered where the log still has the same message.

        A crashed server can hand an offset to another message, so only (offset, id) proves that it is the same one.
        """
        if old.writing is not None:
            old.unwritten(old.writing)
        old.recall()
        for offset, attempt in old.running.items():
            if ids.get(offset) == attempt.row.id and offset > self.watermark and offset not in self.settled:
                self._keep_running(attempt, old.burials.get(offset))
            else:
                attempt.state = State.SUPERSEDED
        # A transaction of a handler may have committed its row after this lane's rows were read.
        self._dirty |= old._stored - self._stored
        self._stored |= old._stored
        for run in old.runs:
            run.lane = self
            self.runs.append(run)
        for run in old._pending:  # only what is acked first: it must run, or it is lost
            if all(ids.get(attempt.offset) == attempt.row.id for attempt in run.attempts):
                run.lane = self
                self._pending.append(run)
        for offset, message_id in old.buffer.items():
            known = offset <= self.watermark or offset in self.settled or offset in self.running
            if ids.get(offset) == message_id and not known:
                self.waiting.pop(offset, None)
                self._settle(offset, message_id)
        self.tickets.extend(old.tickets)
        self.closing = old.closing
        old.abandon()

    def _keep_running(self, attempt: Attempt, burial: Burial | None) -> None:
        offset = attempt.offset
        self.waiting.pop(offset, None)
        self.running[offset] = attempt
        attempt.lane = self
        self._started_top = max(self._started_top, offset)
        if attempt.number > 1:
            self._dirty.add(offset)
        self.budget.take(attempt.row)
        if burial is not None:
            self.burials[offset] = burial
            burial.lane = self

    def abandon(self) -> None:
        """The lane is no longer this object's: give back everything that it holds in memory."""
        self.tickets = []
        self.drop_ready()
        for attempt in self.running.values():
            self.budget.give(attempt.row)
        self.running.clear()
        for wait in self.waiting.values():
            if wait.body is not None:
                self.budget.give(wait.body)
                wait.body = None
        self.lost = True

    def vouched(self) -> dict[int, str]:
        """The offsets and ids that a reload must find unchanged: running, and settled but perhaps not durable."""
        known = {offset: attempt.row.id for offset, attempt in self.running.items()}
        known.update(self.buffer)
        if self.writing is not None:
            known.update(self.writing.buffer)
        return known

    # -- fetching ------------------------------------------------------------------------------------------------------

    @property
    def hungry(self) -> bool:
        """Whether fetching would help: something unread, little ready, and nothing that holds the lane back."""
        if self.cursor >= self.head or self.closing or self.paused or self.lost or self.adopting:
            return False
        if len(self.ready) > self.rules.batch_size // 2:
            return False
        if len(self.waiting) >= MAX_WAITING and max(self.waiting) <= self.cursor:
            return False  # else the cursor has yet to reach some of them, after a take-over
        # A strict lane that waits would only sit on what it fetches, and other lanes need the room.
        return not (self.rules.strict and self.waiting and min(self.waiting) <= self.cursor)

    def fetched(self, rows: Iterable[Fetched], now: float) -> None:
        """Take over rows in offset order, starting right behind the cursor."""
        spans = list(self.settled)
        at = 0
        for row in rows:
            offset = row.offset
            self.cursor = offset
            self.head = max(self.head, offset)
            while at < len(spans) and spans[at][1] < offset:
                at += 1
            if offset <= self.watermark or offset in self.running or (at < len(spans) and spans[at][0] <= offset):
                continue
            wait = self.waiting.get(offset)
            if row.target_group not in ("", self.rules.group):
                self.skip(offset)
            elif wait is None:
                self.ready.append(row)
                self.budget.take(row)
            elif wait.body is None and wait.due <= now:
                wait.body = row
                self.budget.take(row)

    def due(self, now: float, limit: int) -> list[int]:
        """The lowest offsets that are due and lack their body; in strict order nothing behind one that is not due."""
        self.thirsty = False
        if self.closing or self.paused or self.lost or self.adopting:
            return []
        wanted: list[int] = []
        for offset in sorted(self.waiting):
            wait = self.waiting[offset]
            if wait.due > now:
                if self.rules.strict:
                    break
                continue
            if wait.body is None:
                wanted.append(offset)
                if len(wanted) >= limit:
                    break
        return wanted

    def revived(self, row: Fetched) -> None:
        """Give a waiting message its body back; one for another group is passed."""
        wait = self.waiting.get(row.offset)
        if wait is None or wait.body is not None:
            return
        if row.target_group not in ("", self.rules.group):
            self.skip(row.offset)
            return
        wait.body = row
        self.budget.take(row)

    def skip(self, offset: int) -> None:
        """Settle an offset that is not for this group, or that does not exist."""
        wait = self.waiting.pop(offset, None)
        if wait is not None and wait.body is not None:
            self.budget.give(wait.body)
        if offset > self.watermark and offset not in self.running:
            self._settle(offset, "")

    def skip_hole(self, offset: int) -> None:
        """Pass an offset behind the cursor that the log does not hold."""
        self.cursor = max(self.cursor, offset)
        if offset not in self.settled:
            self.skip(offset)

    def drop_ready(self) -> None:
        """Forget what was fetched and not handed out; it is fetched again later."""
        if not self.ready:
            return
        self.cursor = self.ready[0].offset - 1
        for row in self.ready:
            self.budget.give(row)
        self.ready.clear()

    # -- handing out ---------------------------------------------------------------------------------------------------

    def plan(self, now: float) -> Run | Burial | None:
        """Decide what goes out next, if anything; the caller flushes (the mark) before a worker may have it."""
        if self.closing or self.paused or self.lost or self.adopting:
            return None
        if self._runs_out() >= self.rules.concurrency or len(self.running) > self._running_limit():
            return None
        again = self._plan_again(now)
        if again is not None or self._held():
            return again
        size = self.rules.run_size()
        barrier = min(self.waiting, default=self.head + 1) if self.rules.strict else self.head + 1
        attempts: list[Attempt] = []
        while self.ready and len(attempts) < size and self.ready[0].offset < barrier:
            attempts.append(Attempt(self, self.ready.popleft(), 1, None))
        if not attempts:
            return None
        return self._send_out(Run(self, attempts, first=True))

    def _runs_out(self) -> int:
        # A run whose mark is being written is in neither list, but workers have it as soon as that commits.
        being_marked = () if self.writing is None else self.writing.runs
        return len(self.runs) + len(self._pending) + sum(1 for run in being_marked if run.attempts and not run.recalled)

    def _running_limit(self) -> int:
        # strict and serial: nothing may be out at all, not even on its way to the dead letters
        return 0 if self.rules.concurrency == 1 else 1_000_000

    def _held(self) -> bool:
        """In strict order a waiting message holds back everything behind it."""
        return self.rules.strict and bool(self.waiting) and (not self.ready or min(self.waiting) < self.ready[0].offset)

    def _plan_again(self, now: float) -> Run | Burial | None:
        for offset in sorted(self.waiting):
            if self.rules.strict and self.ready and self.ready[0].offset < offset:
                return None
            wait = self.waiting[offset]
            if wait.due <= now and wait.body is None:
                self.thirsty = True
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
        limit = self.rules.max_deliveries
        endless = bool(row.original_topic)  # a dead letter is retried without limit
        since_first = 0.0 if wait.first_started is None else now - wait.first_started
        attempt = Attempt(self, row, number, wait.first_started, wait.crashed, wait.postponed)
        spent = not endless and wait.attempts > 0 and self.rules.exhausted(wait.attempts, since_first)
        if not endless and ((wait.died_alone and spent) or (not wait.crashed and limit is not None and number > limit)):
            self.running[offset] = attempt
            return self.bury(attempt, wait.attempts, wait.last_error or CRASHED)
        alone = wait.crashed and not endless and not self.rules.ack_first and self.rules.exhausted(number, since_first)
        run = Run(self, [attempt], first=False, alone=alone)
        if alone:
            # Not marked yet: `alone` in the database must never be true of one that still waits for the others to end.
            self.running[offset] = attempt
            self.runs.append(run)
            return run
        self._dirty.add(offset)
        return self._send_out(run)

    def mark_alone(self, run: Run, ticket: Ticket) -> bool:
        """The suspect has the process to itself now: its mark is due. False when it was taken back meanwhile."""
        if self.lost or not run.attempts:
            return False
        run.marked = True
        self._dirty.update(attempt.offset for attempt in run.attempts)
        self.tickets.append(ticket)
        return True

    def _send_out(self, run: Run) -> Run:
        for attempt in run.attempts:
            self.running[attempt.offset] = attempt
        self._pending.append(run)
        if self.rules.ack_first:
            for attempt in list(run.attempts):
                self.succeeded(attempt)
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
        handed = self._handed()
        for row in returned:
            if row.offset < handed:  # below the run mark, which cannot be lowered: covered by a row that counts nothing
                self.waiting[row.offset] = Waiting(0, 0.0, None, body=row)
                self._dirty.add(row.offset)
        kept = sorted((row for row in returned if row.offset >= handed), key=lambda row: row.offset)
        self.ready.extendleft(reversed(kept))

    def _wait_again(self, attempt: Attempt) -> None:
        self.waiting[attempt.offset] = Waiting(
            attempt.number - 1,
            0.0,
            attempt.first_started,
            attempt.crashed,
            postponed=attempt.postponed,
            body=attempt.row,
        )
        self._dirty.add(attempt.offset)

    def finished(self, run: Run) -> None:
        """A worker is done with a run, whether or not it started all of it."""
        if run in self.runs:
            self.runs.remove(run)
        if run.first:
            self._started_top = max(self._started_top, run.last_offset)

    # -- outcomes ------------------------------------------------------------------------------------------------------

    def succeeded(self, attempt: Attempt, *, stored: bool = False) -> None:
        """Settle a message; `stored`: its acked row is already committed (by a transaction of its own)."""
        if attempt.state is not State.SUPERSEDED:
            attempt.state = State.SETTLED
        if self.running.pop(attempt.offset, None) is None:
            return
        self.burials.pop(attempt.offset, None)
        self.budget.give(attempt.row)
        if stored:
            self._stored.add(attempt.offset)
            self._durable.add(attempt.offset)
        self._settle(attempt.offset, attempt.row.id)

    def failed(
        self, attempt: Attempt, *, due: float, error: str | None, state: State = State.SETTLED, postponed: bool = False
    ) -> None:
        """Keep a message for another attempt; `postponed`: it starts again as attempt 1."""
        attempt.state = state
        if self.running.pop(attempt.offset, None) is None:
            return
        self.budget.give(attempt.row)
        self.waiting[attempt.offset] = Waiting(
            attempts=0 if postponed else attempt.number,
            due=due,
            first_started=None if postponed else attempt.first_started,
            crashed=attempt.crashed and not postponed,
            postponed=attempt.postponed + 1 if postponed else attempt.postponed,
            last_error=error,
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
            attempt.number - 1, now, attempt.first_started, attempt.crashed, postponed=attempt.postponed
        )
        self._dirty.add(attempt.offset)

    def bury(self, attempt: Attempt, failures: int, error: str, state: State = State.BURYING) -> Burial:
        """Hand a message to the dead letters; it stays out until that transaction is known."""
        attempt.state = state
        burial = Burial(self, attempt.offset, failures, error, attempt, attempt.row)
        self.burials[attempt.offset] = burial
        return burial
