"""Topics and groups, with sums over their lanes.

Owns these queries. Lists no lanes and no messages. The sums of a group come from one snapshot, so they fit: it is held
for milliseconds, or for tenths of a second with 10,000 lanes. The age of the oldest message is read after it.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from lanelog._base.places import GroupTopic
from lanelog._log.lookup import owners as _owners
from lanelog._log.lookup.known import known_topic, read, snapshot
from lanelog._log.lookup.names import dead_letter_topics, names, readers
from lanelog._stores._points import points
from lanelog.admin.lookup.arguments import limit_of, optional, when
from lanelog.admin.lookup.parallel import in_parallel
from lanelog.admin.totals import ages, group_sums
from lanelog.admin.totals.registrations import GROUPS_MAX, Registration, registrations
from lanelog.admin.types.topology import GroupInfo, TopicInfo
from lanelog.config import check_name
from lanelog.errors import ConfigurationError
from lanelog.message import utc_from_ms

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from lanelog._database import Database, Executor
    from lanelog._process.workload import OpenAck
    from lanelog.admin.totals.group_sums import GroupSums
    from lanelog.admin.totals.lane_totals import GroupFacts

PAGE: Final = 1000
"""Topics, at least, whose lanes are added up by one statement. Others are only counted, by their names."""

_SUMMED = """p.topic, SUM(p.partition_key <> ''), COALESCE(SUM(IF(p.partition_key = '', 0, p.head_offset)), 0),
       COALESCE(SUM(f.offset_acked), 0), COALESCE(SUM(LEAST(f.marked_through, p.head_offset)), 0),
       MAX(p.holds_dead_letters), MAX(IF(p.partition_key = '', 0, p.created_at))
FROM queue_partitions p FORCE INDEX (PRIMARY)
LEFT JOIN queue_offsets f FORCE INDEX (PRIMARY)
       ON f.consumer_group = '' AND f.topic = p.topic AND f.partition_key = p.partition_key
"""

# Lanes of the next topics after a name added up, with their floors (both PRIMARY).
TOPICS = f"SELECT {_SUMMED} WHERE p.topic > %s GROUP BY p.topic ORDER BY p.topic LIMIT %s"

# Topics after a name that have a lane (PRIMARY).
WITH_LANES = """
SELECT DISTINCT topic FROM queue_partitions FORCE INDEX (PRIMARY) WHERE topic > %s AND partition_key > ''
"""

# The same for one topic (both PRIMARY).
TOPIC = f"SELECT {_SUMMED} WHERE p.topic = %s GROUP BY p.topic"

# Dead letters that were redriven or deleted and are not collected yet, by topic (all PRIMARY).
SETTLED = """
SELECT d.topic, SUM(d.through_offset + 1 - d.message_offset)
FROM queue_delivery_state d FORCE INDEX (PRIMARY)
JOIN queue_offsets f FORCE INDEX (PRIMARY)
  ON f.consumer_group = '' AND f.topic = d.topic AND f.partition_key = d.partition_key
