"""The interface of a janitor's duty.

Owns the contract alone. A duty owns what it does, when, and how much at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from lanelog._database import Session
    from lanelog._engine.member.member import Member


class Duty(Protocol):
    """Background work for the members of one topic. It may run late. Its memory saves statements."""

    name: ClassVar[str]
    """The name in events."""

    def due(self, member: Member, now: float) -> bool:
        """Whether there may be something to do at this time (monotonic). Sends no statement."""

    def run(self, session: Session, member: Member, now: float) -> bool:
        """Do a bounded part of it. True when more can be done at once."""
