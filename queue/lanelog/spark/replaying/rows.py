"""The rows of a replay: chosen from an archive, in the order in which they are published, and published.

Owns the choice and the derived ids; never registers a group and keeps no account of the replay. Called by `replay`.

All rows of a key are one task's, in the order in which they were written, so that a task that is run again, or a whole
replay, meets the messages that are there already in their order, under their ids, and goes on behind them.

Every message is replayed once: what repeats another one that is archived is left out. That is a message with a mark of
a replay or for one group alone, for what it repeats lies in the archive too. A dead letter inherits the marks of what
died and is none of these. Of several of one message, which was put back and died again, the last counts, and none if
that one was redriven and its copy is archived.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field, frozen

from lanelog._database import Database
from lanelog._stores._redriven import CAP
from lanelog.errors import ConfigurationError
from lanelog.message import METADATA_MAX_BYTES, Outgoing
from lanelog.publisher import Publisher
from lanelog.spark.archiving.read import read_archive
from lanelog.spark.errors import clear

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from lanelog.message import Receipt
    from lanelog.spark.replaying.holder import ReplayFence
    from lanelog.spark.replaying.options import ReplayOptions
    from lanelog.spark.source.options import DatabasePlace

    Publish = Callable[[str, Sequence[Outgoing]], list[Receipt]]

ORIGINAL_ID: Final = "lanelog.original_id"
"""In the metadata of a replayed message: the id under which it was first published. Dead letters have it too."""
REPLAY: Final = "lanelog.replay"
"""Likewise: the name of the replay."""
_OWN: Final = (ORIGINAL_ID, REPLAY, CAP)
"""What a replayed message does not take over: of these it has its own. An operator's cap ends with what it was for."""
REDRIVEN: Final = "rd-"
"""How the ids of redriven dead letters begin, see `admin._redrive`."""

ROWS: Final = 1_000
"""The most messages of one transaction."""
BYTES: Final = 4 * 1024 * 1024
"""Payload bytes after which a transaction is full."""
_SEPARATOR: Final = "\x1f"
"""Names hold no control characters."""


def chosen(spark: SparkSession, options: ReplayOptions) -> DataFrame:
    """What is to be replayed: the archive's columns, with the metadata that a copy has, and `to_topic`."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documentation gives it

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
        repeats = _mark().isNotNull() | F.col("target_group").isNotNull()
        rows = rows.where(F.col("failed_group").isNotNull() | ~repeats)
    if options.keys:
        rows = rows.where(F.col("key").isin(*options.keys))
    if options.ids:
        rows = rows.where(_first_id().isin(*options.ids))
    if letters is not None:
        rows = _last_letters(spark, rows, options)
    back = F.col("topic") if letters is None else F.col("original_topic")
    marked = rows.withColumn("metadata", _marked(options.name))
    return marked.withColumn("to_topic", back if options.to is None else F.lit(options.to))


def _last_letters(spark: SparkSession, rows: DataFrame, options: ReplayOptions) -> DataFrame:
    """The last dead letter of each message, unless it was redriven since and what became of it is archived.

    A message is told by key, first id and payload: an id may come again when its message was collected. Letters of what
    this very replay has put back are not looked at: it would be put back twice, by a run that died and the next one.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - as above

    message = Window.partitionBy("original_topic", "key", _first_id(), F.xxhash64("value"))
    last_first = message.orderBy(F.desc("created_at"), F.desc("topic"), F.desc("offset"))
    last = (
        rows.where(_mark().isNull() | (_mark() != F.lit(options.name)))
        .withColumn("place", F.row_number().over(last_first))
        .where("place = 1")
        .drop("place")
    )
    redriven = (
        read_archive(spark, options.path, since=options.since)
        .where(F.col("id").startswith(REDRIVEN))
        .select(F.col("key").alias("redriven_key"), F.col("id").alias("redriven_id"))
    )
    put_back = (F.col("key") == F.col("redriven_key")) & (_redriven_id() == F.col("redriven_id"))
    return last.join(redriven, put_back, "left_anti")


