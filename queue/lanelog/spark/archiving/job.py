"""The archive job: what happens to a micro-batch, to outcomes, and to small files.

Owns the order of the steps. By this order the archive holds every (topic, key, offset) once. Never plans what is read.

The steps for each micro-batch:

1. Leave out what the manifest holds.
2. Write the rest as a segment of Parquet files, and flush it to the disk.
3. Check the holes.
4. Prove by a heartbeat that the messages read are durable, and that the server has not restarted since.
5. Make the next version of the manifest.
6. Raise the watermarks of the group to it.

If the job dies before step 5, no version names the files. The batch is read again, and a later sweep removes the files.
If it dies between steps 5 and 6, the next start raises the watermarks. If it dies after step 6, the next start
continues after them.

Each query starts where the manifest ends, whatever a checkpoint says. A checkpoint can be ahead of the manifest, after
the archive was restored or the server lost messages that were read; it would leave messages out. After a lost
connection to the server the query is begun anew for the same reason.

Three things keep two jobs at once apart: a lease for each topic, a check of all topics of the manifest before a run,
and the manifest itself, of which only the highest version counts, and each version is made once.
"""

from __future__ import annotations

import functools
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from attrs import define, evolve, field
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documentation gives it

from lanelog._base.places import GroupTopic
from lanelog._facts import spark as facts
from lanelog.errors import ClosedError, DatabaseError, LanelogError
from lanelog.spark.archiving import files
from lanelog.spark.archiving.group import ArchiveGroup, now_ms, refuse_elsewhere
from lanelog.spark.archiving.manifest import MESSAGES, OUTCOMES, Unsettled
from lanelog.spark.archiving.options import one_of
from lanelog.spark.source.options import FORMAT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from lanelog.spark.archiving.manifest import Manifest, ManifestStore
    from lanelog.spark.archiving.options import ArchiveOptions
    from lanelog.spark.presence import Presence

LATE_MS: Final = 900_000
"""Milliseconds before the last time from which outcomes are read again.

An outcome may become visible late, if its settlement waited for the database. Archived ones are left out.
"""
TEND_EVERY: Final = 300.0
"""Seconds between two reads of outcomes, files and lanes, while the job runs on."""
PAUSE_POLL_SECONDS: Final = 1.0
_MERGED_AT_ONCE: Final = 64