WHERE d.consumer_group = '' AND d.topic IN ({keys}) AND d.message_offset > f.marked_through
GROUP BY d.topic
"""


@frozen
class _Sums:
    """The lanes of one topic, added up."""

    topic: str
    lanes: int
    head: int
    floor: int
    deleted: int
    holds_dead_letters: bool
    newest_ms: int

    @property
    def messages(self) -> int:
        return self.head - self.deleted

    @property
    def there(self) -> bool:
        """Whether the topic is shown. The row of a deleted topic stays, because its offsets must not be used again."""
        return self.lanes > 0 or self.holds_dead_letters


def topics(database: Database, limit: int) -> list[TopicInfo]:
    """See `Admin.topics`."""
    return topics_and_rest(database, limit)[0]


def topics_and_rest(database: Database, limit: int) -> tuple[list[TopicInfo], int]:
    """Return the first topics, and how many others there are."""
    limit_of(limit)

    return snapshot(database, _topics_and_rest, "listing topics", limit)


def _topics_and_rest(cx: Executor, limit: int) -> tuple[list[TopicInfo], int]:
    reading = readers(cx)
    found = _first(cx, limit, reading)
    flags = names(cx)
    there = [each for each in found.values() if each.topic in reading or each.there]
    shown = there[:limit]
    letters = dead_letter_topics([each.topic for each in shown], flags)
    for name in set(chain.from_iterable(letters.values())) - set(found):
        found[name] = _one(cx, name)
    rest = _behind(cx, shown[-1].topic, reading, flags) if len(there) > limit else 0
    return _complete(cx, shown, reading, letters, found), rest


def _first(cx: Executor, limit: int, reading: Collection[str]) -> dict[str, _Sums]:
    """Return the sums of the first topics: all, or so many that more than `limit` of them are shown."""
    found: dict[str, _Sums] = {}
    last, there, page = "", 0, max(PAGE, limit + 1)
    while there <= limit:
        rows = [_row(row) for row in cx.query(TOPICS, (last, page))]
        found.update((each.topic, each) for each in rows)
        if len(rows) < page:
            break
        last = rows[-1].topic
        there += sum(each.there or each.topic in reading for each in rows)
    return found


def _behind(cx: Executor, last: str, reading: Collection[str], flags: Sequence[tuple[str, bool]]) -> int:
    """Return how many topics after a name would be shown."""
    there = {name for (name,) in cx.query(WITH_LANES, (last,))}
    return len(there.union(name for name, holds in flags if name > last and (holds or name in reading)))


def topic(database: Database, name: str) -> TopicInfo:
    """See `Admin.topic`."""
    check_name("topic", name)
    return snapshot(database, _topic, "reading a topic", name)


def _topic(cx: Executor, name: str) -> TopicInfo:
    letters = letters_of(cx, name)
    found = {each: _one(cx, each) for each in (name, *letters)}
    return _complete(cx, [found[name]], readers(cx, name), {name: letters}, found)[0]


def groups(
    database: Database,
    topic: str | None,
    breadth: ages.Breadth = ages.USUAL,
    *,
    group: str | None = None,
    limit: int = GROUPS_MAX,
) -> list[GroupInfo]:
    """See `Admin.groups`."""
    return [each.info for each in read_groups(database, topic, breadth, group=group, limit=limit)]


@frozen(kw_only=True)
class GroupRead:
    """A group, and which of its lanes hold the oldest messages."""

    info: GroupInfo
    oldest: tuple[str, ...]
    """Keys, the oldest message first. All lagging lanes, or those in which nothing was settled for longest."""
    acks: tuple[OpenAck, ...] = ()
    """Acks in transactions that nobody has ended, as its members say."""


def read_groups(
    database: Database, topic: str | None, breadth: ages.Breadth, *, group: str | None = None, limit: int = GROUPS_MAX
) -> list[GroupRead]:
    """Return what `groups` does, and the lanes that were read for it.

    Several snapshots are read at the same time.
    """
    optional("topic", topic)
    optional("group", group)

    def query(cx: Executor) -> tuple[list[Registration], float]:
        uptime = _owners.uptime(cx)
        if topic is not None:
            known_topic(cx, topic)
        return registrations(cx, topic, group, limit), uptime

    rows, uptime = snapshot(database, query, "listing groups")
    places = [GroupTopic(topic=row.topic, group=row.group) for row in rows]
    some = group_sums.parts(places, lambda at: at.topic)
    sums = group_sums.load(database, some, breadth.candidates)
    ages_of = dict(
        chain.from_iterable(
            in_parallel([partial(_ages_of, database, {at: sums[at].facts for at in each}, breadth) for each in some])
        )
    )
    exact = _exact([sums[at].facts.lanes.lagging for at in places], breadth)
    oldest = in_parallel(
        [
            partial(_oldest_of, database, at, sums[at].facts, ages_of[at], breadth, exact=which)
            for at, which in zip(places, exact, strict=True)
        ]
    )
    return [
        _group(row, sums[at], tuple(ages_of[at]), age, uptime, exact=which)
        for row, at, age, which in zip(rows, places, oldest, exact, strict=True)
    ]


def lag(database: Database, topic: str | None, group: str | None, *, limit: int = GROUPS_MAX) -> list[GroupInfo]:
    """See `Admin.lag`."""
    found = groups(database, topic, group=group, limit=limit)
    if group is not None and not found:
        where = "any topic" if topic is None else f"topic {topic!r}"
        listing = "`lanelog groups`" if topic is None else f"`lanelog groups {topic}`"
        raise ConfigurationError(f"no group {group!r} is registered for {where}: {listing} lists those that are")
    return found


def letters_of(cx: Executor, topic: str) -> tuple[str, ...]:
    """Return the dead letter topics of one topic. Refuse one that does not exist."""
    known_topic(cx, topic)
    return dead_letter_topics([topic], names(cx, topic))[topic]


def _one(cx: Executor, topic: str) -> _Sums:
    row = cx.one(TOPIC, (topic,))
    assert row is not None  # noqa: S101 - the snapshot has its topic row
    return _row(row)


def _row(row: tuple[Any, ...]) -> _Sums:
    name, *numbers, holds, newest = row
    lanes, head, floor, deleted = map(int, numbers)  # the server adds up to DECIMAL
    return _Sums(name, lanes, head, floor, deleted, bool(holds), int(newest))


def _complete(
    cx: Executor,
    shown: Sequence[_Sums],
    reading: dict[str, list[str]],
    letters: dict[str, tuple[str, ...]],
    known: dict[str, _Sums],
) -> list[TopicInfo]:
    holding = {name for each in shown for name in (letters[each.topic] or ())}
    holding |= {each.topic for each in shown if each.holds_dead_letters}
    settled = {topic: int(count) for topic, count in points(cx, SETTLED, sorted(holding))}
    left = {name: max(0, known[name].messages - settled.get(name, 0)) for name in holding}
    return [
        TopicInfo(
            topic=each.topic,
            lanes=each.lanes,
            messages=each.messages,
            head=each.head,
            floor=each.floor,
            dead_letters=left[each.topic]
            if each.holds_dead_letters
            else sum(left[name] for name in letters[each.topic]),
            groups=tuple(reading.get(each.topic, ())),
            dead_letter_topics=letters[each.topic],
            holds_dead_letters=each.holds_dead_letters,
            newest_lane_at=when(each.newest_ms),
        )
        for each in shown
    ]


def _ages_of(
    database: Database, facts: Mapping[GroupTopic, GroupFacts], breadth: ages.Breadth
) -> list[tuple[GroupTopic, dict[str, float]]]:
    """Return the ages of the lanes that are read, of some groups of one topic."""
    lagging = {at.group: each.lanes for at, each in facts.items() if each.lanes.lagging}
    if not lagging:
        return [(at, {}) for at in facts]
    topic = next(iter(facts)).topic
    named = read(database, ages.candidates, "finding the oldest messages", topic, lagging, breadth.candidates)
    return [(at, named.get(at.group, {})) for at in facts]


def _exact(lagging: Sequence[int], breadth: ages.Breadth) -> list[bool]:
    """Return for which groups every lagging lane is read.

    Each group has the same share of the room, and what smaller ones leave of theirs.
    """
    found = [lanes <= breadth.candidates for lanes in lagging]
    room = breadth.exact
    for number, at in enumerate(sorted(range(len(lagging)), key=lambda at: lagging[at])):
        if lagging[at] > room // (len(lagging) - number):
            break
        found[at] = True
        room -= lagging[at]
    return found


def _oldest_of(
    database: Database,
    at: GroupTopic,
    facts: GroupFacts,
    known: Mapping[str, float],
    breadth: ages.Breadth,
    *,
    exact: bool,
) -> float | None:
    """Return the age in seconds of a group's oldest message, given the ages of some lanes."""
    if exact and facts.lanes.lagging > breadth.candidates:
        borders = read(database, ages.borders, "finding the oldest message", at.topic, facts.lanes.count)
        return ages.oldest_of_many(database, at, borders)
    return max(known.values(), default=None)


