"""The pending writes of a lane: settled offsets, rows and marks that the database does not have yet.

Owns the watermark in memory, and its difference from that of the database, which it turns into one `LaneWrite` at a
time. Never decides which messages are handed out. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._engine.lane.run import State
from lanelog._engine.lane.writes import LaneWrite
from lanelog._stores.consumers._offset_rows import WrittenOffsets
from lanelog._stores.consumers.deliveries import DeliveryWrite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._engine.lane.flush_waiter import FlushWaiter
    from lanelog._engine.lane.run import Run
    from lanelog._engine.lane.state import LaneState
    from lanelog._stores.consumers.history import HistoryWrite
    from lanelog._stores.log.fetches import Fetched


@define(eq=False, repr=False)
class Progress:
    """The content of the next flush of one lane.

    A set of offsets is the keys of a dict here, and a list is a tuple: the garbage collector does not visit empty ones,
    and a process may have a hundred thousand lanes.
    """

    state: LaneState
    _flushed: int  # the watermark in the database, as far as memory knows
    marked: int = 0  # the run mark in the database, as far as it is above the watermark
    waiters: tuple[FlushWaiter, ...] = ()
    buffer: dict[int, str] = field(factory=dict)  # settled here, not yet known to be durable: offset -> id
    left: tuple[HistoryWrite, ...] = ()  # history rows of settled messages that are in no flush yet
    writing: LaneWrite | None = None
    runs: tuple[Run, ...] = ()  # planned, and to be marked by the next flush
    dirty: dict[int, None] = field(factory=dict)  # offsets whose row is to be written or deleted
    stored: dict[int, None] = field(factory=dict)  # offsets that may have a row
    row: WrittenOffsets | None = None  # the row of offsets as the last flush left it; None: none, or not known
    durable: dict[int, None] = field(factory=dict)  # offsets of the buffer that a transaction of their own has settled

    @property
    def unwritten_settlements(self) -> list[int]:
        """Offsets of messages whose settlement is in memory only: no transaction has committed it yet."""
        buffer = self.buffer if self.writing is None else {**self.writing.buffer, **self.buffer}
        return sorted(o for o, message_id in buffer.items() if message_id and o not in self.durable)

    def handed(self) -> int:
        """The highest first delivery that is marked or was started. The run mark has to cover it.

        A late run that still waits for a worker is left out. In concurrent order it may lie below a marked run. Then
        the run mark covers both, and a crash counts both.
        """
        out = [run.last_offset for run in (*self.state.runs, *self.runs) if run.first and run.marked]
        if self.writing is not None:
            out.extend(run.last_offset for run in self.writing.runs if run.first)
        return max(self.state.started_top, *out) if out else self.state.started_top

    def settle(self, offset: int, message_id: str) -> None:
        """Note that an offset is settled. The watermark passes it when every offset before it is settled, too."""
        self.buffer[offset] = message_id
        if offset in self.stored:
            self.dirty[offset] = None
        if offset == self.state.watermark + 1:
            self.state.watermark = offset
            self.advance()
        else:
            self.dirty.update(dict.fromkeys(self.state.settled.add(offset, offset)))

    def settle_in_order(self, rows: Sequence[Fetched]) -> None:
        """Note that messages are settled that follow each other and the watermark."""
        settled = {row.offset: row.id for row in rows}
        self.buffer.update(settled)
        if self.stored:
            self.dirty.update(dict.fromkeys(self.stored.keys() & settled.keys()))
        self.state.watermark = rows[-1].offset
        self.advance()

    def advance(self) -> None:
        """Let the watermark pass the settled offsets right after it."""
        last = self.state.settled.pop(self.state.watermark + 1)
        if last is not None:
            self.dirty[self.state.watermark + 1] = None
            self.state.watermark = last
        self.state.cursor = max(self.state.cursor, self.state.watermark)

    @property
    def flushing(self) -> bool:
        """Whether a flush is on its way."""
        return self.writing is not None

    @property
    def flushed(self) -> int:
        """The watermark in the database, as far as memory knows."""
        return self._flushed

    # -- flushing ------------------------------------------------------------------------------------------------------

    @property
    def needs_write(self) -> bool:
        """Whether a flush would write something for this lane, or release a run or a waiter."""
        return bool(
            self.state.watermark != self._flushed
            or (self.dirty and any(not self._undecided(offset) for offset in self.dirty))
            or self.runs
            or self.waiters
            or self.state.adopting
            or self._undo_mark()
        )

    def _undo_mark(self) -> bool:
        return self.marked > self.state.watermark and max(self.handed(), self.state.watermark) < self.marked

    def _undecided(self, offset: int) -> bool:
        """Whether another transaction is writing this row: the handler's, or the one to the dead letters."""
        attempt = self.state.running.get(offset)
        return attempt is not None and attempt.state in (State.CLAIMED, State.BURYING)

    def write(self, now: float) -> LaneWrite | None:
        """The write for the next flush, if there is one. `written` or `unwritten` must follow before the next call."""
        if self.writing is not None or self.state.lost or not self.needs_write:
            return None
        held = {offset: None for offset in self.dirty if self._undecided(offset)}
        offsets = self.dirty.keys() - held.keys() if self.dirty else ()
        upserts, deletes = [], []
        for offset in sorted(offsets):
            row = self._row(offset, now)
            if row is not None:
                upserts.append(row)
            elif offset in self.stored:
                deletes.append(offset)
        write = LaneWrite(
            term=self.state.term,
            watermark=self.state.watermark,
            mark=max(self.handed(), self.state.watermark),
            upserts=tuple(upserts),
            deletes=tuple(deletes),
            offsets=offsets,
            runs=self.runs,
            waiters=self.waiters,
            buffer=self.buffer,
            left=self.left,
            before=self.row,
        )
        self.dirty, self.runs, self.waiters, self.buffer, self.left = held, (), (), {}, ()
        self.writing = write
        return write

    def _row(self, offset: int, now: float) -> DeliveryWrite | None:
        if offset <= self.state.watermark:
            return None
        last = self.state.settled.last(offset)
        if last is not None:
            return DeliveryWrite(key=self.state.term.key, offset=offset, through=last, acked=True)
        wait = self.state.waiting.get(offset)
        if wait is not None:
            return DeliveryWrite(
                key=self.state.term.key,
                offset=offset,
                through=offset,
                delay=max(0.0, wait.due - now),
                retry_count=wait.attempts,
                postponed=wait.postponed,
                crashed=wait.crashed,
                alone=wait.died_alone,  # another crash may come before the dead letter, and the proof must survive it
                released=wait.released,
                first_age=None if wait.first_started is None else now - wait.first_started,
                last_error=wait.last_error,
            )
        attempt = self.state.running.get(offset)
        if attempt is None or attempt.run is None or (attempt.run.first and attempt.hung is None):
            return None  # covered by the run mark
        marked = attempt.run.marked  # False: it still waits for a worker, or for its turn to run alone
        started = 0.0 if marked else None
        return DeliveryWrite(
            key=self.state.term.key,
            offset=offset,
            through=offset,
            retry_count=attempt.number if marked else attempt.number - 1,
            postponed=attempt.postponed,
            crashed=attempt.crashed,
            alone=attempt.run.alone and marked,
            lease_epoch=self.state.term.epoch if marked else 0,
            released=attempt.released and not marked,
            first_age=started if attempt.first_started is None else now - attempt.first_started,
            last_error=attempt.hung if marked else attempt.last_error,
        )

    def written(self, write: LaneWrite) -> tuple[Run, ...]:
        """The flush is committed. Returns the runs that workers may have now."""
        self.writing = None
        self.state.adopting = False
        self._flushed = max(self._flushed, write.watermark)
        self.marked = write.mark
        self.row = WrittenOffsets(self._flushed, write.mark)
        for row in write.upserts:
            self.stored[row.offset] = None
            if row.offset <= self.state.watermark:  # passed meanwhile
                self.dirty[row.offset] = None
        for offset in write.deletes:
            self.stored.pop(offset, None)
        if self.durable:
            self.durable = {offset: None for offset in self.durable if offset not in write.buffer}
        runs = tuple(run for run in write.runs if run.attempts and not run.recalled)
        self.state.runs += runs
        return runs

    def unwritten(self, write: LaneWrite) -> bool:
        """The flush failed, or its outcome is unknown: everything is to be written again, which is idempotent.

        False: it is another lane's, or its answer was taken in before.
        """
        if self.writing is not write:
            return False
        self.writing = None
        # It may have committed: its mark and its rows may be there, to be undone or deleted.
        self.marked = max(self.marked, write.mark)
        self.row = None
        self.stored.update(dict.fromkeys(row.offset for row in write.upserts))
        self.dirty.update(dict.fromkeys(write.offsets))
        self.runs = tuple(run for run in write.runs if run.attempts) + self.runs
        self.waiters = write.waiters + self.waiters
        self.buffer = {**write.buffer, **self.buffer}
        self.left = write.left + self.left
        return True