def counted(rows: DataFrame) -> list[dict[str, Any]]:
    """By topic that it would go to: messages, keys, bytes, and when the first and the last were written (ms).

    Raises ConfigurationError if one cannot be published: it would be met again in each run.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as above

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
    rows: DataFrame, options: ReplayOptions, place: DatabasePlace, fence: ReplayFence, parts: int
) -> tuple[int, int]:
    """Publish them, in `parts` tasks; how many were published, and how many were there already."""
    from pyspark.sql import functions as F  # noqa: N812 - as above

    share = None if options.rate is None else options.rate / parts
    task = Task(place, fence, options.target_group or "", share)
    chosen = (
        rows.withColumn("derived", _derived_id(options))
        .repartition(parts, "to_topic", "key")
        .sortWithinPartitions("to_topic", "key", "created_at", "topic", "offset")
        .select("to_topic", "key", F.col("derived").alias("id"), "value", "metadata")
    )
    # Not mapInArrow, which asks for pandas; publishing takes longer than what rows cost.
    done = chosen.rdd.mapPartitions(task.run).collect()
    return sum(published for published, _ in done), sum(duplicates for _, duplicates in done)


def _marked(name: str) -> Column:
    """The metadata of a copy."""
    from pyspark.sql import functions as F  # noqa: N812 - as above

    marks = F.create_map(F.lit(ORIGINAL_ID), _first_id(), F.lit(REPLAY), F.lit(name))
    others = F.coalesce("metadata", F.create_map().cast("map<string,string>"))
    return F.map_concat(F.map_filter(others, lambda each, _: ~each.isin(*_OWN)), marks)


def _first_id() -> Column:
    """The id under which a message was first published."""
    from pyspark.sql import functions as F  # noqa: N812 - as above

    return F.coalesce(F.element_at("metadata", F.lit(ORIGINAL_ID)), F.col("id"))


def _mark() -> Column:
    """The name of the replay that has published a message, or what a dead letter was; NULL for none."""
    from pyspark.sql import functions as F  # noqa: N812 - as above

    return F.element_at("metadata", F.lit(REPLAY))


def _redriven_id() -> Column:
    """The id that a dead letter's copy has when it is redriven: as in `admin._redrive`."""
    from pyspark.sql import functions as F  # noqa: N812 - as above

    source = F.concat_ws(_SEPARATOR, "id", F.col("offset").cast("string"))
    return F.concat(F.lit(REDRIVEN), F.sha2(source.cast("binary"), 256))


def _derived_id(options: ReplayOptions) -> Column:
    """The same for the same archived message in the same replay; different in any other.

    The message is told by its place in the database that was archived: another one has the same places.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as above

    source = F.concat_ws(
        _SEPARATOR,
        F.lit(options.name),
        F.lit(options.target_group or ""),
        F.lit(str(options.source)),
        "to_topic",
        "topic",
        "key",
        F.col("offset").cast("string"),
    )
    return F.concat(F.lit("replay-"), F.sha2(source.cast("binary"), 256))


@frozen
class Task:
    """Publishes the rows of one task; sent to the executors. `rate`: messages a second, None for no bound."""

    place: DatabasePlace
    fence: ReplayFence
    target_group: str
    rate: float | None

    def run(self, rows: Iterable[Row]) -> Iterator[tuple[int, int]]:
        """In an executor: publish every row (to_topic, key, id, value, metadata); how many, and how many were there."""
        with clear():
            database = Database(self.place.config())
            publisher = Publisher(database, lambda _topic: None)
            try:
                publishing = Publishing(self._publishing(database, publisher), self.rate)
                for topic, key, message_id, value, metadata in rows:
                    publishing.take(topic, key, message_id, bytes(value), metadata)
                publishing.flush()
            finally:
                publisher.close()
                database.close()
        yield publishing.published, publishing.duplicates

    def _publishing(self, database: Database, publisher: Publisher) -> Publish:
        def fenced(topic: str, items: Sequence[Outgoing]) -> list[Receipt]:
            # lease S here, held while the other connection of the pool, which has two for this thread, has: heads X ->
            # messages. Whoever takes the replay over waits for it, holding the topic row, which a lane's birth needs:
            # so lanes are born before.
            with database.transaction() as cx:
                self.fence.check(cx, topic)
                return publisher.publish_many(topic, items, target_group=self.target_group)

        def publish(topic: str, items: Sequence[Outgoing]) -> list[Receipt]:
            deadline = time.monotonic() + database.config.publish_timeout
            publisher.ensure_lanes(topic, {item.key for item in items if item.key is not None}, deadline=deadline)
            return database.retry(lambda: fenced(topic, items), deadline=deadline, what="publishing for a replay")

        return publish


@define(eq=False)
class Publishing:
    """Rows on their way: collected into transactions of one topic, in their order, not faster than the rate."""

    publish: Publish
    rate: float | None
    published: int = 0
    duplicates: int = 0
    _topic: str = ""
    _waiting: list[Outgoing] = field(factory=list)
    _bytes: int = 0
    _free_at: float = field(factory=time.monotonic)
    _pause: threading.Event = field(factory=threading.Event, kw_only=True)

    def take(self, topic: str, key: str, message_id: str, value: bytes, metadata: Mapping[str, str]) -> None:
        """Take a row, and publish what fills a transaction."""
        if topic != self._topic:
            self.flush()
            self._topic = topic
        self._waiting.append(Outgoing(key, value, message_id, metadata))
        self._bytes += len(value)
        most = ROWS if self.rate is None else max(1, min(ROWS, int(self.rate)))
        if len(self._waiting) >= most or self._bytes >= BYTES:
            self.flush()

    def flush(self) -> None:
        """Publish what is waiting, in one transaction."""
        if not self._waiting:
            return
        self._pause.wait(max(0.0, self._free_at - time.monotonic()))
        began = time.monotonic()
        receipts = self.publish(self._topic, self._waiting)
        duplicates = sum(receipt.duplicate for receipt in receipts)
        self.duplicates += duplicates
        self.published += len(receipts) - duplicates
        if self.rate is not None:  # what was there already costs no worker anything
            self._free_at = began + (len(receipts) - duplicates) / self.rate
        self._waiting, self._bytes = [], 0


def topics_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Where `counted` rows would go."""
    return [row["to_topic"] for row in rows]
