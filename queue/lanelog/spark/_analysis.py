"""One analysis: archive and live log read once each, up to one cut-off, and every table computed from that.

Owns the order of reading, which loses nothing and counts nothing twice while others publish, consume, archive and
collect; never writes anything but Spark's own temporary data, and no file. Called by `analyze`.

First the cut-off, by the database's clock. Then the live log, pinned in the executors: what is computed from it sees
one log. Then the archive's manifest: what collection removed from the log meanwhile was archived before that,
so it is found there; what was there before the look is found in both and counted once. Delivery rows are read before
watermarks: what is settled between the two looks is covered by the one or the other.

Not seen is what was written before the cut-off in a transaction that had not committed when its lane was read. A lane
that is drained and then purged while this reads, after `lane_idle_purge` at the least, can show a lag that it has not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from attrs import field, frozen
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documentation gives it

from lanelog._database import Database
from lanelog.admin._known import read
from lanelog.errors import ConfigurationError
from lanelog.spark import _store, analytics
from lanelog.spark._archive_files import COLUMNS
from lanelog.spark._archive_group import born, now_ms
from lanelog.spark._archive_options import one_of
from lanelog.spark._archive_read import read_archive
from lanelog.spark._manifest import MESSAGES, OUTCOMES, Manifest, ManifestStore, local_path
from lanelog.spark._options import FORMAT, Place
from lanelog.spark._report_parts import FOREMOST, Facts
from lanelog.spark._schema import TABLES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SUFFIX: Final = "_dlq"
"""Topics of dead letters are read with the topics that are asked for."""

_ROW: Final = ("topic", "key", "offset")
_OUTCOME: Final = ("consumer_group", "topic", "key", "message_offset", "finished_at")
_STEPS: Final = (
    1000, 5000, 15_000, 60_000, 300_000, 900_000, 3_600_000, 10_800_000, 43_200_000, 86_400_000, 604_800_000,
    2_592_000_000,
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
"""The tables, and how each is sorted: the same log gives the same files."""


@frozen(kw_only=True)
class Wanted:
    """What is to be analysed. `path` or `place` may be None, for the live log or the archive alone."""

    path: str | None
    place: Place | None = field(repr=False)
    topics: Sequence[str]
    """Empty: all of them."""
    until: datetime | None
    """The cut-off; None: now, by the database's clock if it is read."""
    stalled_after_ms: int
    """Of lanes without progress, milliseconds."""
    files: str
    """The tables' format, for the report."""


@frozen(kw_only=True)
class Analysis:
    """What came out: the tables by name, sorted, and the one that only the plots need."""

    facts: Facts
    tables: Mapping[str, pa.Table] = field(repr=False)
    timeline: pa.Table = field(repr=False)


@frozen(kw_only=True)
class _Live:
    """The live log, pinned."""

    messages: DataFrame
    states: DataFrame
    offsets: DataFrame
    groups: DataFrame
    outcomes: DataFrame


