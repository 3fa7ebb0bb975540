"""What a task does: read its part of the log or of a table, page by page, as Arrow batches.

Holds one connection and no transaction. Every page is one statement of bounded rows and bytes that commits by itself.
It is repeated alone if the connection is lost.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

from attrs import define, frozen
from pyspark.sql.datasource import InputPartition

from lanelog._base.places import GroupTopic
from lanelog._database import Database
from lanelog._stores._points import MAX_POINTS
from lanelog.errors import LanelogError
from lanelog.spark.errors import clear
from lanelog.spark.source import queries
from lanelog.spark.source.columns import Columns, arrow_column
from lanelog.spark.source.schema import arrow_schema
from lanelog.spark.source.splits import PAGE_ROWS, pages

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from lanelog._database import Session
    from lanelog.spark.source.options import DatabaseAddress, ReadOptions
    from lanelog.spark.source.splits import LaneRange

PAGE_BYTES: Final = 32 * 1024 * 1024
_NONE: Final = -1

# Indices in a row of `Columns`.
_LANE, _OFFSET, _ID, _PAYLOAD, _BYTES = range(5)

_COLLECTED: Final = (
    "they were collected before they were read. Read as a registered group (groupId) to hold collection back, or set "
    "failOnDataLoss=false to read what is left"
)
_WENT_BACK: Final = (
    "the lane ends before them, though the stream has read further: the log went back, by a failover or by a backup "
    "that was restored. With failOnDataLoss=false the stream goes on from where the lane ends"
)


class DataLost(LanelogError):
    """Messages that were to be read are gone from the log."""

    def __init__(
        self, topic: str, key: str, begin: int, end: int, missing: int | None = None, *, went_back: bool = False
    ) -> None:
        count = end + 1 - begin if missing is None else missing
        super().__init__(
            f"{count} messages of topic {topic!r}, key {key!r} are gone, among offsets {begin} to {end}: "
            + (_WENT_BACK if went_back else _COLLECTED)
        )


@frozen(kw_only=True)
class Reading:
    """How a task reads. It is sent to the executors."""

    address: DatabaseAddress
    fail_on_data_loss: bool = True
    include_payload: bool = True
    page_rows: int = queries.USUAL.rows
    """Rows of a page of a table."""
    page_bytes: int = PAGE_BYTES
    """Payload bytes of a page of messages."""
    share: int = PAGE_BYTES // PAGE_ROWS
    """A payload with more bytes than this share of a page is read by another statement."""

    @classmethod
    def of(cls, options: ReadOptions) -> Reading:
        """Return how to read with these options."""
        return cls(
            address=options.address,
            fail_on_data_loss=options.fail_on_data_loss,
            include_payload=options.include_payload,
        )

    @property
    def largest(self) -> int:
        """The most bytes of a payload that comes along with its message."""
        return self.share if self.include_payload else _NONE


@frozen
class MessageSplit(InputPartition):
    """The messages that one task reads."""

    ranges: tuple[LaneRange, ...]


@frozen
class TableSplit(InputPartition):
    """The rows of a table that one task reads."""

    table: str
    parts: tuple[GroupTopic, ...]
    since_ms: int | None


def read_split(reading: Reading, split: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read a split, in an executor.

    If a batch has nothing to read, Spark passes a split of its own, which has no rows.
    """
    with clear():
        if isinstance(split, MessageSplit):
            yield from read_messages(reading, split.ranges)
        elif isinstance(split, TableSplit):
            yield from read_table(reading, split.table, split.parts, split.since_ms)


def read_messages(reading: Reading, ranges: Sequence[LaneRange]) -> Iterator[pa.RecordBatch]:
    """Yield the messages of the ranges, those of each lane in order.

    Raises DataLost, DatabaseError, ConfigurationError.
    """
    with _connection(reading.address) as connection:
        for page in pages(ranges):
            found = _columns(connection, page, reading.largest)
            if found is not None and found.are(page) and not (reading.include_payload and found.payload.null_count):
                yield found.batch(page)
                continue
            for part in _parts(connection, page, found.rows() if found is not None else [], reading):
                _check_whole(page, part.missing, reading)
                if part.rows:
                    yield Columns.of_rows(part.rows).batch(page)


