"""A client's holdings and counts, put together from its parts. Counts nothing itself, and asks no database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._client import subscription_facts as facts
from lanelog._client.subscription_facts import SubscriptionState
from lanelog.measures import GroupMeasures, Measures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._base.places import GroupTopic
    from lanelog._client.subscription import SubscriptionCore
    from lanelog._engine.engine import Engine
    from lanelog._engine.member.member import Holdings
    from lanelog._hints.sender import Sender
    from lanelog.measures import Meter


def measured(
    meter: Meter,
    engine: Engine | None,
    subscriptions: Sequence[SubscriptionCore],
    pool_waits: int,
    sender: Sender | None,
) -> Measures:
    """See `Client.measures`."""
    running = [each for each in subscriptions if each.state is not SubscriptionState.NEW and not each.inherited]
    held: dict[GroupTopic, list[Holdings]] = {}
    for each in running:
        for at, holdings in facts.holdings(each.members).items():
            held.setdefault(at, []).append(holdings)
    prefetched = [facts.prefetched(each.members) for each in running]
    return Measures(
        groups=tuple(
            GroupMeasures(
                topic=at.topic,
                group=at.group,
                counters=counters,
                lanes=sum(each.lanes for each in held.get(at, ())),
                running=sum(each.running for each in held.get(at, ())),
                waiting=sum(each.waiting for each in held.get(at, ())),
            )
            for at, counters in meter.totals().items()
        ),
        loops=() if engine is None else engine.measures(),
        prefetched=sum(messages for messages, _ in prefetched),
        prefetched_bytes=sum(payload for _, payload in prefetched),
        hints=sum(member.fetching.hints for each in running for member in each.members),
        hints_sent=0 if sender is None else sender.sent,
        hints_lost=0 if sender is None else sender.lost,
        hints_heard=0 if engine is None else engine.context.receiver.received,
        pool_waits=pool_waits,
    )