def analysed(spark: SparkSession, wanted: Wanted) -> Analysis:
    """Read and compute. Raises ConfigurationError, SchemaError, DatabaseError."""
    cutoff_ms, known = _looked(wanted)
    topics = _chosen(wanted.topics, known | _archived_topics(_manifest(wanted)))
    live = _live(spark, wanted, sorted(set(topics) & known), cutoff_ms)
    beyond = datetime.fromtimestamp((cutoff_ms + 1) / 1000, UTC)

    def archived(table: str) -> DataFrame:  # looks at the manifest when it is called: after the live log was pinned
        if wanted.path is None:
            return spark.createDataFrame([], COLUMNS[table])
        return read_archive(spark, wanted.path, table, topics=topics, until=beyond)

    messages = analytics.until(
        analytics.slim(archived(MESSAGES)), live.messages, cutoff_ms, instant="created_at", key=_ROW
    ).persist()
    outcomes = analytics.last_outcomes(
        analytics.until(archived(OUTCOMES), live.outcomes, cutoff_ms, instant="finished_at", key=_OUTCOME)
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
    first, last = messages.agg(F.min("created_at"), F.max("created_at")).toArrow().to_pylist()[0].values()
    step_ms = step_for(first, last)
    frames = {
        "throughput": analytics.throughput(messages),
        "latency": analytics.latency(outcomes, live.groups),
        "latency_spread": analytics.latency_spread(outcomes),
        "attempts": analytics.attempts(outcomes),
        "dead_letters": analytics.dead_letters(messages),
        "hot_lanes": analytics.hot_lanes(messages),
        "lane_sizes": sizes,
        "skew": analytics.skew(sizes),
        "lag": analytics.lag(unsettled, live.groups, cutoff_ms),
        "stalled_lanes": analytics.stalled_lanes(unsettled, live.states, cutoff_ms, wanted.stalled_after_ms),
    }
    tables = {name: frame.orderBy(*ORDER[name]).toArrow() for name, frame in frames.items()}
    timeline = analytics.throughput(messages, step_ms).orderBy("topic", "start").toArrow()
    return Analysis(
        facts=_facts(wanted, topics, cutoff_ms, tables, (first, last), step_ms), tables=tables, timeline=timeline
    )


def step_for(first: datetime | None, last: datetime | None) -> int:
    """Milliseconds of a step of the time axis, so that there are not too many of them."""
    if first is None or last is None:
        return analytics.HOUR_MS
    span_ms = (last - first).total_seconds() * 1000
    return next((step for step in _STEPS if span_ms / step <= _BARS), _STEPS[-1])


def _looked(wanted: Wanted) -> tuple[int, set[str]]:
    """The cut-off in epoch milliseconds, and the topics of the live log."""
    given = None if wanted.until is None else round(wanted.until.timestamp() * 1000)
    if wanted.place is None:
        return given if given is not None else round(datetime.now(UTC).timestamp() * 1000), set()
    database = Database(wanted.place.config())
    try:
        _refuse_another(database, wanted)
        clock = now_ms(database)
        return min(clock, given or clock), set(
            read(database, lambda cx: list(_store.topics(cx)), "looking at the topics")
        )
    finally:
        database.close()


def _refuse_another(database: Database, wanted: Wanted) -> None:
    manifest = _manifest(wanted)
    created = born(database)
    if manifest is not None and manifest.database != created:
        raise ConfigurationError(
            f"the archive at {wanted.path!r} is one of another database: give its URL, or read the archive alone"
        )


def _manifest(wanted: Wanted) -> Manifest | None:
    return None if wanted.path is None else ManifestStore(local_path(wanted.path)).required()


def _archived_topics(manifest: Manifest | None) -> set[str]:
    return {file.topic for file in manifest.files} if manifest else set()


def _chosen(asked: Sequence[str], known: set[str]) -> list[str]:
    missing = [topic for topic in asked if topic not in known]
    if missing:
        raise ConfigurationError(f"topic {missing[0]!r} is neither in the archive nor in the live log that were read")
    return sorted(known & {name for topic in asked for name in (topic, topic + SUFFIX)} if asked else known)


def _live(spark: SparkSession, wanted: Wanted, topics: Sequence[str], cutoff_ms: int) -> _Live:
    """The live log of these topics; empty without a database, or without any of them in it."""
    instants = {"messages": "created_at", "history": "finished_at"}

    def pinned(table: str, shape: Callable[[DataFrame], DataFrame] = lambda frame: frame) -> DataFrame:
        if wanted.place is None or not topics:
            return shape(spark.createDataFrame([], TABLES[table]))
        options = {"url": wanted.place.url, "table": table, "subscribePattern": one_of(topics)}
        if wanted.place.password_env is not None:
            options["passwordEnv"] = wanted.place.password_env
        if table == "messages":
            options |= {"includePayload": "false", "failOnDataLoss": "false"}  # collected meanwhile: archived before
        frame = spark.read.format(FORMAT).options(**options).load()
        if table in instants:
            frame = frame.where(F.unix_millis(instants[table]) <= cutoff_ms)
        return shape(frame).localCheckpoint()

    return _Live(
        messages=pinned("messages", analytics.slim),
        states=pinned("delivery_state"),
        offsets=pinned("offsets"),
        groups=pinned("groups"),
        outcomes=pinned("history"),
    )


def _facts(
    wanted: Wanted,
    topics: Sequence[str],
    cutoff_ms: int,
    tables: Mapping[str, pa.Table],
    span: tuple[datetime | None, datetime | None],
    step_ms: int,
) -> Facts:
    from pyarrow import compute

    def total(table: str, column: str) -> int:
        return compute.sum(tables[table].column(column)).as_py() or 0

    return Facts(
        archive=None if wanted.path is None else str(local_path(wanted.path)),
        live=None if wanted.place is None else wanted.place.config().safe_url(),
        cutoff=datetime.fromtimestamp(cutoff_ms / 1000, UTC),
        topics=topics,
        messages=total("throughput", "messages"),
        size=total("throughput", "bytes"),
        lanes=total("lane_sizes", "lanes"),
        first=span[0],
        last=span[1],
        step_ms=step_ms,
        stalled_after_ms=wanted.stalled_after_ms,
        dead_letters=total("dead_letters", "dead_letters"),
        reasons=compute.count_distinct(tables["dead_letters"].column("reason")).as_py(),
        counted={name: tables[name].num_rows for name in FOREMOST},
        files=wanted.files,
    )
