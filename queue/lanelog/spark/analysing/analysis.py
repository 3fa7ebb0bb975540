"""One analysis: archive and live log read once each, up to one cut-off, and every table computed from that.

Owns the order of reading. It loses no message and counts none twice, while other processes publish, consume, archive
and collect. Never writes a file; Spark's own temporary data excepted.

The order is:

1. The cut-off, by the database's clock.
2. The live log, pinned in the executors, so that all figures come from one read. Delivery rows are read before
   watermarks: a message that is settled between the two reads is then covered by one of them. Groups are read before
   and after both. Only groups that exist both times count, because of others only some rows are read.
3. The manifest of the archive. A message that collection removed from the log before step 2 was archived before that,
   so it is found here. A message that is in both is counted once.

Two things are not seen. A message that was written before the cut-off in a transaction that had not committed when its
lane was read is missing. A lane that is drained and purged during the reading (after `lane_idle_purge` at the least)
can show a lag that it does not have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from attrs import field, frozen
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documentation gives it

from lanelog._database import Database
from lanelog._log.lookup.known import read
from lanelog._log.lookup.names import dead_letter_topics, names, readers
from lanelog._stores.log import partitions
from lanelog.errors import ConfigurationError
from lanelog.spark import analytics
from lanelog.spark.analysing.backlog import POSTPONED
from lanelog.spark.archiving.files import COLUMNS
from lanelog.spark.archiving.group import born, now_ms
from lanelog.spark.archiving.manifest import MESSAGES, OUTCOMES, Manifest, ManifestStore
from lanelog.spark.archiving.options import one_of
from lanelog.spark.archiving.path import local_path
from lanelog.spark.archiving.read import read_archive
from lanelog.spark.report.parts import MOST_ROWS, Facts
from lanelog.spark.report.sections import TOPICS_DRAWN
from lanelog.spark.source.options import FORMAT, DatabaseAddress, database_options
from lanelog.spark.source.schema import TABLES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from lanelog._database import Executor

_ROW: Final = ("topic", "key", "offset")
_OUTCOME: Final = ("consumer_group", "topic", "key", "message_offset", "finished_at")
_OF_OUTCOME: Final = (*_OUTCOME, "published_at", "outcome", "attempts")
_STEPS: Final = (
    100, 200, 500, 1000, 5000, 15_000, 60_000, 300_000, 900_000, 3_600_000, 10_800_000, 43_200_000, 86_400_000,
    604_800_000, 2_592_000_000,
)  # fmt: skip
_BARS: Final = 72

ORDER: Final[Mapping[str, tuple[str, ...]]] = {
    "throughput": ("topic", "start"),
    "latency": ("consumer_group", "topic"),
    "latency_spread": ("consumer_group", "topic", "upto_ms"),
    "attempts": ("consumer_group", "topic", "attempts", "outcome"),
    "dead_letters": ("original_topic", "failed_group", "reason"),
    "hot_lanes": ("topic", "place"),
    "lane_sizes": ("topic", "messages"),
    "skew": ("topic",),
    "lag": ("consumer_group", "topic"),
    "stalled_lanes": ("consumer_group", "topic", "key"),
}
"""The tables, and the columns by which each is sorted: the same log gives the same files."""

LONG: Final = ("dead_letters", "stalled_lanes")
"""Tables that can have a row for every error or lane. Only the first rows leave Spark."""


@frozen(kw_only=True)
class Wanted:
    """What to analyse. `path` or `address` may be None: then only the live log or only the archive is read."""

    path: str | None
    address: DatabaseAddress | None = field(repr=False)
    topics: Sequence[str]
    """Empty: all."""
    until: datetime | None
    """The cut-off. None: now, by the database's clock if the database is read."""
    stalled_after_ms: int
    """Milliseconds without progress after which a lane stalls."""
    files: str
    """The format of the tables, for the report."""
    most_rows: int = MOST_ROWS
    """The most rows of each table in `LONG`: the first ones."""


