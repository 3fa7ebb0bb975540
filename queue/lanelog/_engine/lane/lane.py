"""One leased lane in memory: what is settled, what is out, what waits, and what the next flush has to write.

A pure state machine: it owns the arithmetic of watermark, cursor, marks and rows; it never does I/O, takes a lock,
starts a thread or reads a clock (`now` is monotonic seconds, handed in). `Member` calls it, under the
member's lock.

Offsets above the watermark are in exactly one place: `settled` (intervals acked ahead), `waiting` (a delivery row:
failed, postponed, crashed or handed back), `running` (a run is out, or the dead letters are taking it), `ready`
(fetched, not handed out), or not fetched yet (above `cursor`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve

from lanelog._engine.lane.dispatch import Handout
from lanelog._engine.lane.run import Attempt, State
from lanelog._engine.lane.values import CRASHED, Burial, Waiting

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from lanelog._engine.lane.values import Budget, LaneSnapshot, Rules
    from lanelog._stores.deliveries import DeliveryRow
    from lanelog._stores.fetches import Fetched

MAX_WAITING = 1000
"""A lane with this many messages waiting for another attempt fetches no new ones until some are through."""


class Lane(Handout):
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
            spent, final = cls._asked(rules, 1, snapshot.marked_age)
            for offset in range(watermark + 1, min(snapshot.marked_through, snapshot.head) + 1):
                if offset not in covered:
                    lane.waiting[offset] = Waiting(
                        1,
                        now,
                        first_started,
                        crashed=True,
                        died_alone=last,
                        spent=spent,
                        last=final,
                        last_error=CRASHED,
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
        crashed = row.crashed or crashed_now
        wait = 0.0 if crashed_now else max(0.0, row.due_in)
        age = (row.first_age or 0.0) + wait
        spent, last = self._asked(self.rules, row.retry_count, age) if crashed else (False, False)
        self.waiting[row.offset] = Waiting(
            attempts=row.retry_count,
            due=now if crashed_now else now + row.due_in,
            first_started=None if row.first_age is None else now - row.first_age,
            crashed=crashed,
            died_alone=row.alone and row.lease_epoch != self.epoch,
            spent=spent,
            last=last,
            postponed=row.postponed,
            last_error=CRASHED if crashed_now else row.last_error,
            released=row.released,
        )
        if row.lease_epoch:  # also after a reload: it must not say any longer that this one runs, and perhaps alone
            self._dirty.add(row.offset)

    @staticmethod
    def _asked(rules: Rules, attempts: int, since_first: float) -> tuple[bool, bool]:
        """Whether a crashed message is `spent`, and its next attempt the `last`: asked while no lock is held."""
        return attempts > 0 and rules.exhausted(attempts, since_first), rules.exhausted(attempts + 1, since_first)

    def unproven(self, old: Lane) -> set[int]:
        """What `old` believes settled by a transaction of its own, and this lane's rows do not show.

        That COMMIT may have gone with its server, and the effect or the dead letter with it; or it came after the rows
        were read. Only a locking read tells.
        """
        return {offset for offset in old.settled_apart() if not self._passed(offset)}

    def settled_apart(self) -> set[int]:
        """Offsets that a transaction of their own has settled, and no flush has carried yet."""
        known = self.buffer.keys() if self.writing is None else self.buffer.keys() | self.writing.buffer.keys()
        return self._durable & known

    def _passed(self, offset: int) -> bool:
        return offset <= self.watermark or offset in self.settled

    def carry_over(self, old: Lane, ids: dict[int, str], proven: Container[int] = ()) -> None:
        """On another connection: keep what `old` has running or buffered where the log still has the same message.

        A server that crashed, or that lacks the last commits of the one before, can hand an offset to another message,
        so only (offset, id) proves that it is the same one. What was settled by a transaction of its own is kept only
        if it is `proven` on this server: else it is delivered, or buried, again.
        """
        if old.writing is not None:
            old.unwritten(old.writing)
        old.recall()
        for offset, attempt in old.running.items():
            if ids.get(offset) == attempt.row.id and not self._passed(offset):
                self._keep_running(attempt, old.burials.get(offset))
            else:
                attempt.state = State.SUPERSEDED
        # A transaction of a handler may have committed its row after this lane's rows were read.
        self._dirty |= old._stored - self._stored
        self._stored |= old._stored
        self._keep_runs(old, ids)
        self._keep_settled(old, ids, proven)
        self._keep_waiting(old, ids)
        self.waiters.extend(old.waiters)
        self.closing = old.closing
        old.abandon()

    def _keep_runs(self, old: Lane, ids: dict[int, str]) -> None:
        for run in old.runs:
            run.lane = self
            self.runs.append(run)
        for run in old._pending:  # only what is acked first: it must run, or it is lost
            if all(ids.get(attempt.offset) == attempt.row.id for attempt in run.attempts):
                run.lane = self
                self._pending.append(run)

    def _keep_settled(self, old: Lane, ids: dict[int, str], proven: Container[int]) -> None:
        for offset, message_id in old.buffer.items():
            if ids.get(offset) != message_id or self._passed(offset) or offset in self.running:
                continue
            if offset in old._durable:
                if offset not in proven:
                    continue
                self._durable.add(offset)
            self.waiting.pop(offset, None)
            self._settle(offset, message_id)
        self.left.extend(row for row in old.left if ids.get(row.offset) == row.id)

    def _keep_waiting(self, old: Lane, ids: dict[int, str]) -> None:
        """What was taken back just now, or has failed: its row, if it has one, may still say that it is in flight."""
        for offset in old.waiting.keys() & old._dirty:
            wait = old.waiting[offset]
            same = ids.get(offset) == wait.id if wait.id else offset in self.waiting
            if same and not self._passed(offset) and offset not in self.running:
                self.waiting[offset] = evolve(wait, body=None)
                self._dirty.add(offset)

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
        self.waiters = []
        self.drop_ready()
        for attempt in self.running.values():
            self.budget.give(attempt.row)
        self.running.clear()
        self.drop_bodies()
        self.lost = True

    def vouched(self) -> dict[int, str]:
        """The offsets and ids that a reload must find unchanged: running, failed, and settled but not yet durable."""
        known = {offset: attempt.row.id for offset, attempt in self.running.items()}
        known.update({offset: wait.id for offset, wait in self.waiting.items() if wait.id and offset in self._dirty})
        known.update(self.buffer)
        if self.writing is not None:
            known.update(self.writing.buffer)
        return known

    # -- fetching ------------------------------------------------------------------------------------------------------

    @property
    def needs_fetch(self) -> bool:
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
        if self.closing or self.paused:
            return  # it came too late: the rows would only take room
        intervals = list(self.settled)
        at = 0
        for row in rows:
            offset = row.offset
            self.cursor = offset
            self.head = max(self.head, offset)
            while at < len(intervals) and intervals[at][1] < offset:
                at += 1
            if (
                offset <= self.watermark
                or offset in self.running
                or (at < len(intervals) and intervals[at][0] <= offset)
            ):
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
            elif wait.due > now and self.rules.strict:
                return  # nothing behind it may go out before it is due

    def due(self, now: float, limit: int) -> list[int]:
        """The lowest offsets that are due and lack their body; in strict order nothing behind one that is not due.

        What lies above the cursor comes with the fetch that moves it there, and could not go out before.
        """
        self.needs_payload = False
        if self.closing or self.paused or self.lost or self.adopting:
            return []
        wanted: list[int] = []
        for offset in sorted(self.waiting):
            wait = self.waiting[offset]
            if offset > self.cursor:
                break
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