@define(eq=False)
class ArchiveJob:
    """One run of the archive. Spark's query calls `process` in a thread; the job's main thread calls the rest.

    `topics` returns the topics to archive that exist now.
    """

    options: ArchiveOptions
    spark: SparkSession
    store: ManifestStore
    manifest: Manifest
    group: ArchiveGroup
    presence: Presence
    topics: Callable[[], list[str]]
    writer: str
    """A hexadecimal text that names the segments of this run."""
    stopping: threading.Event
    error: LanelogError | None = field(default=None, init=False)
    """Why the job cannot continue. After any other failure the query is repeated."""
    failure: Exception | None = field(default=None, init=False)
    """The error of the last failed batch. Spark's own text of it is long."""
    failed_from: float = field(default=0.0, init=False)
    """When the failed batch began (monotonic)."""
    archived: int = field(default=0, init=False)
    """Messages archived by this run."""
    archived_outcomes: int = field(default=0, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)  # held by the step that makes a version
    _taking: threading.Lock = field(factory=threading.Lock, init=False)
    _closed: bool = field(default=False, init=False)
    _connection: int | None = field(default=None, init=False)
    """The connection before anything of the query was read. None: no query was opened yet."""
    _behind: dict[str, dict[str, int]] = field(factory=dict, init=False)
    """Watermarks that must still be raised to what the manifest holds, by topic and key."""
    _tend_at: float = field(default=0.0, init=False)

    # -- topics --------------------------------------------------------------------------------------------------------

    def hold(self, topics: Iterable[str]) -> None:
        """Take topics that are not held yet, and raise their watermarks to what the manifest holds."""
        with self._taking:
            for topic in topics:
                if topic not in self.group.epochs:
                    self.presence.beat([])  # taking many topics may last long: the idle connection would be dropped
                    at = GroupTopic(topic=topic, group=self.group.group)
                    refuse_elsewhere(self.group.database, at, self.manifest.archive)
                    if topic in self.manifest.lanes and not self.group.registered(
                        topic
                    ):  # collection may have deleted messages that are not archived
                        facts.archive_group_was_deleted(topic=topic, group=self.group.group)
                    self._take(topic)
                    facts.archive_topic(topic=topic, group=self.group.group)

    def _take(self, topic: str) -> None:
        self.group.take(topic, self.presence)
        try:
            above = self.group.recover(topic, self.manifest.lanes.get(topic, {}))
        except LanelogError:
            del self.group.epochs[topic]  # held only when taken and recovered: both are done again
            raise
        if above:  # an operator sought forward, or the archive was restored
            facts.archive_watermark_ahead(topic=topic, group=self.group.group, lanes=len(above), key=above[0])

    def _recover(self) -> None:
        """Raise the watermarks as at the start: a seek back, or a server that lost commits, may have lowered them."""
        for topic in list(self.group.epochs):
            self.group.recover(topic, self.manifest.lanes.get(topic, {}))

    def poll_topics(self) -> None:
        """Take topics that have appeared. From the registration on, collection waits for the archive."""
        self.hold(self.topics())

    # -- messages ------------------------------------------------------------------------------------------------------

    def process(self, batch: DataFrame, _batch_id: int) -> None:
        """Archive a micro-batch. Spark calls it."""
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
        """Make the first version of a new archive, which holds nothing.

        In an older archive, remove files whose grace is over, before another commit: no version then names a file that
        is gone. Name every held topic.
        """
        with self._lock:
            if not self.manifest.version:
                self._commit(evolve(self.manifest, version=1))
            self._sweep()
            self._name_topics()

    def open(self) -> None:
        """Let the batches of a new query begin. Call it before anything of the query is read."""
        self.failure = None
        with self._lock:
            connection = self.presence.beat(list(self.group.epochs))
            if self._connection not in (None, connection):
                self._recover()
            self._connection, self._closed = connection, False

    def close(self) -> None:
        """Wait for the batch that runs, and refuse every later one.

        The lock must not be held while Spark stops the query: Spark waits for the batch, which waits for the lock.
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
        logged = False
        while (topic := self.group.paused()) is not None:
            if not logged:
                facts.archive_paused(topic=topic, group=self.group.group)
                logged = True
            if self.stopping.wait(PAUSE_POLL_SECONDS):
                raise ClosedError("the archive job was stopped while its group was paused")
        if logged:
            facts.archive_resumed(group=self.group.group)

    def _archive(self, batch: DataFrame) -> None:
        manifest = self.manifest
        with self._attempt(MESSAGES) as name:
            segment = files.write(_new(batch, manifest), self.store.root, MESSAGES, name)
            self.hold(segment.lanes)
            for topic in segment.lanes:
                self.group.check(topic, segment.holes(topic, manifest.archived))
            self._prove(self._connection)  # even for no rows: the planned messages may be gone, and come again
            if not segment.files:
                return
            self._commit(manifest.extended(segment.files, segment.through))
        for topic, lanes in segment.through.items():
            self._behind.setdefault(topic, {}).update(lanes)
        rows = sum(file.rows for file in segment.files)
        self.archived += rows
        facts.archive_batch(version=self.manifest.version, messages=rows, files=len(segment.files))

    def _raise_watermarks(self) -> None:
        """Raise the watermarks to what is archived, also for an attempt that failed after its commit."""
        for topic in list(self._behind):
            self.group.advance(topic, self._behind[topic])
            del self._behind[topic]

    @contextmanager
    def _attempt(self, table: str) -> Iterator[str]:
        """Give the name of a segment. Its files are removed at the end, unless a version that may name them was made.

        Otherwise each attempt would fill a full disk further. If a version may still appear, a later sweep decides.
        """
        name, version, unsettled = self.manifest.next_segment(self.writer), self.manifest.version, False
        try:
            yield name
        except Unsettled:
            unsettled = True
            raise
        finally:
            if not unsettled and self.store.highest() == version:
                files.remove(self.store.root, table, name)

    def _prove(self, connection: int | None) -> None:
        """Raise unless the messages read since `connection` was noted are durable."""
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
        """Name the held topics in the manifest, also those without a message.

        Otherwise an operator's skip or seek there would count as the work of another archive.
        """
        if not set(self.group.epochs) <= self.manifest.lanes.keys():
            self._commit(evolve(self.manifest, version=self.manifest.version + 1))

    # -- outcomes ------------------------------------------------------------------------------------------------------

    def tend_if_due(self) -> None:
        """Name topics that have appeared. Now and then, archive outcomes, tidy up, and undo seeks back."""
        with self._lock:
            self._name_topics()
        if time.monotonic() >= self._tend_at:
            self._tend_at = time.monotonic() + TEND_EVERY
            self.archive_outcomes()
            self.tidy()
            with self._lock:
                self._recover()

    def archive_outcomes(self) -> None:
        """Archive the outcomes of the held topics, each (group, topic, key, offset, finished_at) once."""
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
                segment = files.write(rows, self.store.root, OUTCOMES, name)
                count = sum(file.rows for file in segment.files)
                if not count and known == topics:
                    return  # nothing new: the next read finds the same few outcomes again
                self._prove(connection)
                self._commit(manifest.with_outcomes(segment.files, dict.fromkeys(topics, before)))
            self.archived_outcomes += count
            if count:
                facts.archive_outcomes(version=self.manifest.version, outcomes=count)

    def _outcomes_since(self, topics: list[str], since_ms: int, before_ms: int) -> DataFrame:
        key = ["consumer_group", "topic", "key", "message_offset", "finished_at"]
        finished = F.unix_millis("finished_at")
        reader = self.spark.read.format(FORMAT).options(**self.options.source).option("table", "history")
        reader = reader.option("subscribePattern", one_of(topics)).option("startingTimestamp", str(since_ms))
        found = reader.load().where((finished >= since_ms) & (finished < before_ms))
        there = self.manifest.chosen(OUTCOMES, topics, since_ms)
        if not there:
            return found
        archived = files.read(self.spark, self.store.root, OUTCOMES, there).select(*key)
        return found.join(archived, on=key, how="left_anti")

    # -- files ---------------------------------------------------------------------------------------------------------

    def tidy(self) -> None:
        """Forget purged lanes, and merge and remove files."""
        with self._lock:
            self._name_topics()
            self._forget_purged()
            self._merge()

    def _forget_purged(self) -> None:
        # The lock is held: a lane that comes back meanwhile is archived only after the manifest has forgotten it.
        lanes = {topic: keys for topic, keys in self.manifest.lanes.items() if topic in self.group.epochs}
        if sum(map(len, lanes.values())) < self.options.forget_from:
            return
        there = {topic: self.group.lanes(topic) for topic in lanes}
        gone = sum(len(keys.keys() - there[topic]) for topic, keys in lanes.items())
        if gone >= self.options.forget_from:
            self._commit(self.manifest.without_purged(there))
            facts.archive_forgot(version=self.manifest.version, lanes=gone)

    def _merge(self) -> None:
        """Merge small files, and remove files that were replaced longer ago than the grace."""
        small = self.manifest.small_files()[:_MERGED_AT_ONCE]
        for table in (MESSAGES, OUTCOMES):
            old = [file for chosen in small if chosen[0].table == table for file in chosen]
            if old:
                with self._attempt(table) as name:
                    new = files.merge(self.spark, self.store.root, old, name)
                    self._commit(self.manifest.merged(old, new, now_ms(self.group.database)))
                facts.archive_merged(version=self.manifest.version, table=table, files=len(old), into=len(new))
        self._sweep()

    def _sweep(self) -> None:
        grace_ms = int(self.options.grace * 1000)
        self.manifest = self.store.sweep(self.manifest, now_ms(self.group.database), grace_ms)


def _new(batch: DataFrame, manifest: Manifest) -> DataFrame:
    """Return the rows that the manifest does not hold."""
    if not any(manifest.lanes.values()):
        return batch
    held = batch.sparkSession.createDataFrame(_lanes_table(manifest.lanes))
    return (
        batch.join(F.broadcast(held), on=["topic", "key"], how="left")
        .where(F.col("archived").isNull() | (F.col("offset") > F.col("archived")))
        .select(*batch.columns)
    )


def _lanes_table(lanes: Mapping[str, Mapping[str, int]]) -> object:
    import pyarrow as pa

    rows = [(topic, key, through) for topic, keys in lanes.items() for key, through in keys.items()]
    topics, keys, archived = zip(*rows, strict=True)
    return pa.table({"topic": topics, "key": keys, "archived": archived})
