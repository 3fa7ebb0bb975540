"""What the janitor does is a list of duties. This is what it asks of each.

Owns the contract alone. A duty owns what it does, when, and how much at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from lanelog._database import Session
    from lanelog._engine.member.member import Member


class Duty(Protocol):
    """Work for the members of one topic that may be late. What it remembers saves statements."""

    name: ClassVar[str]
    """As the events say it."""

    def due(self, member: Member, now: float) -> bool:
        """Whether there may be something to do at this time (monotonic). Sends no statement."""

    def run(self, session: Session, member: Member, now: float) -> bool:
        """Do a bounded part of it. True when more can be done at once."""
