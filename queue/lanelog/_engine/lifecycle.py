"""The log events of a subscription's life, for each topic: its start, its lanes, its end, and a wait for the end.

Owns these events and changes nothing. The caller holds no lock, because a log handler is the application's code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._facts.engine import keeper as keeper_facts
from lanelog._facts.engine import subscription as facts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lanelog._engine.member.member import Member
    from lanelog.health import ConnectionHealth

KEYS = 5
"""How many keys an event about acquired or released lanes names."""


def started(member: Member, members: int | None) -> None:
    """The member has made its first turn. `members`: the living members, this one included; None: not known."""
    facts.subscription_started(
        topic=member.topic,
        group=member.group,
        workers=member.workers,
        order=member.config.order,
        members=members,
        owner=member.owner,
    )


def acquired(member: Member, keys: Sequence[str]) -> None:
    """Lanes were acquired and loaded."""
    if keys:
        keeper_facts.lanes_acquired(**_lanes(member, keys))


def released(member: Member, keys: Sequence[str]) -> None:
    """Lanes were released."""
    if keys:
        keeper_facts.lanes_released(**_lanes(member, keys))


def epochs_replaced(member: Member, epochs: Mapping[str, int]) -> None:
    """Lanes were taken whose fencing tokens were beyond counting. `epochs`: these tokens, by key."""
    keeper_facts.lanes_epochs_replaced(
        topic=member.topic, group=member.group, lanes=len(epochs), keys=list(epochs)[:KEYS], epoch=max(epochs.values())
    )


def stood_aside(lacking: Sequence[ConnectionHealth]) -> None:
    """The client lacks connections without which it handles nothing."""
    keeper_facts.keeper_stood_aside(
        without=[each.purpose for each in lacking],
        seconds=round(max((each.seconds for each in lacking), default=0.0), 1),
        error=next((each.why for each in lacking if each.why), ""),
    )


def came_back() -> None:
    """The client has these connections again."""
    keeper_facts.keeper_came_back()


def drained(member: Member) -> None:
    """No handler runs, all outcomes are committed, and no lane is held."""
    counters = member.counters
    facts.subscription_drained(
        topic=member.topic,
        group=member.group,
        handled=counters.handled,
        acked=counters.acked,
        retried=counters.retried,
        dead_lettered=counters.dead_lettered,
    )


def stopped(member: Member) -> None:
    """The member has left its group."""
    facts.subscription_stopped(topic=member.topic, group=member.group)


def waited(member: Member, seconds: float, *, away: bool) -> None:
    """The end takes long. `seconds`: since the stop was asked for. `away`: the database does not answer."""
    with member.lock:
        held = member.held_locked()
    reasons = ["the database, which does not answer"] if away else []
    if held.running:
        reasons.append("handlers, or pulled messages that are not settled")
    facts.subscription_waited(
        topic=member.topic,
        group=member.group,
        seconds=round(seconds, 1),
        waits_for=" and ".join(reasons) or "its last writes and the release of its lanes",
        running=held.running,
        lanes=held.lanes,
    )


def _lanes(member: Member, keys: Sequence[str]) -> keeper_facts.LanesFields:
    return {
        "topic": member.topic,
        "group": member.group,
        "lanes": len(keys),
        "keys": list(keys[:KEYS]),
        "held": len(member.lanes),
    }
