"""The archive job: what becomes of a micro-batch, of outcomes, and of small files.

Owns the order of the steps, and with it that the archive holds every (topic, key, offset) once; never plans what is
read. `archive` runs it under a streaming query.

For each micro-batch: leave out what the manifest holds; write the rest as a segment of Parquet files, flushed to the
disk; look into the holes; prove by a heartbeat that what was read is durable and that the server has not restarted
since; make the next version of the manifest; raise the watermarks of the group to it. Dies

* before the manifest: the files have no name in it. The batch is read again, and a later sweep removes them.
* between manifest and watermarks: the next start raises the watermarks.
* after the watermarks: the next start goes on behind them.

Each query starts where the manifest ends, whatever a checkpoint says: one that is ahead of the manifest, as when the
archive was restored, or the server lost what was read, would leave something out. A query that has lost its connection
to the server is such a case, and is begun anew. Two jobs at once: a lease for each topic, a look at all topics of the
manifest before a run, and the manifest itself, in which only the highest version counts, and is made once.
"""

from __future__ import annotations

import functools
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from attrs import define, evolve, field

from lanelog._places import GroupTopic
from lanelog._telemetry import get_logger
from lanelog.errors import ClosedError, DatabaseError, LanelogError
from lanelog.spark.archiving import files
from lanelog.spark.archiving.group import ArchiveGroup, now_ms, refuse_elsewhere
from lanelog.spark.archiving.manifest import MESSAGES, OUTCOMES, Unsettled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from lanelog.spark.archiving.manifest import Manifest, ManifestStore
    from lanelog.spark.archiving.presence import Presence

LATE_MS: Final = 900_000
"""Outcomes are read again from this long before the last time on, because they may become visible late: a settlement
that waited for its database. What is archived already is left out."""
TEND_EVERY: Final = 300.0
"""Seconds between two looks at outcomes, and at files and lanes, while the job runs on."""
FORGET_FROM: Final = 10_000
"""So many lanes that were purged are forgotten at once: the manifest is written anew with every batch."""
PAUSE_LOOKS: Final = 1.0
_MERGED_AT_ONCE: Final = 64

log = get_logger("spark")


