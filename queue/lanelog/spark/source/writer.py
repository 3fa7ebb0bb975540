"""Publishing from a DataFrame, batch or stream: each task publishes its rows in order, in bounded transactions.

Spark runs a task again when it fails, and a micro-batch again when its driver dies. A row whose id is in its lane
already takes no offset again. So no row is lost, and none is there twice, for as long as the log keeps the messages.
Never removes anything: messages that a failed job published stay, and the next run continues.

A task that dies in the middle of a transaction has published none of it. A task that died right after the commit, or
never got its answer, publishes the same ids again, and all of them are duplicates. The heads of the lanes serialize two
attempts at once. A row that cannot be published (a missing value, an oversized payload) fails the task; transactions
that were committed before stay.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field, frozen
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, MapType, StringType

from lanelog._facts import spark as facts
from lanelog.client import Client
from lanelog.errors import ConfigurationError
from lanelog.message import Outgoing
from lanelog.spark.errors import clear

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from lanelog.message import Receipt
    from lanelog.spark.source.options import DatabaseAddress

ROWS: Final = 1_000
"""The most messages of one transaction."""
BYTES: Final = 4 * 1024 * 1024
"""Bytes after which a transaction is full."""

_REQUIRED: Final = ("topic", "key", "value", "id")
_OPTIONAL: Final = ("metadata",)


@frozen
class Written(WriterCommitMessage):
    """How much a task published."""

    published: int
    duplicates: int


class _Task:
    """The common part of batch and stream. It is sent to the executors."""

    def __init__(self, address: DatabaseAddress) -> None:
        self._address = address

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish every row, in an executor.

        Raises ConfigurationError for a row that cannot be published, DatabaseError.
        """
        with clear(), Client(self._address.config()) as client:
            publishing = Publishing(client.publish_many)
            for batch in iterator:
                for topic, message, size in _messages(batch):
                    publishing.take(topic, message, size)
            publishing.flush()
        return Written(publishing.published, publishing.duplicates)


class LanelogWriter(_Task, DataSourceArrowWriter):
    """The writer for `df.write`."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log how much was published."""
        _log(messages)


class LanelogStreamWriter(_Task, DataSourceStreamArrowWriter):
    """The writer for `df.writeStream`. A micro-batch is written at least once; the ids make that exactly once."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Log how much was published."""
        _log(messages, batch_id=batchId)


def check_columns(schema: StructType) -> None:
    """Raise ConfigurationError unless the rows have the columns of a message, and no others."""
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


@define(eq=False)
class Publishing:
    """Rows on their way: collected by topic, in their order, and published in bounded transactions.

    `rate`: messages a second; None: no bound.
    """

    publish: Callable[[str, list[Outgoing]], list[Receipt]]
    rate: float | None = None
    published: int = 0
    duplicates: int = 0
    _waiting: dict[str, list[Outgoing]] = field(factory=dict)
    _rows: int = 0
    _bytes: int = 0
    _free_at: float = field(factory=time.monotonic)
    _pause: threading.Event = field(factory=threading.Event, kw_only=True)

    def take(self, topic: str, message: Outgoing, size: int) -> None:
        """Take a row that counts as `size` bytes, and publish when a transaction is full."""
        self._waiting.setdefault(topic, []).append(message)
        self._rows += 1
        self._bytes += size
        most = ROWS if self.rate is None else max(1, min(ROWS, int(self.rate)))
        if self._rows >= most or self._bytes >= BYTES:
            self.flush()

    def flush(self) -> None:
        """Publish the waiting rows: one transaction for each topic."""
        for topic, items in self._waiting.items():
            self._pause.wait(max(0.0, self._free_at - time.monotonic()))
            began = time.monotonic()
            receipts = self.publish(topic, items)
            duplicates = sum(receipt.duplicate for receipt in receipts)
            self.duplicates += duplicates
            self.published += len(receipts) - duplicates
            if self.rate is not None:  # duplicates are not delivered, and do not count
                self._free_at = began + (len(receipts) - duplicates) / self.rate
        self._waiting.clear()
        self._rows = self._bytes = 0


def _messages(batch: pa.RecordBatch) -> Iterator[tuple[str, Outgoing, int]]:
    """Yield the rows of a batch: the topic, the message, and the bytes of its payload and metadata."""
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
        # Text is published as bytes, because the content type of a row comes from its metadata alone.
        payload = value.encode() if isinstance(value, str) else value
        marks = sum(len(text.encode()) for pair in pairs or () for text in pair if text)
        yield topic, Outgoing(key, payload, message_id, dict(pairs) if pairs else None), size + marks


def _log(messages: Sequence[WriterCommitMessage | None], **more: int) -> None:
    done = [message for message in messages if isinstance(message, Written)]
    facts.spark_written(
        published=sum(each.published for each in done), duplicates=sum(each.duplicates for each in done), **more
    )
