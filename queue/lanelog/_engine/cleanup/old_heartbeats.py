"""Old heartbeats: those of members that left, or fell silent long ago, are deleted.

Owns when that is. `_log/members` does it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from attrs import define, field

from lanelog._log import members

if TYPE_CHECKING:
    from lanelog._database import Session
    from lanelog._engine.member.member import Member


@define(eq=False)
class OldHeartbeats:
    """Deletes the old heartbeats of one topic's groups."""

    name: ClassVar[str] = "heartbeats"
    every_seconds: float = 60.0
    _due_at: dict[str, float] = field(factory=dict)  # by group (monotonic)

    def due(self, member: Member, now: float) -> bool:
        """Whether the member's group is due."""
        return now >= self._due_at.get(member.group, 0.0)

    def run(self, session: Session, member: Member, now: float) -> bool:
        """Delete the old ones of the member's group."""
        self._due_at[member.group] = now + self.every_seconds
        members.forget(session, member.at, member.owner)
        return False
