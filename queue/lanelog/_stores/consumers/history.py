"""`queue_history`: how messages left the groups that keep history, one row per message and group.

Owns the SQL of its table. Never decides what the end of a message means, and does not check for `upsert` that the group
keeps history: its caller does.

The primary key of a row names the message. So a repetition after an unknown COMMIT, or a second handling after a seek,
replaces it. It is the last table of every transaction's lock order.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from lanelog._base.places import GroupTopic
from lanelog._database import NOW_MS
from lanelog._stores._counted import signed
from lanelog._stores._points import exactly, flat, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._base.places import LaneId
    from lanelog._database import Executor

# Insert or update rows (PRIMARY).
UPSERT = """
INSERT INTO queue_history (consumer_group, topic, partition_key, message_offset, id, outcome, attempts, published_at,
       first_delivered_at, finished_at, owner, last_error)
VALUES {rows}
ON DUPLICATE KEY UPDATE id = VALUES(id), outcome = VALUES(outcome), attempts = VALUES(attempts),
       published_at = VALUES(published_at), first_delivered_at = VALUES(first_delivered_at),
       finished_at = VALUES(finished_at), owner = VALUES(owner), last_error = VALUES(last_error)
"""
_ROW = f"(%s, %s, %s, %s, %s, %s, %s, %s, IF(%s, {NOW_MS} - %s, 0), {NOW_MS} - %s, %s, %s)"

# One skipped message, if its group keeps history and it is for that group (each PRIMARY).
SKIPPED = f"""
INSERT INTO queue_history (consumer_group, topic, partition_key, message_offset, id, outcome, attempts, published_at,
       first_delivered_at, finished_at, owner, last_error)
SELECT kept.consumer_group, m.topic, m.partition_key, m.`offset`, m.id, 'skipped', %s, m.published_at,
       IF(%s, {NOW_MS} - %s, 0), {NOW_MS}, %s, %s
FROM queue_groups AS kept FORCE INDEX (PRIMARY) STRAIGHT_JOIN queue_messages AS m FORCE INDEX (PRIMARY)
ON m.topic = kept.topic AND m.target_group IN ('', kept.consumer_group)
WHERE kept.consumer_group = %s AND kept.topic = %s AND kept.history_ms > 0 AND m.partition_key = %s AND m.`offset` = %s
ON DUPLICATE KEY UPDATE id = VALUES(id), outcome = VALUES(outcome), attempts = VALUES(attempts),
       published_at = VALUES(published_at), first_delivered_at = VALUES(first_delivered_at),
       finished_at = VALUES(finished_at), owner = VALUES(owner), last_error = VALUES(last_error)
"""

# The oldest rows of a group with their age, oldest first (by_finished).
OLDEST = f"""
SELECT partition_key, message_offset, CAST({NOW_MS} AS SIGNED) - {signed("finished_at")}
FROM queue_history FORCE INDEX (by_finished)
WHERE consumer_group = %s AND topic = %s ORDER BY finished_at LIMIT %s
"""

# Delete old rows by exact key, unless they were replaced meanwhile (PRIMARY, one lookup a point).
DELETE = f"""
DELETE gone FROM ({{exact}}) AS exact STRAIGHT_JOIN queue_history AS gone FORCE INDEX (PRIMARY)
ON gone.consumer_group = %s AND gone.topic = %s AND gone.partition_key = exact.k AND gone.message_offset = exact.o
WHERE gone.finished_at <= {NOW_MS} - %s
"""

# The next topic for which a group has rows (by_finished).
NEXT_TOPIC = """
SELECT topic FROM queue_history FORCE INDEX (by_finished)
WHERE consumer_group = %s AND topic > %s ORDER BY topic LIMIT 1
"""

# The next group that has rows (by_finished).
NEXT_GROUP = """
SELECT consumer_group FROM queue_history FORCE INDEX (by_finished)
WHERE consumer_group > %s ORDER BY consumer_group LIMIT 1
"""

ROWS = 500
"""Rows in one statement. Fewer than elsewhere, because the texts of errors are long."""

BATCH = 1000
"""Most rows that one purge deletes."""


class Ended(StrEnum):
    """How a message left a group. The outcome `skipped` is written by SKIPPED alone."""

    SUCCESS = "success"
    REJECTED = "rejected"
    FAILED = "failed"
    """A handler raised, and the retry policy allows no other attempt."""
    LOCK_EXPIRED = "lock_expired"
    """The last attempt timed out or ended with its process, and the retry policy allows no other attempt."""
    EXPIRED = "expired"
    """Its time to live was over before a handler started."""


class HistoryWrite(NamedTuple):
    """A row to write. A NamedTuple, because it is made for every message. `first` and `finished`: monotonic seconds."""

    key: str
    offset: int
    id: str
    outcome: Ended
    attempts: int
    published_at_ms: int
    first: float | None  # None: no handler has seen it
    finished: float
    error: str | None


def upsert(cx: Executor, at: GroupTopic, owner: str, rows: Sequence[HistoryWrite], now: float) -> None:
    """Write rows in primary-key order. `now`: the monotonic clock, to which `first` and `finished` are compared."""
    group, topic = at.columns
    values = []
    for row in sorted(rows, key=lambda row: (row.key, row.offset)):
        first_ms = 0 if row.first is None else max(0, int((now - row.first) * 1000))
        args = (group, topic, row.key, row.offset, row.id, row.outcome.value, row.attempts, row.published_at_ms)
        ended_ms = max(0, int((now - row.finished) * 1000))
        values.append((*args, row.first is not None, first_ms, ended_ms, owner, row.error))
    write(cx, UPSERT, values, row=_ROW, size=ROWS)


def skipped(
    cx: Executor,
    lane: LaneId,
    offset: int,
    *,
    attempts: int,
    first_age: float | None,
    owner: str,
    reason: str,
) -> None:
    """Note that an operator skipped a message, if the group keeps history. The group's row is locked."""
    first_ms = 0 if first_age is None else int(first_age * 1000)
    cx.execute(SKIPPED, (attempts, first_age is not None, first_ms, owner, reason, *lane.columns, offset))


def purge(cx: Executor, at: GroupTopic, retention_ms: int) -> tuple[int, float | None]:
    """Delete at most `BATCH` rows older than the retention, on a connection on which every statement commits.

    Return the number of deleted rows, and the age in seconds of the oldest row that is left, None if no row is left. A
    repetition is harmless. Two calls at once delete each row once.
    """
    found = cx.query(OLDEST, (*at.columns, BATCH + 1))
    old = [(key, offset) for key, offset, age_ms in found[:BATCH] if age_ms >= retention_ms]
    ages = [age_ms / 1000 for _, _, age_ms in found[len(old) :]]
    left = ages[0] if ages else None
    if not old:
        return 0, left
    old.sort()
    return cx.execute(DELETE.format(exact=exactly(old)), (*flat(old), *at.columns, retention_ms)), left


def kept(cx: Executor) -> list[GroupTopic]:
    """Return every group of a topic that has rows, by index look-ups and not by a scan."""
    found: list[GroupTopic] = []
    group = cx.one(NEXT_GROUP, ("",))
    while group is not None:
        topic = cx.one(NEXT_TOPIC, (group[0], ""))
        while topic is not None:
            found.append(GroupTopic(topic=topic[0], group=group[0]))
            topic = cx.one(NEXT_TOPIC, (group[0], topic[0]))
        group = cx.one(NEXT_GROUP, (group[0],))
    return found