@define(eq=False)
class ArchiveJob:
    """One run of the archive; `process` is called by Spark's query, in one thread, the rest by the job's main thread.

    `topics` names what is to be archived, as it is now.
    """

    spark: SparkSession
    root: Path
    store: ManifestStore
    manifest: Manifest
    group: ArchiveGroup
    presence: Presence
    topics: Callable[[], list[str]]
    outcomes: Callable[[list[str], int], DataFrame]
    """The outcomes of some topics that finished since then (epoch milliseconds)."""
    writer: str
    """Hexadecimal; names the segments of this run."""
    parts: int
    grace_ms: int
    stopping: threading.Event = field(factory=threading.Event)
    error: LanelogError | None = field(default=None, init=False)
    """Why the job cannot go on; what else fails may be tried again."""
    failure: Exception | None = field(default=None, init=False)
    """How the last batch that did not end well failed, which Spark tells at length."""
    failed_from: float = field(default=0.0, init=False)
    """When that batch began (monotonic)."""
    archived: int = field(default=0, init=False)
    """Messages, by this run."""
    archived_outcomes: int = field(default=0, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)  # one step to the next version at a time
    _taking: threading.Lock = field(factory=threading.Lock, init=False)
    _closed: bool = field(default=False, init=False)
    _connection: int | None = field(default=None, init=False)
    """The connection before anything of the query was read; None: no query was opened yet."""
    _behind: dict[str, dict[str, int]] = field(factory=dict, init=False)
    """Watermarks that are still to be raised to what the manifest holds, by topic and key."""
    _tend_at: float = field(default=0.0, init=False)

    # -- topics --------------------------------------------------------------------------------------------------------

    def hold(self, topics: Iterable[str]) -> None:
        """Take the topics that are not held yet, and raise their watermarks to what the manifest holds."""
        with self._taking:
            for topic in topics:
                if topic not in self.group.epochs:
                    self.presence.beat([])  # many topics, each of which may wait: the connection must not idle away
                    at = GroupTopic(topic=topic, group=self.group.group)
                    refuse_elsewhere(self.group.database, at, self.manifest.archive)
                    if topic in self.manifest.lanes and not self.group.registered(
                        topic
                    ):  # collection may have had what is not archived
                        log.error("archive.group_was_deleted", topic=topic, group=self.group.group)
                    self._take(topic)
                    log.info("archive.topic", topic=topic, group=self.group.group)

    def _take(self, topic: str) -> None:
        self.group.take(topic, self.presence)
        try:
            above = self.group.recover(topic, self.manifest.lanes.get(topic, {}))
        except LanelogError:
            del self.group.epochs[topic]  # held only when both are done: it is taken and recovered again
            raise
        if above:  # it was sought forward, or the archive restored
            log.error("archive.watermark_ahead", topic=topic, group=self.group.group, lanes=len(above), key=above[0])

    def _recover(self) -> None:
        """As at the start: a seek back, or a server that has lost commits, may have changed the watermarks."""
        for topic in list(self.group.epochs):
            self.group.recover(topic, self.manifest.lanes.get(topic, {}))

    def look(self) -> None:
        """Take what has appeared: from its registration on, collection waits for the archive."""
        self.hold(self.topics())

    # -- messages ------------------------------------------------------------------------------------------------------

    def process(self, batch: DataFrame, _batch_id: int) -> None:
        """Archive a micro-batch: what Spark calls."""
        began = time.monotonic()
        try:
            self._wait_while_paused()
            with self._lock:
                self._refuse_if_closed()
                self._archive(batch)
                self._raise_watermarks()
                self._merge()
        except ClosedError:
            raise
        except Exception as error:
            self.failure, self.failed_from = error, began
            if isinstance(error, LanelogError) and not error.retriable:
                self.error = error
            raise

    def begin(self) -> None:
        """Make the first version of a new archive, which holds nothing; of an older one, remove what is over.

        Before another commit, which then names none of the files that are gone. Every topic that is held is named.
        """
        with self._lock:
            if not self.manifest.version:
                self._commit(evolve(self.manifest, version=1))
            self._sweep()
            self._name_topics()

    def open(self) -> None:
        """Let the batches of a new query begin; nothing of it may have been read before."""
        self.failure = None
        with self._lock:
            connection = self.presence.beat(list(self.group.epochs))
            if self._connection not in (None, connection):
                self._recover()
            self._connection, self._closed = connection, False

    def close(self) -> None:
        """Wait for the batch that is under way, and let no other one begin: each is refused at once.

        The lock must not be held while Spark stops the query: it waits for the batch that waits for the lock.
        """
        with self._lock:
            self._closed = True

    def fail(self, error: BaseException) -> None:
        """End the run with this error."""
        self.error = error if isinstance(error, LanelogError) else LanelogError(f"{type(error).__name__}: {error}")
        self.stopping.set()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise ClosedError("the archive job was stopped before this batch")

    def _wait_while_paused(self) -> None:
        told = False
        while (topic := self.group.paused()) is not None:
            if not told:
                log.warning("archive.paused", topic=topic, group=self.group.group)
                told = True
            if self.stopping.wait(PAUSE_LOOKS):
                raise ClosedError("the archive job was stopped while its group was paused")
        if told:
            log.info("archive.resumed", group=self.group.group)

    def _archive(self, batch: DataFrame) -> None:
        manifest = self.manifest
        with self._attempt(MESSAGES) as name:
            segment = files.write(_new(batch, manifest), self.root, MESSAGES, name, self.parts)
            self.hold(segment.lanes)
            for topic in segment.lanes:
                self.group.check(topic, segment.holes(topic, manifest.archived))
            self._prove(self._connection)  # also of nothing: what was planned may be gone, and come again
            if not segment.files:
                return
            self._commit(manifest.extended(segment.files, segment.through))
        for topic, lanes in segment.through.items():
            self._behind.setdefault(topic, {}).update(lanes)
        rows = sum(file.rows for file in segment.files)
        self.archived += rows
        log.info("archive.batch", version=self.manifest.version, messages=rows, files=len(segment.files))

    def _raise_watermarks(self) -> None:
        """Let collection have what is archived; also what an attempt that failed behind its commit has left."""
        for topic in list(self._behind):
            self.group.advance(topic, self._behind[topic])
            del self._behind[topic]

    @contextmanager
    def _attempt(self, table: str) -> Iterator[str]:
        """The name of a segment, of which nothing stays unless the version that may name it was made.

        Otherwise a disk that is full would get fuller with each attempt. Where a version may yet appear, a later sweep
        decides.
        """
        name, version, unsettled = self.manifest.next_segment(self.writer), self.manifest.version, False
        try:
            yield name
        except Unsettled:
            unsettled = True
            raise
        finally:
            if not unsettled and self.store.highest() == version:
                files.remove(self.root, table, name)

    def _prove(self, connection: int | None) -> None:
        """Raise unless what was read since `connection` was noted cannot be lost any more."""
        if self.presence.beat(list(self.group.epochs)) != connection:
            raise DatabaseError(
                "the connection was lost while a batch was read: the server may have restarted, it is read again",
                retriable=True,
            )

    def _commit(self, manifest: Manifest) -> None:
        manifest = manifest.naming(list(self.group.epochs))
        self.store.commit(manifest)
        self.manifest = manifest

    def _name_topics(self) -> None:
        """Name what is held: an operator's act on a topic without a message must not look like another archive's."""
        if not set(self.group.epochs) <= self.manifest.lanes.keys():
            self._commit(evolve(self.manifest, version=self.manifest.version + 1))

    # -- outcomes ------------------------------------------------------------------------------------------------------

    def tend_if_due(self) -> None:
        """Name topics that have appeared; archive outcomes, tidy up and undo seeks back, every now and then."""
        with self._lock:
            self._name_topics()
        if time.monotonic() >= self._tend_at:
            self._tend_at = time.monotonic() + TEND_EVERY
            self.archive_outcomes()
            self.tidy()
            with self._lock:
                self._recover()

    def archive_outcomes(self) -> None:
        """Archive the outcomes of the topics that are held, each (group, topic, key, offset, finished_at) once."""
        with self._lock:
            before = now_ms(self.group.database)
            connection = self.presence.beat([])
            manifest, topics = self.manifest, self.group.with_outcomes()
            known = [topic for topic in topics if topic in manifest.outcomes]
            new = [topic for topic in topics if topic not in manifest.outcomes]
            found = []
            if known:
                since = max(0, min(manifest.outcomes[topic] for topic in known) - LATE_MS)
                found.append(self._outcomes_since(known, since, before))
            if new:
                found.append(self._outcomes_since(new, 0, before))
            if not found:
                return
            rows = functools.reduce(lambda one, other: one.unionByName(other), found)
            with self._attempt(OUTCOMES) as name:
                segment = files.write(rows, self.root, OUTCOMES, name, self.parts)
                count = sum(file.rows for file in segment.files)
                if not count and known == topics:
                    return  # nothing new: the next look reads these few again
                self._prove(connection)
                self._commit(manifest.with_outcomes(segment.files, dict.fromkeys(topics, before)))
            self.archived_outcomes += count
            if count:
                log.info("archive.outcomes", version=self.manifest.version, outcomes=count)

    def _outcomes_since(self, topics: list[str], since_ms: int, before_ms: int) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documentation gives it

        key = ["consumer_group", "topic", "key", "message_offset", "finished_at"]
        finished = F.unix_millis("finished_at")
        found = self.outcomes(topics, since_ms).where((finished >= since_ms) & (finished < before_ms))
        there = self.manifest.chosen(OUTCOMES, topics, since_ms)
        if not there:
            return found
        return found.join(files.read(self.spark, self.root, OUTCOMES, there).select(*key), on=key, how="left_anti")

    # -- files ---------------------------------------------------------------------------------------------------------

    def tidy(self) -> None:
        """Merge and remove files, and forget lanes that were purged."""
        with self._lock:
            self._name_topics()
            self._forget_purged()
            self._merge()

    def _forget_purged(self) -> None:
        # Under the lock: what comes back meanwhile is not archived before the manifest without it stands.
        lanes = {topic: keys for topic, keys in self.manifest.lanes.items() if topic in self.group.epochs}
        if sum(map(len, lanes.values())) < FORGET_FROM:
            return
        there = {topic: self.group.lanes(topic) for topic in lanes}
        gone = sum(len(keys.keys() - there[topic]) for topic, keys in lanes.items())
        if gone >= FORGET_FROM:
            self._commit(self.manifest.without_purged(there))
            log.info("archive.forgot", version=self.manifest.version, lanes=gone)

    def _merge(self) -> None:
        """Merge small files, and remove what has been replaced for longer than the grace."""
        small = self.manifest.small_files()[:_MERGED_AT_ONCE]
        for table in (MESSAGES, OUTCOMES):
            old = [file for chosen in small if chosen[0].table == table for file in chosen]
            if old:
                with self._attempt(table) as name:
                    new = files.merge(self.spark, self.root, old, name)
                    self._commit(self.manifest.merged(old, new, now_ms(self.group.database)))
                log.info("archive.merged", version=self.manifest.version, table=table, files=len(old), into=len(new))
        self._sweep()

    def _sweep(self) -> None:
        self.manifest = self.store.sweep(self.manifest, now_ms(self.group.database), self.grace_ms)


def _new(batch: DataFrame, manifest: Manifest) -> DataFrame:
    """The rows that the manifest does not hold."""
    if not any(manifest.lanes.values()):
        return batch
    from pyspark.sql import functions as F  # noqa: N812 - as above

    held = batch.sparkSession.createDataFrame(_lanes_table(manifest.lanes))
    return (
        batch.join(F.broadcast(held), on=["topic", "key"], how="left")
        .where(F.col("archived").isNull() | (F.col("offset") > F.col("archived")))
        .select(*batch.columns)
    )


def _lanes_table(lanes: Mapping[str, Mapping[str, int]]) -> object:
    import pyarrow as pa

    places = [(topic, key, through) for topic, keys in lanes.items() for key, through in keys.items()]
    topics, keys, archived = zip(*places, strict=True)
    return pa.table(
        {
            "topic": pa.array(topics, pa.string()),
            "key": pa.array(keys, pa.string()),
            "archived": pa.array(archived, pa.int64()),
        }
    )
