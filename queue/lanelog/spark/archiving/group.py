"""The archive as a consumer group: registered, one job at a time, and its watermarks.

Owns the topic leases of the group, the rise of its watermarks and the look for holes; never reads a payload and never
decides what is archived, which the manifest says. Called by `archive`.

The group is registered with the order "archive", so that nobody can subscribe to it: a watermark that somebody else
raised would let collection delete what the archive does not hold. Instead of single lanes a job leases a whole topic,
by the lease row of the empty key, which is no lane. Its epoch is the fencing token: a job raises watermarks only while
the row has its name and epoch, so that one which was stopped and goes on when another has taken over changes nothing.
The group's row names the archive that the topic goes to (`start_at`, which means nothing for it): what was archived to
one place is not in another.

A seek of the group needs no fence of its own. What counts is the manifest: a seek back holds collection until the job
raises the watermark again to what the manifest holds, some minutes later, and nothing is archived twice; a seek forward
lets collection have what lies between, and what is gone then is a hole.

Every transaction that raises watermarks may be repeated: they only grow. Dies before its COMMIT, or its answer never
arrives: the next start raises them from the manifest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attrs import define, field, frozen

from lanelog._database import NOW_MS
from lanelog._engine.leasing.registration import register
from lanelog._places import GroupTopic
from lanelog._stores import deliveries, groups, history, leases, offsets, partitions
from lanelog._stores._points import chunked
from lanelog._telemetry import get_logger
from lanelog.admin.lookup.known import pages, read, repeated
from lanelog.admin.read import owners
from lanelog.admin.types.topology import OwnerState
from lanelog.config import SubscriptionConfig
from lanelog.errors import ConfigurationError, DatabaseError, LanelogError, LeaseLost

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from lanelog._database import Database, Executor
    from lanelog.spark.archiving.presence import Presence

ORDER: Final = "archive"
"""`delivery_order` of an archive's group."""
LEASE: Final = ""
"""The key of a topic's lease: the empty one is no lane's."""
LANES_A_TRANSACTION: Final = 500
_RANGES_A_STATEMENT: Final = 100

# The first message behind one offset and up to another, if there is any, many ranges joined by UNION ALL (PRIMARY).
BETWEEN = """(SELECT partition_key, `offset` FROM queue_messages FORCE INDEX (PRIMARY)
 WHERE topic = %s AND partition_key = %s AND `offset` > %s AND `offset` <= %s ORDER BY `offset` LIMIT 1)"""

# When the tables were created, which tells one database from another (PRIMARY).
BORN = "SELECT applied_at FROM queue_schema WHERE version = 1"

_CLOCK = f"SELECT {NOW_MS}"

log = get_logger("spark")


@frozen(kw_only=True)
class Hole:
    """Offsets `first` to `last` of a lane, which were not among what was read."""

    key: str
    first: int
    last: int


class PassedOver(LanelogError):
    """What is in the log was not read: it is read again from where the archive ends."""

    retriable = True


