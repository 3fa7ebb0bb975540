"""The archive: a Structured Streaming job that is a consumer group, and writes the log to Parquet.

Owns the run: what is checked before anything is written, the query, its repetition, its end. What becomes of a
micro-batch is `_archive_job`'s. Called by `lanelog archive` and `python -m lanelog.spark.archive`; readers of what it
writes go through `read_archive`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from attrs import asdict, frozen

from lanelog import migrations
from lanelog._database import Database
from lanelog._loop import backoff
from lanelog._telemetry import get_logger
from lanelog.admin._known import known_topic, read
from lanelog.errors import ConfigurationError, LanelogError
from lanelog.spark import _store
from lanelog.spark._archive_group import ArchiveGroup, PassedOver, born, refuse_begun
from lanelog.spark._archive_job import ArchiveJob
from lanelog.spark._archive_options import GROUP, ArchiveOptions, one_of
from lanelog.spark._archive_presence import Presence
from lanelog.spark._manifest import Manifest, ManifestStore, local_path, new_manifest
from lanelog.spark._options import FORMAT, parse_write
from lanelog.spark._session import check_java, start

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from lanelog._database import Executor

FAILURES: Final = 5
"""Failures of the query in a row, without a batch between them, after which the run ends."""
_LOOKS: Final = 1
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

log = get_logger()


@frozen(kw_only=True)
class Archived:
    """What a run did, and what the archive holds now."""

    path: str
    version: int
    messages: int
    outcomes: int
    total: int
    """Messages in the archive."""


def run(
    options: ArchiveOptions, spark: SparkSession | None = None, stopping: threading.Event | None = None
) -> Archived:
    """Archive; returns when everything is archived (`once`), else when `stopping` is set.

    Raises ConfigurationError before anything is written; LeaseLost when another job has taken over; DatabaseError and
    LanelogError when it cannot go on, or was stopped before everything was archived. Running it again is always safe.
    """
    root = local_path(options.path)
    store = ManifestStore(root)
    store.refuse_foreign()
    checkpoints = root / "_checkpoints" if options.checkpoint is None else local_path(options.checkpoint)
    if spark is None:
        check_java()
    database = Database(parse_write(options.source).config())
    try:
        migrations.check(database)
        manifest = _manifest(database, store, options)
        store.prepare()
        session = spark or start("lanelog archive")
        return _run(options, session, database, store, manifest, checkpoints, stopping or threading.Event())
    except OSError as error:
        raise LanelogError(f"archiving to {str(root)!r} failed: {error.strerror or error}") from error
    finally:
        database.close()


def _manifest(database: Database, store: ManifestStore, options: ArchiveOptions) -> Manifest:
    """The manifest to go on from; refuse an archive of something else, and a group that archives elsewhere."""
    found, birth = store.latest(), born(database)
    topics = read(database, _there, "looking for topics", options)
    if options.once and not topics:
        raise ConfigurationError(f"no topic matches {options.pattern!r}: `lanelog topics` lists those there are")
    for topic in topics:
        if found is None or topic not in found.lanes:
            refuse_begun(database, options.group, topic)
    if found is None:
        return new_manifest(database=birth, group=options.group)
    if found.database != birth:
        raise ConfigurationError(f"the archive at {str(store.root)!r} is of another database: give another path")
    if found.group != options.group:
        raise ConfigurationError(
            f"the archive at {str(store.root)!r} is of group {found.group!r}: give that one, or another path"
        )
    return found


def _there(cx: Executor, options: ArchiveOptions) -> list[str]:
    """The topics to archive, as there are now; refuse one that was named and is not there."""
    if options.topics:
        for topic in options.topics:
            known_topic(cx, topic)
        return sorted(set(options.topics))
    pattern = re.compile(options.pattern, re.DOTALL)
    return [topic for topic in _store.topics(cx) if pattern.fullmatch(topic)]


def _run(
    options: ArchiveOptions,
    spark: SparkSession,
    database: Database,
    store: ManifestStore,
    manifest: Manifest,
    checkpoints: Path,
    stopping: threading.Event,
) -> Archived:
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    # Each batch of the checkpoint tells every lane's place, and none but the last is ever gone back to.
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    writer = secrets.token_hex(4)
    group = ArchiveGroup(database, options.group, f"archive@{socket.gethostname()[:200]}-{os.getpid()}-{writer}")
    presence = Presence(database, options.group, group.owner)
    job = ArchiveJob(
        spark=spark,
        root=store.root,
        store=store,
        manifest=manifest,
        group=group,
        presence=presence,
        topics=lambda: read(database, _there, "looking for topics", options),
        outcomes=lambda topics, since_ms: _outcomes(spark, options, topics, since_ms),
        writer=writer,
        parts=max(1, spark.sparkContext.defaultParallelism),
        grace_ms=int(options.grace * 1000),
        stopping=stopping,
    )
    try:
        job.look()
        paused = group.paused()
        if options.once and paused is not None:
            raise ConfigurationError(
                f"group {options.group!r} is paused for topic {paused!r}: `lanelog resume {paused} {options.group}`"
            )
        presence.start(lambda: list(group.epochs), job.look, job.fail)
        job.begin()
        done = _repeat(job, options, checkpoints)
        if job.error is not None:
            raise job.error
        if options.once and not done:
            raise LanelogError("the job was stopped before everything was archived")
        job.archive_outcomes()
        job.tidy()
    finally:
        job.close()
        presence.stop(list(group.epochs))
        group.leave(job.manifest.lanes)
    return Archived(
        path=str(store.root),
        version=job.manifest.version,
        messages=job.archived,
        outcomes=job.archived_outcomes,
        total=job.manifest.rows,
    )


def _outcomes(spark: SparkSession, options: ArchiveOptions, topics: list[str], since_ms: int) -> DataFrame:
    reader = spark.read.format(FORMAT).options(**options.source).option("table", "history")
    return reader.option("subscribePattern", one_of(topics)).option("startingTimestamp", str(since_ms)).load()


def _repeat(job: ArchiveJob, options: ArchiveOptions, checkpoints: Path) -> bool:
    """Run the query until it is done or stopped; what fails is tried again, a batch of `once` only if that may help.

    Returns whether it was done. A checkpoint ahead of the archive, as when the archive was restored or the server lost
    what was read, is removed once: what counts is the manifest.
    """
    failures, batches, removed = 0, 0, False
    checkpoint = checkpoints / f"{job.manifest.archive}-{_digest(options.selection)}"
    while not job.stopping.is_set():
        try:
            return _query(job, options, checkpoint)
        except Exception as error:
            if isinstance(job.error, PassedOver) and not removed:
                log.warning("archive.checkpoint_removed", checkpoint=str(checkpoint), error=job.error)
                shutil.rmtree(checkpoint)
                job.error, removed = None, True
                continue
            if job.error is not None:
                raise job.error from None
            if isinstance(error, LanelogError) and not error.retriable:
                raise
            failures = 1 if job.batches > batches else failures + 1
            batches = job.batches
            told = _first_line(job.failure or error)
            may_pass = job.failure is None or (isinstance(job.failure, LanelogError) and job.failure.retriable)
            if failures >= FAILURES or (options.once and not may_pass):
                raise LanelogError(f"the archive's query failed: {told}") from error
            log.warning("archive.query_failed", failures=failures, error=told)
            job.stopping.wait(backoff(failures))
    return False


def _query(job: ArchiveJob, options: ArchiveOptions, checkpoint: Path) -> bool:
    """Run the query; whether it ended by itself."""
    reader = job.spark.readStream.format(FORMAT).options(**options.source, **options.selection)
    writer = (
        reader.option("failOnDataLoss", "false")  # holes are judged by the manifest, see `ArchiveGroup.check`
        .option("startingOffsets", "earliest" if checkpoint.exists() else _starting(job))
        .option("maxOffsetsPerTrigger", str(options.max_messages))
        .load()
        .writeStream.foreachBatch(job.process)
        .option("checkpointLocation", f"file://{checkpoint}")
    )
    job.open()
    trigger: dict[str, Any] = (
        {"availableNow": True} if options.once else {"processingTime": f"{int(options.interval * 1000)} milliseconds"}
    )
    query = writer.trigger(**trigger).start()
    try:
        return _watch(job, query, options)
    finally:
        job.close()
        query.stop()


def _watch(job: ArchiveJob, query: StreamingQuery, options: ArchiveOptions) -> bool:
    while not query.awaitTermination(_LOOKS):
        if job.stopping.is_set():
            return False
        if not options.once:
            job.tend_if_due()
    return True


def _starting(job: ArchiveJob) -> str:
    """Behind what the manifest holds, for a query without a checkpoint."""
    lanes = {
        topic: {key: through + 1 for key, through in keys.items()}
        for topic, keys in job.manifest.lanes.items()
        if topic in job.group.epochs and keys
    }
    return json.dumps(lanes) if lanes else "earliest"


def _digest(selection: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(selection, sort_keys=True).encode()).hexdigest()[:12]


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def tell_events() -> None:
    """Write what happens to standard error, as a program that goes on for days does."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("lanelog").setLevel(logging.INFO)


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set, for the main thread."""
    stopping = threading.Event()
    before = {number: signal.signal(number, lambda *_: stopping.set()) for number in _SIGNALS}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m lanelog.spark.archive`, for spark-submit; the exit status: 0 done, 1 it could not go on, 2 refused."""
    from lanelog.errors import SchemaError

    parser = argparse.ArgumentParser(prog="python -m lanelog.spark.archive", description="Archive the log to Parquet.")
    parser.add_argument("--path", required=True, help="directory of the archive, which driver and executors share")
    parser.add_argument("--url", help="the database; default: LANELOG_URL")
    parser.add_argument("--password-env", help="environment variable with the password of the URL's user")
    parser.add_argument("--topics", default="", help="names, separated by commas")
    parser.add_argument("--pattern", default=".*", help="regular expression of whole names; default: all topics")
    parser.add_argument("--group", default=GROUP)
    parser.add_argument("--checkpoint", help="directory of Spark's checkpoint; default: in the archive")
    parser.add_argument("--continuous", action="store_true", help="go on until SIGTERM; default: --once")
    parser.add_argument("--once", action="store_true", help="end when everything is archived that is there now")
    parser.add_argument("--interval", type=float, default=10.0, help="seconds between micro-batches of --continuous")
    parser.add_argument("--max-messages", type=int, default=100_000, help="of one micro-batch")
    parser.add_argument("--grace", type=float, default=3600.0, help="seconds for which merged files stay for readers")
    given = vars(parser.parse_args(arguments))
    tell_events()
    given["topics"] = tuple(filter(None, given["topics"].split(",")))
    given["once"] = not given.pop("continuous") or given["once"]
    try:
        with stopped_by_signals() as stopping:
            done = run(ArchiveOptions(**given), stopping=stopping)
    except (ConfigurationError, SchemaError) as error:
        print(f"Error: {error}", file=sys.stderr)  # noqa: T201 - a program prints
        return 2
    except LanelogError as error:
        print(f"Error: {error}", file=sys.stderr)  # noqa: T201 - a program prints
        return 1
    print(json.dumps(asdict(done)))  # noqa: T201 - a program prints
    return 0


if __name__ == "__main__":
    sys.exit(main())
