"""`queue_scheduled`: messages with a delay, until they are moved into the log or cancelled.

Owns the SQL of its table. Never decides when a message is to become due. Inserts and moves need the heads of the lanes
locked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attrs import field, frozen

from lanelog._database import NOW_MS
from lanelog._stores._due_soon import HORIZON_MS, RECENT_MS
from lanelog._stores._points import fitting, flat, number, pairs, placeholders, points, write
from lanelog._stores._redriven import ID, METADATA

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lanelog._database import Executor

# Insert rows, whose heads are locked. A time before now becomes now (PRIMARY).
INSERT = """INSERT INTO queue_scheduled
(topic, partition_key, id, payload, payload_bytes, metadata, created_at, published_at, deliver_at, ttl_ms, seq)
VALUES """
ROW = (
    f"(%s,%s,%s,%s,%s,%s,{NOW_MS},{NOW_MS},GREATEST(%s+IF(%s,{NOW_MS},0),{NOW_MS}),%s,"
    "MICROSECOND(UTC_TIMESTAMP(6)) MOD 1000*1000000+%s)"
)

# Those of some ids that are scheduled, for a caller's transaction, whose snapshot may be old (PRIMARY).
FIND_SHARED = """SELECT partition_key, id FROM queue_scheduled FORCE INDEX (PRIMARY)
WHERE topic = %s AND (partition_key, id) IN ({points}) LOCK IN SHARE MODE"""

# Milliseconds until the next message is due, of all or of the recent ones. No row: none is due soon (by_due).
NEXT_DUE = f"""SELECT CAST(deliver_at AS SIGNED) - CAST({NOW_MS} AS SIGNED) FROM queue_scheduled FORCE INDEX (by_due)
WHERE deliver_at >= IF(%s, 0, {NOW_MS} - {RECENT_MS}) AND deliver_at < {NOW_MS} + {HORIZON_MS}
ORDER BY deliver_at LIMIT 1"""

# The due messages in order, except for busy lanes. Without a lock, and from the index alone (by_due).
DUE = f"""SELECT topic, partition_key, id FROM queue_scheduled FORCE INDEX (by_due)
WHERE deliver_at >= IF(%s, 0, {NOW_MS} - {RECENT_MS}) AND deliver_at <= {NOW_MS}
  AND (topic, partition_key) NOT IN ({{lanes}})
ORDER BY deliver_at, created_at, seq LIMIT %s"""

# The same for some topics, however long ago a message was due (by_due).
DUE_OF = f"""SELECT topic, partition_key, id FROM queue_scheduled FORCE INDEX (by_due)
WHERE deliver_at <= {NOW_MS} AND (topic, partition_key) NOT IN ({{lanes}}) AND topic IN ({{topics}})
ORDER BY deliver_at, created_at, seq LIMIT %s"""

# Lock the messages to move, without those that another transaction has locked. The time is checked again: an id may
# have been cancelled and scheduled anew (PRIMARY, one lookup a point).
LOCK = f"""SELECT due.partition_key, due.id, due.deliver_at, due.created_at, due.seq, due.payload_bytes
FROM ({{exact}}) AS exact STRAIGHT_JOIN queue_scheduled AS due FORCE INDEX (PRIMARY)
ON due.topic = %s AND due.partition_key = exact.k AND due.id = exact.o
WHERE due.deliver_at <= {NOW_MS} FOR UPDATE SKIP LOCKED"""

# Copy dead letters as messages with a delay, in their order (PRIMARY).
REDRIVE = f"""
INSERT INTO queue_scheduled (topic, partition_key, id, payload, payload_bytes, metadata, created_at, published_at,
       deliver_at, ttl_ms, target_group, seq)
SELECT %s, m.partition_key, {ID}, m.payload, m.payload_bytes, {METADATA}, {NOW_MS}, m.published_at, {NOW_MS} + %s,
       %s, %s,
       MICROSECOND(UTC_TIMESTAMP(6)) MOD 1000 * 1000000
         + ROW_NUMBER() OVER (PARTITION BY m.partition_key ORDER BY m.`offset`)
