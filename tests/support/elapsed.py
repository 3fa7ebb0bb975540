"""Time that passes: for the deliveries that run, and for keepers. A test need not wait for it, nor race it."""

from collections.abc import Callable
from typing import Any

from lanelog import Subscription
from lanelog._engine.leasing.liveness import LivenessMonitor, LivenessView


def let_pass(subscription: Subscription, seconds: float) -> None:
    """As if deliveries that run, and waits to run, had begun so much earlier: the keeper's next look finds them so."""
    members = subscription._core.members
    with members[0].lock:
        for member in members:
            for lane in member.lanes.values():
                for attempt in lane.state.running.values():
                    attempt.started -= seconds
                    attempt.deadline -= seconds
    for worker in subscription._core._workers._workers if subscription._core._workers else ():
        worker.waits = worker.waits and worker.waits - seconds


def trust_heartbeats_at_once(patch: Callable[[type, str, Any], None]) -> None:
    """As if every session of this process were a lease old: an expired heartbeat is a death to its keepers."""
    really = LivenessMonitor.judge

    def judge(watch: LivenessMonitor, found: Any, **known: Any) -> LivenessView:
        return really(watch, found, **{**known, "steady_since": float("-inf")})

    patch(LivenessMonitor, "judge", judge)
