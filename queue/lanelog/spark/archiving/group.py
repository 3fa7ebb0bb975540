"""The archive as a consumer group: where its topics go, its watermarks, and its holes.

Owns the raising of its watermarks, and the check of holes. Never reads a payload, and never decides what is archived:
the manifest says it.

The group is registered with the order "archive", so that no subscriber can join it. A subscriber would raise
watermarks, and collection would delete messages that the archive does not hold. A job raises watermarks only under its
leases (see `spark.leases`). The group's row names the archive that the topic goes to, in `start_at`, which has no other
meaning for it. So a topic is never archived in parts to two locations.

A seek of the group needs no fence of its own, because the manifest counts. After a seek back, collection waits until
the job raises the watermark again, some minutes later; nothing is archived twice. After a seek forward, collection may
delete the messages in between; those that are gone by then are a hole.

Every transaction that raises watermarks may be repeated: they only grow. If the job dies before its COMMIT, or the
COMMIT is not answered, the next start raises the watermarks from the manifest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attrs import define, field, frozen

from lanelog._base.places import GroupTopic
from lanelog._database import Lock
from lanelog._facts import spark as facts
from lanelog._log.lookup import owners
from lanelog._log.lookup.known import clock, pages, read, repeated
from lanelog._stores._points import chunked, united
from lanelog._stores.consumers import deliveries, groups, history, offsets
from lanelog._stores.log import partitions
from lanelog._stores.members import leases
from lanelog.config import SubscriptionConfig
from lanelog.errors import ConfigurationError, LanelogError, LeaseLost
from lanelog.spark.leases import LEASE, Terms, TopicLeases

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from lanelog._database import Database, Executor
    from lanelog.spark.presence import Presence

ORDER: Final = "archive"
"""`delivery_order` of an archive's group."""
TERMS: Final = Terms(
    order=ORDER,
    config=SubscriptionConfig(),
    refusal="topic {topic!r} is being archived for group {group!r} by {owner}: one job at a time; stop it first",
    taken_over=facts.archive_taken_over,
    leave_failed=facts.archive_leave_failed,
)
LANES_A_TRANSACTION: Final = 500
_RANGES_A_STATEMENT: Final = 100

# The first message after one offset and up to another; many ranges joined by UNION ALL (PRIMARY).
BETWEEN = """(SELECT partition_key, `offset` FROM queue_messages FORCE INDEX (PRIMARY)
 WHERE topic = %s AND partition_key = %s AND `offset` > %s AND `offset` <= %s ORDER BY `offset` LIMIT 1)"""

# When the tables were created: this identifies a database (PRIMARY).
BORN = "SELECT applied_at FROM queue_schema WHERE version = 1"


@frozen(kw_only=True)
class Hole:
    """Offsets `first` to `last` of a lane, which were not among the messages read."""

    key: str
    first: int
    last: int


class PassedOver(LanelogError):
    """A message that is in the log was not read: it is read again from where the archive ends."""

    retriable = True


