"""The archive: a Structured Streaming job that is a consumer group, and writes the log to Parquet.

Owns the run: the checks before anything is written, the query, its repetition and its end. `job` archives a
micro-batch. `read_archive` reads the files.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import re
import secrets
import shutil
import signal
import sys
import threading
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

from attrs import NOTHING, asdict, fields, frozen

from lanelog import migrations
from lanelog._base.backoff import OF_LOOPS
from lanelog._base.places import GroupTopic
from lanelog._database import Database
from lanelog._facts import spark as facts
from lanelog._log.lookup.known import known_topic, read
from lanelog.errors import ConfigurationError, DatabaseError, LanelogError, LeaseLost
from lanelog.spark.archiving.group import ArchiveGroup, born, refuse_at_work, refuse_elsewhere
from lanelog.spark.archiving.job import ArchiveJob
from lanelog.spark.archiving.manifest import Manifest, ManifestStore, new_manifest
from lanelog.spark.archiving.options import ArchiveOptions
from lanelog.spark.archiving.path import local_path
from lanelog.spark.errors import one_line
from lanelog.spark.leases import name_of_run
from lanelog.spark.presence import Presence
from lanelog.spark.session import check_java, in_session, names, program
from lanelog.spark.source import queries
from lanelog.spark.source.options import FORMAT, parse_write

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from lanelog._database import Executor

FAILURES: Final = 5
"""Failures of the query in a row, without an archived message between them, after which the run ends."""
WORKED: Final = 60.0
"""Seconds, on top of one interval: a query that ran longer before its failed batch began counts as progress."""
_POLL_SECONDS: Final = 1
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@frozen(kw_only=True)
class Archived:
    """What a run archived, and what the archive holds."""

    path: str
    version: int
    messages: int
    outcomes: int
    total: int
    """Messages in the archive."""


def run(
    options: ArchiveOptions, spark: SparkSession | None = None, stopping: threading.Event | None = None
) -> Archived:
    """Archive the log. Running it again is always safe.

    Args:
        options: What to archive, and where.
        spark: The session to use. None: a session of its own.
        stopping: Setting it ends the run. None: only `once` ends it.

    Returns:
        What was archived: with `once`, all that was there at the start; else all until `stopping` was set.

    Raises:
        ConfigurationError: An option or the directory is wrong, another job is at work, or there is no Java. Nothing
            was archived. Or the database is found to be older than the archive, which can be at any time.
        LeaseLost: Another job has taken over.
        DatabaseError: The database does not answer.
        LanelogError: The job cannot continue, or was stopped before everything was archived.
    """
    root = local_path(options.path)
    store = ManifestStore(root)
    store.refuse_foreign()
    checkpoints = root / "_checkpoints" if options.checkpoint is None else local_path(options.checkpoint)
    if spark is None:
        check_java()
    with closing(Database(parse_write(options.source).config())) as database:
        migrations.check(database)
        _manifest(database, store, options)  # refuse before Spark is started
        store.prepare()
        stopping = stopping or threading.Event()
        return in_session(
            "lanelog archive",
            f"archiving to {str(root)!r} failed",
            spark,
            lambda session: _run(options, session, database, store, checkpoints, stopping),
            stopping,
        )


def _manifest(database: Database, store: ManifestStore, options: ArchiveOptions) -> Manifest:
    """Return the manifest to continue. Refuse an archive of something else, and a group that archives elsewhere."""
    manifest, birth = store.latest(), born(database)
    topics = read(database, _there, "finding topics", options)
    if options.once and not topics:
        raise ConfigurationError(f"no topic matches {options.pattern!r}: `lanelog topics` lists those there are")
    if manifest is None:
        manifest = new_manifest(database=birth, group=options.group)
    if manifest.database != birth:
        raise ConfigurationError(f"the archive at {str(store.root)!r} is of another database: give another path")
    if manifest.group != options.group:
        raise ConfigurationError(
            f"the archive at {str(store.root)!r} is of group {manifest.group!r}: give that one, or another path"
        )
    refuse_at_work(database, options.group, {*topics, *manifest.lanes}, manifest.archive)
    for topic in topics:
        refuse_elsewhere(database, GroupTopic(topic=topic, group=options.group), manifest.archive)
    return manifest


def _there(cx: Executor, options: ArchiveOptions) -> list[str]:
    """Return the topics to archive that exist now. Refuse a named topic that does not exist."""
    if options.topics:
        for topic in options.topics:
            known_topic(cx, topic)
        return sorted(set(options.topics))
    pattern = re.compile(options.pattern, re.DOTALL)
    return [topic for topic in queries.topics(cx) if pattern.fullmatch(topic)]


def _run(
    options: ArchiveOptions,
    spark: SparkSession,
    database: Database,
    store: ManifestStore,
    checkpoints: Path,
    stopping: threading.Event,
) -> Archived:
    manifest = _manifest(database, store, options)  # again: another job may have written it while Spark started
    _configure(spark)
    writer = secrets.token_hex(4)
    group = ArchiveGroup(database, options.group, name_of_run("archive", writer), manifest.archive)
    presence = Presence(database, options.group, group.owner)
    job = ArchiveJob(
        options=options,
        spark=spark,
        store=store,
        manifest=manifest,
        group=group,
        presence=presence,
        topics=lambda: read(database, _there, "finding topics", options),
        writer=writer,
        stopping=stopping,
    )
    try:
        job.poll_topics()
        if store.highest() != manifest.version:  # written before we held the topics; a later job finds them held
            raise LeaseLost(f"another job has just written the archive at {str(store.root)!r}: start this one again")
        paused = group.paused()
        if options.once and paused is not None:
            raise ConfigurationError(
                f"group {options.group!r} is paused for topic {paused!r}: `lanelog resume {paused} {options.group}`"
            )
        presence.start(lambda: list(group.epochs), job.poll_topics, job.fail)
        job.begin()
        done = _repeat(job, checkpoints)
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


def _configure(spark: SparkSession) -> None:
    """Set what the files of the archive and its query need of the session."""
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    # Each batch of the checkpoint holds an offset of every lane, and a later query never goes back to it.
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    # Purge the log between batches. A purge in a thread of its own is skipped while another one runs; after the last
    # batch of `once` it would never be made up for.
    spark.conf.set("spark.sql.streaming.asyncLogPurge.enabled", "false")


def _repeat(job: ArchiveJob, checkpoints: Path) -> bool:
    """Run the query until it is done or stopped, again after a failure. Return whether it is done.

    A batch of `once` that failed is only repeated if that may help. Without `once` the job waits for its database
    without end, with `once` for `publish_timeout` seconds.
    """
    failures, options = 0, job.options
    while not job.stopping.is_set():
        archived, began = job.archived, time.monotonic()
        try:
            return _query(job, checkpoints)
        except Exception as error:
            if job.error is not None:
                raise job.error from None
            if isinstance(error, LanelogError) and not error.retriable:
                raise
            # A batch without a row is no progress: the first one of each query is empty, and the next one, an interval
            # later, is the one that fails. A failure long after that, in a quiet time, is a new one.
            failed = time.monotonic() if job.failure is None else job.failed_from
            worked = job.archived > archived or failed - began > WORKED + options.interval
            failures = 1 if worked else failures + 1
            reason = one_line(str(job.failure or error)) or type(error).__name__
            may_pass = job.failure is None or (isinstance(job.failure, LanelogError) and job.failure.retriable)
            if failures >= FAILURES or (options.once and not may_pass):
                raise LanelogError(f"the archive's query failed: {reason}") from error
            facts.archive_query_failed(failures=failures, error=reason)
            job.stopping.wait(OF_LOOPS.after(failures))
            _wait_for_database(job, job.group.database.config.publish_timeout if options.once else math.inf)
    return False


def _wait_for_database(job: ArchiveJob, patience: float) -> None:
    """Return when the database takes a heartbeat, or when the job is to stop.

    A read-only database counts as unavailable. Raises DatabaseError, at the latest after `patience` seconds.
    """
    failures, deadline = 0, time.monotonic() + patience
    while not job.stopping.is_set():
        try:
            job.presence.beat(list(job.group.epochs))
        except DatabaseError as error:
            if not error.retriable or time.monotonic() > deadline:
                raise
            failures += 1
            job.stopping.wait(OF_LOOPS.after(failures))
        else:
            return


def _query(job: ArchiveJob, checkpoints: Path) -> bool:
    """Run the query from where the manifest ends. Return whether it ended by itself."""
    options = job.options
    for old in checkpoints.glob(f"{job.manifest.archive}-*"):
        shutil.rmtree(old, ignore_errors=True)
    checkpoint = checkpoints / f"{job.manifest.archive}-{secrets.token_hex(4)}"
    job.open()
    reader = job.spark.readStream.format(FORMAT).options(**options.source, **options.selection)
    writer = (
        reader.option("failOnDataLoss", "false")  # holes are judged by the manifest, see `ArchiveGroup.check`
        .option("startingOffsets", _starting(job))
        .option("maxOffsetsPerTrigger", str(options.max_messages))
        .load()
        .writeStream.foreachBatch(job.process)
        .option("checkpointLocation", f"file://{checkpoint}")
    )
    trigger: dict[str, Any] = (
        {"availableNow": True} if options.once else {"processingTime": f"{int(options.interval * 1000)} milliseconds"}
    )
    query = writer.trigger(**trigger).start()
    try:
        return _watch(job, query)
    finally:
        job.close()
        query.stop()


def _watch(job: ArchiveJob, query: StreamingQuery) -> bool:
    while not query.awaitTermination(_POLL_SECONDS):
        if job.stopping.is_set():
            return False
        if not job.options.once:
            job.tend_if_due()
    return True


def _starting(job: ArchiveJob) -> str:
    """Return the starting offsets: after all that the manifest holds."""
    lanes = {
        topic: {key: through + 1 for key, through in keys.items()}
        for topic, keys in job.manifest.lanes.items()
        if topic in job.group.epochs and keys
    }
    return json.dumps(lanes) if lanes else "earliest"


def log_events(level: int = logging.INFO) -> None:
    """Write the events of lanelog to standard error, from this level on."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("lanelog").setLevel(level)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # its tracebacks: lanelog logs these errors in one line


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """Give an event that SIGTERM and Ctrl-C set. For the main thread."""
    stopping = threading.Event()
    before = {number: signal.signal(number, lambda *_: stopping.set()) for number in _SIGNALS}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `python -m lanelog.spark.archive`, for spark-submit. Return the exit status: 0 done, 1 failed, 2 refused."""
    parser = argparse.ArgumentParser(prog="python -m lanelog.spark.archive", description="Archive the log to Parquet.")
    parser.add_argument("--path", required=True, help="directory of the archive, which driver and executors share")
    parser.add_argument("--url", help="the database; default: LANELOG_URL")
    parser.add_argument("--password-env", help="environment variable with the password of the URL's user")
    parser.add_argument("--topics", type=names, help="separated by commas")
    parser.add_argument("--pattern", help="regular expression of whole names; default: all topics")
    parser.add_argument("--group", help="the consumer group that the archive is")
    parser.add_argument("--checkpoint", help="directory of Spark's checkpoint; default: in the archive")
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--continuous", dest="once", action="store_false", help="go on until SIGTERM; default: --once")
    end.add_argument("--once", action="store_true", default=True, help="end when all that is there now is archived")
    parser.add_argument("--interval", type=float, help="seconds between micro-batches of --continuous")
    parser.add_argument("--max-messages", type=int, help="of one micro-batch")
    parser.add_argument("--grace", type=float, help="seconds for which merged files stay for readers")
    parser.set_defaults(**{each.name: each.default for each in fields(ArchiveOptions) if each.default is not NOTHING})
    given = vars(parser.parse_args(arguments))
    log_events()
    with stopped_by_signals() as stopping:
        return program(lambda: asdict(run(ArchiveOptions(**given), stopping=stopping)))


if __name__ == "__main__":
    sys.exit(main())
