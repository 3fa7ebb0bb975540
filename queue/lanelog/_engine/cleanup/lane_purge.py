"""Lane purge: which lanes the janitor purges, and when.

Owns its passes over the drained lanes of a topic. `_log/purge_lane` does the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from attrs import define

from lanelog._facts.engine import janitor as facts
from lanelog._log import purge_lane
from lanelog._stores.consumers import offsets

if TYPE_CHECKING:
    from lanelog._database import Session
    from lanelog._engine.cleanup.message_retention import MessageRetention
    from lanelog._engine.engine_context import EngineContext
    from lanelog._engine.member.member import Member


@define(eq=False, kw_only=True)
class LanePurge:
    """Purges lanes of one topic that are drained and have been idle for long."""

    name: ClassVar[str] = "purge"
    context: EngineContext
    messages: MessageRetention
    """It forgets the lanes that are gone."""
    least_seconds: float
    """The least seconds from the end of a pass to the next one."""
    most_seconds: float = 60.0
    behind_seconds: float
    """A pass is late when it takes longer than this, and longer than `lane_idle_purge`."""
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
        for key in purge_lane.removable(session, topic, keys, tables=database.tables_version):
            if purge_lane.drained(session, topic, key):
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
