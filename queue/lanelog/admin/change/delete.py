"""Deletion of groups and topics.

Owns the order of these steps, their counts, and the transactions that delete lanes. Never touches a dead letter topic
or a schedule that it was not asked to delete: the result names those that stay.

The groups end first (`_log/end_groups`), before anything else is changed.

For a topic, the scheduled messages follow, then the messages (see `purge_messages`), then lane after lane: topic row X
→ floors X → heads X → delivery → offsets. The topic row stays; it keeps the highest offset and epoch.

If the process dies in the middle, or a COMMIT is not answered, the same call again deletes what is left. If two
processes do this at once, the second waits for the topic row, and finds less or nothing.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from lanelog._base.checks import check_name
from lanelog._base.places import GroupTopic
from lanelog._database import Lock
from lanelog._log import end_groups
from lanelog._log.lookup import owners as _owners
from lanelog._log.lookup.known import known_topic, no_group, pages, read, repeated, snapshot
from lanelog._stores._points import GROUPS_TOGETHER, chunked
from lanelog._stores.consumers import deliveries, groups, offsets
from lanelog._stores.later import scheduled, schedules
from lanelog._stores.log import partitions
from lanelog.admin.audit_entry import Act, Call
from lanelog.admin.change.deletion_facts import deleting, passing
from lanelog.admin.change.purge_messages import delete_released, may_delete
from lanelog.admin.lookup.arguments import check_names
from lanelog.admin.schedules.scheduled import delete_all
from lanelog.admin.totals import lane_totals, topics
from lanelog.admin.types.results import GroupDeleted, TopicDeleted
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lanelog._database import Database, Executor

LANES_A_TRANSACTION = 100
ROUNDS = 3
"""How often a lane is emptied that is still published to. Then it is left."""


# -- a group -----------------------------------------------------------------------------------------------------------


def delete_group(call: Call, at: GroupTopic, *, evict: bool) -> GroupDeleted:
    """See `Admin.delete_group`."""
    database, dry_run = call.database, call.dry_run
    act = Act(call, "delete_group", topic=at.topic, group=at.group, choice="evict" if evict else "")
    check_names(at)
    topic, group = at.topic, at.group
    readers = read(database, _readers, "finding the group", at)
    others = sorted(readers - {group})
    lag = _lags(database, topic, [group])[group] if group in readers else 0
    lanes, collectable = 0, 0
    for page in pages(database, topic):
        some = read(database, _held_back, "counting", at, others, page)
        lanes, collectable = lanes + some[0], collectable + some[1]
    members = read(database, _owners.load, "reading members", at)
    if dry_run:
        if group in readers and not evict:
            read(database, end_groups.refuse_living, "reading members", [at])
    else:
        repeated(database, end_groups.try_to_delete, "finding the privilege to delete", database)
        with passing(act) as tally:
            record = partial(act.record, messages=lag)
            repeated(database, end_groups.end, "deleting a group", database, topic, [group], record, evict=evict)
            tally.done |= group in readers
            tally.add(messages=lag, unsettled=lag)
            end_groups.clear(database, at, list(members.rows))
    return GroupDeleted(
        topic=topic,
        group=group,
        lanes=lanes,
        lag=lag,
        members=sum(members.alive(owner) for owner in members.rows),
        collectable=collectable if others and group in readers else 0,
        groups_left=tuple(others),
        dry_run=dry_run,
    )


def _readers(cx: Executor, at: GroupTopic) -> set[str]:
    """Return the registered groups. Refuse a group that is not registered and has left no rows."""
    known_topic(cx, at.topic)
    readers = set(groups.readers(cx, at.topic))
    left = at.group in readers or offsets.any_of_group(cx, at) or deliveries.any_of_group(cx, at)
    if not left:
        raise no_group(at)
    return readers


def _lags(database: Database, topic: str, names: Iterable[str]) -> dict[str, int]:
    def query(cx: Executor) -> dict[str, int]:
        found: dict[str, lane_totals.GroupFacts] = {}
        for some in chunked(list(names), GROUPS_TOGETHER):
            found.update(lane_totals.totals(cx, topic, some))
        return {group: facts.lag for group, facts in found.items()}

    return snapshot(database, query, "counting")


def _held_back(cx: Executor, at: GroupTopic, others: Sequence[str], page: Sequence[tuple[str, int]]) -> tuple[int, int]:
    """Return in how many of these lanes the group has a row, and how many messages no other group holds back there."""
    keys = [key for key, _ in page]
    floors = {key: row.floor for key, row in offsets.floors(cx, at.topic, keys).items()}
    marks = offsets.watermarks(cx, at.topic, [at.group, *others], keys)
    held = 0
    for key in keys:
        floor = floors.get(key, 0)
        theirs = [max(floor, marks.get((other, key), 0)) for other in others]
        held += max(0, min(theirs, default=0) - max(floor, marks.get((at.group, key), 0)))
    return sum((at.group, key) in marks for key in keys), held


# -- a topic -----------------------------------------------------------------------------------------------------------


def delete_topic(call: Call, topic: str) -> TopicDeleted:
    """See `Admin.delete_topic`."""
    database, dry_run = call.database, call.dry_run
    check_name("topic", topic)
    letters = read(database, topics.letters_of, "finding the topic", topic)
    # Read before anything is changed. A schedule that is declared meanwhile is missing here.
    published_by = tuple(read(database, schedules.of_topic, "listing schedules", topic))
    names = sorted(read(database, groups.readers, "reading groups", topic))
    owners = {
        group: read(database, _owners.load, "reading members", GroupTopic(topic=topic, group=group)) for group in names
    }
    places = [GroupTopic(topic=topic, group=group) for group in names]
    read(database, end_groups.refuse_living, "reading members", places, whole_topic=True)
    lags = _lags(database, topic, names)
    unsettled = {group: lag for group, lag in lags.items() if lag}
    act = Act(call, "delete_topic", topic=topic)
    with deleting(act) as tally:
        if not dry_run:
            repeated(
                database, end_groups.try_to_delete, "finding the privilege to delete", database, _may_delete_topics
            )
            record = partial(act.record, messages=sum(lags.values()))
            repeated(database, end_groups.end, "deleting groups", database, topic, names, record, others=False)
            tally.done = True
            tally.add(unsettled=sum(unsettled.values()))
            for group in names:
                end_groups.clear(database, GroupTopic(topic=topic, group=group), list(owners[group].rows))
        # Before the lanes: a message that is moved into the log meanwhile is deleted with its lane.
        waiting = read(database, scheduled.count, "counting", topic) if dry_run else delete_all(database, topic)
        tally.add(scheduled=0 if dry_run else waiting)
        lanes, messages = 0, 0
        for page in pages(database, topic, LANES_A_TRANSACTION):
            keys = [key for key, _ in page]
            some = _count(database, topic, dict(page)) if dry_run else _empty(database, topic, keys)
            lanes, messages = lanes + some[0], messages + some[1]
            tally.add(messages=0 if dry_run else some[1])
    return TopicDeleted(
        topic=topic,
        lanes=lanes,
        messages=messages,
        scheduled=waiting,
        groups=tuple(names),
        unsettled=unsettled,
        dead_letter_topics=letters,
        schedules=published_by,
        dry_run=dry_run,
    )


def _may_delete_topics(cx: Executor) -> None:
    """Do what `end_groups.may_delete` does, for all tables of a topic."""
    end_groups.may_delete(cx)
    may_delete(cx)
    scheduled.delete(cx, "", [("", "")])
    offsets.raise_floors(cx, "", {"": 0})
    partitions.purge(cx, "", "")


def _count(database: Database, topic: str, heads: Mapping[str, int]) -> tuple[int, int]:
    floors = read(database, offsets.floors, "reading floors", topic, list(heads))
    return len(heads), sum(heads[key] - row.deleted_through for key, row in floors.items())


def _empty(database: Database, topic: str, keys: Sequence[str]) -> tuple[int, int]:
    """Delete the messages of these lanes, then the lanes. Return the numbers of lanes and messages."""
    lanes, messages, left = 0, 0, list(keys)
    for _ in range(ROUNDS):
        released = repeated(database, _release, "releasing messages", database, topic, left)
        messages += delete_released(database, topic, released)
        before = len(left)
        left = repeated(database, _drop, "deleting lanes", database, topic, left)
        lanes += before - len(left)
        if not left:
            break
    return lanes, messages


def _release(database: Database, topic: str, keys: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Raise the floors to the heads. Return (deleted through, floor) by key."""
    with database.transaction(hasty=True) as cx:
        partitions.topic_row(cx, topic, Lock.SHARE)
        _nobody_reads(cx, topic)
        floors = offsets.floors(cx, topic, keys, Lock.UPDATE)
        heads = partitions.heads(cx, topic, list(floors))
        offsets.raise_floors(cx, topic, heads)
        return {key: (floors[key].deleted_through, head) for key, head in heads.items()}


