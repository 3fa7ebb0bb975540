"""Messages as Arrow columns, and the batches that Spark takes.

Pure: it gets what a query returned, and never talks to a database.

A driver makes a Python object of every value of a row, which costs more than all the rest of a read. So a message
comes as one value, and Arrow cuts the values of a whole page at once.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from attrs import fields, frozen

from lanelog._base.payloads.metadata import decode_metadata
from lanelog.errors import DatabaseError
from lanelog.spark.source.schema import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from lanelog.spark.source.splits import LaneRange

NUMBERS: Final = ("lane", "offset", "payload_bytes", "published", "written", "id", "metadata", "dead")
"""The line of numbers that a message begins with. The last three are lengths of what follows, empty for NULL."""
_PARTS: Final = 5
"""Parts of a value: the line of numbers, id, metadata, what a dead letter has, payload."""
_DEAD_PARTS: Final = 7


@frozen
class Columns:
    """Messages of a page, as the table has them."""

    lane: pa.Array
    """The index of the range in the page."""
    offset: pa.Array
    id: pa.Array
    payload: pa.Array
    """NULL: too large to come with the others."""
    payload_bytes: pa.Array
    metadata: pa.Array
    """JSON, or NULL."""
    published: pa.Array
    """Epoch milliseconds."""
    written: pa.Array
    """Epoch milliseconds. NULL: the same as `published`."""
    dead: pa.Array
    """A JSON array of what only a dead letter has, or NULL."""

    @classmethod
    def of_values(cls, values: Sequence[bytes | None], largest: int) -> Columns:
        """Make them of values of `queries.MESSAGES`, at least one. Payloads above `largest` bytes were left out."""
        import pyarrow as pa
        from pyarrow import compute, csv

        whole = pa.array(values, pa.binary())
        if whole.null_count:
            raise DatabaseError("a message does not fit into the server's max_allowed_packet: raise it there")
        size = compute.binary_length(whole)
        line = compute.add(compute.find_substring(whole, b"\n"), 1)
        head = _part(_pieces(whole, [line, compute.subtract(size, line)]), 0, of=2)
        numbers = csv.read_csv(
            pa.BufferReader(head.buffers()[2].slice(0, compute.sum(line).as_py())),
            csv.ReadOptions(column_names=NUMBERS, use_threads=False),
            csv.ParseOptions(quote_char=False),
            csv.ConvertOptions(column_types=dict.fromkeys(NUMBERS, pa.int64()), null_values=[""]),
        )
        found = {name: numbers.column(name).combine_chunks() for name in NUMBERS}
        before = [line, *(compute.coalesce(found[name], 0) for name in ("id", "metadata", "dead"))]
        for length in before:
            size = compute.subtract(size, length)
        pieces = _pieces(whole, [*before, size])
        payload = _part(pieces, 4, of=_PARTS)
        small = compute.less_equal(found["payload_bytes"], largest)
        if not compute.all(small).as_py():
            payload = compute.if_else(small, payload, None)
        return cls(
            lane=found["lane"],
            offset=found["offset"],
            id=_part(pieces, 1, of=_PARTS).cast(pa.string()),
            payload=payload,
            payload_bytes=found["payload_bytes"].cast(pa.int32()),
            metadata=_text(pieces, 2, found["metadata"]),
            published=found["published"],
            written=found["written"],
            dead=_text(pieces, 3, found["dead"]),
        )

    @classmethod
    def of_rows(cls, rows: Sequence[tuple[Any, ...]]) -> Columns:
        """Make them of rows of `rows`."""
        import pyarrow as pa

        kinds = (
            pa.int64(),
            pa.int64(),
            pa.string(),
            pa.binary(),
            pa.int32(),
            pa.string(),
            pa.int64(),
            pa.int64(),
            pa.string(),
        )
        return cls(*(pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)))

    def rows(self) -> list[tuple[Any, ...]]:
        """Return them row by row, in the order of the columns."""
        return list(zip(*(getattr(self, each.name).to_pylist() for each in fields(Columns)), strict=True))

    def are(self, page: Sequence[LaneRange]) -> bool:
        """Return whether these are all messages of a page, in order."""
        from pyarrow import compute

        # The statement returns only messages of the page, and none twice.
        if len(self.lane) != sum(each.rows for each in page):
            return False
        lane, lane_after = self.lane[:-1], self.lane[1:]
        ascends = compute.and_(compute.equal(lane, lane_after), compute.less(self.offset[:-1], self.offset[1:]))
        return bool(compute.all(compute.or_(compute.less(lane, lane_after), ascends), min_count=0).as_py())

    def batch(self, page: Sequence[LaneRange]) -> pa.RecordBatch:
        """Return them as Spark's batch."""
        import pyarrow as pa
        from pyarrow import compute

        schema = arrow_schema("messages")
        written = compute.coalesce(self.written, self.published)
        return pa.RecordBatch.from_arrays(
            [
                pa.array([each.topic for each in page], pa.string()).take(self.lane),
                pa.array([each.key for each in page], pa.string()).take(self.lane),
                self.offset,
                self.id,
                self.payload,
                _metadata(self.metadata, schema.field("metadata").type),
                instants(self.published, schema.field("timestamp").type),
                instants(written, schema.field("created_at").type),
                self.payload_bytes,
                *_dead_letters(self.dead, schema),
            ],
            schema=schema,
        )


