"""Time that passes for the deliveries that run: a test need not wait for it, nor race it."""

from lanelog import Subscription


def let_pass(subscription: Subscription, seconds: float) -> None:
    """As if the deliveries that run had begun so much earlier: the keeper's next look finds them that much older."""
    memberships = subscription.memberships
    with memberships[0].lock:
        for membership in memberships:
            for lane in membership.lanes.values():
                for attempt in lane.running.values():
                    attempt.started -= seconds
                    attempt.deadline -= seconds
