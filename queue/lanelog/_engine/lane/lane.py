"""One leased lane in memory: its settled, running and waiting messages, and the content of its next flush.

A pure state machine: it never does I/O, takes a member's lock, starts a thread or reads a clock. `now` is monotonic
seconds, given by the caller. `Lane` loads itself from rows and takes fetched messages in. It owns a `Dispatcher` (which
messages may go out now) and `Progress` (the content of the next flush) over the same `LaneState`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve

from lanelog._engine.lane import quarantine
from lanelog._engine.lane.dispatch import Dispatcher
from lanelog._engine.lane.progress import Progress
from lanelog._engine.lane.run import Attempt, State
from lanelog._engine.lane.state import LaneState
from lanelog._engine.lane.values import CRASHED, Term, Waiting
from lanelog._engine.lane.writes import DeadLetterWrite
from lanelog._stores.consumers._offset_rows import WrittenOffsets

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from lanelog._engine.lane.values import Budget, LaneSnapshot, Rules
    from lanelog._stores.consumers.deliveries import DeliveryRow
    from lanelog._stores.log.fetches import Fetched


class Lane:
    """One leased lane in memory, from its load to its release or loss."""

    __slots__ = ("dispatch", "epoch", "key", "progress", "state", "term")

    def __init__(self, state: LaneState, progress: Progress) -> None:
        self.state = state
        self.progress = progress
        self.dispatch = Dispatcher(state, progress)
        self.term = state.term
        self.key = state.term.key
        self.epoch = state.term.epoch

    def __repr__(self) -> str:
        state = self.state
        return (
            f"Lane({self.key!r} epoch={self.epoch} watermark={state.watermark} cursor={state.cursor} "
            f"head={state.head} ready={len(state.ready)} running={sorted(state.running)} "
            f"waiting={sorted(state.waiting)} settled={state.settled!r})"
        )

    @property
    def idle(self) -> bool:
        """Whether nothing is out and nothing is to be written, so that the lease may be given back."""
        progress, state = self.progress, self.state
        return not (
            state.running or state.runs or progress.runs or progress.writing is not None or progress.needs_write
        )

    # -- taking over ---------------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, snapshot: LaneSnapshot, rules: Rules, budget: Budget, now: float) -> Lane:
        """Rebuild a lane from its rows.

        A message that another epoch had in flight counts one attempt and is due at once. Such a message has a row of
        that epoch, or its offset is not above that epoch's run mark and no row covers it. The lane stays `adopting`
        until these rows are written. So a second crash counts only messages that really ran.
        """
        watermark = max(snapshot.offset_acked or 0, snapshot.floor)
        term = Term(snapshot.key, snapshot.epoch, snapshot.generation)
        state = LaneState(
            term, rules, budget, watermark=watermark, head=snapshot.head, cursor=watermark, paused=snapshot.paused
        )
        # Without an offsets row, the mark of the first run inserts it. A lane with nothing to read has no such mark.
        flushed = snapshot.offset_acked
        if flushed is None:
            flushed = watermark if snapshot.head > watermark else -1
        lane = cls(state, Progress(state, flushed=flushed, marked=snapshot.marked_through))
        if snapshot.offset_acked is not None:
            lane.progress.row = WrittenOffsets(snapshot.offset_acked, snapshot.marked_through)
        covered: set[int] = set()
        for row in sorted(snapshot.rows, key=lambda r: r.offset):
            lane._load_row(row, covered, now)
        crashed = (
            range(watermark + 1, min(snapshot.marked_through, snapshot.head) + 1)
            if snapshot.marked_epoch != snapshot.epoch
            else range(0)
        )
        if crashed:
            first_started = now - snapshot.marked_age
            # When a policy allows one attempt, each message is marked alone, and the crash was its only attempt.
            last = rules.exhausted(1, 0.0)
            left = quarantine.attempts_left(rules, 1, snapshot.marked_age)
            for offset in crashed:
                if offset not in covered:
                    lane.state.waiting[offset] = Waiting(
                        1,
                        now,
                        first_started,
                        crashed=True,
                        died_alone=last,
                        no_attempts_left=left.none,
                        next_is_last=left.next_is_last,
                        last_error=CRASHED,
                    )
                    lane.progress.dirty[offset] = None
        lane.progress.advance()
        lane.state.adopting = bool(lane.progress.dirty) or lane.progress.marked > lane.state.watermark
        return lane

    def _load_row(self, row: DeliveryRow, covered: set[int], now: float) -> None:
        self.progress.stored[row.offset] = None
        if row.acked:
            first = max(row.offset, self.state.watermark + 1)
            covered.update(range(first, row.through + 1))
            if first != row.offset:
                self.progress.dirty[row.offset] = None
            if first <= row.through:
                changed = self.state.settled.add(first, row.through)
                self.progress.dirty.update(
                    dict.fromkeys(changed if len(changed) > 1 else ())
                )  # merged with a neighbour
            return
        if row.offset <= self.state.watermark:
            self.progress.dirty[row.offset] = None
            return
        covered.add(row.offset)
        crashed_now = row.lease_epoch not in (0, self.epoch)
        crashed = row.crashed or crashed_now
        wait = 0.0 if crashed_now else max(0.0, row.due_in)
        age = (row.first_age or 0.0) + wait
        left = quarantine.attempts_left(self.state.rules, row.retry_count, age) if crashed else quarantine.NO_CRASH
        self.state.waiting[row.offset] = Waiting(
            attempts=row.retry_count,
            due=now if crashed_now else now + row.due_in,
            first_started=None if row.first_age is None else now - row.first_age,
            crashed=crashed,
            # When a policy allows one attempt, a first attempt is marked alone, though its row does not say so.
            died_alone=(row.alone and row.lease_epoch != self.epoch)
            or (crashed_now and row.retry_count == 1 and self.state.rules.exhausted(1, 0.0)),
            no_attempts_left=left.none,
            next_is_last=left.next_is_last,
            postponed=row.postponed,
            last_error=row.last_error or CRASHED if crashed_now else row.last_error,  # a process that hung has said so
            released=row.released,
        )
        if row.lease_epoch:  # the row says that the message runs, perhaps alone: after a reload that is wrong, too
            self.progress.dirty[row.offset] = None

    def unproven(self, old: Lane) -> set[int]:
        """Offsets that `old` holds as settled by a transaction of their own, and that this lane's rows do not show.

        The COMMIT may be lost with its server, and the effect or the dead letter with it. Or it came after the rows
        were read. Only a locking read can tell.
        """
        return {offset for offset in old.settled_apart() if not self.state.passed(offset)}

    def settled_apart(self) -> set[int]:
        """Offsets that a transaction of their own has settled, and no flush has carried yet."""
        known = (
            self.progress.buffer.keys()
            if self.progress.writing is None
            else self.progress.buffer.keys() | self.progress.writing.buffer.keys()
        )
        return self.progress.durable.keys() & known

    def carry_over(self, old: Lane, ids: dict[int, str], proven: Container[int] = ()) -> None:
        """Keep the running and buffered messages of `old`, where the log of the new connection still has the same ones.

        A server that crashed, or that lacks the last commits of the one before, can give an offset to another message.
        So only (offset, id) proves that it is the same message. A message that a transaction of its own has settled is
        kept only if it is `proven` on this server. Otherwise it is delivered, or dead-lettered, again.
        """
        if old.progress.writing is not None:
            old.progress.unwritten(old.progress.writing)
        old.dispatch.recall()
        for offset, attempt in old.state.running.items():
            if ids.get(offset) == attempt.row.id and not self.state.passed(offset):
                self._keep_running(attempt, old.state.dead_letters.get(offset))
            else:
                attempt.move(State.SUPERSEDED)
        # After this lane's rows were read, a flush on its way may have committed its mark, and a handler's transaction
        # its row.
        self.progress.marked = max(self.progress.marked, old.progress.marked)
        self.progress.dirty.update(dict.fromkeys(old.progress.stored.keys() - self.progress.stored.keys()))
        self.progress.stored.update(old.progress.stored)
        self._keep_runs(old, ids)
        self._keep_settled(old, ids, proven)
        self._keep_waiting(old, ids)
        self.progress.waiters += old.progress.waiters
        self.state.closing = old.state.closing
        old.abandon()

    def _keep_runs(self, old: Lane, ids: dict[int, str]) -> None:
        for run in old.state.runs:
            run.term = self.term
            self.state.runs += (run,)
        for run in old.progress.runs:  # after the recall, only acked-first runs are left: they must run, or are lost
            if all(ids.get(attempt.offset) == attempt.row.id for attempt in run.attempts):
                run.term = self.term
                self.progress.runs += (run,)
            else:
                run.recall()  # the server has another message there, so a late answer to a flush must not send it out

    def _keep_settled(self, old: Lane, ids: dict[int, str], proven: Container[int]) -> None:
        for offset, message_id in old.progress.buffer.items():
            if ids.get(offset) != message_id or self.state.passed(offset) or offset in self.state.running:
                continue
            if offset in old.progress.durable:
                if offset not in proven:
                    continue
                self.progress.durable[offset] = None
            self.state.waiting.pop(offset, None)
            self.progress.settle(offset, message_id)
        self.progress.left += tuple(row for row in old.progress.left if ids.get(row.offset) == row.id)

    def _keep_waiting(self, old: Lane, ids: dict[int, str]) -> None:
        """Keep messages that were taken back or have failed. A row of such a message may still say that it runs."""
        for offset in old.state.waiting.keys() & old.progress.dirty.keys():
            wait = old.state.waiting[offset]
            same = ids.get(offset) == wait.id if wait.id else offset in self.state.waiting
            if same and not self.state.passed(offset) and offset not in self.state.running:
                self.state.waiting[offset] = evolve(wait, body=None)
                self.progress.dirty[offset] = None

    def _keep_running(self, attempt: Attempt, dead_letter: DeadLetterWrite | None) -> None:
        offset = attempt.offset
        self.state.waiting.pop(offset, None)
        self.state.running[offset] = attempt
        attempt.term = self.term
        self.state.started_top = max(self.state.started_top, offset)
        if attempt.number > 1:
            self.progress.dirty[offset] = None
        self.state.budget.take(attempt.row)
        if dead_letter is not None:
            self.state.dead_letters[offset] = dead_letter
            dead_letter.term = self.term

    def abandon(self) -> None:
        """This object is the lane no longer: give back the memory that it holds."""
        self.progress.waiters = ()
        self.state.drop_ready()
        for attempt in self.state.running.values():
            self.state.budget.give(attempt.row)
        self.state.running.clear()
        self.state.drop_bodies()
        self.state.lost = True

    def vouched(self) -> dict[int, str]:
        """The offsets and ids that a reload must find unchanged: running, waiting and settled ones not yet written."""
        progress = self.progress
        unwritten = progress.dirty.keys() if progress.writing is None else {*progress.dirty, *progress.writing.offsets}
        known = {offset: attempt.row.id for offset, attempt in self.state.running.items()}
        known.update({o: wait.id for o, wait in self.state.waiting.items() if wait.id and o in unwritten})
        known.update(progress.buffer)
        if progress.writing is not None:
            known.update(progress.writing.buffer)
        return known

    # -- fetching ------------------------------------------------------------------------------------------------------

    @property
    def needs_fetch(self) -> bool:
        """Whether fetching would help: messages are unread, few are ready, and nothing holds the lane back."""
        if (
            self.state.cursor >= self.state.head
            or self.state.closing
            or self.state.paused
            or self.state.lost
            or self.state.adopting
        ):
            return False
        if len(self.state.ready) > self.state.rules.batch_size // 2:
            return False
        if len(self.state.waiting) >= self.state.rules.max_waiting and max(self.state.waiting) <= self.state.cursor:
            return False  # when some lie above the cursor, after a load, the lane must read on to reach them
        # A strict lane that waits could not hand out the rows, and other lanes need the room.
        return not (self.state.rules.strict and self.state.waiting and min(self.state.waiting) <= self.state.cursor)

    @property
    def fed(self) -> bool:
        """Whether it has known messages that are not handed out yet. Then a look would find nothing of use for it."""
        return bool(self.state.ready) or self.state.cursor < self.state.head

    @property
    def at_head(self) -> bool:
        """Whether it has handed out all it knows of, and nothing holds back what comes next."""
        return not (self.state.held_back or self.state.waiting or self.fed)

    @property
    def unread(self) -> int:
        """How many rows a fetch would find, as far as memory knows the head; at most one batch."""
        return max(0, min(self.state.rules.batch_size, self.state.head - self.state.cursor))

    def fetched(self, rows: Sequence[Fetched], now: float) -> None:
        """Take rows in offset order, from right behind the cursor."""
        if self.state.closing or self.state.paused:
            return  # the rows would only take room
        if self._all_new(rows):
            self.state.cursor = rows[-1].offset
            self.state.head = max(self.state.head, rows[-1].offset)
            self.state.ready.extend(rows)
            self.state.budget.take(*rows)
            return
        intervals = list(self.state.settled)
        at = 0
        for row in rows:
            offset = row.offset
            self.state.cursor = offset
            self.state.head = max(self.state.head, offset)
            while at < len(intervals) and intervals[at][1] < offset:
                at += 1
            if (
                offset <= self.state.watermark
                or offset in self.state.running
                or (at < len(intervals) and intervals[at][0] <= offset)
            ):
                continue
            wait = self.state.waiting.get(offset)
            if row.target_group not in ("", self.state.rules.group):
                self.skip(offset)
            elif wait is None:
                self.state.ready.append(row)
                self.state.budget.take(row)
            elif wait.body is None and wait.due <= now:
                wait.body = row
                self.state.budget.take(row)
            elif wait.due > now and self.state.rules.strict:
                return  # nothing behind it may go out before it is due

    def _all_new(self, rows: Sequence[Fetched]) -> bool:
        """Whether memory knows nothing yet of any of these rows, and all are for this group."""
        if not rows or self.state.waiting or self.state.settled:
            return False
        known = max(self.state.running, default=0)
        return known < rows[0].offset > self.state.watermark and not any(row.special for row in rows)

    def due(self, now: float, limit: int) -> list[int]:
        """The lowest offsets that are due and lack their body. In strict order, none behind one that is not due.

        A message above the cursor is left out: it may not go out yet, and the fetch that moves the cursor reads it.
        """
        self.state.needs_payload = False
        if self.state.closing or self.state.paused or self.state.lost or self.state.adopting:
            return []
        wanted: list[int] = []
        for offset in sorted(self.state.waiting):
            wait = self.state.waiting[offset]
            if offset > self.state.cursor:
                break
            if wait.due > now:
                if self.state.rules.strict:
                    break
                continue
            if wait.body is None:
                wanted.append(offset)
                if len(wanted) >= limit:
                    break
        return wanted

    def revived(self, row: Fetched) -> None:
        """Give a waiting message its body back. A message for another group is skipped."""
        wait = self.state.waiting.get(row.offset)
        if wait is None or wait.body is not None:
            return
        if row.target_group not in ("", self.state.rules.group):
            self.skip(row.offset)
            return
        wait.body = row
        self.state.budget.take(row)

    def skip(self, offset: int) -> None:
        """Settle an offset that is not for this group, or that does not exist."""
        wait = self.state.waiting.pop(offset, None)
        if wait is not None and wait.body is not None:
            self.state.budget.give(wait.body)
        if offset > self.state.watermark and offset not in self.state.running:
            self.progress.settle(offset, "")

    def skip_hole(self, offset: int) -> None:
        """Pass an offset behind the cursor that the log does not hold."""
        self.state.cursor = max(self.state.cursor, offset)
        if offset not in self.state.settled:
            self.skip(offset)
