"""Expired messages of groups without a living member: when the janitor searches for them.

Owns its passes through a topic's lanes. `_log/expire` does the work.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, ClassVar

from attrs import define

from lanelog._log.expire import ExpiredMessages
from lanelog._stores.consumers import groups
from lanelog._stores.consumers.groups import VERSION_WITH_DEAD_LETTER_TOPIC
from lanelog._stores.log import partitions

if TYPE_CHECKING:
    from lanelog._database import Session
    from lanelog._engine.engine_context import EngineContext
    from lanelog._engine.member.member import Member


@define(eq=False, kw_only=True)
class Expiry:
    """Dead-letters expired messages of one topic's unattended groups."""

    name: ClassVar[str] = "expired"
    context: EngineContext
    every_seconds: float
    """Seconds from the end of a pass through all lanes to the next one."""
    group_seconds: float = 0.2
    """The longest time of a turn for one such group. The other duties, and the end of the process, wait for it."""
    page_lanes: int = 200
    _due_at: float = 0.0  # (monotonic)
    _after: str = ""  # how far a pass has come

    def due(self, member: Member, now: float) -> bool:  # noqa: ARG002 - see `Duty`
        """Whether a pass goes on, or the next one may begin."""
        return now >= self._due_at and self.context.database.tables_version >= VERSION_WITH_DEAD_LETTER_TOPIC

    def run(self, session: Session, member: Member, now: float) -> bool:
        """Move those of one page of lanes. True when time was too short for this page."""
        topic, context = member.topic, self.context
        # A group that was registered just now by this process may have no heartbeat yet.
        ours = {each.group for each in context.members() if each.topic == topic}
        unattended = [each for each in groups.unattended(session, topic) if each.group not in ours]
        page = partitions.page(session, topic, self._after, self.page_lanes) if unattended else []
        expired = ExpiredMessages(
            topic,
            lambda: nullcontext(session),
            session.transaction,
            context.appender,
            member.signals.notices,
        )
        keys = [key for key, _ in page if key]
        if not all(expired.bury(group, keys, seconds=self.group_seconds).complete for group in unattended):
            return True
        full = len(page) == self.page_lanes
        self._after = page[-1][0] if full else ""
        if not full:
            self._due_at = now + self.every_seconds
        return False
