"""The end of groups: their registrations and leases go in one transaction, and what they left follows.

Owns these transactions. Never deletes a message, nor a lane.

Lock order: topic row X → groups X → leases. The topic row's epoch is raised above every lease that is deleted, so that
a later group of that name begins above them. The transaction refuses if `living` finds a living member, unless the
caller evicts. An eviction writes a mark, so that restarted members do not register the group again. It writes none for
a member whose life is uncertain. The end of a whole topic removes all its marks. From its commit on nothing can be
settled for the deleted groups, because a settlement needs its lease. The remaining rows are deleted by exact
keys in bounded batches. Each batch is one transaction: it locks the topic row, and checks that the group was not
registered again.

If the process dies before the first COMMIT, nothing has happened. If it dies later, or that COMMIT is not answered, the
groups are gone, and rows without a group are left. They do no harm. The same call again deletes them, and so does a
registration of that name. If two processes do this at once, the second waits for the topic row, and finds less or
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._base.places import GroupTopic
from lanelog._database import Lock
from lanelog._log import living
from lanelog._log.lookup.known import no_topic, read, repeated
from lanelog._stores.consumers import deliveries, groups, offsets
from lanelog._stores.log import partitions
from lanelog._stores.members import heartbeats, lease_removal, leases
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from lanelog._database import Database, Executor
    from lanelog._log.living import Silence

BATCH = 1000


def may_delete(cx: Executor) -> None:
    """Delete rows with empty names. There are none, so this only asks for the privilege."""
    nothing = GroupTopic(topic="", group="")
    deliveries.delete(cx, nothing, [("", 0)])
    offsets.delete(cx, nothing, [""])
    heartbeats.delete(cx, nothing, "")


def try_to_delete(database: Database, nothing: Callable[[Executor], None] = may_delete) -> None:
    """Refuse an account that may not do the last step, before the first step is done."""
    with database.transaction(hasty=True) as cx:
        nothing(cx)


def end(
    database: Database,
    topic: str,
    names: Collection[str],
    record: Callable[[Executor], None] | None = None,
    *,
    others: bool = True,
    evict: bool = False,
) -> None:
    """Delete the registrations and leases of these groups in one transaction.

    `record`: writes down that it was done, as the last step. None for a job that deletes a group that it made itself:
    then nobody asks whether its members live.

    `others`: whether the topic may have other groups. If not, one that was registered meanwhile is refused.

    `evict`: whether members may live. If not, a group with a living member is refused.
    """
    ordered = [GroupTopic(topic=topic, group=group) for group in sorted(names, key=str.encode)]
    silence = None if evict or record is None else living.listen(database, ordered, whole_topic=not others)
    with database.transaction(hasty=True) as cx:
        if partitions.topic_row(cx, topic, Lock.UPDATE) is None:
            raise no_topic(topic)
        # A registration needs the topic row: those that are there now are all.
        late = set() if others else set(groups.readers(cx, topic)).difference(names)
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
            refuse_living(cx, there, silence, whole_topic=not others)  # after the last lock: each may have waited
        for at in ordered:
            lease_removal.delete(cx, at, [*held[at]])
            groups.delete(cx, at)
        _mark(cx, there if others else heartbeats.marked(cx, topic), evict=evict)
        partitions.raise_topic(cx, topic, 0, epoch)
        if record is not None and (there or not names):
            record(cx)


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
    """Remove the eviction marks of these groups. Write a new one for each that is evicted while members live."""
    for at in places:
        heartbeats.unmark(cx, at)
        if evict and living.living(cx, at, None):
            heartbeats.mark_evicted(cx, at)


def refuse_living(
    cx: Executor, places: Sequence[GroupTopic], silence: Silence | None = None, *, whole_topic: bool = False
) -> None:
    """Refuse to delete a group with a living member. `silence`: None in a preview, as for `living.living`."""
    for at in places:
        alive = living.living(cx, at, silence)
        if alive:
            raise living.refusal(at, alive, whole_topic=whole_topic)


def clear(database: Database, at: GroupTopic, owners: Sequence[str]) -> None:
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
