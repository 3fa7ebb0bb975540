"""The settler: outcomes and marks of many lanes in one transaction, and dead letters between two of them.

Owns the flush of offsets rows and delivery rows. A handler that settles in a transaction of its own
(`message.transaction()`, `message.ack(connection=)`) writes that one row itself. Never plans the writes (`Progress`
does), nor decides the meaning of an outcome. It is one thread and one connection of a client.

Lock order of a flush: leases S (shared) → delivery → offsets → history. After a lock time-out: leases X (exclusive) →
offsets, both with SKIP LOCKED, then delivery → history; so it waits for nobody while it has locks. A crash before the
COMMIT redelivers the messages whose outcomes the flush carried. A crash after it loses nothing. A flush whose COMMIT
was not answered is written again: every value in it is absolute, the watermark only grows, and the fence is checked
again. While the server still works on the lost one, the repetition waits for its locks. A flush of one statement that
arrives late finds another row than it expects, and changes nothing (`flushes.FLUSH_FENCED`). A process that sleeps in
the middle holds its locks until the server drops its session (`wait_timeout`, 15 s). Meanwhile the take-over skips
locked rows.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._database import codes
from lanelog._engine.settling.caller_questions import CallerQuestions
from lanelog._engine.settling.dead_letters import DeadLetters
from lanelog._stores.consumers import deliveries, flushes, history, offsets
from lanelog._stores.consumers._offset_rows import OffsetsWrite
from lanelog._stores.members import leases
from lanelog.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._database import Executor, Session
    from lanelog._engine.engine_context import EngineContext
    from lanelog._engine.lane.writes import LaneWrite
    from lanelog._engine.member.member import Member


@define(eq=False)
class Settler:
    """Turns of the settler."""

    context: EngineContext
    session: Session = field(init=False)
    flushes: int = 0
    flush_lanes: int = 1000
    idle_seconds: float = 2.0
    """Seconds between two turns when nothing is to be written. Such turns only keep the connection alive."""
    locked_seconds: float = 0.1
    """Seconds before lanes and dead letter heads that other transactions have locked are tried again."""
    quick_repeats: int = 5
    """The most deadlocks in a row after which a flush is repeated at once."""
    _dead_letters: DeadLetters = field(init=False)
    _caller_questions: CallerQuestions = field(init=False)
    _cautious: set[Member] = field(factory=set)  # members that met a lock time-out: their flushes skip locked rows
    _deadlocks: int = 0
    _waits: bool = False

    def __attrs_post_init__(self) -> None:
        self.session = self.context.database.session("settler")
        self.context.shortage.need(self.session)
        self._dead_letters = DeadLetters(self.context, self.session)
        self._caller_questions = CallerQuestions(self.context, self.session)

    def turn(self, _now: float) -> float:
        """Flush once for each member that has something to write."""
        busy = self._waits = False
        members = self.context.members()
        self._cautious.intersection_update(members)
        for member in members:
            with self.context.watch(member, "settler", self.session):
                busy |= self._flush(member)
                member.writing.announce_dropped()  # after the flush: every message that the flush dropped is logged
                busy |= self._dead_letters.turn(member)
                self._caller_questions.turn(member)
        self.context.raise_deferred("settler")
        if not busy and self.context.shortage.can_wait(self.session) and not _holding(members):
            self.session.close()  # another process may be able to work with it
        elif not busy:
            if members:
                # Connect before there is something to write. When connections are few, the settler needs its own more
                # than most others do.
                self.session.ensure()
            self.session.ping_if_idle()  # without members, too: the first flush of the next one finds it alive
        if busy:
            return 0.0
        waits = self._cautious or self._waits or self._dead_letters.left()
        rest = self._caller_questions.rest()
        return min(self.locked_seconds if waits else self.idle_seconds, self.idle_seconds if rest is None else rest)

    def close(self) -> None:
        """Give the connection back."""
        self.session.close()

    def _flush(self, member: Member) -> bool:
        if not member.writing.has_writes:
            return False
        generation = self.context.vouched(self.session)
        if not generation:
            self._waits = True  # the keeper wakes this loop when memory is loaded
            return False
        writes = member.writing.collect(self.flush_lanes)
        if not writes:
            return False
        try:
            with self.session.pinned():
                written, refused = self._commit(member, writes, generation)
        except BaseException as error:  # noqa: BLE001 - after any error the writes must be made again
            member.writing.uncommitted(writes)
            return self._again(member, error)
        self._deadlocks = 0
        self.flushes += 1
        member.writing.committed(written)
        if written and member.signals.meter.observers:
            member.signals.meter.flushed(member.at, len(written))
        made = set(written)
        left = [write for write in writes if write not in made]
        if len(left) == len(refused):
            self._cautious.discard(member)  # no lane was locked any more
        member.writing.uncommitted(left)
        for write in refused:
            member.lose_lane(write.term, "its lease has another owner or epoch")
        return bool(written)

    def _commit(
        self, member: Member, writes: Sequence[LaneWrite], generation: int
    ) -> tuple[Sequence[LaneWrite], Sequence[LaneWrite]]:
        """Write and commit. Returns the writes that were made, and those whose lane is ours no more."""
        if len(writes) == 1 and member not in self._cautious and self._committed_at_once(member, writes[0], generation):
            return writes, []
        with self.session.transaction() as cx:
            # Memory may have been loaded again since the writes were collected, from a server with other rows.
            self.context.check_generation(self.session, generation)
            return self._write(cx, member, writes)

    def _committed_at_once(self, member: Member, write: LaneWrite, generation: int) -> bool:
        """Write what only moves one lane's watermark and mark, in one round trip instead of four: a handler waits.

        False: another owner, epoch or server, another row than memory knows, or an error that no repetition helps. The
        transaction that follows finds out which, and raises what COMMIT would raise. The row is no longer known after a
        lost answer, so the next flush of the lane is a transaction, too.
        """
        if write.before is None or not write.moves_only:
            return False
        server = (
            self.context.server_identity.mark
        )  # before the check: memory may be loaded from another server after it
        self.context.check_generation(self.session, generation)
        try:
            return flushes.flush_fenced(
                self.session, member.at, member.owner, _row(write), before=write.before, server=server
            )
        except DatabaseError as error:
            if error.retriable:
                raise
            return False

    def _again(self, member: Member, error: BaseException) -> bool:
        """Decide after a failed flush. True: repeat it at once. Otherwise raise the error, and the loop waits."""
        code = error.code if isinstance(error, DatabaseError) else None
        if code == codes.DEADLOCK and self._deadlocks < self.quick_repeats:
            self._deadlocks += 1
            return True
        if code == codes.LOCK_WAIT_TIMEOUT:
            self._cautious.add(member)
            return True
        raise error

    def _write(
        self, cx: Executor, member: Member, writes: Sequence[LaneWrite]
    ) -> tuple[list[LaneWrite], list[LaneWrite]]:
        """Write inside the transaction. Returns the writes that were made, and those whose lane is ours no more."""
        at = member.at
        keys = [write.term.key for write in writes]
        refused: list[LaneWrite] = []
        if member in self._cautious:
            free = self.context.fenced(leases.try_fence(cx, at, member.owner, keys))
            had = set(offsets.load(cx, at, list(free)))
            unlocked = offsets.try_lock(cx, at, list(free))
            usable = {key: epoch for key, epoch in free.items() if key in unlocked or (at.group, key) not in had}
            refused = [w for w in writes if w.term.key in free and free[w.term.key] != w.term.epoch]
            mine = [w for w in writes if usable.get(w.term.key) == w.term.epoch]
        else:
            held = self.context.fenced(leases.fence(cx, at, member.owner, keys))
            mine = [w for w in writes if held.get(w.term.key) == w.term.epoch]
            refused = [w for w in writes if held.get(w.term.key) != w.term.epoch]
        if mine:
            deliveries.upsert(cx, at, [row for write in mine for row in write.upserts])
            deliveries.delete(cx, at, [(w.term.key, offset) for w in mine for offset in w.deletes])
            flushes.flush(cx, at, [_row(write) for write in mine])
            if member.rules.history:
                left = [row for write in mine for row in write.left]
                history.upsert(cx, at, member.owner, left, time.monotonic())
        return mine, refused


def _holding(members: Sequence[Member]) -> bool:
    """Whether a lane is held, so that there may be something to write at any time."""
    return any(member.lanes for member in members)


def _row(write: LaneWrite) -> OffsetsWrite:
    return OffsetsWrite(write.term.key, write.watermark, write.mark, write.term.epoch)
