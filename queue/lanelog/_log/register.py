"""Registration: a group begins to exist for a topic, with its order and its start, in one transaction.

Owns that transaction, and the search for the offsets of an instant. Never leases a lane. It uses a pooled connection,
before a subscription starts.

Lock order: topic row X → groups X → leases → delivery → offsets. While the topic row is locked, no collection, purge or
birth of a lane can come between the new group's row and its start. A crash before the COMMIT registers nothing. A
COMMIT that was not answered is repeated, and finds the group.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

from lanelog._base.places import GroupTopic
from lanelog._database import Lock, codes
from lanelog._facts.engine import subscription as facts
from lanelog._stores.consumers import deliveries, groups, offsets
from lanelog._stores.consumers.groups import VERSION_WITH_DEAD_LETTER_TOPIC, Kept
from lanelog._stores.log import leaving, partitions
from lanelog._stores.members import heartbeats, lease_removal
from lanelog.errors import ConfigurationError, DatabaseError, SchemaError

if TYPE_CHECKING:
    from lanelog._database import Database, Executor
    from lanelog.config import SubscriptionConfig

PAGE_LANES = 1000


class EvictedError(ConfigurationError):
    """The group was deleted while members lived. Nothing was changed."""


NEW_TOPIC_SECONDS: Final = 60.0
"""How long a topic is new: a newcomer publishes, and then registers the first group."""


def register(database: Database, at: GroupTopic, config: SubscriptionConfig, *, order: str | None = None) -> int:
    """Make sure that the group exists with this order. Returns when it was registered (database milliseconds).

    `order`: for readers that are no subscriptions, instead of the configuration's order. No subscription can join
    their groups, and no eviction keeps them away. Raises ConfigurationError when the group exists with another order,
    and EvictedError when it was deleted while members lived, unless the configuration says `recreate`.
    """
    group, topic = at.columns
    wanted = config.order.value if order is None else order
    with database.autocommit() as cx:
        partitions.ensure_topic(cx, topic)
    evicted = False
    with database.transaction() as cx:
        if partitions.topic_row(cx, topic, Lock.UPDATE) is None:
            raise SchemaError(f"the topic row of {topic!r} vanished while group {group!r} was registered: run it again")
        found = groups.lock(cx, at)
        if found is None:
            evicted = _evicted(cx, at)
            if evicted and order is None and not config.recreate:
                raise EvictedError(
                    f"group {group!r} of topic {topic!r} was deleted while it had members: it is registered again only "
                    "with recreate=True, or `lanelog worker --recreate`"
                )
            if evicted:
                heartbeats.unmark(cx, at)
            _create(cx, at, config, wanted)
        elif found != wanted:
            raise ConfigurationError(
                f"group {group!r} of topic {topic!r} is registered with order={found!r}; a group has one order: "
                f"subscribe with it, or use another group for order={wanted!r}"
            )
        else:
            groups.set_kept(cx, at, _kept(config))
        if order is None and database.tables_version >= VERSION_WITH_DEAD_LETTER_TOPIC:
            groups.set_dead_letter_topic(cx, at, config.dead_letter_topic(topic))
        row = groups.get(cx, at)
        assert row is not None  # noqa: S101 - it is locked by this transaction
    if found is None and order is None:
        _log_beginning(database, at, config, evicted=evicted)
    return row.created_at


def _evicted(cx: Executor, at: GroupTopic) -> bool:
    """Whether the group was evicted. An account that may not read heartbeats goes without the mark."""
    try:
        return heartbeats.evicted(cx, at)
    except DatabaseError as error:
        if error.code not in codes.DENIED:
            raise
        return False


def _log_beginning(database: Database, at: GroupTopic, config: SubscriptionConfig, *, evicted: bool) -> None:
    """Log what a new group gets of the messages that were there, and what it passes.

    Not for a topic that began just now: nobody has handled its messages before, unless a group was `evicted`.

    After the COMMIT: the sums read all lanes, and nobody should wait for them. If its answer did not come, the
    repetition finds the group, and this is not logged.
    """
    try:
        with database.autocommit() as cx:
            if not (evicted or partitions.is_older(cx, at.topic, NEW_TOPIC_SECONDS)):
                return
            again, passed = offsets.beginning(cx, at)
    except DatabaseError:
        return
    if again or passed:
        facts.group_registered(topic=at.topic, group=at.group, start=str(config.start), again=again, passed=passed)


def _kept(config: SubscriptionConfig) -> Kept:
    return Kept(
        messages=config.retention,
        history=config.history_retention if config.history else None,
        dead_letters=config.dead_letter_retention,
    )


def _create(cx: Executor, at: GroupTopic, config: SubscriptionConfig, order: str) -> None:
    # An earlier group of that name may have left rows. They are deleted, and their epochs are not used again.
    epoch = lease_removal.max_epoch(cx, at)
    if epoch:
        partitions.raise_topic(cx, at.topic, 0, epoch)
        lease_removal.delete_group(cx, at)
    # A DELETE that finds nothing would still lock the gap up to the next row, which belongs to another group.
    if deliveries.any_of_group(cx, at):
        deliveries.delete_group(cx, at)
    if offsets.any_of_group(cx, at):
        offsets.delete_group(cx, at)
    start = config.start
    text = start.isoformat() if isinstance(start, datetime) else start
    groups.create(cx, at, order=order, start=text, kept=_kept(config))
    if isinstance(start, datetime):
        _start_at(cx, at, start)
    elif start == "latest":
        offsets.start_at_head(cx, at)


def _start_at(cx: Executor, at: GroupTopic, start: datetime) -> None:
    topic = at.topic
    start_ms = int(start.timestamp() * 1000)
    for lanes in partitions.pages(lambda after: partitions.page(cx, topic, after, PAGE_LANES), PAGE_LANES):
        floors = offsets.floors(cx, topic, [key for key, _ in lanes])
        for key, head in lanes:
            floor = floors[key].floor if key in floors else 0
            offsets.start_at(cx, at.lane(key), last_before(cx, topic, key, floor, head, start_ms))


def last_before(cx: Executor, topic: str, key: str, floor: int, head: int, start_ms: int) -> int:
    """The last offset written before an instant.

    Binary search works: offsets follow the clock, and only collected messages are missing, which are older.
    """
    low, high = floor, head  # every offset up to `low` is before the instant; none above `high` is
    while low < high:
        middle = (low + high + 1) // 2
        created = leaving.created_at(cx, topic, key, middle)
        if created is None or created < start_ms:  # None: collected just now, so older than the rest
            low = middle
        else:
            high = middle - 1
    return low
