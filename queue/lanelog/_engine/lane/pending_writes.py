"""What a lane has to write: settled offsets, rows and marks, compared with what the database has.

Owns the difference between memory and database and turns it into one `LaneWrite` at a time; never decides what is
handed out (`Lane`, its subclass). Pure, like `Lane`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, cast

from lanelog._engine.lane.intervals import Intervals
from lanelog._engine.lane.run import State
from lanelog._engine.lane.values import LaneWrite
from lanelog._stores.deliveries import DeliveryWrite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._engine.lane.flush_waiter import FlushWaiter
    from lanelog._engine.lane.lane import Lane
    from lanelog._engine.lane.run import Attempt, Run
    from lanelog._engine.lane.values import Budget, Burial, Rules, Waiting
    from lanelog._stores.fetches import Fetched
    from lanelog._stores.history import HistoryWrite


class Ledger:
    """The state of a lane and its flushing; attributes are read by `Member`, changed through methods only."""

    def __init__(self, key: str, epoch: int, rules: Rules, budget: Budget, *, watermark: int, head: int) -> None:
        self.key = key
        self.epoch = epoch
        self.rules = rules
        self.budget = budget
        self.watermark = watermark
        self.head = head
        self.cursor = watermark
        self.ready: deque[Fetched] = deque()
        self.waiting: dict[int, Waiting] = {}
        self.running: dict[int, Attempt] = {}
        self.burials: dict[int, Burial] = {}
        self.settled = Intervals()
        self.runs: list[Run] = []
        self.waiters: list[FlushWaiter] = []
        self.buffer: dict[int, str] = {}  # settled here, not yet known to be durable: offset -> id
        self.left: list[HistoryWrite] = []  # of messages that are settled here and in no flush yet
        self.writing: LaneWrite | None = None
        self.adopting = False  # crash rows must be written before anything is handed out
        self.closing = False
        self.paused = False
        self.lost = False
        self.needs_payload = False  # a due message lacks its body; the fetcher clears it
        self._pending: list[Run] = []
        self._stored: set[int] = set()
        self._durable: set[int] = set()  # of the buffer: settled by a transaction of its own
        self._dirty: set[int] = set()
        self._flushed = watermark
        self._mark = 0  # the run mark in the database, as far as it is above the watermark
        self._started_top = 0  # the highest first delivery that a handler has seen

    def __repr__(self) -> str:
        return (
            f"Lane({self.key!r} epoch={self.epoch} watermark={self.watermark} cursor={self.cursor} head={self.head} "
            f"ready={len(self.ready)} running={sorted(self.running)} waiting={sorted(self.waiting)} "
            f"settled={self.settled!r})"
        )

    @property
    def flushed(self) -> int:
        """The watermark in the database, as far as memory knows."""
        return self._flushed

    @property
    def unwritten_settlements(self) -> list[int]:
        """Offsets that handlers have settled by returning, and that no flush has carried yet."""
        buffer = self.buffer if self.writing is None else {**self.writing.buffer, **self.buffer}
        return sorted(o for o, message_id in buffer.items() if message_id and o not in self._durable)

    @property
    def handling(self) -> bool:
        """Whether a handler has a message of this lane, or a transaction is committing one."""
        return any(attempt.state in (State.RUNNING, State.CLAIMED) for attempt in self.running.values())

    @property
    def idle(self) -> bool:
        """Nothing out, nothing to write: the lease may be given back."""
        return not (self.running or self.runs or self._pending or self.writing is not None or self.needs_write)

    def _handed(self) -> int:
        """The highest first delivery that is marked or was started: what the run mark has to cover.

        A late run that still waits for a worker is left out. In concurrent order it may lie below one that does not:
        the run mark then covers both, and a crash counts both.
        """
        out = [run.last_offset for run in (*self.runs, *self._pending) if run.first and run.marked]
        if self.writing is not None:
            out.extend(run.last_offset for run in self.writing.runs if run.first)
        return max(self._started_top, *out) if out else self._started_top

    def _settle(self, offset: int, message_id: str) -> None:
        self.buffer[offset] = message_id
        if offset in self._stored:
            self._dirty.add(offset)
        if offset == self.watermark + 1:
            self.watermark = offset
            self._advance()
        else:
            self._dirty.update(self.settled.add(offset, offset))

    def _advance(self) -> None:
        last = self.settled.pop(self.watermark + 1)
        if last is not None:
            self._dirty.add(self.watermark + 1)
            self.watermark = last
        self.cursor = max(self.cursor, self.watermark)

    # -- flushing ------------------------------------------------------------------------------------------------------

    @property
    def needs_write(self) -> bool:
        """Whether a flush would write anything for this lane, or release anyone."""
        return bool(
            self.watermark != self._flushed
            or any(not self._undecided(offset) for offset in self._dirty)
            or self._pending
            or self.waiters
            or self.adopting
            or self._undo_mark()
        )

    def _undo_mark(self) -> bool:
        return self._mark > self.watermark and max(self._handed(), self.watermark) < self._mark

    def _undecided(self, offset: int) -> bool:
        """Whether somebody else is writing this row: a transaction of the handler, or the dead letters."""
        attempt = self.running.get(offset)
        return attempt is not None and attempt.state in (State.CLAIMED, State.BURYING)

    def write(self, now: float) -> LaneWrite | None:
        """What to write now; one at a time, and `written` or `unwritten` must follow."""
        if self.writing is not None or self.lost or not self.needs_write:
            return None
        held = {offset for offset in self._dirty if self._undecided(offset)}
        offsets = self._dirty - held
        upserts, deletes = [], []
        for offset in sorted(offsets):
            row = self._row(offset, now)
            if row is not None:
                upserts.append(row)
            elif offset in self._stored:
                deletes.append(offset)
        left: Sequence[HistoryWrite] = ()
        if self.left:
            left, self.left = self.left, []
        write = LaneWrite(
            lane=cast("Lane", self),
            watermark=self.watermark,
            mark=max(self._handed(), self.watermark),
            upserts=tuple(upserts),
            deletes=tuple(deletes),
            offsets=frozenset(offsets),
            runs=self._pending,
            waiters=self.waiters,
            buffer=self.buffer,
            left=left,
        )
        self._dirty, self._pending, self.waiters, self.buffer = held, [], [], {}
        self.writing = write
        return write

    def _row(self, offset: int, now: float) -> DeliveryWrite | None:
        if offset <= self.watermark:
            return None
        last = self.settled.last(offset)
        if last is not None:
            return DeliveryWrite(key=self.key, offset=offset, through=last, acked=True)
        wait = self.waiting.get(offset)
        if wait is not None:
            return DeliveryWrite(
                key=self.key,
                offset=offset,
                through=offset,
                delay=max(0.0, wait.due - now),
                retry_count=wait.attempts,
                postponed=wait.postponed,
                crashed=wait.crashed,
                alone=wait.died_alone,  # the proof must outlast a death of another before the burial
                released=wait.released,
                first_age=None if wait.first_started is None else now - wait.first_started,
                last_error=wait.last_error,
            )
        attempt = self.running.get(offset)
        if attempt is None or attempt.run is None or attempt.run.first:
            return None  # covered by the run mark
        marked = attempt.run.marked  # else it still waits for a worker, or until it has the process to itself
        started = 0.0 if marked else None
        return DeliveryWrite(
            key=self.key,
            offset=offset,
            through=offset,
            retry_count=attempt.number if marked else attempt.number - 1,
            postponed=attempt.postponed,
            crashed=attempt.crashed,
            alone=attempt.run.alone and marked,
            lease_epoch=self.epoch if marked else 0,
            released=attempt.released and not marked,
            first_age=started if attempt.first_started is None else now - attempt.first_started,
            last_error=None if marked else attempt.last_error,
        )

    def written(self, write: LaneWrite) -> list[Run]:
        """The flush committed: returns the runs that workers may have now."""
        self.writing = None
        self.adopting = False
        self._flushed = max(self._flushed, write.watermark)
        self._mark = write.mark
        self._stored.update(row.offset for row in write.upserts)
        self._dirty.update(row.offset for row in write.upserts if row.offset <= self.watermark)  # passed meanwhile
        self._stored.difference_update(write.deletes)
        self._durable.difference_update(write.buffer)
        runs = [run for run in write.runs if run.attempts and not run.recalled]
        self.runs.extend(runs)
        return runs

    def unwritten(self, write: LaneWrite) -> None:
        """The flush did not commit, or nobody knows: everything is to be written again (it is idempotent)."""
        self.writing = None
        # It may have committed: what it wrote may be there, to be undone or deleted.
        self._mark = max(self._mark, write.mark)
        self._stored.update(row.offset for row in write.upserts)
        self._dirty |= write.offsets
        self._pending = [run for run in write.runs if run.attempts] + self._pending
        self.waiters = write.waiters + self.waiters
        self.buffer = {**write.buffer, **self.buffer}
        if write.left:
            self.left = [*write.left, *self.left]
