"""The reading side of `queue_messages`: rows of many lanes in one statement, and payloads only as far as they fit.

Owns the SELECTs of the log; never writes it. Called by the fetcher.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from attrs import field, frozen

from lanelog._database import NOW_MS
from lanelog._stores._points import chunked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._database import Executor
    from lanelog._places import GroupTopic

# The last column is NULL for an ordinary message: an answer costs by its columns, and these eight say nothing of most.
_COLUMNS = f"""`offset`, id,
 IF(payload_bytes <= %s AND target_group IN ('', %s), payload, NULL) AS payload, metadata, published_at,
 IF(payload_bytes <= %s AND target_group = '' AND original_topic = '' AND expires_at = 0, NULL, JSON_ARRAY(
  payload_bytes, IF(expires_at = 0, NULL, CAST(expires_at AS SIGNED) - CAST({NOW_MS} AS SIGNED)), target_group,
  original_topic, original_offset, failed_group, failed_at, failure_count, HEX(last_error))) AS more"""

# The next rows of one lane, in order (PRIMARY, range bounded from below); many lanes are joined by UNION ALL,
# each known by a number: to read keys again and again takes longer than a look into a list.
NEXT = f"""(SELECT %s, {_COLUMNS} FROM queue_messages FORCE INDEX (PRIMARY)
 WHERE topic = %s AND partition_key = %s AND `offset` > %s ORDER BY `offset` LIMIT %s)"""

# Exact rows, to be delivered again (PRIMARY).
EXACT = f"""SELECT partition_key, {_COLUMNS} FROM queue_messages FORCE INDEX (PRIMARY)
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


@frozen
class Special:
    """What sets a message apart that is meant for one group alone or is a dead letter. Times in milliseconds."""

    target_group: str = ""
    original_topic: str = ""
    original_offset: int = 0
    failed_group: str = ""
    failed_at: int = 0
    failure_count: int = 0
    last_error: str | None = field(default=None, repr=False)


class Fetched(NamedTuple):
    """One row of the log; a NamedTuple because a message costs microseconds. Times in milliseconds."""

    key: str
    offset: int
    id: str
    payload: bytes | None  # None: for another group, or larger than the fetch's bound
    payload_bytes: int
    metadata: str | bytes | None
    published_at: int
    start_by: float | None = None  # monotonic, never later than when it expires; None: it does not
    special: Special | None = None

    @property
    def target_group(self) -> str:
        """The only group that it is meant for; empty: every group."""
        return "" if self.special is None else self.special.target_group

    @property
    def original_topic(self) -> str:
        """Of a dead letter; empty: it is none."""
        return "" if self.special is None else self.special.original_topic

    def __repr__(self) -> str:
        # Without payload and metadata, which may be secret: attempts and lanes show their rows.
        return f"<Fetched {self.key!r} offset={self.offset} id={self.id!r} {self.payload_bytes} bytes>"


def following(
    cx: Executor, at: GroupTopic, lanes: Sequence[tuple[str, int]], *, limit: int, largest: int
) -> dict[str, list[Fetched]]:
    """Up to `limit` rows behind each (key, cursor), by key; payloads above `largest` bytes stay behind."""
    args: list[object] = []
    for number, (key, cursor) in enumerate(lanes):
        args += (number, largest, at.group, largest, at.topic, key, cursor, limit)
    found: list[list[Fetched]] = [[] for _ in lanes]
    asked = time.monotonic()
    for row in cx.query(" UNION ALL ".join([NEXT] * len(lanes)), args):
        number, offset, message_id, payload, metadata, published_at, more = row
        key = lanes[number][0]
        found[number].append(
            Fetched(key, offset, message_id, payload, len(payload), metadata, published_at)
            if more is None
            else _special((key, *row[1:]), asked)
        )
    for rows in found:
        rows.sort(key=_by_offset)  # each SELECT is ordered; UNION ALL alone does not promise to stay so
    return {lane[0]: rows for lane, rows in zip(lanes, found, strict=True) if rows}


def exact(
    cx: Executor, at: GroupTopic, points: Sequence[tuple[str, int]], *, largest: int
) -> dict[tuple[str, int], Fetched]:
    """The rows at exactly these (key, offset)."""
    found: dict[tuple[str, int], Fetched] = {}
    for chunk in chunked(points):
        sql = EXACT.format(points=",".join(["(%s, %s)"] * len(chunk)))
        args = [value for point in chunk for value in point]
        asked = time.monotonic()
        for row in cx.query(sql, (largest, at.group, largest, at.topic, *args)):
            key, offset, message_id, payload, metadata, published_at, more = row
            found[(key, offset)] = (
                Fetched(key, offset, message_id, payload, len(payload), metadata, published_at)
                if more is None
                else _special(row, asked)
            )
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


def _special(row: tuple[Any, ...], asked: float) -> Fetched:
    """A row with more to say. What the database says is left of its time counts from before it was asked."""
    key, offset, message_id, payload, metadata, published_at, more = row
    payload_bytes, expires_in, target_group, original_topic, *rest, last_error = json.loads(more)
    start_by = None if expires_in is None else asked + expires_in / 1000
    special = None
    if target_group or original_topic:
        text = None if last_error is None else bytes.fromhex(last_error).decode()
        original_offset, failed_group, failed_at, failures = rest
        special = Special(target_group, original_topic, original_offset, failed_group, failed_at, failures, text)
    return Fetched(key, offset, message_id, payload, payload_bytes, metadata, published_at, start_by, special)


def _by_offset(row: Fetched) -> int:
    return row.offset
