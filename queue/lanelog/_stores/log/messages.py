"""The publishing side of `queue_messages`: insert messages, and find the offsets of ids that are stored already.

Never updates or deletes a message. An insert needs the heads of its lanes locked. `fetches`, `leaving`, `expiry` and
`dead_letters` are the other sides of the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from lanelog._database import NOW_MS, Lock, Statement
from lanelog._stores._points import MAX_POINTS, chunked, exactly, fitting, flat, pairs, points

if TYPE_CHECKING:
    from lanelog._database import Executor

# Append rows, whose heads are locked (PRIMARY, by_id). The clock is read under that lock, so that the times of a lane
# follow its offsets. It is read once a row: a column takes the value of one before it. No empty text is written out: a
# caller's session may take it for NULL (MariaDB's EMPTY_STRING_IS_NULL).
INSERT = """INSERT INTO queue_messages
(topic, partition_key, `offset`, id, payload, payload_bytes, metadata, created_at, published_at, expires_at,
 target_group) VALUES """
_TIMES = f"{NOW_MS},created_at"

# The same of a row whose time `partitions.NOTE_TIME` has noted. NULL there is refused by the column.
_NOTED_TIMES = "@lanelog_now,created_at"

# One row, at the offset from `partitions.NEXT_OFFSET`. Without the head's lock that is NULL, which the column refuses.
NEXT_ROW = f"(%s,%s,@lanelog_offset,%s,%s,%s,%s,{_TIMES},0,DEFAULT)"
EXPIRING_NEXT_ROW = f"(%s,%s,@lanelog_offset,%s,%s,%s,%s,{_TIMES},created_at+%s,DEFAULT)"

# Append scheduled messages, whose rows are locked. The payload does not leave the server (PRIMARY, one lookup a point).
APPEND_SCHEDULED = f"""INSERT INTO queue_messages
(topic, partition_key, `offset`, id, payload, payload_bytes, metadata, created_at, published_at, expires_at,
 target_group)
SELECT due.topic, due.partition_key, exact.o, due.id, due.payload, due.payload_bytes, due.metadata, {NOW_MS},
       due.published_at, IF(due.ttl_ms = 0, 0, {NOW_MS} + due.ttl_ms), due.target_group
FROM ({{moved}}) AS exact STRAIGHT_JOIN queue_scheduled AS due FORCE INDEX (PRIMARY)
ON due.topic = %s AND due.partition_key = exact.k AND due.id = exact.i"""

# Offsets of the messages in the log that have these ids (by_id). A caller's snapshot may be older than the messages: a
# lock sees those, too.
FIND_IN_LOG = """SELECT partition_key, id, `offset` FROM queue_messages FORCE INDEX (by_id)
WHERE topic = %s AND (partition_key, id) IN ({points}){lock}"""

# The same, and 0 for scheduled messages (by_id; PRIMARY of queue_scheduled). One statement is one snapshot: it does not
# miss a message that is being moved into the log.
FIND_IDS = (
    FIND_IN_LOG.removesuffix("{lock}")
    + """ UNION ALL SELECT waiting.partition_key, waiting.id, 0
