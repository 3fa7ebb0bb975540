"""Old heartbeats: those of members that left, or fell silent long ago, are deleted.

Owns their age. Every statement stands for itself, and can be repeated. Never deletes the row of an owner of a lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from attrs import define, field

from lanelog._stores import heartbeats, leases

if TYPE_CHECKING:
    from lanelog._database import Executor, Session
    from lanelog._engine.member.member import Member
    from lanelog._places import GroupTopic

KEPT_SECONDS: Final = 600.0


def forget_members(cx: Executor, at: GroupTopic, own: str = "") -> int:
    """Delete the heartbeats of members that left or fell silent long ago, except `own`. Returns how many."""
    gone = heartbeats.purge_left(cx, at, own, KEPT_SECONDS)
    for owner in heartbeats.silent(cx, at, own, KEPT_SECONDS):
        # The row names the lock, which is the quick proof of death. Without it, a take-over lasts a lease duration.
        if not leases.holds(cx, at, owner):
            gone += heartbeats.purge_silent(cx, at, owner, KEPT_SECONDS)
    return gone


@define(eq=False)
class OldHeartbeats:
    """Deletes the old heartbeats of one topic's groups."""

    name: ClassVar[str] = "heartbeats"
    every_seconds: float = 60.0
    _due_at: dict[str, float] = field(factory=dict)  # by group (monotonic)

    def due(self, member: Member, now: float) -> bool:
        """Whether it is time to look at the member's group again."""
        return now >= self._due_at.get(member.group, 0.0)

    def run(self, session: Session, member: Member, now: float) -> bool:
        """Delete the old ones of the member's group."""
        self._due_at[member.group] = now + self.every_seconds
        forget_members(session, member.at, member.owner)
        return False