FROM queue_messages m FORCE INDEX (PRIMARY)
WHERE m.topic = %s AND (m.partition_key, m.`offset`) IN ({{points}})
"""

# Delete exact rows (PRIMARY, one lookup a point).
DELETE = """DELETE gone FROM ({exact}) AS exact STRAIGHT_JOIN queue_scheduled AS gone FORCE INDEX (PRIMARY)
ON gone.topic = %s AND gone.partition_key = exact.k AND gone.id = exact.o"""

# Whether a message is scheduled (PRIMARY).
EXISTS = "SELECT 1 FROM queue_scheduled WHERE topic = %s AND partition_key = %s AND id = %s"

# Cancel one message. Waits for a move in flight (PRIMARY).
CANCEL = """DELETE queue_scheduled FROM queue_scheduled FORCE INDEX (PRIMARY)
WHERE topic = %s AND partition_key = %s AND id = %s"""

# Some of a topic's messages (PRIMARY, prefix).
OF_TOPIC = "SELECT partition_key, id FROM queue_scheduled FORCE INDEX (PRIMARY) WHERE topic = %s LIMIT %s"

# The number of a topic's scheduled messages (PRIMARY, prefix).
COUNT = "SELECT COUNT(*) FROM queue_scheduled FORCE INDEX (PRIMARY) WHERE topic = %s"

# The number of scheduled messages by topic, from the index alone: the payloads are in the primary key (by_due).
COUNTS = "SELECT topic, COUNT(*) FROM queue_scheduled FORCE INDEX (by_due) WHERE deliver_at > 0 GROUP BY topic"

_ROW_OVERHEAD: Final = len(ROW) + 96
_STATEMENT_OVERHEAD: Final = len(INSERT) + 1024
_NO_LANE: Final = ("", "")


@frozen(kw_only=True)
class NewScheduled:
    """A row to insert. `due_ms` counts from now if it is `relative`, else from 1970."""

    key: str
    id: str
    payload: bytes = field(repr=False)
    metadata: str | None = field(repr=False)
    due_ms: int
    relative: bool
    ttl_ms: int
    seq: int


@frozen(order=True)
class DueRow:
    """A locked row. Rows sort in the order in which a lane's messages go into the log."""

    deliver_at: int
    created_at: int
    seq: int
    id: str
    key: str
    payload_bytes: int


def counts(cx: Executor) -> dict[str, int]:
    """Return how many messages are scheduled, by topic."""
    return {topic: int(count) for topic, count in cx.query(COUNTS)}


def insert(cx: Executor, topic: str, rows: Sequence[NewScheduled], max_packet: int) -> None:
    """Insert rows, in as few statements as the limits of rows and bytes allow."""
    sizes = [
        2 * len(row.payload) + 4 * (len(topic) + len(row.key) + len(row.id) + len(row.metadata or "")) for row in rows
    ]
    for part in fitting(rows, [size + _ROW_OVERHEAD for size in sizes], max_packet - _STATEMENT_OVERHEAD):
        args: list[object] = []
        for row in part:
            args += (topic, row.key, row.id, row.payload, len(row.payload), row.metadata)
            args += (row.due_ms, row.relative, row.ttl_ms, row.seq)
        cx.execute(INSERT + ",".join([ROW] * len(part)), args)


def find_shared(cx: Executor, topic: str, names: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Share-lock and return those (key, id) that are scheduled, also those that an old snapshot hides."""
    return {(key, message_id) for key, message_id in points(cx, FIND_SHARED, sorted(set(names)), before=[topic])}


def due(
    cx: Executor, busy: Sequence[tuple[str, str]], limit: int, *, everything: bool, topics: Sequence[str] = ()
) -> list[tuple[str, str, str]]:
    """Return (topic, key, id) of due messages, the earliest first, except for the lanes in `busy`.

    `everything`: also messages that have been due for more than a minute. `topics`: only these, and all of them.
    """
    lanes = [_NO_LANE, *busy]
    marks = pairs(lanes)
    if not topics:
        return cx.query(DUE.format(lanes=marks), (everything, *flat(lanes), limit))
    return cx.query(DUE_OF.format(lanes=marks, topics=placeholders(topics)), (*flat(lanes), *topics, limit))


def lock(cx: Executor, topic: str, names: Sequence[tuple[str, str]]) -> list[DueRow]:
    """Lock those (key, id) that exist, are due, and are not locked by another transaction. Unordered."""
    return [
        DueRow(deliver_at, created_at, seq, message_id, key, size)
        for key, message_id, deliver_at, created_at, seq, size in points(cx, LOCK, sorted(names), after=[topic])
    ]


def redrive(
    cx: Executor,
    dead_topic: str,
    offsets: Sequence[tuple[str, int]],
    *,
    target: str,
    cap: int,
    delay_ms: int,
    ttl_ms: int,
    for_group: str,
) -> int:
    """Copy dead letters (key, offset) for topic `target`, whose heads are locked. Return how many.

    `cap`: 0 for none. `ttl_ms`: 0 for ever. `for_group`: the only group that gets them, '' for every group.
    """
    sql = REDRIVE.format(points=pairs(offsets))
    return cx.execute(sql, (target, cap, cap, delay_ms, ttl_ms, for_group, dead_topic, *flat(offsets)))


def delete(cx: Executor, topic: str, names: Sequence[tuple[str, str]]) -> int:
    """Delete by exact (key, id). Return how many."""
    return write(cx, DELETE, sorted(names), after=[topic])


def exists(cx: Executor, topic: str, key: str, message_id: str) -> bool:
    """Whether a message is scheduled."""
    return cx.one(EXISTS, (topic, key, message_id)) is not None


def cancel(cx: Executor, topic: str, key: str, message_id: str) -> bool:
    """Delete one row. Return whether there was one."""
    return cx.execute(CANCEL, (topic, key, message_id)) > 0


def of_topic(cx: Executor, topic: str, limit: int) -> list[tuple[str, str]]:
    """Return (key, id) of some of a topic's scheduled messages."""
    return cx.query(OF_TOPIC, (topic, limit))


def count(cx: Executor, topic: str) -> int:
    """Return the number of a topic's scheduled messages."""
    return number(cx.one(COUNT, (topic,))) or 0