@frozen(kw_only=True)
class Analysis:
    """The result."""

    facts: Facts
    tables: Mapping[str, pa.Table] = field(repr=False)
    """The tables by name, sorted by `ORDER`."""
    page: Mapping[str, pa.Table] = field(repr=False)
    """More tables for the page: those in `LONG`, sorted otherwise; `topics`, the sums; `timeline` of a few topics."""


@frozen(kw_only=True)
class _Scope:
    """The cut-off, and the topics of the live log."""

    cutoff_ms: int
    topics: set[str] = field(factory=set)
    deleted: set[str] = field(factory=set)
    """Deleted topics: only their rows are left, and outcomes until these are purged.

    They count only if the archive has them.
    """
    letters: set[str] = field(factory=set)
    """Topics that hold dead letters of the topics that were asked for."""


@frozen(kw_only=True)
class _Live:
    """The live log, pinned. `groups` are those that existed the whole time."""

    messages: DataFrame
    states: DataFrame
    offsets: DataFrame
    groups: DataFrame
    outcomes: DataFrame


def analysed(spark: SparkSession, wanted: Wanted) -> Analysis:
    """Read and compute. Raises ConfigurationError, SchemaError, DatabaseError."""
    scope = _scope(wanted)
    cutoff_ms = scope.cutoff_ms
    topics = _chosen(spark, wanted, scope)
    # The live log may still have outcomes of a deleted topic, which the archive does not have.
    live = _live(spark, wanted, sorted(set(topics) & (scope.topics | scope.deleted)), cutoff_ms)
    beyond = datetime.fromtimestamp((cutoff_ms + 1) / 1000, UTC)

    def archived(table: str) -> DataFrame:  # reads the manifest when it is called: after the live log was pinned
        if wanted.path is None:
            return spark.createDataFrame([], COLUMNS[table])
        return read_archive(spark, wanted.path, table, topics=topics, until=beyond)

    messages = analytics.until(
        analytics.slim(archived(MESSAGES)), live.messages, cutoff_ms, instant="created_at", key=_ROW
    ).persist()
    outcomes = analytics.until(
        archived(OUTCOMES).select(*_OF_OUTCOME),
        live.outcomes,
        cutoff_ms,
        instant="finished_at",
        key=_OUTCOME,
    ).persist()
    try:
        return _computed(wanted, topics, cutoff_ms, live, messages, outcomes)
    finally:
        messages.unpersist()
        outcomes.unpersist()


def _computed(
    wanted: Wanted, topics: Sequence[str], cutoff_ms: int, live: _Live, messages: DataFrame, outcomes: DataFrame
) -> Analysis:
    unsettled = analytics.backlog(live.messages, live.groups, live.offsets, live.states).localCheckpoint()
    sizes = analytics.lane_sizes(messages).localCheckpoint()
    hours = analytics.throughput(messages).localCheckpoint()
    succeeded = analytics.successes(outcomes, messages).localCheckpoint()
    left = None if wanted.address is None else analytics.outstanding(live.messages, live.states)
    letters = analytics.dead_letters(messages, left).localCheckpoint()
    stalled = analytics.stalled_lanes(unsettled, live.states, cutoff_ms, wanted.stalled_after_ms).localCheckpoint()
    first, last = messages.agg(F.min("created_at"), F.max("created_at")).toArrow().to_pylist()[0].values()
    step_ms = step_for(first, last)
    frames = {
        "throughput": hours,
        "latency": analytics.latency(succeeded, live.groups),
        "latency_spread": analytics.latency_spread(succeeded),
        "attempts": analytics.attempts(analytics.last_outcomes(outcomes)),
        "hot_lanes": analytics.hot_lanes(messages),
        "lane_sizes": sizes,
        "skew": analytics.skew(sizes),
        "lag": analytics.lag(unsettled, live.groups, cutoff_ms),
    }
    tables = {name: frame.orderBy(*ORDER[name]).toArrow() for name, frame in frames.items()}
    most = wanted.most_rows
    page = {
        "dead_letters": _foremost(letters, "dead_letters", most, F.desc("dead_letters")),
        "stalled_lanes": _foremost(stalled, "stalled_lanes", most, F.col("state") == POSTPONED, F.desc("still_ms")),
        "topics": analytics.busiest(hours).orderBy(F.desc("messages"), "topic").toArrow(),
    }
    for name in LONG:
        tables[name] = page[name].sort_by([(column, "ascending") for column in ORDER[name]])
    drawn = page["topics"].column("topic").slice(0, TOPICS_DRAWN).to_pylist()
    of_drawn = messages.where(F.col("topic").isin(drawn))
    page["timeline"] = analytics.throughput(of_drawn, step_ms).orderBy("topic", "start").toArrow()
    return Analysis(
        facts=_facts(wanted, topics, cutoff_ms, tables, page, _totals(letters, stalled), (first, last), step_ms),
        tables=tables,
        page=page,
    )


