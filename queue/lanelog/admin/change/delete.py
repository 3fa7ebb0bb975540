"""Deletion of groups and topics.

Owns these transactions. Never touches a dead letter topic or a schedule that it was not asked to delete: the result
names those that stay.

The first transaction ends the groups: topic row X → groups X → leases. It raises the topic row's epoch above every
lease that it deletes, so that a later group of that name begins above them. It refuses if a member lives, as `living`
judges that, unless the caller evicts: then it leaves a mark, without which members that are restarted would register
the group again. A member that cannot be judged leaves none. The end of a whole topic takes all its marks away. From its
commit on nothing can be settled for the deleted groups, because a settlement needs its lease. The remaining rows are
deleted by exact keys in bounded batches. Each batch is one transaction: it locks the topic row, and checks that the
group was not registered again.

For a topic, the scheduled messages follow, then the messages (see `purge_messages`), then lane after lane: topic row X
→ floors X → heads X → delivery → offsets. The topic row stays; it keeps the highest offset and epoch.

Dies before the first COMMIT: nothing has happened. After it, in the middle, or with an unanswered COMMIT: the groups
are gone, and rows without a group are left. They do no harm. The same call again deletes them, and so does a
registration of that name. Two at once: the second waits for the topic row, and finds less or nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._checks import check_name
from lanelog._database import Lock
from lanelog._log.lookup import owners as _owners
from lanelog._log.lookup.known import known_topic, no_group, no_topic, pages, read, repeated, snapshot
from lanelog._places import GroupTopic
from lanelog._stores import (
    deliveries,
    groups,
    heartbeats,
    lease_removal,
    leases,
    offsets,
    partitions,
    scheduled,
    schedules,
)
from lanelog._stores._points import GROUPS_TOGETHER, chunked
from lanelog.admin.audit_entry import Act, Actor
from lanelog.admin.change import living
from lanelog.admin.change.deletion_facts import Tally, deleting, passing
from lanelog.admin.change.purge_messages import delete_released, may_delete
from lanelog.admin.lookup.arguments import check_names
from lanelog.admin.read import lane_totals, topics
from lanelog.admin.schedules.scheduled import delete_all
from lanelog.admin.types.results import GroupDeleted, TopicDeleted
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lanelog._database import Database, Executor
    from lanelog.admin.change.living import Silence

BATCH = 1000
LANES_A_TRANSACTION = 100
ROUNDS = 3
"""How often a lane is emptied that is still published to. Then it is left."""


# -- a group -----------------------------------------------------------------------------------------------------------


def delete_group(database: Database, at: GroupTopic, *, actor: Actor, evict: bool, dry_run: bool) -> GroupDeleted:
    """See `Admin.delete_group`."""
    act = Act(verb="delete_group", topic=at.topic, group=at.group, choice="evict" if evict else "", actor=actor)
    with passing(database, act) as tally:
        return remove_group(database, at, tally, act, evict=evict, dry_run=dry_run)


def remove_group(
    database: Database, at: GroupTopic, tally: Tally, act: Act | None = None, *, evict: bool = False, dry_run: bool
) -> GroupDeleted:
    """Delete a group and count what that did. Write no event.

    `act`: None for a job that deletes a group that it made itself. Then nobody asks whether its members live.
    """
    check_names(at)
    topic, group = at.topic, at.group
    readers = read(database, _readers, "looking for the group", at)
    others = sorted(readers - {group})
    lag = _lags(database, topic, [group])[group] if group in readers else 0
    lanes, collectable = 0, 0
    for page in pages(database, topic):
        some = read(database, _held_back, "counting", at, others, page)
        lanes, collectable = lanes + some[0], collectable + some[1]
    members = read(database, _owners.load, "reading members", at)
    if dry_run:
        if group in readers and not evict:
            read(database, _refuse_living, "reading members", [at])
    else:
        repeated(database, _try_to_delete, "looking for the privilege to delete", database, _may_delete_groups)
        repeated(database, _end, "deleting a group", database, topic, {group: lag}, act, evict=evict)
        tally.done |= group in readers
        tally.add(messages=lag, unsettled=lag)
        _clear(database, at, list(members.rows))
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


def _try_to_delete(database: Database, nothing: Callable[[Executor], None]) -> None:
    """Refuse an account that may not do the last step, before the first step is done."""
    with database.transaction(hasty=True) as cx:
        nothing(cx)


def _may_delete_groups(cx: Executor) -> None:
    """Delete rows with empty names. There are none, so this only asks for the privilege."""
    nothing = GroupTopic(topic="", group="")
    deliveries.delete(cx, nothing, [("", 0)])
    offsets.delete(cx, nothing, [""])
    heartbeats.delete(cx, nothing, "")


def _readers(cx: Executor, at: GroupTopic) -> set[str]:
    """Return the registered groups. Refuse a group that is not registered and has left no rows."""
    known_topic(cx, at.topic)
    readers = set(groups.readers(cx, at.topic))
    left = at.group in readers or offsets.any_of_group(cx, at) or deliveries.any_of_group(cx, at)
    if not left:
        raise no_group(at)
    return readers


def _lags(database: Database, topic: str, names: Iterable[str]) -> dict[str, int]:
    def look(cx: Executor) -> dict[str, int]:
        found: dict[str, lane_totals.GroupFacts] = {}
        for some in chunked(list(names), GROUPS_TOGETHER):
            found.update(lane_totals.totals(cx, topic, some))
        return {group: facts.lag for group, facts in found.items()}

    return snapshot(database, look, "counting")


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


def _end(
    database: Database,
    topic: str,
    lags: Mapping[str, int],
    act: Act | None = None,
    *,
    others: bool = True,
    evict: bool = False,
) -> None:
    """Delete the registrations and leases of these groups in one transaction.

    `lags`: the messages that each of them has not settled, as counted before.

    `others`: whether the topic may have other groups. If not, one that was registered meanwhile is refused.

    `evict`: whether members may live. If not, a group with a living member is refused.
    """
    ordered = [GroupTopic(topic=topic, group=group) for group in sorted(lags, key=str.encode)]
    silence = None if evict or act is None else living.listen(database, ordered, whole_topic=not others)
    with database.transaction(hasty=True) as cx:
        if partitions.topic_row(cx, topic, Lock.UPDATE) is None:
            raise no_topic(topic)
        # A registration needs the topic row: those that are there now are all.
        late = set() if others else set(groups.readers(cx, topic)).difference(lags)
        if late:
            raise ConfigurationError(
                f"group {min(late)!r} was registered for topic {topic!r} just now: nothing was changed"
            )
        there = [at for at in ordered if groups.lock(cx, at) is not None]
        epoch, held = 0, {}
        for at in ordered:
            # No lease row can be born while the topic row is locked, so these are all.
            held[at] = _lock_leases(cx, at, silence)
            epoch = max([epoch, *(lease.epoch for lease in held[at].values())])
        if silence is not None:
            _refuse_living(cx, there, silence, whole_topic=not others)  # after the last lock: each may have waited
        for at in ordered:
            lease_removal.delete(cx, at, [*held[at]])
            groups.delete(cx, at)
        _mark(cx, there if others else heartbeats.marked(cx, topic), evict=evict)
        partitions.raise_topic(cx, topic, 0, epoch)
        if act is not None and (there or not lags):
            act.record(cx, database, messages=sum(lags.values()))


def _lock_leases(cx: Executor, at: GroupTopic, silence: Silence | None) -> dict[str, leases.Held]:
    """Lock the leases of a group, and return them by key.

    That takes long for many lanes. Each page shows that members could write meanwhile: their heartbeats need no lease.
    """
    after = ""  # the key of no lane, but of the lease that a job of Spark has for a topic
    held = dict(leases.lock_owners(cx, at, [after]))
    while keys := lease_removal.keys_of_group(cx, at, after):
        held |= leases.lock_owners(cx, at, keys)
        after = keys[-1]
        if silence is not None:
            silence.went_on()
    return held


def _mark(cx: Executor, places: Iterable[GroupTopic], *, evict: bool) -> None:
    """Take the marks of these groups away, and mark those anew that are evicted while members live."""
    for at in places:
        heartbeats.unmark(cx, at)
        if evict and living.living(cx, at, None):
            heartbeats.mark_evicted(cx, at)


def _refuse_living(
    cx: Executor, places: Sequence[GroupTopic], silence: Silence | None = None, *, whole_topic: bool = False
) -> None:
    """Refuse to delete a group with a living member. `silence`: None in a preview, as for `living.living`."""
    for at in places:
        alive = living.living(cx, at, silence)
        if alive:
            raise living.refusal(at, alive, whole_topic=whole_topic)


def _clear(database: Database, at: GroupTopic, owners: Sequence[str]) -> None:
    """Delete the rows that a group left, until there are none, or until the group is registered again."""
    while repeated(database, _clear_some, "deleting what a group left", database, at):
        pass
    for owner in owners:
        read(database, heartbeats.delete, "deleting heartbeats", at, owner)


def _clear_some(database: Database, at: GroupTopic) -> bool:
    """Delete one batch. True: there may be more."""
    with database.transaction(hasty=True) as cx:
        # topic row S → delivery → offsets. A registration, which would make these rows its own, needs the topic row.
        partitions.topic_row(cx, at.topic, Lock.SHARE)
        if groups.get(cx, at) is not None:
            return False
        points = deliveries.some_of_group(cx, at, BATCH)
        deliveries.delete(cx, at, points)
        keys = offsets.some_of_group(cx, at, BATCH)
        offsets.delete(cx, at, keys)
        return len(points) == BATCH or len(keys) == BATCH


# -- a topic -----------------------------------------------------------------------------------------------------------


def delete_topic(database: Database, topic: str, *, actor: Actor, dry_run: bool) -> TopicDeleted:
    """See `Admin.delete_topic`."""
    check_name("topic", topic)
    letters = read(database, topics.letters_of, "looking for the topic", topic)
    # Read before anything is changed. A schedule that is declared meanwhile is missing here.
    published_by = tuple(read(database, schedules.of_topic, "listing schedules", topic))
    names = sorted(read(database, groups.readers, "reading groups", topic))
    owners = {
        group: read(database, _owners.load, "reading members", GroupTopic(topic=topic, group=group)) for group in names
    }
    places = [GroupTopic(topic=topic, group=group) for group in names]
    read(database, _refuse_living, "reading members", places, whole_topic=True)
    lags = _lags(database, topic, names)
    unsettled = {group: lag for group, lag in lags.items() if lag}
    act = Act(verb="delete_topic", topic=topic, actor=actor)
    with deleting(database, act) as tally:
        if not dry_run:
            repeated(database, _try_to_delete, "looking for the privilege to delete", database, _may_delete_topics)
            repeated(database, _end, "deleting groups", database, topic, lags, act, others=False)
            tally.done = True
            tally.add(unsettled=sum(unsettled.values()))
            for group in names:
                _clear(database, GroupTopic(topic=topic, group=group), list(owners[group].rows))
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
    """Do what `_may_delete_groups` does, for all tables of a topic."""
    _may_delete_groups(cx)
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
