"""Members that left, or fell silent long ago: their heartbeats are deleted.

Owns their age. Every statement stands for itself, and can be repeated. Never deletes the row of an owner of a lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lanelog._stores.members import heartbeats, leases

if TYPE_CHECKING:
    from lanelog._base.places import GroupTopic
    from lanelog._database import Executor

KEPT_SECONDS: Final = 600.0


def forget(cx: Executor, at: GroupTopic, own: str = "") -> int:
    """Delete the heartbeats of members that left or fell silent long ago, except `own`. Returns how many."""
    gone = heartbeats.purge_left(cx, at, own, KEPT_SECONDS)
    for owner in heartbeats.silent(cx, at, own, KEPT_SECONDS):
        # The row names the lock, which is the quick proof of death. Without it, a take-over lasts a lease duration.
        if not leases.holds(cx, at, owner):
            gone += heartbeats.purge_silent(cx, at, owner, KEPT_SECONDS)
    return gone