@define(eq=False)
class ArchiveGroup:
    """The topics that this job holds for its group."""

    database: Database
    group: str
    owner: str
    archive: str
    """The archive's identity, of 32 characters."""
    _held: TopicLeases = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._held = TopicLeases(TERMS, self.database, self.group, self.owner)

    # -- membership ----------------------------------------------------------------------------------------------------

    @property
    def epochs(self) -> dict[str, int]:
        """The fencing token of each topic that is held."""
        return self._held.epochs

    def take(self, topic: str, presence: Presence) -> None:
        """Register the group for a topic and hold it, for this archive.

        Raises ConfigurationError while a living job holds the topic, and if the group has archived it elsewhere.
        """
        self._held.take(topic, presence, self._bind)

    def _bind(self, cx: Executor, at: GroupTopic) -> None:
        _refuse_elsewhere(cx, at, self.archive)
        groups.set_start(cx, at, self.archive)

    def registered(self, topic: str) -> bool:
        """Return whether the group is registered for a topic, so that collection waits for it."""
        return read(self.database, lambda cx: groups.get(cx, self._held.at(topic)) is not None, "finding the group")

    def leave(self, named: Container[str]) -> None:
        """Give back the topics in `named`, those that the manifest names.

        The released lease keeps other archives away.

        The lease of another topic stays as it is, and so do all if the database does not answer. The next job finds
        their owner dead.
        """
        for topic in self.epochs:
            error = self._held.give_back(topic) if topic in named else None
            if error is not None and error.retriable:  # we waited for the database: each other topic would wait as long
                break
        self.epochs.clear()

    def paused(self) -> str | None:
        """Return a topic for which an operator has paused the group; None: it runs.

        Raises LeaseLost if the group is gone.
        """

        def find(cx: Executor) -> str | None:
            found = None
            for topic in list(self.epochs):
                row = groups.get(cx, self._held.at(topic))
                if row is None:
                    raise self._lost(topic)
                found = topic if row.paused else found
            return found

        return read(self.database, find, "finding a pause")

    def with_outcomes(self) -> list[str]:
        """Return the held topics for which a group has outcomes."""
        found = {at.topic for at in read(self.database, history.kept, "finding outcomes")}
        return sorted(found & self.epochs.keys())

    # -- watermarks ----------------------------------------------------------------------------------------------------

    def recover(self, topic: str, archived: Mapping[str, int]) -> list[str]:
        """Raise the watermarks to what the manifest holds: the last job may have died before it did so.

        Returns the lanes whose watermark is above that: messages in between may have been collected. Raises
        ConfigurationError if the manifest holds more than was ever published.
        """
        above: list[str] = []
        for page in pages(self.database, topic):
            ahead = [(key, head) for key, head in page if archived.get(key, 0) > head]
            if ahead:
                key, head = ahead[0]
                raise self._older(topic, key, head, archived[key])
            keys = [key for key, _ in page]
            rows = read(self.database, offsets.load, "reading watermarks", self._held.at(topic), keys)
            marks = {key: rows[self.group, key].offset_acked if (self.group, key) in rows else 0 for key in keys}
            self.advance(topic, {key: archived[key] for key in keys if marks[key] < archived.get(key, 0)})
            above += [key for key in keys if marks[key] > archived.get(key, 0)]
        return above

    def lanes(self, topic: str) -> set[str]:
        """Return the keys of a topic that have a lane."""
        return {key for page in pages(self.database, topic) for key, _ in page}

    def advance(self, topic: str, through: Mapping[str, int]) -> None:
        """Raise watermarks to what the manifest holds. Raises LeaseLost if another job has the topic."""
        for keys in chunked(sorted(through, key=str.encode), LANES_A_TRANSACTION):
            marks = {key: through[key] for key in keys}
            repeated(self.database, self._advance, "raising the archive's watermarks", topic, marks)

    def _advance(self, topic: str, through: Mapping[str, int]) -> None:
        # floors S -> leases S -> delivery -> offsets. A lane without a floor was purged, and gets no offsets row.
        with self.database.transaction() as cx:
            floors = offsets.floors(cx, topic, list(through), Lock.SHARE)
            held = leases.fence(cx, self._held.at(topic), self.owner, [LEASE]).epochs
            if topic not in self.epochs or held.get(LEASE) != self.epochs[topic]:
                raise self._lost(topic)
            heads = partitions.heads(cx, topic, list(floors))
            for key in floors:  # a head below the archive: the tables were set back while the job ran
                if through[key] > heads.get(key, through[key]):
                    raise self._older(topic, key, heads[key], through[key])
            # Messages that an operator skipped above the watermark have rows.
            rows = deliveries.load(cx, self._held.at(topic), list(floors))
            marks = {
                key: deliveries.advanced(rows.get(key, ()), max(through[key], floors[key].floor)) for key in floors
            }
            behind = [(key, row.offset) for key in rows for row in rows[key] if row.through <= marks[key]]
            if behind:
                deliveries.delete(cx, self._held.at(topic), behind)
            offsets.raise_watermarks(cx, self._held.at(topic), marks)

    def _older(self, topic: str, key: str, head: int, archived: int) -> ConfigurationError:
        """Log and return the error of a job whose watermarks would pass the heads, and so swallow later messages."""
        facts.archive_above_head(topic=topic, key=key, group=self.group, offset=archived, head=head)
        return ConfigurationError(
            f"lane {key!r} of topic {topic!r} is at offset {head} and the archive holds {archived}: the "
            "database is older than the archive; archive it elsewhere, for another group"
        )

    def _lost(self, topic: str) -> LeaseLost:
        return LeaseLost(f"topic {topic!r} is not this job's any more: another one has it, or the group was deleted")

    # -- holes ---------------------------------------------------------------------------------------------------------

    def check(self, topic: str, holes: Sequence[Hole]) -> None:
        """Judge holes between the archived messages and those read now.

        Raises PassedOver if the log holds a message of a hole: the reader has passed it over. A message that is gone
        from the log and was never released is an ERROR event, as for any consumer, and the job continues.
        """
        if holes:
            read(self.database, self._check, "checking holes", topic, holes)

    def _check(self, cx: Executor, topic: str, holes: Sequence[Hole]) -> None:
        keys = sorted({hole.key for hole in holes})
        marks = offsets.load(cx, self._held.at(topic), keys)
        ranges = []
        for hole in holes:  # released messages stay in the log for a moment, and are not read any more
            floor = marks["", hole.key].offset_acked if ("", hole.key) in marks else 0
            ranges.append((topic, hole.key, max(hole.first - 1, floor), hole.last))
        for key, offset in united(cx, BETWEEN, ranges, _RANGES_A_STATEMENT):
            raise PassedOver(
                f"offset {offset} of topic {topic!r}, lane {key!r}, was passed over: it is in the log, and was not "
                "among what was read"
            )
        rows = deliveries.load(cx, self._held.at(topic), keys)
        for hole in holes:
            passed = [marks[group, hole.key].offset_acked for group in ("", self.group) if (group, hole.key) in marks]
            if deliveries.advanced(rows.get(hole.key, ()), max([hole.first - 1, *passed])) >= hole.last:
                continue  # an operator skipped or purged it, or it was collected before the archive began
            facts.archive_hole(topic=topic, key=hole.key, group=self.group, offset=hole.first, through=hole.last)


