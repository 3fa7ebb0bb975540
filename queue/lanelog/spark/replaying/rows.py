"""The rows of a replay: chosen from an archive, sorted, and published.

Owns the choice and the derived ids. Never registers a group, and keeps no account of the replay.

All rows of a key belong to one task, in the order in which they were written. So a task or a replay that runs again
meets the published messages in their order, under their ids, and continues after them.

Every message is replayed once. A row that repeats another archived one is left out: a message with the mark of a
replay, or for one group alone. A dead letter inherits the marks of its message, and does not count as such a
repetition. If one message has several dead letters, because it was put back and failed again, the last counts; and none
counts if that one was redriven and its copy is archived.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documentation gives it

from lanelog._base.payloads.metadata import METADATA_MAX_BYTES
from lanelog._database import Database
from lanelog._stores._redriven import CAP
from lanelog.errors import ConfigurationError
from lanelog.message import Outgoing
from lanelog.publisher import Publisher
from lanelog.spark.archiving.read import read_archive
from lanelog.spark.errors import clear
from lanelog.spark.source.writer import Publishing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from lanelog.message import Receipt
    from lanelog.spark.replaying.holder import ReplayFence
    from lanelog.spark.replaying.options import ReplayOptions
    from lanelog.spark.source.options import DatabaseAddress

    Publish = Callable[[str, Sequence[Outgoing]], list[Receipt]]

ORIGINAL_ID: Final = "lanelog.original_id"
"""Metadata of a replayed message: the id under which it was first published. Dead letters have it, too."""
REPLAY: Final = "lanelog.replay"
"""Metadata of a replayed message: the name of the replay."""
_OWN: Final = (ORIGINAL_ID, REPLAY, CAP)
"""Metadata that a replayed message does not copy: it has its own. An operator's cap was for one redrive only."""
REDRIVEN: Final = "rd-"
"""The beginning of the ids of redriven dead letters, see `_stores._redriven`."""

_SEPARATOR: Final = "\x1f"
"""A control character, which no name contains."""


def chosen(spark: SparkSession, options: ReplayOptions) -> DataFrame:
    """Return the rows to replay: the archive's columns, with the metadata of the copy, and `to_topic`."""
    letters = options.dead_letters_of
    rows = read_archive(
        spark,
        options.path,
        topics=None if letters is not None or not options.topics else options.topics,
        since=options.since,
        until=options.until,
    )
    if letters is not None:
        rows = rows.where(F.col("failed_group") == F.lit(letters))
        if options.topics:
            rows = rows.where(F.col("original_topic").isin(*options.topics))
    else:
        repeats = _replay_name().isNotNull() | F.col("target_group").isNotNull()
        rows = rows.where(F.col("failed_group").isNotNull() | ~repeats)
    if options.keys:
        rows = rows.where(F.col("key").isin(*options.keys))
    if options.ids:
        rows = rows.where(_first_id().isin(*options.ids))
    if letters is not None:
        rows = _last_letters(spark, rows, options)
    back = F.col("topic") if letters is None else F.col("original_topic")
    marked = rows.withColumn("metadata", _copy_metadata(options.name))
    return marked.withColumn("to_topic", back if options.to is None else F.lit(options.to))


def _last_letters(spark: SparkSession, rows: DataFrame, options: ReplayOptions) -> DataFrame:
    """Return the last dead letter of each message, unless it was redriven since and its copy is archived.

    A message is identified by key, first id and payload, because an id may be used again after its message was
    collected. Dead letters of messages that this very replay has published are left out. Otherwise a run that died, and
    the next one, would put a message back twice.
    """
    from pyspark.sql import Window

    message = Window.partitionBy("original_topic", "key", _first_id(), F.xxhash64("value"))
    last_first = message.orderBy(F.desc("created_at"), F.desc("topic"), F.desc("offset"))
    last = (
        rows.where(_replay_name().isNull() | (_replay_name() != F.lit(options.name)))
        .withColumn("rank", F.row_number().over(last_first))
        .where("rank = 1")
        .drop("rank")
    )
    redriven = (
        read_archive(spark, options.path, since=options.since)
        .where(F.col("id").startswith(REDRIVEN))
        .select(F.col("key").alias("redriven_key"), F.col("id").alias("redriven_id"))
    )
    put_back = (F.col("key") == F.col("redriven_key")) & (_redriven_id() == F.col("redriven_id"))
    return last.join(redriven, put_back, "left_anti")


