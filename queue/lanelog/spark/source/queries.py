"""The SELECTs of the data source: heads and floors for the driver, pages of messages and other tables for the tasks.

Never writes, and never locks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from lanelog._base.places import GroupTopic
from lanelog._log.lookup.names import readers
from lanelog._stores._points import chunked, placeholders, points
from lanelog._stores.consumers import history
from lanelog.spark.source.offsets import LaneExtent, TopicState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lanelog._database import Executor
    from lanelog.spark.source.offsets import Lanes
    from lanelog.spark.source.splits import LaneRange

# The topics of the next rows after a topic: many small topics at once, and a bounded number of rows of a large one
# (PRIMARY).
NAMES = """SELECT topic FROM queue_partitions FORCE INDEX (PRIMARY)
WHERE topic > %s ORDER BY topic LIMIT %s"""

# Which of these topics exist, since when, and the highest offset of their purged lanes (PRIMARY).
STATES = """SELECT topic, head_offset, created_at FROM queue_partitions FORCE INDEX (PRIMARY)
WHERE topic IN ({topics}) AND partition_key = ''"""

# Heads and floors of the lanes of topics, in order: of one topic those after a key, of the others all (both PRIMARY).
# A topic's own row is no lane.
LANES = """SELECT p.topic, p.partition_key, p.head_offset, COALESCE(f.offset_acked, 0), COALESCE(f.marked_through, 0),
 p.created_at
FROM queue_partitions p FORCE INDEX (PRIMARY)
LEFT JOIN queue_offsets f FORCE INDEX (PRIMARY)
       ON f.consumer_group = '' AND f.topic = p.topic AND f.partition_key = p.partition_key
WHERE (p.topic = %s AND p.partition_key > %s) OR (p.topic IN ({topics}) AND p.partition_key > '')
ORDER BY p.topic, p.partition_key LIMIT %s"""

# The watermarks of a group, of the same lanes in the same way (PRIMARY).
WATERMARKS = """SELECT topic, partition_key, offset_acked FROM queue_offsets FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND ((topic = %s AND partition_key > %s) OR (topic IN ({topics}) AND partition_key > ''))
ORDER BY topic, partition_key LIMIT %s"""

# The topics that the group is registered for (PRIMARY, prefix).
REGISTERED = "SELECT topic FROM queue_groups FORCE INDEX (PRIMARY) WHERE consumer_group = %s"

# When the messages at these offsets were written (PRIMARY).
WRITTEN_AT = """SELECT partition_key, `offset`, created_at FROM queue_messages FORCE INDEX (PRIMARY)
WHERE topic = %s AND (partition_key, `offset`) IN ({points})"""

# What only a dead letter has, or NULL.
_DEAD = """IF(failed_at = 0 AND target_group = '', NULL,
    JSON_ARRAY(original_topic, original_offset, failed_group, failed_at, failure_count, last_error, target_group))"""

# A range of one lane; many are joined by UNION ALL (PRIMARY, both bounds). A message is one value, because a driver
# spends most of its time on the values of a row: a line of numbers (`columns.NUMBERS`), then texts and payload. A
# payload that is too large is left out.
MESSAGES = f"""(SELECT CONCAT(%s, ',', `offset`, ',', payload_bytes, ',', published_at, ',',
    IF(created_at = published_at, '', created_at), ',', LENGTH(id), ',', IFNULL(LENGTH(metadata), ''), ',',
    IFNULL(LENGTH({_DEAD}), ''), '\n',
    id, IFNULL(metadata, ''), IFNULL({_DEAD}, ''), IF(payload_bytes <= %s, payload, '')) AS message
 FROM queue_messages FORCE INDEX (PRIMARY)
 WHERE topic = %s AND partition_key = %s AND `offset` > %s AND `offset` <= %s ORDER BY `offset` LIMIT %s)"""

# The payloads that were too large to come with the others (PRIMARY).
PAYLOADS = """SELECT partition_key, `offset`, payload FROM queue_messages FORCE INDEX (PRIMARY)
WHERE topic = %s AND (partition_key, `offset`) IN ({points})"""

# A group's delivery rows in a topic, in order, from a key and offset on (PRIMARY).
DELIVERY_STATE = """SELECT consumer_group, topic, partition_key, message_offset, through_offset, acked, invisible_until,
 retry_count, postponed, crashed, alone, released, lease_epoch, first_attempt_at, last_attempt_at, last_error
