"""The messages in `queue_messages` that are old enough to leave, and their deletion.

Owns these statements. Never decides how long a message stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lanelog._database import NOW_MS
from lanelog._stores._counted import signed
from lanelog._stores._points import number, points, united, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._database import Executor


# The time at which a message was written (PRIMARY).
CREATED_AT = "SELECT created_at FROM queue_messages WHERE topic = %s AND partition_key = %s AND `offset` = %s"

# The ages of messages at exact offsets (PRIMARY).
AGES = f"""SELECT partition_key, CAST({NOW_MS} AS SIGNED) - {signed("created_at")}
FROM queue_messages FORCE INDEX (PRIMARY) WHERE topic = %s AND (partition_key, `offset`) IN ({{points}})"""

# The age of the oldest message of a lane above its floor. UNION ALL joins many lanes (PRIMARY).
OLDEST = f"""(SELECT partition_key, CAST({NOW_MS} AS SIGNED) - {signed("created_at")}
 FROM queue_messages FORCE INDEX (PRIMARY)
 WHERE topic = %s AND partition_key = %s AND `offset` > %s ORDER BY `offset` LIMIT 1)"""

# The last message of a lane, within a range of offsets, that is older than the retention. UNION ALL joins many lanes
# (PRIMARY, bounded range).
OLD_ENOUGH = f"""(SELECT %s, COALESCE(MAX(`offset`), 0) FROM queue_messages FORCE INDEX (PRIMARY)
 WHERE topic = %s AND partition_key = %s AND `offset` > %s AND `offset` <= %s AND created_at <= {NOW_MS} - %s)"""

# The dead letters of a lane within a range of offsets: source topic, group and age. UNION ALL joins many lanes
# (PRIMARY, bounded range).
LETTERS = f"""(SELECT partition_key, `offset`, original_topic, failed_group,
 CAST({NOW_MS} AS SIGNED) - {signed("created_at")} AS age_ms
 FROM queue_messages FORCE INDEX (PRIMARY)
 WHERE topic = %s AND partition_key = %s AND `offset` > %s AND `offset` <= %s)"""

# Delete by exact offsets, so that it waits for no publisher (PRIMARY, one lookup a point).
DELETE = """DELETE gone FROM ({exact}) AS exact STRAIGHT_JOIN queue_messages AS gone FORCE INDEX (PRIMARY)
ON gone.topic = %s AND gone.partition_key = exact.k AND gone.`offset` = exact.o"""


class LetterAge(NamedTuple):
    """A dead letter, with what its retention depends on."""

    offset: int
    original_topic: str
    group: str
    age_ms: int


def created_at(cx: Executor, topic: str, key: str, offset: int) -> int | None:
    """Return the time at which a message was written (milliseconds), or None if it is not in the log."""
    return number(cx.one(CREATED_AT, (topic, key, offset)))


def ages(cx: Executor, topic: str, lanes: Sequence[tuple[str, int]]) -> dict[str, float]:
    """Return the age in seconds of the first message above each (key, floor), by key.

    Nearly always, it is the next one. To ask for that one costs the server a small part of a search for the first.
    """
    found: dict[str, float] = dict(points(cx, AGES, [(key, floor + 1) for key, floor in lanes], before=[topic]))
    found |= united(cx, OLDEST, [(topic, key, floor) for key, floor in lanes if key not in found])
    return {key: age_ms / 1000 for key, age_ms in found.items()}


def old_enough(cx: Executor, topic: str, ranges: Sequence[tuple[str, int, int]], retention_ms: int) -> dict[str, int]:
    """Return the highest offset older than the retention in each (key, floor, through), by key. 0: none."""
    rows = [(key, topic, key, floor, through, retention_ms) for key, floor, through in ranges]
    return {key: int(offset) for key, offset in united(cx, OLD_ENOUGH, rows)}


def letters(cx: Executor, topic: str, ranges: Sequence[tuple[str, int, int]]) -> dict[str, list[LetterAge]]:
    """Return the dead letters in each (key, floor, through), by key and in order."""
    found: dict[str, list[LetterAge]] = {}
    for key, *letter in united(cx, LETTERS, [(topic, *span) for span in ranges]):
        found.setdefault(key, []).append(LetterAge(*letter))
    for letters in found.values():
        letters.sort()
    return found


def delete(cx: Executor, topic: str, offsets: Sequence[tuple[str, int]]) -> int:
    """Delete messages by exact (key, offset), in primary-key order. Return how many."""
    return write(cx, DELETE, sorted(offsets), after=[topic])
