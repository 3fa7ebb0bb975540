"""What the tests of the Spark tier share: types, a password, small frames, reads without a JVM, how an error reads."""

import pickle
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.testing import assertDataFrameEqual

from lanelog.client import Client
from lanelog.spark.source.options import parse_read
from lanelog.spark.source.source import LanelogReader
from support.waiting import eventually

PASSWORD_VARIABLE = "SPARK_TIER_PASSWORD"
PASSWORD = "s3cret-of-the-tier"

Read = Callable[..., DataFrame]
Places = list[tuple[str, str, int]]
"""Topic, key, offset."""


def last_line(error: BaseException) -> str:
    """What a user reads of an error: Spark puts a Python error's own line last, before an SQL state of its own."""
    lines = [line.strip() for line in str(error).split("\nJVM stacktrace")[0].splitlines()]
    return next(line for line in reversed(lines) if line.startswith("lanelog."))


def at(clock: str) -> datetime:
    """A time of 1 June 2026, UTC."""
    return datetime.fromisoformat(f"2026-06-01T{clock}+00:00")


def ms(clock: str) -> int:
    """Epoch milliseconds of that time."""
    return round(at(clock).timestamp() * 1000)


def frame(spark: SparkSession, columns: str, *rows: tuple[Any, ...]) -> DataFrame:
    """These rows; the value of a timestamp is written as `at` reads it."""
    times = [column.endswith(" timestamp") for column in columns.split(", ")]
    made = [tuple(at(v) if time and v else v for time, v in zip(times, row, strict=True)) for row in rows]
    return spark.createDataFrame(made, columns)


def same(found: DataFrame, columns: str, *rows: tuple[Any, ...]) -> None:
    """The frame has these columns, and these rows in any order."""
    assertDataFrameEqual(found, frame(found.sparkSession, columns, *rows))


def reader_of(url: str, **options: str) -> LanelogReader:
    """The reader of a batch, with options as people write them."""
    given = {name.lower(): value for name, value in options.items()}
    return LanelogReader(parse_read({"url": url, **given}, streaming=False))


def sent(part: Any) -> Any:
    """As another process gets it."""
    return pickle.loads(pickle.dumps(part))  # noqa: S301 - our own


def rows_of(reader: Any, splits: Sequence[InputPartition] | None = None) -> list[dict[str, Any]]:
    """Plan, if there is no plan yet, send it as to another process, and read it: no JVM takes part."""
    planned = reader.partitions() if splits is None else splits
    return [row for split in planned for batch in sent(reader).read(sent(split)) for row in batch.to_pylist()]


def places(rows: Sequence[dict[str, Any]]) -> Places:
    """Topic, key and offset of each, sorted."""
    return sorted((row["topic"], row["key"], row["offset"]) for row in rows)


def lane(key: str, *offsets: int, topic: str = "t") -> Places:
    return [(topic, key, offset) for offset in offsets]


def purge(client: Client, topic: str) -> None:
    """Remove the lanes of a topic that everybody has drained."""

    def purged() -> bool:
        client.admin.maintain()  # a lane that was emptied in this very millisecond is not idle yet
        return client.admin.topic(topic).lanes == 0

    eventually(purged)
