"""`queue_delivery_state`: the exceptions, one row for a message that failed, waits, is redelivered, or was acked ahead.

Owns the SQL of its table. Never decides when a row is due or may be deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from lanelog._database import NOW_MS, codes
from lanelog._stores._counted import BEYOND_COUNTING, signed
from lanelog._stores._points import number, placeholders, points, write
from lanelog.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lanelog._base.places import GroupTopic, LaneId
    from lanelog._database import Executor

# When a row's message is due: at once, if the row says a time that lanelog never writes.
_DUE = f"IF(invisible_until < {BEYOND_COUNTING}, invisible_until, 0)"

# All rows of some lanes of one group (PRIMARY, prefix of three columns).
# A row from the future was written by a clock that was ahead. It waits no longer than its writer asked for.
LOAD = f"""
SELECT partition_key, message_offset, through_offset, acked,
       {signed(_DUE)} - {signed(f"GREATEST({NOW_MS}, last_attempt_at)")}, retry_count,
       postponed, crashed, alone, lease_epoch,
       IF(first_attempt_at = 0, NULL, CAST({NOW_MS} AS SIGNED) - {signed("first_attempt_at")}), last_error, released
FROM queue_delivery_state FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND partition_key IN ({{keys}})
"""

# Insert or update rows (PRIMARY). `acked` never goes back: a transaction of the handler may have set it meanwhile.
UPSERT = """
INSERT INTO queue_delivery_state (consumer_group, topic, partition_key, message_offset, through_offset, acked,
       invisible_until, retry_count, postponed, crashed, alone, released, lease_epoch, first_attempt_at,
       last_attempt_at, last_error)
VALUES {rows}
ON DUPLICATE KEY UPDATE through_offset = VALUES(through_offset), acked = GREATEST(acked, VALUES(acked)),
       invisible_until = VALUES(invisible_until), retry_count = VALUES(retry_count), postponed = VALUES(postponed),
       crashed = VALUES(crashed), alone = VALUES(alone), released = VALUES(released), lease_epoch = VALUES(lease_epoch),
       first_attempt_at = VALUES(first_attempt_at), last_attempt_at = VALUES(last_attempt_at),
       last_error = VALUES(last_error)
"""
_ROW = f"(%s, %s, %s, %s, %s, %s, {NOW_MS} + %s, %s, %s, %s, %s, %s, %s, IF(%s, {NOW_MS} - %s, 0), {NOW_MS}, %s)"

# Delete rows by exact key (PRIMARY, one lookup a point): a range would lock the next lane's first row.
DELETE = """
DELETE gone FROM ({exact}) AS exact STRAIGHT_JOIN queue_delivery_state AS gone FORCE INDEX (PRIMARY)
ON gone.consumer_group = %s AND gone.topic = %s AND gone.partition_key = exact.k AND gone.message_offset = exact.o
"""

# Let messages wait no longer, by exact key as above (PRIMARY).
MAKE_DUE = f"""
UPDATE ({{exact}}) AS exact STRAIGHT_JOIN queue_delivery_state AS waits FORCE INDEX (PRIMARY)
ON waits.consumer_group = %s AND waits.topic = %s AND waits.partition_key = exact.k AND waits.message_offset = exact.o
SET waits.invisible_until = {NOW_MS}
"""

# Settle one message in a transaction of its own (PRIMARY).
SETTLE = f"""
INSERT INTO queue_delivery_state (consumer_group, topic, partition_key, message_offset, through_offset, acked,
       lease_epoch, last_attempt_at)
VALUES (%s, %s, %s, %s, %s, 1, 0, {NOW_MS})
ON DUPLICATE KEY UPDATE acked = 1, lease_epoch = 0, invisible_until = 0
"""

# The same, only if the log still has the same message there (both PRIMARY). If it is settled already, the subquery is
# an error: with found rows, as SQLAlchemy and Django connect, the count of rows would be that of an insert.
SETTLE_SAME = f"""
INSERT INTO queue_delivery_state (consumer_group, topic, partition_key, message_offset, through_offset, acked,
       lease_epoch, last_attempt_at)
SELECT %s, topic, partition_key, `offset`, `offset`, 1, 0, {NOW_MS} FROM queue_messages FORCE INDEX (PRIMARY)
WHERE topic = %s AND partition_key = %s AND `offset` = %s AND id = %s
ON DUPLICATE KEY UPDATE acked = IF(acked, (SELECT 1 UNION ALL SELECT 2), 1), lease_epoch = 0, invisible_until = 0
"""

# Settle messages together, of which none is settled (PRIMARY). Else it is an error, as above.
SETTLE_UNSETTLED = """
INSERT INTO queue_delivery_state (consumer_group, topic, partition_key, message_offset, through_offset, acked,
       lease_epoch, last_attempt_at)