def counted(rows: DataFrame) -> list[dict[str, Any]]:
    """Return, by target topic: messages, keys, bytes, and when the first and the last was written (epoch milliseconds).

    Raises ConfigurationError if one of them cannot be published: every run would meet it again.
    """
    size = F.octet_length(F.to_json("metadata"))
    found = (
        rows.groupBy("to_topic")
        .agg(
            F.count("*").alias("messages"),
            F.countDistinct("key").alias("keys"),
            F.coalesce(F.sum(F.col("payload_bytes").cast("bigint")), F.lit(0)).alias("bytes"),
            F.unix_millis(F.min("created_at")).alias("first_ms"),
            F.unix_millis(F.max("created_at")).alias("last_ms"),
            F.min(F.when(size > METADATA_MAX_BYTES, F.struct("topic", "key", "offset", size))).alias("too_large"),
        )
        .orderBy("to_topic")
    )
    counts = [row.asDict() for row in found.collect()]
    for count in counts:
        too_large = count.pop("too_large")
        if too_large is not None:
            topic, key, offset, size_there = too_large
            raise ConfigurationError(
                f"offset {offset} of topic {topic!r}, lane {key!r}, cannot be replayed: with the marks of a replay its "
                f"metadata has {size_there} bytes as JSON, {METADATA_MAX_BYTES} are allowed; choose others by keys, "
                "ids or time"
            )
    return counts


def publish(
    rows: DataFrame, options: ReplayOptions, address: DatabaseAddress, fence: ReplayFence, parts: int
) -> tuple[int, int]:
    """Publish the rows in `parts` tasks. Return how many were published, and how many existed already."""
    share = None if options.rate is None else options.rate / parts
    task = Task(address, fence, options.receiver or "", share)
    chosen = (
        rows.withColumn("derived", _derived_id(options))
        .repartition(parts, "to_topic", "key")
        .sortWithinPartitions("to_topic", "key", "created_at", "topic", "offset")
        .select("to_topic", "key", F.col("derived").alias("id"), "value", "metadata")
    )
    # Not mapInArrow, which needs pandas. Publishing takes longer than the conversion of rows.
    done = chosen.rdd.mapPartitions(task.run).collect()
    return sum(published for published, _ in done), sum(duplicates for _, duplicates in done)


def _copy_metadata(name: str) -> Column:
    """Return the metadata of a copy."""
    marks = F.create_map(F.lit(ORIGINAL_ID), _first_id(), F.lit(REPLAY), F.lit(name))
    others = F.coalesce("metadata", F.create_map().cast("map<string,string>"))
    return F.map_concat(F.map_filter(others, lambda each, _: ~each.isin(*_OWN)), marks)


def _first_id() -> Column:
    """Return the id under which a message was first published."""
    return F.coalesce(F.element_at("metadata", F.lit(ORIGINAL_ID)), F.col("id"))


def _replay_name() -> Column:
    """Return the name of the replay that published a message, or the message of a dead letter; NULL for none."""
    return F.element_at("metadata", F.lit(REPLAY))


def _redriven_id() -> Column:
    """Return the id that the copy of a dead letter has after a redrive, as `_stores._redriven` makes it."""
    source = F.concat_ws(_SEPARATOR, "id", F.col("offset").cast("string"))
    return F.concat(F.lit(REDRIVEN), F.sha2(source.cast("binary"), 256))


def _derived_id(options: ReplayOptions) -> Column:
    """Return an id that is the same for one archived message in one replay, and different in any other replay.

    The message is identified by the archived database and by topic, key and offset, which another database may repeat.
    """
    source = F.concat_ws(
        _SEPARATOR,
        F.lit(options.name),
        F.lit(options.receiver or ""),
        F.lit(str(options.source)),
        "to_topic",
        "topic",
        "key",
        F.col("offset").cast("string"),
    )
    return F.concat(F.lit("replay-"), F.sha2(source.cast("binary"), 256))


@frozen
class Task:
    """Publishes the rows of one task. It is sent to the executors. `rate`: messages a second; None: no bound."""

    address: DatabaseAddress
    fence: ReplayFence
    target_group: str
    rate: float | None

    def run(self, rows: Iterable[Row]) -> Iterator[tuple[int, int]]:
        """Publish every row (to_topic, key, id, value, metadata), in an executor.

        Yield the numbers published and existing.
        """
        with (
            clear(),
            closing(Database(self.address.config())) as database,
            closing(Publisher(database)) as publisher,
        ):
            publishing = Publishing(self._publishing(database, publisher), self.rate)
            for topic, key, message_id, value, metadata in rows:
                publishing.take(topic, Outgoing(key, bytes(value), message_id, metadata), len(value))
            publishing.flush()
        yield publishing.published, publishing.duplicates

    def _publishing(self, database: Database, publisher: Publisher) -> Publish:
        def fenced(topic: str, items: Sequence[Outgoing]) -> list[Receipt]:
            # This connection: lease S. Meanwhile the second connection of the pool: heads X -> messages. A run that
            # takes over waits for the lease and holds the topic row. The birth of a lane would need that row, so lanes
            # are born before this transaction.
            with database.transaction() as cx:
                self.fence.check(cx, topic)
                return publisher.publish_many(topic, items, target_group=self.target_group)

        def publish(topic: str, items: Sequence[Outgoing]) -> list[Receipt]:
            deadline = time.monotonic() + database.config.publish_timeout
            publisher.lanes.ensure(topic, {item.key for item in items if item.key is not None}, deadline=deadline)
            return database.retry(lambda: fenced(topic, items), deadline=deadline, what="publishing for a replay")

        return publish
