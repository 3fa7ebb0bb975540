"""Publishing from a DataFrame, batch or stream: each task publishes its rows in their order, in bounded transactions.

Spark runs a task again when it fails, and a stream a micro-batch again when its driver dies: rows that are there
already under their id, in their lane, take no offset again. So nothing is lost and nothing is there twice, for as long
as the log keeps the messages. It never removes anything: what a failed job published stays, and the next run goes on.

A task that dies in the middle of a transaction has published none of it; one that died right after the commit, or
never got its answer, publishes the same ids again, and all of them are duplicates. Two attempts at once take turns at
the heads of the lanes. What keeps a row from being published (a missing value, an oversized payload) fails the task,
behind the transactions that were committed before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from attrs import frozen
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, MapType, StringType

from lanelog._telemetry import get_logger
from lanelog.client import Client
from lanelog.errors import ConfigurationError
from lanelog.message import Outgoing
from lanelog.spark.errors import clear

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from lanelog.spark.source.options import DatabasePlace

ROWS: Final = 1_000
"""The most messages of one transaction."""
BYTES: Final = 4 * 1024 * 1024
"""Bytes of payloads and metadata after which a transaction is full."""

_REQUIRED: Final = ("topic", "key", "value", "id")
_OPTIONAL: Final = ("metadata",)

log = get_logger("spark")


@frozen
class Written(WriterCommitMessage):
    """What a task published."""

    published: int
    duplicates: int


class _Task:
    """What batch and stream have in common; sent to the executors."""

    def __init__(self, place: DatabasePlace) -> None:
        self._place = place

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """In an executor: publish every row. Raises ConfigurationError for a row that cannot be, DatabaseError."""
        with clear(), Client(self._place.config()) as client:
            publishing = _Publishing(client)
            for batch in iterator:
                publishing.add(batch)
            publishing.flush()
        return Written(publishing.published, publishing.duplicates)


class LanelogWriter(_Task, DataSourceArrowWriter):
    """For `df.write`."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Say what was done."""
        _tell(messages)


class LanelogStreamWriter(_Task, DataSourceStreamArrowWriter):
    """For `df.writeStream`; a micro-batch is written at least once, and its ids make that once."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Say what was done."""
        _tell(messages, batch_id=batchId)


def check_columns(schema: StructType) -> None:
    """Raise ConfigurationError unless the rows have what a message needs, and nothing that would not be kept."""
    found = {field.name: field.dataType for field in schema.fields}
    missing = [name for name in _REQUIRED if name not in found]
    if missing:
        raise ConfigurationError(
            f"the rows lack {', '.join(missing)}: write {', '.join(_REQUIRED)} and, if any, metadata"
        )
    others = sorted(found.keys() - {*_REQUIRED, *_OPTIONAL})
    if others or len(found) != len(schema.fields):
        raise ConfigurationError(
            f"no message has {', '.join(others) or 'a column twice'}: select {', '.join(_REQUIRED)} "
            "and, if any, metadata"
        )
    for name, kind in found.items():
        if name == "metadata":
            fits = isinstance(kind, MapType) and all(isinstance(t, StringType) for t in (kind.keyType, kind.valueType))
        else:
            fits = isinstance(kind, StringType) or (name == "value" and isinstance(kind, BinaryType))
        if not fits:
            wanted = {"metadata": "map<string,string>", "value": "binary or string"}.get(name, "string")
            raise ConfigurationError(f"the column {name} must be {wanted}, not {kind.simpleString()}")


class _Publishing:
    """Collects rows by topic, in their order, and publishes them transaction by transaction."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: dict[str, list[Outgoing]] = {}
        self._rows = 0
        self._bytes = 0
        self.published = 0
        self.duplicates = 0

    def add(self, batch: pa.RecordBatch) -> None:
        import pyarrow.compute

        names = batch.schema.names
        for name in _REQUIRED:
            if batch.column(names.index(name)).null_count:
                raise ConfigurationError(f"a row has no {name}: topic, key, value and id must not be NULL")
        columns = {name: batch.column(index).to_pylist() for index, name in enumerate(names)}
        metadata: Sequence[Any] = columns.get("metadata") or [None] * batch.num_rows
        sizes = pyarrow.compute.binary_length(batch.column(names.index("value"))).to_pylist()  # bytes, of text too
        rows = zip(*(columns[name] for name in _REQUIRED), metadata, sizes, strict=True)
        for topic, key, value, message_id, pairs, size in rows:
            # Text as its bytes: the content type of a row is what its metadata says, or none.
            payload = value.encode() if isinstance(value, str) else value
            self._waiting.setdefault(topic, []).append(Outgoing(key, payload, message_id, _mapping(pairs)))
            self._rows += 1
            self._bytes += size + sum(len(text.encode()) for pair in pairs or () for text in pair if text)
            if self._rows >= ROWS or self._bytes >= BYTES:
                self.flush()

    def flush(self) -> None:
        """Publish what is waiting: one transaction a topic."""
        for topic, items in self._waiting.items():
            receipts = self._client.publish_many(topic, items)
            duplicates = sum(receipt.duplicate for receipt in receipts)
            self.duplicates += duplicates
            self.published += len(receipts) - duplicates
        self._waiting.clear()
        self._rows = self._bytes = 0


def _mapping(pairs: Sequence[tuple[str, str]] | None) -> Mapping[str, str] | None:
    return dict(pairs) if pairs else None


def _tell(messages: Sequence[WriterCommitMessage | None], **more: int) -> None:
    done = [message for message in messages if isinstance(message, Written)]
    log.info(
        "spark.written",
        published=sum(each.published for each in done),
        duplicates=sum(each.duplicates for each in done),
        **more,
    )