def instants(milliseconds: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert epoch milliseconds to the schema's timestamps, which count microseconds."""
    from pyarrow import compute

    return compute.multiply(milliseconds, 1000).cast(kind)


def arrow_column(column: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Convert values of a column of the log, with times as epoch milliseconds, 0 for never, and flags as numbers."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return instants(pa.array([value or None for value in column], pa.int64()), kind)
    return pa.array([bool(value) for value in column] if pa.types.is_boolean(kind) else column, kind)


def _pieces(values: pa.Array, lengths: Sequence[pa.Array]) -> pa.Array:
    """Cut each value into parts of these lengths, which together are the value. Copies nothing."""
    import pyarrow as pa
    from pyarrow import compute

    rows, parts = len(values), len(lengths)
    between = pa.concat_arrays([each.cast(pa.int32()) for each in lengths]).take(_row_order(rows, parts))
    ends = pa.concat_arrays([pa.array([0], pa.int32()), compute.cumulative_sum(between)])
    return pa.Array.from_buffers(pa.binary(), rows * parts, [None, ends.buffers()[1], values.buffers()[2]])


def _part(pieces: pa.Array, part: int, *, of: int) -> pa.Array:
    """Return one part of every value."""
    return pieces.take(_every(len(pieces) // of, of, part))


@lru_cache(maxsize=8)
def _row_order(rows: int, parts: int) -> pa.Array:
    """Return the indices that reorder columns, one after the other, into their rows."""
    import pyarrow as pa

    return pa.array([part * rows + row for row in range(rows) for part in range(parts)], pa.int32())


@lru_cache(maxsize=32)
def _every(rows: int, parts: int, part: int) -> pa.Array:
    """Return the indices of a part in rows of this many parts."""
    import pyarrow as pa

    return pa.array(range(part, rows * parts, parts), pa.int32())


def _text(pieces: pa.Array, part: int, lengths: pa.Array) -> pa.Array:
    """Return a text of every message, NULL where it has no length."""
    import pyarrow as pa
    from pyarrow import compute

    if lengths.null_count == len(lengths):
        return pa.nulls(len(lengths), pa.string())
    return compute.if_else(compute.is_valid(lengths), _part(pieces, part, of=_PARTS).cast(pa.string()), None)


def _metadata(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the metadata. Each different text is decoded once: a producer writes few of them."""
    import pyarrow as pa

    if texts.null_count == len(texts):
        return pa.nulls(len(texts), kind)
    known = texts.dictionary_encode()
    return pa.array([_pairs(text) for text in known.dictionary.to_pylist()], kind).take(known.indices)


def _pairs(text: str) -> list[tuple[bytes, bytes]]:
    """Return the metadata as a subscriber gets it.

    A lone surrogate, which MariaDB accepts as JSON, becomes a question mark.
    """
    return [
        (name.encode(errors="replace"), value.encode(errors="replace")) for name, value in decode_metadata(text).items()
    ]


def _dead_letters(texts: pa.Array, schema: pa.Schema) -> list[pa.Array]:
    """Return the columns from original_topic to target_group."""
    import pyarrow as pa

    kinds = [field.type for field in list(schema)[-_DEAD_PARTS:]]
    if texts.null_count == len(texts):
        return [pa.nulls(len(texts), kind) for kind in kinds]
    nothing = (None,) * _DEAD_PARTS
    rows = (nothing if text is None else _letter(json.loads(text)) for text in texts.to_pylist())
    return [arrow_column(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)]


def _letter(parts: list[Any]) -> tuple[Any, ...]:
    *letter, target = parts
    failed_at = letter[3]
    return (*(letter if failed_at else (None,) * len(letter)), target or None)
