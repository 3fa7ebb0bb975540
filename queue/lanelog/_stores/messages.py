"""The publishing side of `queue_messages`: insert, and find what an id was given before.

It never updates or deletes a message. The publisher calls it, with the heads of the lanes locked; `fetches` and `moves`
are the other sides of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from attrs import field, frozen

from lanelog._database import NOW_MS
from lanelog._stores._points import MAX_POINTS, chunked

if TYPE_CHECKING:
    from lanelog._database import Executor

# Append rows, whose heads are locked; the clock is read after that, so it never falls within a lane (PRIMARY, by_id).
INSERT = """INSERT INTO queue_messages
(topic, partition_key, `offset`, id, payload, payload_bytes, metadata, created_at, published_at) VALUES """
ROW = f"(%s,%s,%s,%s,%s,%s,%s,{NOW_MS},{NOW_MS})"

# Offsets of the messages that have these ids, if there are any (by_id).
FIND_IDS = """SELECT partition_key, id, `offset` FROM queue_messages FORCE INDEX (by_id)
WHERE topic = %s AND (partition_key, id) IN ({points})"""

# The same in a caller's transaction, whose snapshot may be older than they are (by_id).
FIND_IDS_SHARED = FIND_IDS + " LOCK IN SHARE MODE"

_ROW_OVERHEAD: Final = len(ROW) + 64
_STATEMENT_OVERHEAD: Final = len(INSERT) + 1024


@frozen
class NewMessage:
    """A row to append."""

    key: str
    offset: int
    id: str
    payload: bytes = field(repr=False)
    metadata: str | None = field(repr=False)


def wire_bytes(topic: str, key: str, message_id: str, payload_bytes: int, metadata: str | None) -> int:
    """At most so many bytes a row takes in an INSERT: a payload travels as hex, text escaped or in up to four bytes."""
    text = len(topic) + len(key) + len(message_id) + len(metadata or "")
    return 2 * payload_bytes + 4 * text + _ROW_OVERHEAD


def largest_row(max_packet: int) -> int:
    """How many bytes one row may take so that its INSERT fits into a packet."""
    return max_packet - _STATEMENT_OVERHEAD


class Messages:
    """Statements of publishers on `queue_messages`."""

    def insert(self, cx: Executor, topic: str, rows: Sequence[NewMessage], max_packet: int) -> None:
        """Append rows, in as few statements as rows and bytes allow."""
        for part in _split(topic, rows, largest_row(max_packet)):
            args: list[object] = []
            for row in part:
                args += (topic, row.key, row.offset, row.id, row.payload, len(row.payload), row.metadata)
            cx.execute(INSERT + ",".join([ROW] * len(part)), args)

    def find_ids(
        self, cx: Executor, topic: str, points: Iterable[tuple[str, str]], *, shared: bool = False
    ) -> dict[tuple[str, str], int]:
        """Offsets by (key, id) of those that are stored; `shared` locks them, and sees what a snapshot does not."""
        statement = FIND_IDS_SHARED if shared else FIND_IDS
        found: dict[tuple[str, str], int] = {}
        for chunk in chunked(sorted(set(points))):
            marks = ",".join(["(%s,%s)"] * len(chunk))
            args = [value for point in chunk for value in point]
            for key, message_id, offset in cx.query(statement.format(points=marks), (topic, *args)):
                found[key, message_id] = int(offset)
        return found


def _split(topic: str, rows: Sequence[NewMessage], limit: int) -> Iterator[Sequence[NewMessage]]:
    """Cut rows into parts that fit into one statement each; a row that fits into none is on its own."""
    part: list[NewMessage] = []
    size = 0
    for row in rows:
        needed = wire_bytes(topic, row.key, row.id, len(row.payload), row.metadata)
        if part and (size + needed > limit or len(part) == MAX_POINTS):
            yield part
            part, size = [], 0
        part.append(row)
        size += needed
    if part:
        yield part
