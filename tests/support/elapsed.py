"""Time that passes: for the deliveries that run, and for keepers. A test need not wait for it, nor race it."""

from collections.abc import Callable
from typing import Any

from lanelog import Subscription
from lanelog._engine.leasing.assignment import Verdict, Watch


def let_pass(subscription: Subscription, seconds: float) -> None:
    """As if the deliveries that run had begun so much earlier: the keeper's next look finds them that much older."""
    memberships = subscription.memberships
    with memberships[0].lock:
        for membership in memberships:
            for lane in membership.lanes.values():
                for attempt in lane.running.values():
                    attempt.started -= seconds
                    attempt.deadline -= seconds


def trust_heartbeats_at_once(patch: Callable[[type, str, Any], None]) -> None:
    """As if every session of this process were a lease old: an expired heartbeat is a death to its keepers."""
    really = Watch.judge

    def judge(watch: Watch, found: Any, **known: Any) -> Verdict:
        return really(watch, found, **{**known, "steady_since": float("-inf")})

    patch(Watch, "judge", judge)
