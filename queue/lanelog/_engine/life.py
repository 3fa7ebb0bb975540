"""What is told of a subscription's life, topic by topic: its start, what it waits for at its end, and its end.

Owns those events alone and changes nothing. Called by the keeper, and by whoever waits for the end, without any lock:
logging is the application's code, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._telemetry import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._engine.member.member import Member

KEYS = 5
"""Of lanes that came or went: so many are named, however many there are."""

log = get_logger("subscription")
keeper_log = get_logger("keeper")


def started(member: Member, members: int | None) -> None:
    """It has given its first sign of life. `members`: processes of the group, this one included; None: not known."""
    log.info(
        "subscription.started",
        topic=member.topic,
        group=member.group,
        workers=member.workers,
        order=member.config.order,
        members=members,
        owner=member.owner,
    )


def acquired(member: Member, keys: Sequence[str]) -> None:
    """Lanes are this process's, and loaded."""
    if keys:
        keeper_log.info("lanes.acquired", **_lanes(member, keys))


def released(member: Member, keys: Sequence[str]) -> None:
    """Lanes are nobody's again."""
    if keys:
        keeper_log.info("lanes.released", **_lanes(member, keys))


def drained(member: Member) -> None:
    """Nothing is in work, what was done is committed, and no lane is held."""
    counters = member.counters
    log.info(
        "subscription.drained",
        topic=member.topic,
        group=member.group,
        handled=counters.handled,
        acked=counters.acked,
        retried=counters.retried,
        dead_lettered=counters.dead_lettered,
    )


def stopped(member: Member) -> None:
    """It is no member of its group any more."""
    log.info("subscription.stopped", topic=member.topic, group=member.group)


def waited(member: Member, seconds: float, *, away: bool) -> None:
    """Its end takes long. `seconds`: since it was asked to stop. `away`: the database does not answer."""
    with member.lock:
        held = member.held_locked()
    reasons = ["the database, which does not answer"] if away else []
    if held.running:
        reasons.append("handlers, or messages that somebody holds")
    log.warning(
        "subscription.waited",
        topic=member.topic,
        group=member.group,
        seconds=round(seconds, 1),
        waits_for=" and ".join(reasons) or "its last writes and the release of its lanes",
        running=held.running,
        lanes=held.lanes,
    )


def _lanes(member: Member, keys: Sequence[str]) -> dict[str, object]:
    return {
        "topic": member.topic,
        "group": member.group,
        "lanes": len(keys),
        "keys": list(keys[:KEYS]),
        "held": len(member.leasing.lanes),
    }