VALUES {rows}
ON DUPLICATE KEY UPDATE acked = IF(acked, (SELECT 1 UNION ALL SELECT 2), 1), lease_epoch = 0, invisible_until = 0
"""
_SETTLED = f"(%s, %s, %s, %s, %s, 1, 0, {NOW_MS})"

# Did a transaction with an unknown outcome settle this message? The lock waits for a commit in flight (PRIMARY).
IS_SETTLED = """
SELECT acked FROM queue_delivery_state FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND partition_key = %s AND message_offset = %s LOCK IN SHARE MODE
"""

# The same without a wait: an error of `codes.LOCKED` while another transaction has locked the row (PRIMARY).
IS_SETTLED_NOW = IS_SETTLED.replace("LOCK IN SHARE MODE", "FOR UPDATE NOWAIT")

# Was this dead letter redriven or deleted? Without a lock: an uncommitted redrive counts as later (PRIMARY).
IS_LETTER_SETTLED = """
SELECT 1 FROM queue_delivery_state FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND partition_key = %s AND message_offset = %s
"""

# Settle dead letters, for every group. The second of two calls finds a duplicate (PRIMARY).
SETTLE_LETTERS = """
INSERT INTO queue_delivery_state (consumer_group, topic, partition_key, message_offset, through_offset, acked,
       last_attempt_at, last_error)
VALUES {rows}
"""
_LETTER = f"('', %s, %s, %s, %s, 1, {NOW_MS}, %s)"

# Those of some dead letters that one call has settled (PRIMARY).
LETTERS_SETTLED_BY = """
SELECT partition_key, message_offset FROM queue_delivery_state FORCE INDEX (PRIMARY)
WHERE consumer_group = '' AND topic = %s AND (partition_key, message_offset) IN ({points}) AND last_error = %s
"""

# The rows of one lane: a lane with any is not purged (PRIMARY by exact group and lane).
COUNT_LANE = """
SELECT COUNT(*) FROM queue_delivery_state FORCE INDEX (PRIMARY)
WHERE consumer_group IN ({groups}) AND topic = %s AND partition_key = %s
"""

# Whether a group has any row for a topic (PRIMARY, prefix).
ANY_OF_GROUP = "SELECT 1 FROM queue_delivery_state WHERE consumer_group = %s AND topic = %s LIMIT 1"

# Some of the rows of a group (PRIMARY, prefix).
SOME_OF_GROUP = """SELECT partition_key, message_offset FROM queue_delivery_state FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s LIMIT %s"""

# Leftovers of an earlier group of that name (PRIMARY).
DELETE_GROUP = "DELETE FROM queue_delivery_state WHERE consumer_group = %s AND topic = %s"


@frozen
class DeliveryRow:
    """A row as it was read. Times are seconds relative to the database's clock."""

    offset: int
    through: int
    acked: bool
    due_in: float
    retry_count: int
    postponed: int
    crashed: bool
    alone: bool
    lease_epoch: int
    first_age: float | None
    last_error: str | None
    released: bool = False


@frozen(kw_only=True)
class DeliveryWrite:
    """A row to write. Times are seconds relative to the database's clock at the flush."""

    key: str
    offset: int
    through: int
    acked: bool = False
    delay: float = 0.0
    retry_count: int = 0
    postponed: int = 0
    crashed: bool = False
    alone: bool = False
    released: bool = False
    lease_epoch: int = 0
    first_age: float | None = None
    last_error: str | None = None


def load(cx: Executor, at: GroupTopic, keys: Sequence[str]) -> dict[str, list[DeliveryRow]]:
    """Return all rows of these lanes, by key."""
    found: dict[str, list[DeliveryRow]] = {}
    for row in points(cx, LOAD, keys, before=at.columns):
        key, offset, through, acked, due_ms, tries, postponed, crashed, alone, epoch, age_ms, error, released = row
        first_age = None if age_ms is None else max(0, age_ms) / 1000
        state = (bool(acked), due_ms / 1000, tries, postponed, bool(crashed), bool(alone), epoch)
        found.setdefault(key, []).append(DeliveryRow(offset, through, *state, first_age, error, bool(released)))
    return found


def advanced(rows: Iterable[DeliveryRow], watermark: int) -> int:
    """Return the watermark, advanced over the acked rows that follow it without a gap."""
    for row in sorted(rows, key=lambda row: row.offset):
        if row.acked and row.offset <= watermark + 1:
            watermark = max(watermark, row.through)
    return watermark


