"""What a subscription shows of itself: its state, what it holds, what it has done, whether it is registered.

Owns these values, and the sums over its members. Never changes a member, and asks no database.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from attrs import frozen

from lanelog._base.text import plural
from lanelog.health import SubscriptionHealth

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._base.places import GroupTopic
    from lanelog._engine.member.member import Holdings, Member


class SubscriptionState(StrEnum):
    """Where a subscription is in its life."""

    NEW = "new"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


@frozen(kw_only=True)
class SubscriptionStats:
    """A subscription at one moment. `handled` and the fields after it count since its start."""

    state: SubscriptionState
    lanes: int
    """Lanes that this process owns."""
    running: int
    """Messages that a handler or a puller has."""
    waiting: int
    """Messages that wait for their next attempt."""
    prefetched: int
    """Messages in memory, running ones included."""
    prefetched_bytes: int
    """Bytes of their payloads."""
    handled: int
    """Attempts whose outcome was decided."""
    acked: int
    """Attempts that ended with an ack."""
    retried: int
    """Attempts that failed, where another one follows."""
    postponed: int
    """Attempts that ended with `postpone` or `Postpone`."""
    dead_lettered: int
    """Messages that became dead letters, expired ones included."""
    timed_out: int
    """Attempts that reached `visibility_timeout`. They count as `retried` or `dead_lettered`, too."""
    refused: int
    """Settlements that came too late: the lane was lost, or the attempt had timed out."""
    hints: int
    """Hints from other processes."""


def stats(state: SubscriptionState, members: Sequence[Member]) -> SubscriptionStats:
    """Return what a subscription holds, and what it has done since its start, over all its topics."""
    with members[0].lock:
        held = [member.held_locked() for member in members]
        counters = [member.counters for member in members]
        budget = members[0].budget
        return SubscriptionStats(
            state=state,
            lanes=sum(each.lanes for each in held),
            running=sum(each.running for each in held),
            waiting=sum(each.waiting for each in held),
            prefetched=budget.messages,
            prefetched_bytes=budget.payload_bytes,
            handled=sum(c.handled for c in counters),
            acked=sum(c.acked for c in counters),
            retried=sum(c.retried for c in counters),
            postponed=sum(c.postponed for c in counters),
            dead_lettered=sum(c.dead_lettered for c in counters),
            timed_out=sum(c.timed_out for c in counters),
            refused=sum(c.refused for c in counters),
            hints=sum(member.fetching.hints for member in members),
        )


def holdings(members: Sequence[Member]) -> dict[GroupTopic, Holdings]:
    """Return what a subscription holds of each topic."""
    with members[0].lock:
        return {member.at: member.held_locked() for member in members}


def prefetched(members: Sequence[Member]) -> tuple[int, int]:
    """Return the messages and payload bytes that a subscription has in memory, over all its topics."""
    budget = members[0].budget
    return budget.messages, budget.payload_bytes


def _hung(member: Member) -> str:
    """Return why this process should be replaced: its workers have hung for `unhealthy_after`. Empty: it should not."""
    found = member.workload()
    if found is None or not found.hung_for(member.config.unhealthy_after):
        return ""
    return f"{found.busy} of {plural(found.workers, 'worker')} are busy, none has ended for {found.quiet:.0f} s"


def health(members: Sequence[Member], state: SubscriptionState, failure: BaseException | None) -> SubscriptionHealth:
    """Return whether a subscription is registered, or why not, and whether its workers hang."""
    registered = state in (SubscriptionState.RUNNING, SubscriptionState.PAUSED)
    why = f"it is {state}" if failure is None else f"it has failed: {type(failure).__name__}: {failure}"
    if state is SubscriptionState.NEW:
        why = "it is not registered yet"
    return SubscriptionHealth(
        group=members[0].group,
        topics=tuple(member.topic for member in members),
        registered=registered,
        why="" if registered else why,
        hung=_hung(members[0]),
    )