def _foremost(frame: DataFrame, name: str, most: int, *by: Column) -> pa.Table:
    return frame.orderBy(*by, *ORDER[name]).limit(most).toArrow()


def _totals(letters: DataFrame, stalled: DataFrame) -> dict[str, int]:
    """Count all rows of two tables. The files hold only the first ones."""
    counted = letters.agg(
        F.count("*").alias("dead_letter_rows"),
        F.sum("dead_letters").alias("dead_letters"),
        F.sum("outstanding").alias("outstanding"),
        F.count_distinct("reason").alias("reasons"),
    ).crossJoin(
        stalled.agg(F.count("*").alias("stalled_rows"), F.count_if(F.col("state") != POSTPONED).alias("stalled_lanes"))
    )
    return {name: value or 0 for name, value in counted.toArrow().to_pylist()[0].items()}


def step_for(first: datetime | None, last: datetime | None) -> int:
    """Return the milliseconds of a step of the time axis, so that there are not too many steps."""
    if first is None or last is None:
        return analytics.HOUR_MS
    span_ms = (last - first).total_seconds() * 1000
    return next((step for step in _STEPS if span_ms / step <= _BARS), _STEPS[-1])


def _scope(wanted: Wanted) -> _Scope:
    """Read the clock and the topics. Without a live log, the clock is this machine's."""
    if wanted.address is None:
        return _Scope(cutoff_ms=_cutoff_ms(wanted, round(datetime.now(UTC).timestamp() * 1000)))
    with closing(Database(wanted.address.config())) as database:
        _refuse_another(database, wanted)
        clock = now_ms(database)
        found = read(database, names, "reading the topics")
        deleted = read(database, _deleted, "finding deleted topics", found)
        return _Scope(
            cutoff_ms=_cutoff_ms(wanted, clock),
            topics={name for name, _ in found} - deleted,
            deleted=deleted,
            letters={name for theirs in dead_letter_topics(wanted.topics, found).values() for name in theirs},
        )


def _cutoff_ms(wanted: Wanted, clock_ms: int) -> int:
    return clock_ms if wanted.until is None else min(clock_ms, round(wanted.until.timestamp() * 1000))


def _deleted(cx: Executor, found: Sequence[tuple[str, bool]]) -> set[str]:
    """Return the deleted topics, judged as `admin.topics()` does: they have no group and no lane."""
    reading = readers(cx)
    unread = (name for name, holds_dead_letters in found if not holds_dead_letters and name not in reading)
    return {name for name in unread if not partitions.page(cx, name, "", 1)}


def _refuse_another(database: Database, wanted: Wanted) -> None:
    manifest = _manifest(wanted)
    created = born(database)
    if manifest is not None and manifest.database != created:
        raise ConfigurationError(
            f"the archive at {wanted.path!r} is one of another database: give its URL, or read the archive alone"
        )


def _manifest(wanted: Wanted) -> Manifest | None:
    return None if wanted.path is None else ManifestStore(local_path(wanted.path)).required()