def upsert(cx: Executor, at: GroupTopic, rows: Sequence[DeliveryWrite]) -> None:
    """Write rows in primary-key order."""
    group, topic = at.columns
    values = []
    for row in sorted(rows, key=lambda row: (row.key, row.offset)):
        first_ms = 0 if row.first_age is None else int(row.first_age * 1000)
        state = (row.acked, int(row.delay * 1000), row.retry_count, row.postponed, row.crashed, row.alone, row.released)
        first = (row.first_age is not None, first_ms)
        values.append((group, topic, row.key, row.offset, row.through, *state, row.lease_epoch, *first, row.last_error))
    write(cx, UPSERT, values, row=_ROW)


def delete(cx: Executor, at: GroupTopic, offsets: Iterable[tuple[str, int]]) -> None:
    """Remove rows by exact (key, offset)."""
    write(cx, DELETE, sorted(offsets), after=at.columns)


def make_due(cx: Executor, lane: LaneId, found: Iterable[int]) -> None:
    """Let these offsets of a lane wait no longer."""
    write(cx, MAKE_DUE, [(lane.key, offset) for offset in sorted(found)], after=lane.of.columns)


def settle(cx: Executor, lane: LaneId, offset: int) -> None:
    """Write one acked row."""
    cx.execute(SETTLE, (*lane.columns, offset, offset))


def settle_same(cx: Executor, lane: LaneId, offset: int, message_id: str) -> bool:
    """Write one acked row if the message there still has this id, and is not settled."""
    try:
        return cx.execute(SETTLE_SAME, (*lane.columns, offset, message_id)) > 0
    except DatabaseError as error:
        if error.code != codes.TWO_ROWS:
            raise
        return False


def settle_unsettled(cx: Executor, at: GroupTopic, offsets: Iterable[tuple[str, int]]) -> bool:
    """Write acked rows for messages (key, offset), in one order. False: one of them is settled already."""
    rows = [(*at.columns, key, offset, offset) for key, offset in sorted(offsets)]
    try:
        write(cx, SETTLE_UNSETTLED, rows, row=_SETTLED)
    except DatabaseError as error:
        if error.code != codes.TWO_ROWS:
            raise
        return False
    return True


def is_settled(cx: Executor, lane: LaneId, offset: int) -> bool:
    """Whether an acked row stands at exactly this offset. Waits for a writer in flight."""
    row = cx.one(IS_SETTLED, (*lane.columns, offset))
    return row is not None and bool(row[0])


def is_settled_now(cx: Executor, lane: LaneId, offset: int) -> bool:
    """The same without a wait. Raises DatabaseError (`codes.LOCKED`) while another transaction has locked the row."""
    row = cx.one(IS_SETTLED_NOW, (*lane.columns, offset))
    return row is not None and bool(row[0])


def is_letter_settled(cx: Executor, dead_topic: str, key: str, offset: int) -> bool:
    """Whether a dead letter was redriven or deleted, and only waits for collection."""
    return cx.one(IS_LETTER_SETTLED, ("", dead_topic, key, offset)) is not None


def settle_letters(cx: Executor, dead_topic: str, offsets: Sequence[tuple[str, int]], by: str) -> None:
    """Settle dead letters. `by` names the call. Raises DatabaseError 1062 if one of them is settled already."""
    write(cx, SETTLE_LETTERS, [(dead_topic, key, offset, offset, by) for key, offset in offsets], row=_LETTER)


def letters_settled_by(
    cx: Executor, dead_topic: str, offsets: Sequence[tuple[str, int]], by: str
) -> set[tuple[str, int]]:
    """Return the dead letters (key, offset) that this call has settled, after its COMMIT was not answered."""
    return {(key, offset) for key, offset in points(cx, LETTERS_SETTLED_BY, offsets, before=[dead_topic], after=[by])}


def count_lane(cx: Executor, topic: str, key: str, groups: Sequence[str]) -> int:
    """How many rows these groups have for a lane."""
    return number(cx.one(COUNT_LANE.format(groups=placeholders(groups)), (*groups, topic, key))) or 0


def any_of_group(cx: Executor, at: GroupTopic) -> bool:
    """Whether a group has any row for a topic."""
    return cx.one(ANY_OF_GROUP, at.columns) is not None


def delete_group(cx: Executor, at: GroupTopic) -> None:
    """Remove every row of a group for a topic."""
    cx.execute(DELETE_GROUP, at.columns)


def some_of_group(cx: Executor, at: GroupTopic, limit: int) -> list[tuple[str, int]]:
    """(key, offset) of some rows of a group."""
    return [(key, offset) for key, offset in cx.query(SOME_OF_GROUP, (*at.columns, limit))]