def _nobody_reads(cx: Executor, topic: str) -> None:
    """Refuse if a group is registered. While the topic row is locked, none can be registered."""
    readers = groups.readers(cx, topic)
    if readers:
        raise ConfigurationError(
            f"group {min(readers)!r} was registered for topic {topic!r} while it was being deleted: what is left stays"
        )


def _drop(database: Database, topic: str, keys: Sequence[str]) -> list[str]:
    """Delete the lanes that are empty. Return the keys of those that were published to meanwhile."""
    with database.transaction(hasty=True) as cx:
        partitions.topic_row(cx, topic, Lock.UPDATE)
        _nobody_reads(cx, topic)
        floors = offsets.floors(cx, topic, keys, Lock.UPDATE)
        heads = partitions.heads(cx, topic, list(floors), Lock.UPDATE)
        empty = [key for key, head in heads.items() if head == floors[key].floor == floors[key].deleted_through]
        if empty:
            seen = sorted({"", *offsets.groups_seen(cx, topic)}, key=str.encode)
            for group in seen:
                at = GroupTopic(topic=topic, group=group)
                rows = deliveries.load(cx, at, empty)
                deliveries.delete(cx, at, [(key, row.offset) for key, found in rows.items() for row in found])
            partitions.raise_topic(cx, topic, max(heads[key] for key in empty), 0)
            for key in sorted(empty, key=str.encode):
                offsets.purge(cx, topic, key, seen)
                partitions.purge(cx, topic, key)
        return [key for key in heads if key not in empty]
