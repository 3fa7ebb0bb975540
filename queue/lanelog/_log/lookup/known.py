"""Whether topics, groups and lanes exist, and how the steps of an `Admin` method are repeated.

Owns the refusals of unknown ones. Never changes or locks anything. A method asks before its transaction, and inside it
for names that may have gone meanwhile.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from lanelog import migrations
from lanelog._base.places import GroupTopic
from lanelog._database import NOW_MS, codes
from lanelog._log.lookup.names import hint, names, readers
from lanelog._stores.consumers import groups
from lanelog._stores.log import partitions
from lanelog.errors import ConfigurationError, DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lanelog._database import Database, Executor
    from lanelog._stores.consumers.groups import GroupRow

P = ParamSpec("P")
T = TypeVar("T")

CLOCK = f"SELECT {NOW_MS}"

PAGE = 1000
"""Lanes read at once when a method goes through all lanes of a topic."""


def repeated(database: Database, op: Callable[P, T], what: str, *args: P.args, **kwargs: P.kwargs) -> T:
    """Return `op(…)`, a whole transaction, repeated until it succeeds or `publish_timeout` seconds have passed."""

    def once() -> T:
        migrations.admit(database)
        return op(*args, **kwargs)

    deadline = time.monotonic() + database.config.publish_timeout
    return database.retry(once, deadline=deadline, what=what)


def read(
    database: Database, op: Callable[Concatenate[Executor, P], T], what: str, *args: P.args, **kwargs: P.kwargs
) -> T:
    """Return `op(cx, …)`, repeated as in `repeated`, on a connection on which every statement commits by itself."""

    def once() -> T:
        with database.autocommit() as cx:
            return op(cx, *args, **kwargs)

    return repeated(database, once, what)


def snapshot(
    database: Database, op: Callable[Concatenate[Executor, P], T], what: str, *args: P.args, **kwargs: P.kwargs
) -> T:
    """Return `op(cx, …)`, repeated as in `repeated`, in one snapshot."""

    def once() -> T:
        with database.snapshot() as cx:
            return op(cx, *args, **kwargs)

    return repeated(database, once, what)


def permitted(ask: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Return the answer. None: the account may not ask, or the server cannot say at this moment."""
    try:
        return ask(*args, **kwargs)
    except DatabaseError as error:
        if error.code not in codes.DENIED_ANYWHERE | {codes.NOT_CONVERTIBLE}:
            raise
        return None


def clock(cx: Executor) -> int:
    """Return the database's clock, in epoch milliseconds."""
    row = cx.one(CLOCK)
    assert row is not None  # noqa: S101 - for the type checker: it has no FROM
    return int(row[0])


def known_topic(cx: Executor, topic: str) -> None:
    """Refuse a topic that was never published or subscribed to."""
    if "" not in partitions.heads(cx, topic, [""]):
        raise no_topic(topic, [name for name, _ in names(cx)])


def no_topic(topic: str, there: Sequence[str] | None = None) -> ConfigurationError:
    """Return the refusal of an unknown topic. `there`: the topics that exist, if they were looked up."""
    meant = "" if there is None else f"{hint(topic, there)}; "
    return ConfigurationError(f"no topic {topic!r}: {meant}`lanelog topics` lists those there are")


def known_group(cx: Executor, at: GroupTopic) -> GroupRow:
    """Return the registration of a group. Refuse a group that is not registered for the topic."""
    known_topic(cx, at.topic)
    row = groups.get(cx, at)
    if row is None:
        raise no_group(at, readers(cx, at.topic).get(at.topic, []))
    return row


def no_group(at: GroupTopic, there: Sequence[str] | None = None) -> ConfigurationError:
    """Return the refusal of a group that is not registered. `there`: the registered ones, if they were looked up."""
    meant = "" if there is None else f"{hint(at.group, there)}; "
    return ConfigurationError(
        f"no group {at.group!r} is registered for topic {at.topic!r}: {meant}"
        f"`lanelog groups {at.topic}` lists those that are"
    )


def known_lane(cx: Executor, topic: str, key: str) -> int:
    """Return the head of a lane. Refuse a key that was never published under, or whose drained lane was purged."""
    head = partitions.heads(cx, topic, [key]).get(key)
    if head is None:
        known_topic(cx, topic)
        raise no_lane(topic, key, [name for name, _ in partitions.page(cx, topic, "", PAGE) if name])
    return head


def no_lane(topic: str, key: str, there: Sequence[str] | None = None) -> ConfigurationError:
    """Return the refusal of a key without a lane. `there`: some keys with one, if they were looked up."""
    meant = "" if there is None else f"; {hint(key, there)}"
    return ConfigurationError(f"topic {topic!r} has no lane {key!r}: nothing is published under this key{meant}")


def pages(database: Database, topic: str, size: int = PAGE) -> Iterator[list[tuple[str, int]]]:
    """Yield pages of (key, head) of all lanes of a topic, in key order.

    A lane that is created meanwhile is met if its key comes after the pages read so far.
    """
    return partitions.pages(lambda after: read(database, partitions.page, "listing lanes", topic, after, size), size)
