"""The reading side of `queue_messages`: rows of many lanes in one statement, without the payloads that are too large.

Owns the SELECTs that deliver messages. Never writes.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from attrs import field, frozen

from lanelog._database import NOW_MS
from lanelog._stores._counted import signed
from lanelog._stores._points import points

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._base.places import GroupTopic
    from lanelog._database import Executor

# Each column of an answer costs time, and most messages need none of the last column's values: it is NULL for them.
_COLUMNS = f"""`offset`, id,
 IF(payload_bytes <= %s AND target_group IN ('', %s), payload, NULL) AS payload, metadata, published_at,
 IF(payload_bytes <= %s AND target_group = '' AND original_topic = '' AND expires_at = 0, NULL, JSON_ARRAY(
  payload_bytes, IF(expires_at = 0, NULL, {signed("expires_at")} - CAST({NOW_MS} AS SIGNED)), target_group,
  original_topic, original_offset, failed_group, failed_at, failure_count, HEX(last_error))) AS more"""

# The next rows of some lanes (PRIMARY, a range a lane). A SELECT for each lane, joined by UNION ALL, costs more, and
# twice as much where lanes have few rows.
NEXT = f"""SELECT partition_key, {_COLUMNS} FROM queue_messages FORCE INDEX (PRIMARY)
WHERE topic = %s AND ({{ranges}})"""
RANGE = "(partition_key = %s AND `offset` BETWEEN %s AND %s)"

# Exact rows (PRIMARY).
EXACT = f"""SELECT partition_key, {_COLUMNS} FROM queue_messages FORCE INDEX (PRIMARY)
WHERE topic = %s AND (partition_key, `offset`) IN ({{points}})"""

# One payload that was too large for the fetch (PRIMARY).
PAYLOAD = (
    "SELECT payload FROM queue_messages FORCE INDEX (PRIMARY) WHERE topic = %s AND partition_key = %s AND `offset` = %s"
)

# Is the message at these offsets still the same one? (PRIMARY)
IDS = """SELECT partition_key, `offset`, id FROM queue_messages FORCE INDEX (PRIMARY)
WHERE topic = %s AND (partition_key, `offset`) IN ({points})"""


@frozen
class Special:
    """The columns of a message for one group alone, or of a dead letter. Times in milliseconds."""

    target_group: str = ""
    original_topic: str = ""
    original_offset: int = 0
    failed_group: str = ""
    failed_at: int = 0
    failure_count: int = 0
    last_error: str | None = field(default=None, repr=False)


class Fetched(NamedTuple):
    """One row of the log. A NamedTuple, because it is made for every message. Times in milliseconds."""

    key: str
    offset: int
    id: str
    payload: bytes | None  # None: for another group, or above the fetch's bound
    payload_bytes: int
    metadata: str | bytes | None
    published_at: int
    start_by: float | None = None  # monotonic, never later than its expiry; None: it does not expire
    special: Special | None = None

    @property
    def target_group(self) -> str:
        """The only group that gets it. Empty: every group."""
        return "" if self.special is None else self.special.target_group

    @property
    def original_topic(self) -> str:
        """The topic of a dead letter's source. Empty: no dead letter."""
        return "" if self.special is None else self.special.original_topic

    def __repr__(self) -> str:
        # Without payload and metadata, which may be secret: the reprs of attempts and lanes contain this one.
        return f"<Fetched {self.key!r} offset={self.offset} id={self.id!r} {self.payload_bytes} bytes>"


_new = tuple.__new__
"""Makes an ordinary `Fetched` in half the time of its own constructor."""


class Behind(NamedTuple):
    """The rows of a lane at the next `limit` offsets after an offset."""

    key: str
    offset: int
    limit: int


def following(cx: Executor, at: GroupTopic, lanes: Sequence[Behind], *, largest: int) -> list[list[Fetched]]:
    """Return the rows of each of the lanes, without payloads above `largest` bytes."""
    args: list[object] = [largest, at.group, largest, at.topic]
    for key, offset, limit in lanes:
        args += (key, offset + 1, offset + limit)
    found: dict[str, list[Fetched]] = {lane.key: [] for lane in lanes}
    asked = time.monotonic()
    for row in cx.query(NEXT.format(ranges=" OR ".join([RANGE] * len(lanes))), args):
        key, offset, message_id, payload, metadata, published_at, more = row
        found[key].append(
            _new(Fetched, (key, offset, message_id, payload, len(payload), metadata, published_at, None, None))
            if more is None
            else _special(row, asked)
        )
    for rows in found.values():
        rows.sort(key=_by_offset)  # nothing promises the order of a SELECT without ORDER BY
    return list(found.values())


def exact(
    cx: Executor, at: GroupTopic, offsets: Sequence[tuple[str, int]], *, largest: int
) -> dict[tuple[str, int], Fetched]:
    """Return the rows at exactly these (key, offset)."""
    found: dict[tuple[str, int], Fetched] = {}
    asked = time.monotonic()
    for row in points(cx, EXACT, offsets, before=(largest, at.group, largest, at.topic)):
        key, offset, message_id, payload, metadata, published_at, more = row
        found[(key, offset)] = (
            Fetched(key, offset, message_id, payload, len(payload), metadata, published_at)
            if more is None
            else _special(row, asked)
        )
    return found


def payload(cx: Executor, topic: str, key: str, offset: int) -> bytes | None:
    """Return one payload, or None when the row is gone."""
    row = cx.one(PAYLOAD, (topic, key, offset))
    return None if row is None else bytes(row[0])


def ids(cx: Executor, topic: str, offsets: Sequence[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """Return the message ids at exactly these (key, offset)."""
    return {(key, offset): message_id for key, offset, message_id in points(cx, IDS, offsets, before=[topic])}


def _special(row: tuple[Any, ...], asked: float) -> Fetched:
    """A row with the last column. The time to its expiry counts from `asked`, so `start_by` is never too late."""
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
