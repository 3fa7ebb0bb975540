"""How often the keeper does each of its steps.

Owns these times, in seconds. They are no options of a user: each default suits every subscription.
"""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class KeeperPace:
    """The times of the keeper, in seconds."""

    turn: float = 0.25
    """Between two turns. The first message of a new key waits so long for an owner if nobody tells the keeper."""
    members: float = 0.4
    """Between two looks at the members. While an owner's lock is free, every turn looks."""
    claim: float = 1.0
    """Between two tries to reach the fair share, when nothing has changed."""
    content: float = 10.0
    """The same for a member that has its share, while no owner is dead."""