FROM queue_delivery_state FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND (partition_key > %s OR (partition_key = %s AND message_offset >= %s))
ORDER BY partition_key, message_offset LIMIT %s"""

# A group's watermarks in a topic, in order, after a key (PRIMARY).
OFFSETS = """SELECT consumer_group, topic, partition_key, offset_acked, marked_through, marked_epoch, marked_at,
 paused_at, paused_by, pause_reason, updated_at
FROM queue_offsets FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND partition_key > %s ORDER BY partition_key LIMIT %s"""

# A group's leases in a topic, in order, after a key (PRIMARY).
LEASES = """SELECT consumer_group, topic, partition_key, leased_by, lease_epoch, leased_at
FROM queue_partition_leases FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND partition_key > %s ORDER BY partition_key LIMIT %s"""

# One registration (PRIMARY).
GROUPS = """SELECT consumer_group, topic, delivery_order, start_at, paused_at, paused_by, pause_reason, retention_ms,
 history_ms, dead_letter_ms, created_at
FROM queue_groups FORCE INDEX (PRIMARY) WHERE consumer_group = %s AND topic = %s"""

_OUTCOME = """consumer_group, topic, partition_key, message_offset, id, outcome, attempts, published_at,
 first_delivered_at, finished_at, owner, last_error"""

# A group's outcomes in a topic, in order, from a key and offset on (PRIMARY).
HISTORY = f"""SELECT {_OUTCOME} FROM queue_history FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND (partition_key > %s OR (partition_key = %s AND message_offset >= %s))
ORDER BY partition_key, message_offset LIMIT %s"""

# The same from an instant on, in the order in which they finished (by_finished, which ends in the primary key).
HISTORY_SINCE = f"""SELECT {_OUTCOME} FROM queue_history FORCE INDEX (by_finished)
WHERE consumer_group = %s AND topic = %s AND finished_at >= %s AND (finished_at > %s OR
      partition_key > %s OR (partition_key = %s AND message_offset >= %s))
ORDER BY finished_at, partition_key, message_offset LIMIT %s"""

_BY_KEY: Final = {"offsets": OFFSETS, "leases": LEASES}
_BY_OFFSET: Final = {"delivery_state": DELIVERY_STATE, "history": HISTORY}
_KEY, _OFFSET, _FINISHED = 2, 3, 9


@frozen(kw_only=True)
class PageSizes:
    """How much one statement asks for."""

    rows: int = 2_000
    """Rows of one page of lanes, or of a table."""
    topics: int = 200
    """The most topics that share a page of lanes, and the rows of one query for the next names of topics."""


USUAL: Final = PageSizes()


def topics(cx: Executor, sizes: PageSizes = USUAL) -> Iterator[str]:
    """Yield every topic, in order."""
    last = ""
    while True:
        page = [topic for (topic,) in cx.query(NAMES, (last, sizes.topics))]
        yield from dict.fromkeys(page)
        if len(page) < sizes.topics:
            return
        last = page[-1]


def states(cx: Executor, names: Sequence[str], sizes: PageSizes) -> dict[str, TopicState]:
    """Return the state of those topics that were published to or subscribed to."""
    found: dict[str, TopicState] = {}
    for chunk in chunked(names, sizes.topics):
        rows = cx.query(STATES.format(topics=placeholders(chunk)), chunk)
        found.update({topic: TopicState(*map(int, numbers)) for topic, *numbers in rows})
    return found


def lanes(cx: Executor, names: Sequence[str], sizes: PageSizes) -> Lanes:
    """Return every lane of the topics."""
    found: Lanes = {topic: {} for topic in names}
    for topic, key, *numbers in _of_topics(cx, LANES, (), names, sizes):
        found[topic][key] = LaneExtent(*map(int, numbers))
    return found


def watermarks(cx: Executor, group: str, names: Sequence[str], sizes: PageSizes) -> dict[str, dict[str, int]]:
    """Return the group's watermarks in the topics, for the lanes in which it has a row."""
    found: dict[str, dict[str, int]] = {topic: {} for topic in names}
    for topic, key, acked in _of_topics(cx, WATERMARKS, (group,), names, sizes):
        found[topic][key] = int(acked)
    return found