def _chosen(spark: SparkSession, wanted: Wanted, scope: _Scope) -> list[str]:
    """Return the topics to read: those asked for, and those that hold their dead letters.

    The live log was read before, so a message that has left it since is in the archive.
    """
    live, letters, manifest = scope.topics, scope.letters, _manifest(wanted)
    archived = {file.topic for file in manifest.files} if manifest else set()
    asked = set(wanted.topics)
    missing = [topic for topic in wanted.topics if topic not in live | archived]
    if missing:
        raise ConfigurationError(f"topic {missing[0]!r} is neither in the archive nor in the live log that were read")
    if not asked:
        return sorted(live | archived)
    named = sorted(topic for topic in archived - asked - letters if topic.startswith(tuple(asked)))
    if wanted.path is not None and named:
        rows = read_archive(spark, wanted.path, MESSAGES, topics=named).where(F.col("original_topic").isin(list(asked)))
        letters = letters | set(rows.select("topic").distinct().toArrow().column("topic").to_pylist())
    return sorted(asked | letters)


def _live(spark: SparkSession, wanted: Wanted, topics: Sequence[str], cutoff_ms: int) -> _Live:
    """Read the live log of these topics. It is empty without a database, or without topics."""

    def read_now(table: str) -> DataFrame:
        return _pinned(spark, wanted, topics, cutoff_ms, table)

    messages, registered = read_now("messages"), read_now("groups")
    states, offsets = read_now("delivery_state"), read_now("offsets")
    same = ["consumer_group", "topic", "created_at"]
    return _Live(
        messages=messages,
        states=states,
        offsets=offsets,
        groups=registered.join(read_now("groups"), on=same, how="left_semi"),
        outcomes=read_now("history"),
    )


def _pinned(spark: SparkSession, wanted: Wanted, topics: Sequence[str], cutoff_ms: int, table: str) -> DataFrame:
    """Read a table of the live log as it is now: of messages and outcomes the needed columns, up to the cut-off."""
    if wanted.address is None or not topics:
        frame = spark.createDataFrame([], TABLES[table])
    else:
        options = database_options(wanted.address.url, wanted.address.password_env)
        options |= {"table": table, "subscribePattern": one_of(topics)}
        if table == "messages":
            # A message that is collected meanwhile was archived before.
            options |= {"includePayload": "false", "failOnDataLoss": "false"}
        frame = spark.read.format(FORMAT).options(**options).load()
    if table == "messages":
        frame = analytics.slim(frame.where(F.unix_millis("created_at") <= cutoff_ms))
    elif table == "history":
        frame = frame.where(F.unix_millis("finished_at") <= cutoff_ms).select(*_OF_OUTCOME)
    return frame.localCheckpoint()


def _facts(
    wanted: Wanted,
    topics: Sequence[str],
    cutoff_ms: int,
    tables: Mapping[str, pa.Table],
    page: Mapping[str, pa.Table],
    totals: Mapping[str, int],
    span: tuple[datetime | None, datetime | None],
    step_ms: int,
) -> Facts:
    from pyarrow import compute

    def total(table: pa.Table, column: str) -> int:
        return compute.sum(table.column(column)).as_py() or 0

    kept = compute.any(tables["latency"].column("keeps_history")).as_py()
    return Facts(
        archive=None if wanted.path is None else str(local_path(wanted.path)),
        live=None if wanted.address is None else wanted.address.config().safe_url(),
        cutoff=datetime.fromtimestamp(cutoff_ms / 1000, UTC),
        topics=topics,
        messages=total(page["topics"], "messages"),
        size=total(page["topics"], "bytes"),
        lanes=total(tables["lane_sizes"], "lanes"),
        first=span[0],
        last=span[1],
        step_ms=step_ms,
        stalled_after_ms=wanted.stalled_after_ms,
        keeps_history=bool(kept) or tables["attempts"].num_rows > 0,
        dead_letters=totals["dead_letters"],
        outstanding=None if wanted.address is None else totals["outstanding"],
        reasons=totals["reasons"],
        stalled=totals["stalled_lanes"],
        counted={"dead_letters": totals["dead_letter_rows"], "stalled_lanes": totals["stalled_rows"]},
        files=wanted.files,
    )
