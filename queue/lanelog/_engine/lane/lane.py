"""One leased lane in memory: its settled, running and waiting messages, and the content of its next flush.

A pure state machine: it never does I/O, takes a member's lock, starts a thread or reads a clock. `now` is monotonic
seconds, given by the caller. `Lane` loads itself from rows and takes fetched messages in. It owns a `Dispatcher` (which
messages may go out now) and `Progress` (the content of the next flush) over the same `LaneState`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._engine.lane import quarantine
from lanelog._engine.lane.dispatch import Dispatcher
from lanelog._engine.lane.progress import Progress
from lanelog._engine.lane.state import LaneState
from lanelog._engine.lane.values import CRASHED, Term, Waiting
from lanelog._stores.consumers._offset_rows import WrittenOffsets

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lanelog._engine.lane.flush_waiter import FlushWaiter
    from lanelog._engine.lane.run import Attempt
    from lanelog._engine.lane.state import LaneView
    from lanelog._engine.lane.values import Budget, LaneSnapshot, Rules
    from lanelog._stores.consumers.deliveries import DeliveryRow
    from lanelog._stores.log.fetches import Fetched


class Lane:
    """One leased lane in memory, from its load to its release or loss."""

    __slots__ = ("_state", "dispatch", "epoch", "key", "progress", "state", "term")

    def __init__(self, state: LaneState, progress: Progress) -> None:
        self._state = state
        self.state: LaneView = state
        self.progress = progress
        self.dispatch = Dispatcher(state, progress)
        self.term = state.term
        self.key = state.term.key
        self.epoch = state.term.epoch

    def __repr__(self) -> str:
        state = self._state
        return (
            f"Lane({self.key!r} epoch={self.epoch} watermark={state.watermark} cursor={state.cursor} "
            f"head={state.head} ready={len(state.ready)} running={sorted(state.running)} "
            f"waiting={sorted(state.waiting)} settled={state.settled!r})"
        )

    @property
    def idle(self) -> bool:
        """Whether nothing is out and nothing is to be written, so that the lease may be given back."""
        progress, state = self.progress, self._state
        return not (
            state.running or state.runs or progress.runs or progress.writing is not None or progress.needs_write
        )

    def has_only(self, attempts: Collection[Attempt]) -> bool:
        """Whether only these attempts keep it from its release, and nothing is to be written."""
        progress, state = self.progress, self._state
        if self.idle or progress.flushing or progress.needs_write:
            return False  # the keeper is about to release it, or the settler to write
        return all(attempt in attempts for attempt in state.running.values()) and all(
            any(attempt in attempts for attempt in run.attempts) for run in (*state.runs, *progress.runs)
        )

    @property
    def waiters(self) -> list[FlushWaiter]:
        """Those that wait for a flush or a dead letter of it."""
        progress, writing = self.progress, self.progress.writing
        waiters = [*progress.waiters, *(() if writing is None else writing.waiters)]
        return waiters + [waiter for each in self._state.dead_letters.values() for waiter in each.waiters]

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
                    lane._state.waiting[offset] = Waiting(
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
        lane._state.adopting = bool(lane.progress.dirty) or lane.progress.marked > lane._state.watermark
        return lane

    def _load_row(self, row: DeliveryRow, covered: set[int], now: float) -> None:
        self.progress.stored[row.offset] = None
        if row.acked:
            first = max(row.offset, self._state.watermark + 1)
            covered.update(range(first, row.through + 1))
            if first != row.offset:
                self.progress.dirty[row.offset] = None
            if first <= row.through:
                changed = self._state.settled.add(first, row.through)
                self.progress.dirty.update(
                    dict.fromkeys(changed if len(changed) > 1 else ())
                )  # merged with a neighbour
            return
        if row.offset <= self._state.watermark:
            self.progress.dirty[row.offset] = None
            return
        covered.add(row.offset)
        crashed_now = row.lease_epoch not in (0, self.epoch)
        crashed = row.crashed or crashed_now
        wait = 0.0 if crashed_now else max(0.0, row.due_in)
        age = (row.first_age or 0.0) + wait
        left = quarantine.attempts_left(self._state.rules, row.retry_count, age) if crashed else quarantine.NO_CRASH
        self._state.waiting[row.offset] = Waiting(
            attempts=row.retry_count,
            due=now if crashed_now else now + row.due_in,
            first_started=None if row.first_age is None else now - row.first_age,
            crashed=crashed,
            # When a policy allows one attempt, a first attempt is marked alone, though its row does not say so.
            died_alone=(row.alone and row.lease_epoch != self.epoch)
            or (crashed_now and row.retry_count == 1 and self._state.rules.exhausted(1, 0.0)),
            no_attempts_left=left.none,
            next_is_last=left.next_is_last,
            postponed=row.postponed,
            last_error=row.last_error or CRASHED if crashed_now else row.last_error,  # a hung process has written why
            released=row.released,
        )
        if row.lease_epoch:  # the row still says that the message runs: write it anew, also after a reload
            self.progress.dirty[row.offset] = None

    def abandon(self) -> None:
        """This object is the lane no longer: give back the memory that it holds."""
        self.progress.waiters = ()
        self._state.drop_ready()
        for attempt in self._state.running.values():
            self._state.budget.give(attempt.row)
        self._state.running.clear()
        self._state.drop_bodies()
        self._state.lost = True

    # -- fetching ------------------------------------------------------------------------------------------------------

    @property
    def needs_fetch(self) -> bool:
        """Whether fetching would help: messages are unread, few are ready, and nothing holds the lane back."""
        if self._state.cursor >= self._state.head or self._state.held_back:
            return False
        if len(self._state.ready) > self._state.rules.batch_size // 2:
            return False
        if len(self._state.waiting) >= self._state.rules.max_waiting and max(self._state.waiting) <= self._state.cursor:
            return False  # when some lie above the cursor, after a load, the lane must read on to reach them
        # A strict lane that waits could not hand out the rows, and other lanes need the room.
        return not (self._state.rules.strict and self._state.waiting and min(self._state.waiting) <= self._state.cursor)

    @property
    def fed(self) -> bool:
        """Whether it has known messages that are not handed out yet. Then a poll would find nothing of use for it.

        A batch that is not full has use for more.
        """
        state, batch = self._state, self._state.rules.batch
        return state.cursor < state.head or bool(state.ready and (batch is None or len(state.ready) >= batch.size))

    @property
    def at_head(self) -> bool:
        """Whether it has handed out all it knows of, and nothing holds back what comes next."""
        return not (self._state.held_back or self._state.waiting or self.fed)

    @property
    def unread(self) -> int:
        """How many rows a fetch would find, as far as memory knows the head; at most one batch."""
        return max(0, min(self._state.rules.batch_size, self._state.head - self._state.cursor))

    def raise_head(self, head: int) -> None:
        """Note that the lane goes on to `head` at least."""
        self._state.head = max(self._state.head, head)

    def lower_head(self, head: int) -> None:
        """Believe a head below the one in memory. What was fetched is fetched again."""
        self._state.drop_ready()
        self._state.head = head
        self._state.cursor = min(self._state.cursor, max(head, self._state.watermark))

    def fetched(self, cursor: int, rows: Sequence[Fetched], now: float) -> None:
        """Take rows in offset order that were read after `cursor`. They are dropped when it has moved meanwhile.

        Rows of a tail read may lie above the head in memory. They raise it, even if they are dropped.
        """
        state = self._state
        if rows:
            state.head = max(state.head, rows[-1].offset)
        if state.cursor != cursor or state.lost or state.closing or state.paused:
            return  # when nothing goes out, the rows would only take room
        if self._all_new(rows):
            state.cursor = rows[-1].offset
            state.ready.extend(rows)
            state.budget.take(*rows)
        else:
            self._fetched_again(rows, now)
        if state.rules.batch is not None and rows:
            state.gather(rows, now)

    def _fetched_again(self, rows: Sequence[Fetched], now: float) -> None:
        """Take rows of which memory knows some already, or that are not all for this group."""
        state = self._state
        intervals = list(state.settled)
        at = 0
        for row in rows:
            offset = row.offset
            state.cursor = offset
            while at < len(intervals) and intervals[at][1] < offset:
                at += 1
            if (
                offset <= state.watermark
                or offset in state.running
                or (at < len(intervals) and intervals[at][0] <= offset)
            ):
                continue
            wait = state.waiting.get(offset)
            if row.target_group not in ("", state.rules.group):
                self.skip(offset)
            elif wait is None:
                state.ready.append(row)
                state.budget.take(row)
            elif wait.body is None and wait.due <= now:
                wait.body = row
                state.budget.take(row)
            elif wait.due > now and state.rules.strict:
                return  # nothing after it may go out before it is due

    def _all_new(self, rows: Sequence[Fetched]) -> bool:
        """Whether memory knows nothing yet of any of these rows, and all are for this group."""
        if not rows or self._state.waiting or self._state.settled:
            return False
        known = max(self._state.running, default=0)
        return known < rows[0].offset > self._state.watermark and not any(row.special for row in rows)

    def due(self, now: float, limit: int) -> list[int]:
        """The lowest offsets that are due and lack their body. In strict order, none after one that is not due.

        A message above the cursor is left out: it may not go out yet, and the fetch that moves the cursor reads it.
        """
        self._state.needs_payload = False
        if self._state.held_back:
            return []
        wanted: list[int] = []
        for offset in sorted(self._state.waiting):
            wait = self._state.waiting[offset]
            if offset > self._state.cursor:
                break
            if wait.due > now:
                if self._state.rules.strict:
                    break
                continue
            if wait.body is None:
                wanted.append(offset)
                if len(wanted) >= limit:
                    break
        return wanted

    def revived(self, row: Fetched) -> None:
        """Give a waiting message its body back. A message for another group is skipped."""
        wait = self._state.waiting.get(row.offset)
        if wait is None or wait.body is not None:
            return
        if row.target_group not in ("", self._state.rules.group):
            self.skip(row.offset)
            return
        wait.body = row
        self._state.budget.take(row)

    def skip(self, offset: int) -> None:
        """Settle an offset that is not for this group, or that does not exist."""
        wait = self._state.waiting.pop(offset, None)
        if wait is not None and wait.body is not None:
            self._state.budget.give(wait.body)
        if offset > self._state.watermark and offset not in self._state.running:
            self.progress.settle(offset, "")

    def skip_holes(self, first: int, last: int) -> None:
        """Pass offsets right after the cursor that the log does not hold."""
        if self._state.lost or self._state.cursor != first - 1:
            return
        for offset in range(first, last + 1):
            self._state.cursor = max(self._state.cursor, offset)
            if offset not in self._state.settled:
                self.skip(offset)

    # -- holding back --------------------------------------------------------------------------------------------------

    def pause(self, *, paused: bool) -> None:
        """Hand out no more, or go on."""
        self._state.paused = paused

    def close(self) -> None:
        """Hand out no more, for good."""
        self._state.closing = True

    def quiet(self) -> None:
        """Take back what no handler has seen, and forget what is ready."""
        self.dispatch.recall()
        self._state.drop_ready()

    def evict(self, now: float) -> bool:
        """Drop the rows and bodies, if it cannot go on now. False: it can, and what gathers waits no longer."""
        state = self._state
        gathers = state.gathers(now) and not (state.held_back or self.dispatch.full)
        if (gathers and not (state.rules.strict and state.waiting)) or not (
            state.running or state.waiting or state.paused or state.closing
        ):
            state.gathers_until = min(state.gathers_until, now)
            return False
        state.drop_ready()
        state.drop_bodies()
        return True
