"""Maintenance, once: what running subscribers do all the time, for topics that nobody consumes.

Owns the order of the duties and their sum; how each is done is the engine's (`collection`, `purge`). Called by `Admin`,
and so by cron; as often as wanted, beside running subscribers, and by several processes at once: who meets another's
lock leaves the lane to it.

Each duty works in bounded batches, one transaction or one statement each. Dies anywhere, or a COMMIT that was not
answered: what is done is done, and the next call goes on. What stops one topic (a lock, a missing privilege) is
reported for that topic, and the others are done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._checks import check_name
from lanelog._engine import collection
from lanelog._engine.purge import Purge
from lanelog._stores.groups import Groups
from lanelog._stores.offsets import Offsets
from lanelog.admin._known import known_topic, pages, read, repeated
from lanelog.admin._names import names
from lanelog.admin.views import Maintained
from lanelog.errors import ConfigurationError, DatabaseError

if TYPE_CHECKING:
    from collections.abc import Collection

    from lanelog._database import Database
    from lanelog._engine.collection import Released

LANES_A_TRANSACTION = 200
PURGES_A_PAGE = 100


def maintain(database: Database, *, topics: Collection[str] | None) -> Maintained:
    """See `Admin.maintain`."""
    wanted = _chosen(database, topics)
    collected, letters, lanes, heartbeats = 0, 0, 0, 0
    failed: dict[str, str] = {}
    for topic, holds_letters in wanted:
        try:
            if holds_letters:
                letters += _collect(database, topic, letters=True)
            else:
                collected += _collect(database, topic, letters=False)
                lanes += _purge(database, topic)
            for group in read(database, Groups().readers, "reading groups", topic):
                heartbeats += read(database, collection.forget_members, "deleting heartbeats", topic, group)
        except DatabaseError as error:
            failed[topic] = str(error)
    return Maintained(
        topics=tuple(topic for topic, _ in wanted),
        collected=collected,
        dead_letters=letters,
        expired=0,
        lanes_purged=lanes,
        history=0,
        heartbeats=heartbeats,
        failed=failed,
    )


def _chosen(database: Database, topics: Collection[str] | None) -> list[tuple[str, bool]]:
    """The topics by name, and whether they hold dead letters; every one of those given must exist."""
    if topics is None:
        return sorted(read(database, names, "listing topics"))
    if isinstance(topics, str | bytes):
        raise ConfigurationError("topics must be a list of topics, not one of them")
    try:
        wanted = sorted({check_name("topic", topic) for topic in topics})
    except TypeError as exc:
        raise ConfigurationError(f"topics must be a list of topics, not {type(topics).__name__}") from exc
    for topic in wanted:
        read(database, known_topic, "looking for a topic", topic)
    holders = dict(read(database, names, "listing topics"))
    return [(topic, holders.get(topic, False)) for topic in wanted]


def _collect(database: Database, topic: str, *, letters: bool) -> int:
    """Release and delete lane by lane, page by page; how many messages that were."""
    deleted = 0
    for page in pages(database, topic, LANES_A_TRANSACTION):
        keys = [key for key, _ in page]
        while keys:
            released = repeated(database, _release, "releasing messages", database, topic, keys, letters=letters)
            for step in collection.deletion(topic, released.lanes, letters=letters):
                deleted += read(database, step, "deleting messages")
            keys = [key for key, span in released.lanes.items() if span.risen and span.full]
    return deleted


def _release(database: Database, topic: str, keys: list[str], *, letters: bool) -> Released:
    with database.transaction() as cx:
        if letters:
            return collection.release_letters(cx, topic, keys, None)
        retention_ms = max(Groups().readers(cx, topic).values(), default=0)
        return collection.release(cx, topic, keys, retention_ms)


def _purge(database: Database, topic: str) -> int:
    """Remove the lanes that have been drained and idle for long; how many that were."""
    session = database.session("maintenance")
    try:
        purge, gone, after = Purge(session), 0, ""
        while True:
            idle = database.config.lane_idle_purge
            keys = read(database, Offsets().idle_floors, "looking for idle lanes", topic, after, idle, PURGES_A_PAGE)
            gone += sum(repeated(database, purge.drained, "purging a lane", topic, key) for key in keys)
            if len(keys) < PURGES_A_PAGE:
                return gone
            after = keys[-1]
    finally:
        session.close()
