"""The reading side of `queue_messages`: rows of many lanes in one statement, and payloads only as far as they fit.

Owns the SELECTs of the log; never writes it. Called by the fetcher.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from lanelog._database import NOW_MS
from lanelog._stores._points import chunked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._database import Executor
    from lanelog._places import GroupTopic

_COLUMNS = f"""partition_key, `offset`, id,
 IF(payload_bytes <= %s AND target_group IN ('', %s), payload, NULL) AS payload, payload_bytes, metadata, published_at,
 target_group, original_topic, original_offset, failed_group, failed_at, failure_count, last_error,
 IF(expires_at = 0, NULL, CAST(expires_at AS SIGNED) - CAST({NOW_MS} AS SIGNED)) AS expires_in"""

# The next rows of one lane, in order (PRIMARY, range bounded from below); many lanes are joined by UNION ALL.
NEXT = f"""(SELECT {_COLUMNS} FROM queue_messages FORCE INDEX (PRIMARY)
 WHERE topic = %s AND partition_key = %s AND `offset` > %s ORDER BY `offset` LIMIT %s)"""

# Exact rows, to be delivered again (PRIMARY).
EXACT = f"""SELECT {_COLUMNS} FROM queue_messages FORCE INDEX (PRIMARY)
WHERE topic = %s AND (partition_key, `offset`) IN ({{points}})"""

# The payload of one message that was too large to come with the others (PRIMARY).
PAYLOAD = (
    "SELECT payload FROM queue_messages FORCE INDEX (PRIMARY) WHERE topic = %s AND partition_key = %s AND `offset` = %s"
)

# Is the message at these offsets still the same one? (PRIMARY)
IDS = """SELECT partition_key, `offset`, id FROM queue_messages FORCE INDEX (PRIMARY)
WHERE topic = %s AND (partition_key, `offset`) IN ({points})"""

# A hole, looked at again under the head's lock (queue_partitions PRIMARY): whoever publishes has committed by then.
SHARE_HEAD = """SELECT head_offset FROM queue_partitions WHERE topic = %s AND partition_key = %s LOCK IN SHARE MODE"""


class Fetched(NamedTuple):
    """One row of the log; a NamedTuple because a message costs microseconds. Times in milliseconds."""

    key: str
    offset: int
    id: str
    payload: bytes | None  # None: for another group, or larger than the fetch's bound
    payload_bytes: int
    metadata: str | bytes | None
    published_at: int
    target_group: str
    original_topic: str
    original_offset: int
    failed_group: str
    failed_at: int
    failure_count: int
    last_error: str | None
    start_by: float | None = None  # monotonic, never later than when it expires; None: it does not

    def __repr__(self) -> str:
        # Without payload and metadata, which may be secret: attempts and lanes show their rows.
        return f"<Fetched {self.key!r} offset={self.offset} id={self.id!r} {self.payload_bytes} bytes>"


def following(
    cx: Executor, at: GroupTopic, lanes: Sequence[tuple[str, int]], *, limit: int, largest: int
) -> dict[str, list[Fetched]]:
    """Up to `limit` rows behind each (key, cursor), by key; payloads above `largest` bytes stay behind."""
    args: list[object] = []
    for key, cursor in lanes:
        args += (largest, *at.columns, key, cursor, limit)
    found: dict[str, list[Fetched]] = {}
    asked = time.monotonic()
    for row in cx.query(" UNION ALL ".join([NEXT] * len(lanes)), args):
        found.setdefault(row[0], []).append(Fetched(*row) if row[-1] is None else _expiring(row, asked))
    for rows in found.values():
        rows.sort(key=_by_offset)  # each SELECT is ordered; UNION ALL alone does not promise to stay so
    return found


def exact(
    cx: Executor, at: GroupTopic, points: Sequence[tuple[str, int]], *, largest: int
) -> dict[tuple[str, int], Fetched]:
    """The rows at exactly these (key, offset)."""
    found: dict[tuple[str, int], Fetched] = {}
    for chunk in chunked(points):
        sql = EXACT.format(points=",".join(["(%s, %s)"] * len(chunk)))
        args = [value for point in chunk for value in point]
        asked = time.monotonic()
        for row in cx.query(sql, (largest, *at.columns, *args)):
            fetched = Fetched(*row) if row[-1] is None else _expiring(row, asked)
            found[(fetched.key, fetched.offset)] = fetched
    return found


def payload(cx: Executor, topic: str, key: str, offset: int) -> bytes | None:
    """One payload, or None when the row is gone."""
    row = cx.one(PAYLOAD, (topic, key, offset))
    return None if row is None else bytes(row[0])


def ids(cx: Executor, topic: str, points: Sequence[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """Message ids at exactly these (key, offset)."""
    found: dict[tuple[str, int], str] = {}
    for chunk in chunked(points):
        sql = IDS.format(points=",".join(["(%s, %s)"] * len(chunk)))
        args = [value for point in chunk for value in point]
        found.update({(key, offset): message_id for key, offset, message_id in cx.query(sql, (topic, *args))})
    return found


def share_head(cx: Executor, topic: str, key: str) -> int | None:
    """The head, share-locked until the transaction ends; None: the lane was purged."""
    row = cx.one(SHARE_HEAD, (topic, key))
    return None if row is None else int(row[0])


def _expiring(row: tuple[Any, ...], asked: float) -> Fetched:
    """A row with a time to live: what the database says is left counts from before it was asked."""
    return Fetched._make((*row[:-1], asked + row[-1] / 1000))


def _by_offset(row: Fetched) -> int:
    return row.offset
