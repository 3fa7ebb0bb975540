"""Data files of an archive: a DataFrame written as one segment, examined, merged, read.

Owns the layout of a segment, and the description of its files. Never decides which files count: the manifest does.

A segment is a directory with a directory for each topic and day (UTC) in it. The description is read from the files
after they were written, so that the manifest names what is there, not what should be there.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final

from attrs import field, frozen
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documentation gives it

from lanelog.errors import LanelogError
from lanelog.spark.archiving.flush import flush_files
from lanelog.spark.archiving.group import Hole, holes_of
from lanelog.spark.archiving.manifest import MESSAGES, OUTCOMES, DataFile
from lanelog.spark.source.schema import HISTORY
from lanelog.spark.source.schema import MESSAGES as MESSAGE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

COLUMNS: Final[Mapping[str, StructType]] = {MESSAGES: MESSAGE_COLUMNS, OUTCOMES: HISTORY}
_OFFSET: Final = {MESSAGES: "offset", OUTCOMES: "message_offset"}
_WHEN: Final = {MESSAGES: "created_at", OUTCOMES: "finished_at"}
_BY_TOPIC, _BY_DATE = "by_topic", "by_date"
_DAY_MS: Final = 86_400_000
_PLAIN_TOPIC = "^[A-Za-z0-9._-]{1,100}$"


@frozen(kw_only=True)
class Segment:
    """What was written: the files, and for messages the sorted offsets of each lane."""

    files: tuple[DataFile, ...]
    lanes: Mapping[str, Mapping[str, Sequence[int]]] = field(factory=dict, repr=False)
    """Topic → key → offsets."""

    @property
    def through(self) -> dict[str, dict[str, int]]:
        """The highest offset of each lane."""
        return {topic: {key: offsets[-1] for key, offsets in keys.items()} for topic, keys in self.lanes.items()}

    def holes(self, topic: str, archived: Callable[[str, str], int]) -> list[Hole]:
        """Return the offsets that are missing between the archived ones and the last offset here."""
        return [
            Hole(key=key, first=first, last=last)
            for key, offsets in self.lanes[topic].items()
            for first, last in holes_of(archived(topic, key), offsets)
        ]


def write(rows: DataFrame, root: Path, table: str, segment: str) -> Segment:
    """Write rows as a segment, flush it to the disk, and describe it."""
    parts = max(1, rows.sparkSession.sparkContext.defaultParallelism)
    return _written(rows, root, table, segment, parts, "topic", "key")


def merge(spark: SparkSession, root: Path, files: Sequence[DataFile], segment: str) -> tuple[DataFile, ...]:
    """Write the rows of these files of one table again, as one file for each topic and day.

    Raises if a row got lost.
    """
    table = files[0].table
    merged = _written(read(spark, root, table, files), root, table, segment, _BY_TOPIC, _BY_DATE).files
    if _counted(merged) != _counted(files):
        raise LanelogError(
            f"merging {len(files)} files into {root / table / segment} changed their rows: nothing was replaced"
        )
    return merged


def _written(rows: DataFrame, root: Path, table: str, segment: str, *tasks: Any) -> Segment:
    """Write rows as a segment. `tasks`: what `repartition` takes."""
    directory = root / table / segment
    (
        rows.select(*COLUMNS[table].names)
        .withColumn(_BY_TOPIC, _directory_name(F.col("topic")))
        .withColumn(_BY_DATE, _date(F.col(_WHEN[table])))
        .repartition(*tasks)
        .sortWithinPartitions(_BY_TOPIC, _BY_DATE, "topic", "key", _OFFSET[table])
        .write.partitionBy(_BY_TOPIC, _BY_DATE)
        .option("compression", "zstd")
        .mode("error")  # each attempt has a directory of its own: a version may name the files of an earlier one
        .parquet(_uri(directory))
    )
    return _described(root, table, directory)


def read(spark: SparkSession, root: Path, table: str, files: Iterable[DataFile]) -> DataFrame:
    """Return the rows of these files, and of no others."""
    paths = [_uri(root / file.path) for file in files]
    if not paths:
        return spark.createDataFrame([], COLUMNS[table])
    return spark.read.schema(COLUMNS[table]).parquet(*paths)


def _counted(files: Iterable[DataFile]) -> dict[tuple[str, str], int]:
    counted: dict[tuple[str, str], int] = {}
    for file in files:
        counted[file.topic, file.date] = counted.get((file.topic, file.date), 0) + file.rows
    return counted


def _directory_name(topic: Column) -> Column:
    """Return a directory name for the topic. A long or unusual name is cut, and gets a hash to be unique."""
    cut = F.regexp_replace(F.substring(topic, 1, 60), "[^A-Za-z0-9._-]", "_")
    return F.when(topic.rlike(_PLAIN_TOPIC), topic).otherwise(
        F.concat(cut, F.lit("~"), F.substring(F.sha2(topic.cast("binary"), 256), 1, 16))
    )


def _date(when: Column) -> Column:
    """Return the day in UTC, whatever the session's time zone is."""
    return F.date_add(F.lit("1970-01-01").cast("date"), F.floor(F.unix_millis(when) / _DAY_MS).cast("int"))


