"""One round of maintenance: what running subscribers do all the time, for topics that no process consumes.

Owns the order of the duties and their sum. `_log` has the transactions of each, here as in a subscriber. Safe as often
as wanted, beside running subscribers, and in several processes at once: a lane that is locked is left to the process
that locked it.

Each duty works in bounded batches, one transaction or one statement each. If the process dies anywhere, or a COMMIT is
not answered, committed batches stay, and the next call goes on. An error that ends the work on one topic (a lock, a
missing privilege) is reported for that topic, and the other topics are done.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from attrs import fields

from lanelog._base.places import GroupTopic
from lanelog._log import collect, members, purge_lane, repair
from lanelog._log.due import DelayedMessages
from lanelog._log.expire import ExpiredMessages
from lanelog._log.fire.recurring import RecurringSchedules
from lanelog._log.lookup.known import known_topic, pages, read, repeated
from lanelog._log.lookup.names import names
from lanelog._stores.consumers import groups, history, offsets
from lanelog._stores.consumers.groups import VERSION_WITH_DEAD_LETTER_TOPIC
from lanelog._stores.consumers.history import BATCH
from lanelog.admin.change.purge_messages import may_delete
from lanelog.admin.dead_letters.selection import originals
from lanelog.admin.lookup.arguments import check_list
from lanelog.admin.types.results import Maintained
from lanelog.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from lanelog._database import Database
    from lanelog._log.append.appender import Appender
    from lanelog._log.collect import Collected

SCHEDULES = "(schedules)"
"""The key of `Maintained.failed` for an error of schedules, instead of a topic."""

LANES_A_TRANSACTION = 200
PURGES_A_PAGE = 100

HISTORY_KEPT_MS = 7 * 24 * 3600 * 1000
"""How long rows of history stay if their group is gone, or keeps no history any more."""


def maintain(database: Database, *, topics: Collection[str] | None, appender: Appender) -> Maintained:
    """See `Admin.maintain`."""
    wanted = _chosen(database, topics)
    original_of = read(database, originals, "listing topics")
    done = Counter[str]()
    failed: dict[str, str] = {}
    refusal: DatabaseError | None = None
    done["fired"] = _fire(database, None if topics is None else [topic for topic, _ in wanted], appender, failed)
    for topic, holds_letters in wanted:
        try:
            done["mended"] += _repair(database, topic)
            done["appended"] += _append(database, topic, appender)
            done["expired"] += 0 if holds_letters else _bury_expired(database, topic, appender)
            read(database, may_delete, "finding the privilege to delete")
            if holds_letters:
                kept = _letters_kept(database, original_of.get(topic))
                release = partial(_release_letters, database, topic, kept=kept)
                done["dead_letters"] += _collect(database, topic, release, letters=True)
            else:
                release = partial(_release, database, topic)
                done["collected"] += _collect(database, topic, release, letters=False)
                done["lanes_purged"] += _purge(database, topic)
            for group in read(database, groups.readers, "reading groups", topic):
                at = GroupTopic(topic=topic, group=group)
                done["heartbeats"] += read(database, members.forget, "deleting heartbeats", at)
        except DatabaseError as error:
            failed[topic] = str(error)
            refusal = None if error.retriable else error
    for at in read(database, history.kept, "finding history"):
        if topics is None or at.topic in dict(wanted):  # None: deleted topics, too
            try:
                done["history"] += _purge_history(database, at)
            except DatabaseError as error:
                failed.setdefault(at.topic, str(error))
    if refusal is not None and not any(done.values()) and failed.keys() >= dict(wanted).keys():
        raise refusal  # the account may do nothing of all this
    counted = {each.name: done[each.name] for each in fields(Maintained) if each.name not in {"topics", "failed"}}
    return Maintained(topics=tuple(topic for topic, _ in wanted), failed=failed, **counted)


def _fire(database: Database, topics: Sequence[str] | None, appender: Appender, failed: dict[str, str]) -> int:
    """Publish for the schedules that are due, of some topics or of all. Return the number of messages."""
    firing = RecurringSchedules(database, appender)
    try:
        with closing(database.session("maintenance")) as session:
            repeated(database, firing.set_back, "finding a clock that went back", session, topics)
            while repeated(database, firing.fire_due, "firing schedules", session, topics):
                pass
    except DatabaseError as error:
        failed[SCHEDULES] = str(error)
    return firing.fired


def _repair(database: Database, topic: str) -> int:
    """Repair lanes whose tables contradict each other. Return the number of contradictions."""
    with closing(database.session("maintenance")) as session:
        return len(repeated(database, repair.audit, "finding contradictions", session, topic).repaired)


def _append(database: Database, topic: str, appender: Appender) -> int:
    """Move messages that are due into the log, except into locked lanes. Return their number."""
    with closing(database.session("maintenance")) as session:
        appending, moved, nothing = DelayedMessages(session, appender), 0, 0
        while nothing <= 1:  # an empty first round may have met locked lanes, or created missing ones: try once more
            some = repeated(database, appending.append, "appending what is due", [topic])
            moved += some
            nothing = 0 if some else nothing + 1
        return moved


def _chosen(database: Database, topics: Collection[str] | None) -> list[tuple[str, bool]]:
    """Return the topics by name, and whether they hold dead letters. Refuse a given topic that does not exist."""
    if topics is None:
        return sorted(read(database, names, "listing topics"))
    wanted = sorted({*check_list("topics", "topic", topics)})
    for topic in wanted:
        read(database, known_topic, "finding a topic", topic)
    holders = dict(read(database, names, "listing topics"))
    return [(topic, holders.get(topic, False)) for topic in wanted]


def _letters_kept(database: Database, topic: str | None) -> dict[tuple[str, str], int]:
    if topic is None:
        return {}
    kept = read(database, groups.letters_kept, "reading groups", topic)
    return {(topic, group): retention_ms for group, retention_ms in kept.items()}


def _bury_expired(database: Database, topic: str, appender: Appender) -> int:
    """Make dead letters of what has expired for groups that no process consumes. Return the number of messages."""
    if database.tables_version < VERSION_WITH_DEAD_LETTER_TOPIC:
        return 0
    expiring = ExpiredMessages(topic, database.autocommit, database.transaction, appender)
    buried = 0
    for group in read(database, groups.unattended, "finding groups that nobody consumes", topic):
        for page in pages(database, topic, LANES_A_TRANSACTION):
            keys = [key for key, _ in page]
            buried += repeated(database, expiring.bury, "settling what has expired", group, keys).messages
    return buried


def _collect(database: Database, topic: str, release: Callable[[list[str]], Collected], *, letters: bool) -> int:
    """Release and delete messages, page by page of lanes. Return the number of messages deleted."""
    deleted = 0
    for page in pages(database, topic, LANES_A_TRANSACTION):
        keys = [key for key, _ in page]
        while keys:
            released = repeated(database, release, "releasing messages", keys)
            for step in collect.deletion(topic, released.lanes, letters=letters):
                deleted += read(database, step, "deleting messages")
            keys = [key for key, span in released.lanes.items() if span.full]
    return deleted


def _release_letters(
    database: Database, topic: str, keys: list[str], *, kept: Mapping[tuple[str, str], int]
) -> Collected:
    with database.transaction(hasty=True) as cx:
        released = collect.release_letters(cx, topic, keys, kept)
    collect.log_aged(database.config.user, topic, released)
    return released


def _purge_history(database: Database, at: GroupTopic) -> int:
    """Delete the group's old rows, batch by batch. Return their number."""
    row = read(database, groups.get, "reading the group", at)
    retention_ms = HISTORY_KEPT_MS if row is None or not row.history_ms else row.history_ms
    gone = 0
    while True:
        deleted, _ = read(database, history.purge, "deleting history", at, retention_ms)
        gone += deleted
        if deleted < BATCH:
            return gone


def _release(database: Database, topic: str, keys: list[str]) -> Collected:
    with database.transaction(hasty=True) as cx:
        retention_ms = max(groups.readers(cx, topic).values(), default=0)
        return collect.release(cx, topic, keys, retention_ms)


def _purge(database: Database, topic: str) -> int:
    """Remove lanes that are drained and have been idle for `lane_idle_purge` seconds. Return their number."""
    idle, tables, gone, after = database.config.lane_idle_purge, database.tables_version, 0, ""
    with closing(database.session("maintenance")) as session:
        while True:
            keys = read(database, offsets.idle_floors, "finding idle lanes", topic, after, idle, PURGES_A_PAGE)
            what = "reading the number of open lanes"
            chosen = read(database, purge_lane.removable, what, topic, keys, tables=tables)
            gone += sum(repeated(database, purge_lane.drained, "purging a lane", session, topic, key) for key in chosen)
            if len(keys) < PURGES_A_PAGE:
                return gone
            after = keys[-1]
