"""The settler: outcomes and marks of many lanes in one transaction, and dead letters between two of them.

Owns every write of offsets and delivery rows (but the acked row of `message.transaction()`); never plans what to write
(`Lane`) nor decides what an outcome means. One thread and one connection of a client.

Lock order of a flush: leases S → delivery → offsets → history. A crash before the COMMIT redelivers what the flush
carried; after it, nothing is lost but the news. A flush whose COMMIT was not answered is written again: every value in
it is absolute, the watermark only grows, and the fence decides anew. A process that sleeps in the middle holds its
locks until the server drops its session (`wait_timeout`, 15 s); the steal skips locked rows meanwhile.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._engine.settling.dead_letters import Burials
from lanelog._stores.deliveries import Deliveries
from lanelog._stores.history import History
from lanelog._stores.leases import Leases
from lanelog._stores.offsets import Offsets
from lanelog.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._database import Executor, Session
    from lanelog._engine.context import Host
    from lanelog._engine.lane.values import LaneWrite
    from lanelog._engine.member.member import Membership

FLUSH_LANES = 1000
IDLE = 2.0
"""Seconds between two turns that nobody asked for: they only keep the connection alive."""

AGAIN = 0.1
"""Seconds until lanes and dead letter heads that somebody has locked are tried again."""

DEADLOCK = 1213
LOCK_TIMEOUT = 1205
QUICK_REPEATS = 5


@define(eq=False)
class Settler:
    """Turns of the settler."""

    host: Host
    session: Session = field(init=False)
    flushes: int = 0
    _burials: Burials = field(init=False)
    _cautious: set[Membership] = field(factory=set)  # met a lock time-out: takes only what is free
    _deadlocks: int = 0
    _waits: bool = False

    def __attrs_post_init__(self) -> None:
        self.session = self.host.database.session("settler")
        self._burials = Burials(self.host, self.session)

    def turn(self, now: float) -> float:
        """Flush once for each membership that has something to write."""
        busy = self._waits = False
        memberships = self.host.memberships()
        self._cautious.intersection_update(memberships)  # one that has ended meets no lock any more
        for membership in memberships:
            with self.host.watch(membership, "settler", self.session):
                busy |= self._flush(membership)
                membership.announce_dropped()  # after the flush: nothing is dropped and flushed without being told
                busy |= self._burials.turn(membership)
        self.host.raise_deferred("settler")
        if memberships and not busy:
            # Its connection is there before there is something to write: with too few of them it is worth more than
            # most others.
            self.session.ensure()
            self.session.ping_if_idle()
        del now
        if busy:
            return 0.0
        return AGAIN if self._cautious or self._waits or self._burials.left() else IDLE

    def close(self) -> None:
        """Give the connection back."""
        self.session.close()

    def _flush(self, membership: Membership) -> bool:
        if not membership.has_writes:
            return False
        generation = self.host.vouched(self.session)
        if not generation:
            self._waits = True  # for the keeper, which wakes this loop
            return False
        writes = membership.collect(FLUSH_LANES)
        if not writes:
            return False
        try:
            with self.session.pinned(), self.session.transaction() as cx:
                # Memory may have been loaded anew since the writes were collected: from a server that has other rows.
                self.host.check_generation(self.session, generation)
                written, refused = self._write(cx, membership, writes)
        except BaseException as error:  # noqa: BLE001 - whatever it was: the writes are to be made again
            membership.uncommitted(writes)
            return self._again(membership, error)
        self._deadlocks = 0
        self.flushes += 1
        membership.committed(written)
        left = [write for write in writes if write not in written]
        if len(left) == len(refused):
            self._cautious.discard(membership)  # else some lane is still locked by somebody: the others must not wait
        membership.uncommitted(left)
        for write in refused:
            membership.lose_lane(write.lane, "its lease has another owner or epoch")
        return bool(written)

    def _again(self, membership: Membership, error: BaseException) -> bool:
        """After a failed flush: True to repeat it at once; else the error goes to the loop, which waits."""
        code = error.code if isinstance(error, DatabaseError) else None
        if code == DEADLOCK and self._deadlocks < QUICK_REPEATS:
            self._deadlocks += 1
            return True
        if code == LOCK_TIMEOUT:
            self._cautious.add(membership)
            return True
        raise error

    def _write(
        self, cx: Executor, membership: Membership, writes: Sequence[LaneWrite]
    ) -> tuple[list[LaneWrite], list[LaneWrite]]:
        """Inside the transaction: what was written, and what was refused because the lane is not ours any more."""
        group, topic = membership.group, membership.topic
        keys = [write.lane.key for write in writes]
        refused: list[LaneWrite] = []
        if membership in self._cautious:
            free = self.host.fenced(Leases().fence_free(cx, group, topic, membership.owner, keys))
            had = set(Offsets().load(cx, group, topic, list(free)))
            unlocked = Offsets().lock_free(cx, group, topic, list(free))
            usable = {key: epoch for key, epoch in free.items() if key in unlocked or (group, key) not in had}
            refused = [w for w in writes if w.lane.key in free and free[w.lane.key] != w.lane.epoch]
            mine = [w for w in writes if usable.get(w.lane.key) == w.lane.epoch]
        else:
            held = self.host.fenced(Leases().fence(cx, group, topic, membership.owner, keys))
            mine = [w for w in writes if held.get(w.lane.key) == w.lane.epoch]
            refused = [w for w in writes if held.get(w.lane.key) != w.lane.epoch]
        if mine:
            Deliveries().upsert(cx, group, topic, [row for write in mine for row in write.upserts])
            Deliveries().delete(cx, group, topic, [(w.lane.key, offset) for w in mine for offset in w.deletes])
            Offsets().flush(cx, group, topic, [(w.lane.key, w.watermark, w.mark, w.lane.epoch) for w in mine])
            if membership.rules.history:
                left = [row for write in mine for row in write.left]
                History().upsert(cx, group, topic, membership.owner, left, time.monotonic())
        return mine, refused