def _uri(path: Path) -> str:
    return f"file://{path}"  # not percent-encoded, because Hadoop does not decode it


def remove(root: Path, table: str, segment: str) -> None:
    """Remove a segment that no version names. Files that cannot be removed are left to a later sweep."""
    shutil.rmtree(root / table / segment, ignore_errors=True)


def _described(root: Path, table: str, directory: Path) -> Segment:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not directory.is_dir():  # Spark makes it even if there is no row
        raise LanelogError(f"{directory} is gone, where Spark has just written: somebody has removed it")
    found: list[DataFile] = []
    messages: list[pa.Table] = []
    for path in sorted(directory.glob(f"{_BY_TOPIC}=*/{_BY_DATE}=*/*.parquet")):
        columns = pq.ParquetFile(path).read(columns=["topic", "key", _OFFSET[table], _WHEN[table]])
        if not columns.num_rows:
            continue
        topics = columns.column("topic").unique().to_pylist()
        if len(topics) != 1:
            raise LanelogError(f"{path} holds rows of several topics: {topics[:3]}")
        first_ms, last_ms = _span_ms(columns.column(_WHEN[table]))
        found.append(
            DataFile(
                table=table,
                path=str(path.relative_to(root)),
                topic=topics[0],
                date=path.parent.name.removeprefix(f"{_BY_DATE}="),
                rows=columns.num_rows,
                bytes=path.stat().st_size,
                first_ms=first_ms,
                last_ms=last_ms,
            )
        )
        if table == MESSAGES:
            messages.append(columns.select(["topic", "key", "offset"]))
    flush_files(root, [file.path for file in found])
    return Segment(files=tuple(found), lanes=_lanes(pa.concat_tables(messages)) if messages else {})


def _span_ms(when: pa.ChunkedArray) -> tuple[int, int]:
    import pyarrow as pa
    import pyarrow.compute as pc

    ends = pc.min_max(when.cast(pa.timestamp("us")).cast(pa.int64())).as_py()
    return ends["min"] // 1000, ends["max"] // 1000


def _lanes(messages: pa.Table) -> dict[str, dict[str, Sequence[int]]]:
    lanes: dict[str, dict[str, Sequence[int]]] = {}
    for row in messages.group_by(["topic", "key"]).aggregate([("offset", "list")]).to_pylist():
        offsets = sorted(row["offset_list"])
        if len(set(offsets)) != len(offsets):
            raise LanelogError(f"lane {row['key']!r} of topic {row['topic']!r} was read with the same offset twice")
        lanes.setdefault(row["topic"], {})[row["key"]] = offsets
    return lanes