@define(eq=False)
class ArchiveGroup:
    """The topics that this job holds for its group."""

    database: Database
    group: str
    owner: str
    archive: str
    """The archive's identity, of 32 characters."""
    epochs: dict[str, int] = field(factory=dict)
    """The fencing token of each topic that is held."""

    # -- membership ----------------------------------------------------------------------------------------------------

    def take(self, topic: str, presence: Presence) -> None:
        """Register the group for a topic and hold it, for this archive.

        Raises ConfigurationError while a living job has it, and if the group has archived it to another place.
        """
        register(self.database, self._at(topic), SubscriptionConfig(), order=ORDER)
        presence.beat([topic])  # before the lease says so, or another job would take us for dead
        self.epochs[topic] = repeated(self.database, self._take, "taking a topic for the archive", topic)

    def _at(self, topic: str) -> GroupTopic:
        return GroupTopic(topic=topic, group=self.group)

    def _take(self, topic: str) -> int:
        # topic row X -> groups X -> leases X. The topic row keeps two jobs that start at once apart.
        with self.database.transaction() as cx:
            row = partitions.lock_topic(cx, topic)
            if row is None or groups.lock(cx, self._at(topic)) is None:
                raise LeaseLost(f"group {self.group!r} of topic {topic!r} was deleted while the archive started")
            held = leases.lock_one(cx, self._at(topic).lane(LEASE))
            if held is not None and held.owner not in ("", self.owner):
                state = owners.load(cx, self._at(topic)).state(held.owner)
                if state is OwnerState.ALIVE:
                    raise _at_work(topic, self.group, held.owner)
                log.warning("archive.taken_over", topic=topic, group=self.group, owner=held.owner, state=state.value)
            _refuse_elsewhere(cx, self._at(topic), self.archive)
            groups.set_start(cx, self._at(topic), self.archive)
            leases.claim(cx, self._at(topic).lane(LEASE), self.owner, row.first_epoch)
            taken = leases.lock_one(cx, self._at(topic).lane(LEASE))
            assert taken is not None  # noqa: S101 - it was just written
            return taken.epoch

    def registered(self, topic: str) -> bool:
        """Whether the group is there for a topic, so that collection waits for it."""
        return read(self.database, lambda cx: groups.get(cx, self._at(topic)) is not None, "looking for the group")

    def leave(self, named: Container[str]) -> None:
        """Give the topics back that the manifest has `named`, which tells other archives to keep away from them.

        Of the others, and once the database does not answer, the next job finds out that this one is gone.
        """
        for topic, epoch in self.epochs.items():
            if topic not in named:
                continue
            try:
                repeated(self.database, self._leave, "leaving a topic", topic, epoch)
            except DatabaseError as error:
                log.warning("archive.leave_failed", topic=topic, group=self.group, error=error)
                if error.retriable:  # it was waited for: each of the others would wait as long
                    break
        self.epochs.clear()

    def _leave(self, topic: str, epoch: int) -> None:
        with self.database.transaction() as cx:
            leases.release(cx, self._at(topic), self.owner, [(LEASE, epoch)])

    def paused(self) -> str | None:
        """A topic for which an operator has paused the group; None: it runs. LeaseLost if the group is gone."""

        def look(cx: Executor) -> str | None:
            found = None
            for topic in list(self.epochs):
                row = groups.get(cx, self._at(topic))
                if row is None:
                    raise self._lost(topic)
                found = topic if row.paused else found
            return found

        return read(self.database, look, "looking for a pause")

    def with_outcomes(self) -> list[str]:
        """Those of the topics that are held of which some group has outcomes."""
        found = {topic for _, topic in read(self.database, history.kept, "looking for outcomes")}
        return sorted(found & self.epochs.keys())

    # -- watermarks ----------------------------------------------------------------------------------------------------

    def recover(self, topic: str, archived: Mapping[str, int]) -> list[str]:
        """Raise the watermarks to what the manifest holds: the last job may have died before it did.

        Returns lanes whose watermark is above it: what lies between may have been collected. Raises ConfigurationError
        if the manifest holds more than was ever published.
        """
        above: list[str] = []
        for page in pages(self.database, topic):
            ahead = [(key, head) for key, head in page if archived.get(key, 0) > head]
            if ahead:
                key, head = ahead[0]
                raise self._older(topic, key, head, archived[key])
            keys = [key for key, _ in page]
            rows = read(self.database, offsets.load, "reading watermarks", self._at(topic), keys)
            marks = {key: rows[self.group, key].offset_acked if (self.group, key) in rows else 0 for key in keys}
            self.advance(topic, {key: archived[key] for key in keys if marks[key] < archived.get(key, 0)})
            above += [key for key in keys if marks[key] > archived.get(key, 0)]
        return above

    def lanes(self, topic: str) -> set[str]:
        """The keys of a topic that have a lane."""
        return {key for page in pages(self.database, topic) for key, _ in page}

    def advance(self, topic: str, through: Mapping[str, int]) -> None:
        """Raise watermarks to what the manifest holds. Raises LeaseLost when another job has the topic."""
        for keys in chunked(sorted(through, key=str.encode), LANES_A_TRANSACTION):
            marks = {key: through[key] for key in keys}
            repeated(self.database, self._advance, "raising the archive's watermarks", topic, marks)

    def _advance(self, topic: str, through: Mapping[str, int]) -> None:
        # floors S -> leases S -> delivery -> offsets. A lane without a floor was purged: it gets no row again.
        with self.database.transaction() as cx:
            floors = offsets.share_floors(cx, topic, list(through))
            held = leases.fence(cx, self._at(topic), self.owner, [LEASE]).epochs
            if topic not in self.epochs or held.get(LEASE) != self.epochs[topic]:
                raise self._lost(topic)
            heads = partitions.heads(cx, topic, list(floors))
            for key in floors:  # of a running job: the tables were set back under it
                if through[key] > heads.get(key, through[key]):
                    raise self._older(topic, key, heads[key], through[key])
            # What an operator skipped ahead of the watermark, one by one, has rows.
            rows = deliveries.load(cx, self._at(topic), list(floors))
            marks = {
                key: deliveries.advanced(rows.get(key, ()), max(through[key], floors[key].floor)) for key in floors
            }
            behind = [(key, row.offset) for key in rows for row in rows[key] if row.through <= marks[key]]
            if behind:
                deliveries.delete(cx, self._at(topic), behind)
            offsets.raise_watermarks(cx, self._at(topic), marks)

    def _older(self, topic: str, key: str, head: int, archived: int) -> ConfigurationError:
        """The end of a job that would raise watermarks above heads, and so swallow what is published up to there."""
        log.error("archive.above_head", topic=topic, key=key, group=self.group, offset=archived, head=head)
        return ConfigurationError(
            f"lane {key!r} of topic {topic!r} is at offset {head} and the archive holds {archived}: the "
            "database is older than the archive; archive it elsewhere, for another group"
        )

    def _lost(self, topic: str) -> LeaseLost:
        return LeaseLost(f"topic {topic!r} is not this job's any more: another one has it, or the group was deleted")

    # -- holes ---------------------------------------------------------------------------------------------------------

    def check(self, topic: str, holes: Sequence[Hole]) -> None:
        """Judge what is missing between what was archived before and what was read now.

        Raises PassedOver if it is in the log: whoever read has passed it over. What is gone from the log
        although nobody released it is an ERROR event, as for any consumer, and the job goes on.
        """
        if holes:
            read(self.database, self._check, "looking into a hole", topic, holes)

    def _check(self, cx: Executor, topic: str, holes: Sequence[Hole]) -> None:
        keys = sorted({hole.key for hole in holes})
        places = offsets.load(cx, self._at(topic), keys)
        for chunk in chunked(holes, _RANGES_A_STATEMENT):
            args: list[object] = []
            for hole in chunk:  # what is released is still there for a moment, and nobody reads it
                floor = places["", hole.key].offset_acked if ("", hole.key) in places else 0
                args += (topic, hole.key, max(hole.first - 1, floor), hole.last)
            found = cx.query(" UNION ALL ".join([BETWEEN] * len(chunk)), args)
            if found:
                key, offset = found[0]
                raise PassedOver(
                    f"offset {offset} of topic {topic!r}, lane {key!r}, was passed over: it is in the log, and was not "
                    "among what was read"
                )
        rows = deliveries.load(cx, self._at(topic), keys)
        for hole in holes:
            marks = [places[group, hole.key].offset_acked for group in ("", self.group) if (group, hole.key) in places]
            if deliveries.advanced(rows.get(hole.key, ()), max([hole.first - 1, *marks])) >= hole.last:
                continue  # an operator has let it go, or it left before the archive began
            log.error("archive.hole", topic=topic, key=hole.key, group=self.group, offset=hole.first, through=hole.last)