def read_table(
    reading: Reading, table: str, parts: Sequence[GroupTopic], since_ms: int | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table for these groups of topics. Raises DatabaseError, ConfigurationError."""
    with _connection(reading.address) as connection:

        def query(sql: str, args: Sequence[object]) -> list[tuple[Any, ...]]:
            return cast("list[tuple[Any, ...]]", connection.query(lambda cx: cx.query(sql, args)))

        rows: list[tuple[Any, ...]] = []
        for at in parts:
            for page in queries.table_pages(query, table, at, since_ms, reading.page_rows):
                rows += page
                if len(rows) >= reading.page_rows:
                    yield _table_batch(table, rows)
                    rows = []
        if rows:
            yield _table_batch(table, rows)


@define(eq=False)
class _Connection:
    """One connection, made anew before a statement if it was lost.

    It may be lost while Spark processes the rows of the last statement.
    """

    _database: Database
    _session: Session

    def query(self, run: Any) -> Any:
        def attempt() -> Any:
            self._session.ensure_fresh()
            return run(self._session)

        deadline = time.monotonic() + self._database.config.publish_timeout
        return self._database.retry(attempt, deadline=deadline, what="reading the log")


@contextmanager
def _connection(address: DatabaseAddress) -> Iterator[_Connection]:
    with closing(Database(address.config())) as database, closing(database.session("spark")) as session:
        yield _Connection(database, session)


def _columns(connection: _Connection, page: Sequence[LaneRange], largest: int) -> Columns | None:
    """Return the messages of a page. None: it has none any more."""
    values = connection.query(lambda cx: queries.messages(cx, page, largest))
    return Columns.of_values(values, largest) if values else None


@frozen
class _Part:
    """Rows of a page that fit into memory together, and how many of each of its lanes are missing."""

    rows: list[tuple[Any, ...]]
    missing: Counter[int]


def _parts(
    connection: _Connection, page: Sequence[LaneRange], rows: list[tuple[Any, ...]], reading: Reading
) -> Iterator[_Part]:
    """Yield the page's rows in order: in one part, or in several if large payloads must be read."""
    rows.sort(key=lambda row: row[:2])  # each SELECT is ordered, but UNION ALL does not promise to keep the order
    missing: Counter[int] = Counter()
    if len(rows) != sum(each.rows for each in page):
        missing.update({lane: each.rows for lane, each in enumerate(page)})
        missing.subtract(row[_LANE] for row in rows)
    if not reading.include_payload or all(row[_PAYLOAD] is not None for row in rows):
        yield _Part(rows, missing)
        return
    begin, size = 0, 0
    for at, row in enumerate(rows):
        if size and (size + row[_BYTES] > reading.page_bytes or at - begin == MAX_POINTS):
            yield _filled(connection, page, rows[begin:at], missing)
            begin, size, missing = at, 0, Counter()
        size += row[_BYTES]
    yield _filled(connection, page, rows[begin:], missing)


def _filled(
    connection: _Connection, page: Sequence[LaneRange], rows: list[tuple[Any, ...]], missing: Counter[int]
) -> _Part:
    """Return the rows with their missing payloads. A message that was collected meanwhile is counted as missing."""
    topic = page[0].topic
    large = [(page[row[_LANE]].key, row[_OFFSET]) for row in rows if row[_PAYLOAD] is None]
    found = connection.query(lambda cx: queries.payloads(cx, topic, large)) if large else {}
    whole: list[tuple[Any, ...]] = []
    for row in rows:
        payload = row[_PAYLOAD]
        if payload is None:
            payload = found.get((page[row[_LANE]].key, row[_OFFSET]))
        if payload is None:
            missing[row[_LANE]] += 1
        else:
            whole.append((*row[:_PAYLOAD], payload, *row[_BYTES:]))
    return _Part(whole, missing)


def _check_whole(page: Sequence[LaneRange], missing: Counter[int], reading: Reading) -> None:
    for lane, count in missing.items():
        if count > 0:
            each = page[lane]
            lost = DataLost(each.topic, each.key, each.after + 1, each.through, count)
            if reading.fail_on_data_loss:
                raise lost
            warnings.warn(f"lanelog: {lost}", RuntimeWarning, stacklevel=2)


def _table_batch(table: str, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    import pyarrow as pa

    schema = arrow_schema(table)
    arrays = [arrow_column(column, each.type) for each, column in zip(schema, zip(*rows, strict=True), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
