"""The purge of one lane that every group has drained.

Owns that transaction, and the janitor's passes over drained lanes. Never waits for a lock, and gives up when a row of
the lane is locked.

Lock order: topic row X → floor → head → leases → offsets, all SKIP LOCKED. The topic row keeps the highest offset and
epoch. A lane that comes back continues above them, so no offset and no epoch is used twice. A scheduled message waits
outside of the log and does not keep its lane. The lane comes back when the message is due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from attrs import define

from lanelog._database import Lock
from lanelog._facts.engine import janitor as facts
from lanelog._open_lanes import is_open, lane_keys
from lanelog._stores import deliveries, groups, lease_removal, offsets, partitions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._database import Executor, Session
    from lanelog._engine.cleanup.message_retention import MessageRetention
    from lanelog._engine.context import EngineContext
    from lanelog._engine.member.member import Member


def removable(cx: Executor, topic: str, keys: Sequence[str], *, tables: int) -> list[str]:
    """The lanes that may be purged when they are drained: all but the open lanes that publishers choose from.

    An open lane would come back within the minute, and its lease must be acquired each time. One that was added just
    now may be purged all the same, and comes back with its next message. `tables`: the version of the tables.
    """
    if not any(map(is_open, keys)):
        return list(keys)
    kept = set(lane_keys(partitions.open_lanes(cx, topic, tables=tables)))
    return [key for key in keys if key not in kept]


@define(eq=False)
class Purge:
    """Removes drained lanes."""

    session: Session

    def drained(self, topic: str, key: str) -> bool:
        """Remove the lane if head, floor, deletion and all groups' watermarks are equal. False when it stays."""
        with self.session.transaction() as cx:
            return self._purge(cx, topic, key)

    @staticmethod
    def _purge(cx: Executor, topic: str, key: str) -> bool:
        topic_row = partitions.topic_row(cx, topic, Lock.FREE)
        if topic_row is None or topic_row.holds_dead_letters:
            return False
        floor = offsets.floors(cx, topic, [key], Lock.FREE).get(key)
        if floor is None or floor.floor != floor.deleted_through:
            return False
        head = partitions.head(cx, topic, key, Lock.FREE)
        if head is None or head != floor.floor:
            return False
        readers = list(groups.readers(cx, topic))
        if not readers:
            return False
        epoch = lease_removal.lock_lane(cx, topic, key, readers)
        if epoch is None or deliveries.count_lane(cx, topic, key, readers):
            return False
        rows = offsets.lock_lane(cx, topic, key, readers)
        if rows is None or any(row.offset_acked != head or row.paused for row in rows.values()):
            return False
        partitions.raise_topic(cx, topic, head, epoch)
        partitions.purge(cx, topic, key)
        lease_removal.purge(cx, topic, key, readers)
        offsets.purge(cx, topic, key, ["", *readers])
        return True


@define(eq=False, kw_only=True)
class LanePurge:
    """Purges lanes of one topic that are drained and have been idle for long."""

    name: ClassVar[str] = "purge"
    context: EngineContext
    messages: MessageRetention
    """It forgets the lanes that are gone."""
    least_seconds: float
    """From the end of a pass to the next one, at least."""
    most_seconds: float = 60.0
    behind_seconds: float
    """The longest pass that is in time. With a longer `lane_idle_purge`, that is."""
    page_lanes: int
    _due_at: float = 0.0  # (monotonic)
    _after: str = ""  # how far a pass has come
    _began: float = 0.0  # when the pass began (monotonic)
    _purged: int = 0  # lanes purged in this pass
    _behind: bool = False  # it was logged that passes take too long

    def due(self, member: Member, now: float) -> bool:  # noqa: ARG002 - see `Duty`
        """Whether a pass goes on, or the next one may begin."""
        return now >= self._due_at

    def run(self, session: Session, member: Member, now: float) -> bool:
        """Purge one page of lanes. True when more pages follow."""
        topic, database = member.topic, self.context.database
        idle = database.config.lane_idle_purge
        if not self._after:
            self._began, self._purged = now, 0
        keys = offsets.idle_floors(session, topic, self._after, idle, self.page_lanes)
        purge = Purge(session)
        for key in removable(session, topic, keys, tables=database.tables_version):
            if purge.drained(topic, key):
                self._purged += 1
                self.messages.forget(key)
        self._after = keys[-1] if len(keys) == self.page_lanes else ""
        self._judge(topic, now - self._began, max(idle, self.behind_seconds))
        if not self._after:
            self._due_at = now + min(self.most_seconds, max(self.least_seconds, idle / 2))
            # Another client may have purged lanes that this client does not own any more.
            members = [each for each in self.context.members() if each.topic == topic]
            self.messages.forget_all_but({key for each in members for key, _ in each.writing.flushed_watermarks()})
        return bool(self._after)

    def _judge(self, topic: str, seconds: float, longest: float) -> None:
        """Log once that passes take so long that drained lanes pile up, until one is in time again."""
        if seconds <= longest:
            self._behind = self._behind and bool(self._after)
        elif not self._behind:
            self._behind = True
            facts.purge_behind(topic=topic, seconds=round(seconds, 1), purged=self._purged)