def refuse_elsewhere(database: Database, at: GroupTopic, archive: str) -> None:
    """Refuse a topic that the group has archived to another place. Raises ConfigurationError."""
    read(database, _refuse_elsewhere, "looking for the group", at, archive)


def _refuse_elsewhere(cx: Executor, at: GroupTopic, archive: str) -> None:
    # Has archived: there are watermarks, or the topic was given back, which a job does once its manifest names it. One
    # that died before that has left nothing, and nothing stands in the way of another place.
    bound = groups.start(cx, at)
    if bound is None or bound == archive:
        return
    if leases.holds(cx, at, "") or offsets.any_of_group(cx, at):
        raise ConfigurationError(
            f"group {at.group!r} has archived topic {at.topic!r} to another place: go on there, give another --group, "
            f"or begin anew after `lanelog delete-group {at.topic} {at.group} --execute`"
        )


def refuse_at_work(database: Database, group: str, topics: Iterable[str], archive: str) -> None:
    """Refuse to begin while a living job holds any of these topics for this archive. Raises ConfigurationError."""

    def look(cx: Executor) -> None:
        for topic in topics:
            at = GroupTopic(topic=topic, group=group)
            held = leases.held(cx, at.lane(LEASE))
            if held is not None and groups.start(cx, at) == archive and owners.load(cx, at).alive(held.owner):
                raise _at_work(topic, group, held.owner)

    read(database, look, "looking for other jobs")


def _at_work(topic: str, group: str, owner: str) -> ConfigurationError:
    return ConfigurationError(
        f"topic {topic!r} is being archived for group {group!r} by {owner}: one job at a time; stop it first"
    )


def born(database: Database) -> int:
    """When the tables of a database were created, in its milliseconds. Raises DatabaseError, SchemaError."""
    row = read(database, lambda cx: cx.one(BORN), "looking at the tables")
    return 0 if row is None else int(row[0])


def now_ms(database: Database) -> int:
    """The database's clock."""
    row = read(database, lambda cx: cx.one(_CLOCK), "reading the clock")
    assert row is not None  # noqa: S101 - it has no table that could be empty
    return int(row[0])


def holes_of(archived: int, found: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Ranges, first and last, that are missing between the highest offset archived and these, which are sorted."""
    last = archived
    for offset in found:
        if offset > last + 1:
            yield last + 1, offset - 1
        last = max(last, offset)