def _of_topics(
    cx: Executor, sql: str, group: tuple[str, ...], names: Sequence[str], sizes: PageSizes
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of `sql`, which begin with topic and key, page by page."""
    for chunk in chunked(names, sizes.topics):
        topic, key = "", ""
        others = dict.fromkeys(["", *chunk])  # no topic has the empty name; it avoids IN (), which is not SQL
        while True:
            page = cx.query(sql.format(topics=placeholders(list(others))), (*group, topic, key, *others, sizes.rows))
            yield from page
            if len(page) < sizes.rows:
                break
            topic, key = page[-1][:2]
            for name in {row[0] for row in page}:
                others.pop(name, None)


def registered(cx: Executor, group: str) -> set[str]:
    """Return the topics that the group is registered for."""
    return {topic for (topic,) in cx.query(REGISTERED, (group,))}


def written_at(cx: Executor, topic: str, offsets: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Return when the message at the offset of each lane was written, by key, epoch milliseconds.

    A missing one is absent.
    """
    return {key: int(created) for key, _, created in points(cx, WRITTEN_AT, offsets, before=[topic])}


def messages(cx: Executor, page: Sequence[LaneRange], largest: int) -> list[bytes | None]:
    """Return the messages of a page, each as one value. Payloads above `largest` bytes are left out."""
    args: list[object] = []
    for index, each in enumerate(page):
        args += (index, largest, each.topic, each.key, each.after, each.through, each.rows)
    return [value for (value,) in cx.query(" UNION ALL ".join([MESSAGES] * len(page)), args)]


def payloads(cx: Executor, topic: str, offsets: Sequence[tuple[str, int]]) -> dict[tuple[str, int], bytes]:
    """Return the payloads at these offsets."""
    return {(key, int(offset)): payload for key, offset, payload in points(cx, PAYLOADS, offsets, before=[topic])}


def table_pages(
    query: Any, table: str, at: GroupTopic, since_ms: int | None, rows: int
) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of one group and topic, page by page. `query(sql, args)` runs one statement."""
    if table == "groups":
        yield query(GROUPS, at.columns)
        return
    key, offset, finished = "", 0, since_ms or 0
    while True:
        if table in _BY_KEY:
            page = query(_BY_KEY[table], (*at.columns, key, rows))
        elif since_ms is None:
            page = query(_BY_OFFSET[table], (*at.columns, key, key, offset, rows))
        else:
            page = query(HISTORY_SINCE, (*at.columns, finished, finished, key, key, offset, rows))
        yield page
        if len(page) < rows:
            return
        key = page[-1][_KEY]
        if table in _BY_OFFSET:
            offset = int(page[-1][_OFFSET]) + 1
        if since_ms is not None:
            finished = int(page[-1][_FINISHED])


def group_topics(cx: Executor, names: Sequence[str], group: str | None, table: str) -> list[GroupTopic]:
    """Return every group of a topic of which a table may have rows.

    The reserved group '' has the floors, and the rows of settled dead letters.
    """
    if group is not None:
        return [GroupTopic(topic=topic, group=group) for topic in names]
    if table == "history":  # outcomes outlive their group
        there = set(names)
        return [at for at in history.kept(cx) if at.topic in there]
    reserved = [""] if table in {"offsets", "delivery_state"} else []
    groups = readers(cx, names[0] if len(names) == 1 else None)  # one topic has few of all the groups there are
    return [GroupTopic(topic=topic, group=each) for topic in names for each in (*reserved, *groups.get(topic, ()))]