FROM ({exact}) AS exact STRAIGHT_JOIN queue_scheduled AS waiting FORCE INDEX (PRIMARY)
ON waiting.topic = %s AND waiting.partition_key = exact.k AND waiting.id = exact.o"""
)

# Texts that stand for themselves between quotes: in every character set and mode of a session, and in a statement that
# a driver formats. Not the names of tables, which `named` would change.
_PLAIN: Final = re.compile(r"(?!.*queue_)[A-Za-z0-9_.:/-]+").fullmatch

_ROW_OVERHEAD: Final = len(EXPIRING_NEXT_ROW) + 96
_STATEMENT_OVERHEAD: Final = len(INSERT) + 1024


class NewMessage(NamedTuple):
    """A row to append. A NamedTuple, because `publish_many` makes one for every message."""

    key: str
    offset: int
    id: str
    payload: bytes
    metadata: str | None
    ttl_ms: int = 0
    """Time to live from now. 0: for ever."""
    target_group: str = ""
    """The only group that gets it. Then it has no `ttl_ms`. Empty: every group."""

    def __repr__(self) -> str:
        # Without payload and metadata, which may be secret.
        return f"<NewMessage {self.key!r} offset={self.offset} id={self.id!r} {len(self.payload)} bytes>"


def wire_bytes(topic: str, key: str, message_id: str, payload_bytes: int, metadata: str | None) -> int:
    """Return the most bytes that a row takes in an INSERT: two a byte of payload, as hex, and four a character."""
    text = len(topic) + len(key) + len(message_id) + len(metadata or "")
    return 2 * payload_bytes + 4 * text + _ROW_OVERHEAD


def largest_row(max_packet: int) -> int:
    """Return the most bytes of a row whose INSERT fits into a packet."""
    return max_packet - _STATEMENT_OVERHEAD


def insert(cx: Executor, topic: str, rows: Sequence[NewMessage], max_packet: int) -> None:
    """Append rows, in as few statements as the limits of rows and bytes allow."""
    for statement in _inserts(topic, rows, largest_row(max_packet), _TIMES):
        cx.execute(statement.sql, statement.args)


def insert_noted(topic: str, rows: Sequence[NewMessage], most: int) -> Statement | None:
    """Return the statement that appends rows at the time of `partitions.advance_and_note`, in one packet behind it.

    None: it would have more than `most` bytes, or too many rows.
    """
    if len(rows) > MAX_POINTS:
        return None
    statements = _inserts(topic, rows, most, _NOTED_TIMES)
    first = next(statements)
    fits = next(statements, None) is None and longest(first) <= most  # a single row may be longer
    return first if fits else None


def longest(statement: Statement) -> int:
    """Return the most bytes that a statement takes when its arguments are in it."""
    return len(statement.sql) + sum(4 * len(str(value)) + 2 for value in statement.args)


def _inserts(topic: str, rows: Sequence[NewMessage], most: int, times: str) -> Iterator[Statement]:
    texts: list[str] = []
    values: list[list[str]] = []
    sizes: list[int] = []
    named: list[str] = []
    begin = as_sql(topic, named)
    for row in rows:
        args = [*named]
        text = _row(begin, row, args, times)
        texts.append(text)
        values.append(args)
        sizes.append(len(text) + sum(4 * len(value) + 2 for value in args) if args else len(text))
    for part in fitting(range(len(texts)), sizes, most):
        yield Statement(INSERT + ",".join([texts[at] for at in part]), [value for at in part for value in values[at]])


def insert_next(
    topic: str, key: str, *, message_id: str, payload: bytes, metadata: str | None, ttl_ms: int
) -> Statement:
    """Return the statement that appends one row after the head, for `partitions.around_next`."""
    args = (topic, key, message_id, payload, len(payload), metadata)
    return Statement(INSERT + EXPIRING_NEXT_ROW, (*args, ttl_ms)) if ttl_ms else Statement(INSERT + NEXT_ROW, args)


def append_scheduled(cx: Executor, topic: str, names: Sequence[tuple[str, str, int]]) -> int:
    """Copy scheduled messages (key, id, offset) into the log. Return how many, for the caller to compare."""
    copied = 0
    for chunk in chunked(names):
        moved = " UNION ALL ".join(["SELECT %s AS k, %s AS i, %s AS o"] * len(chunk))
        copied += cx.execute(APPEND_SCHEDULED.format(moved=moved), (*flat(chunk), topic))
    return copied


def find_ids(cx: Executor, topic: str, names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """Return offsets by (key, id) of the messages that are stored. 0: scheduled."""
    found: dict[tuple[str, str], int] = {}
    for chunk in chunked(sorted(set(names))):
        args = flat(chunk)
        statement = FIND_IDS.format(points=pairs(chunk), exact=exactly(chunk))
        for key, message_id, offset in cx.query(statement, (topic, *args, *args, topic)):
            # An id that one caller's transaction used twice may be in both: the log counts.
            found[key, message_id] = max(int(offset), found.get((key, message_id), 0))
    return found


def find_in_log(
    cx: Executor, topic: str, names: Iterable[tuple[str, str]], lock: Lock = Lock.NONE
) -> dict[tuple[str, str], int]:
    """Return offsets by (key, id) of messages in the log. A lock sees what an old snapshot hides."""
    found = points(cx, FIND_IN_LOG, sorted(set(names)), before=[topic], lock=lock)
    return {(key, message_id): int(offset) for key, message_id, offset in found}


def _row(begin: str, row: NewMessage, args: list[str], times: str) -> str:
    """Return the row as SQL, which begins with the topic. Append to `args` what else it has placeholders for.

    A driver formats each placeholder's value by itself, which took most of the time of an insert.
    """
    at = f"{begin},{as_sql(row.key, args)},{row.offset},{as_sql(row.id, args)}"
    metadata = "NULL"
    if row.metadata is not None:
        args.append(row.metadata)
        metadata = "%s"
    expires_at = f"created_at+{row.ttl_ms}" if row.ttl_ms else "0"
    target_group = as_sql(row.target_group, args) if row.target_group else "DEFAULT"
    payload = row.payload
    return f"({at},X'{payload.hex()}',{len(payload)},{metadata},{times},{expires_at},{target_group})"


def as_sql(text: str, args: list[str]) -> str:
    """Return a plain text as SQL. For any other return a placeholder, and append the text to `args`."""
    if _PLAIN(text):
        return f"'{text}'"
    args.append(text)
    return "%s"