def _group(
    row: Registration,
    sums: GroupSums,
    oldest: tuple[str, ...],
    oldest_age: float | None,
    uptime: float,
    *,
    exact: bool,
) -> GroupRead:
    facts, owners = sums.facts, sums.owners
    owned, stale = owners.counted(sums.lanes)
    in_flight, waiting = owners.handed_out(facts.in_flight, facts.waiting)
    doing = owners.workloads()
    info = GroupInfo(
        topic=row.topic,
        group=row.group,
        order=row.order,
        start=row.start,
        retention=row.retention_ms / 1000,
        created_at=utc_from_ms(row.created_at),
        paused_at=when(row.paused_at),
        paused_by=row.paused_by,
        pause_reason=row.pause_reason,
        members=sum(owners.alive(owner) for owner in owners.rows),
        members_unchanged=min(owners.unchanged(), max(0, row.now - row.created_at) / 1000, uptime),
        last_members=owners.last(),
        members_telling=sum(each.workers > 0 for each in doing),
        workers=sum(each.workers for each in doing),
        busy=sum(each.busy for each in doing),
        lanes=facts.lanes.count,
        owned_lanes=owned,
        stale_lanes=stale,
        paused_lanes=facts.paused,
        lagging_lanes=facts.lanes.lagging,
        head=facts.lanes.head,
        lag=facts.lag,
        oldest_age=oldest_age,
        oldest_age_exact=exact,
        waiting=waiting,
        in_flight=in_flight,
    )
    acks = tuple(ack for each in doing for ack in each.acks if ack.topic == row.topic)
    return GroupRead(info=info, oldest=oldest, acks=acks)
