"""How often the keeper does each of its steps, and for how many lanes at once.

Owns these bounds. They are no options of a user: each default suits every subscription.
"""

from __future__ import annotations

from attrs import frozen

from lanelog._base.duty_cycle import DutyCycle


@frozen(kw_only=True)
class KeeperPace:
    """The times and the pages of the keeper."""

    turn_seconds: float = 0.25
    """Seconds between two turns. The first message of a new key waits this long for an owner, unless a hint comes."""
    members_seconds: float = 0.4
    """Seconds between two reads of the members. While an owner's lock is free, every turn reads them."""
    claim_seconds: float = 1.0
    """Seconds between two tries to reach the fair share, when nothing has changed."""
    content_seconds: float = 10.0
    """The same for a member that has its share, while no owner is dead."""
    beat_again_seconds: float = 1.0
    """The longest time until a heartbeat that could not be written is tried again."""
    page_lanes: int = 5000
    """The most lanes that are taken at once."""
    first_page_lanes: int = 250
    """The most that are taken at first, so that the first messages do not wait for the last lanes. Later a member takes
    as many as it holds."""
    few_lanes: int = 100
    """Claim at most this many new lanes by key. Above it, a scan for all free lanes costs the same."""
    hurried_cycle: DutyCycle = DutyCycle(1 / 10)
    """The share of time for turns that hints of new lanes ask for."""
    memberless_check_seconds: float = 5.0
    """Seconds between two checks of the server's identity, while no member has a heartbeat to write."""
    least_session_seconds: float = 5.0
    """The server's least wait for a silent session. With less, a busy machine could lose its session. A shorter lease
    still expires on time, and its lanes move then."""