def refuse_elsewhere(database: Database, at: GroupTopic, archive: str) -> None:
    """Refuse a topic that the group has archived elsewhere. Raises ConfigurationError."""
    read(database, _refuse_elsewhere, "finding the group", at, archive)


def _refuse_elsewhere(cx: Executor, at: GroupTopic, archive: str) -> None:
    # The group has archived a topic if it has watermarks there, or if the topic was given back: a job gives back only
    # topics that its manifest names. A job that died before that has archived nothing, so another archive may begin.
    bound = groups.start(cx, at)
    if bound is None or bound == archive:
        return
    if leases.holds(cx, at, "") or offsets.any_of_group(cx, at):
        raise ConfigurationError(
            f"group {at.group!r} has archived topic {at.topic!r} to another location: go on there, give another "
            f"--group, or begin anew after `lanelog delete-group {at.topic} {at.group} --execute`"
        )


def refuse_at_work(database: Database, group: str, topics: Iterable[str], archive: str) -> None:
    """Refuse to begin while a living job holds any of these topics for this archive. Raises ConfigurationError."""

    def refuse(cx: Executor) -> None:
        for topic in topics:
            at = GroupTopic(topic=topic, group=group)
            held = leases.held(cx, at.lane(LEASE))
            if held is not None and groups.start(cx, at) == archive and owners.load(cx, at).alive(held.owner):
                raise TERMS.at_work(at, held.owner)

    read(database, refuse, "finding other jobs")


def born(database: Database) -> int:
    """Return when the tables of a database were created, in epoch milliseconds. Raises DatabaseError, SchemaError."""
    row = read(database, lambda cx: cx.one(BORN), "reading the creation time")
    return 0 if row is None else int(row[0])


def now_ms(database: Database) -> int:
    """Return the database's clock, in epoch milliseconds."""
    return read(database, clock, "reading the clock")


def holes_of(archived: int, found: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield ranges, first and last, that are missing between the highest archived offset and these sorted offsets."""
    last = archived
    for offset in found:
        if offset > last + 1:
            yield last + 1, offset - 1
        last = max(last, offset)
