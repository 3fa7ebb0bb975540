"""Writing: a DataFrame's rows become messages, once, however often Spark repeats what it does."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructField, StructType

import lanelog
from lanelog.client import Client
from lanelog.errors import ConfigurationError
from lanelog.spark.source import writer
from lanelog.spark.source.source import LanelogSource
from support.spark import Read, last_line

pytestmark = pytest.mark.thorough

Write = Callable[[DataFrame], None]
SCHEMA = "topic string, key string, value binary, id string"


@pytest.fixture
def write(lanelog_url: str) -> Write:
    """Appends rows to the test's database."""
    return lambda frame: frame.write.format("lanelog").option("url", lanelog_url).mode("append").save()


def test_what_can_be_read_can_be_written(client: Client, lanelog_url: str, write: Write, read: Read) -> None:
    """A payload that is larger than publishers may send unless they raise their bound is copied like any other."""
    payload = bytes(range(256)) * 8192
    with lanelog.connect(lanelog_url, max_payload_bytes=len(payload)) as generous:
        generous.publish_many("t", [("k", payload)] * 3)
    write(read(subscribe="t").selectExpr("'u' AS topic", "key", "value", "id"))
    found = read(subscribe="u").orderBy("offset").select("offset", "value").collect()
    assert [row.offset for row in found] == [1, 2, 3]
    assert all(row.value == payload for row in found)


def test_the_order_of_a_key_is_that_of_the_sorted_rows(
    spark: SparkSession, client: Client, write: Write, read: Read
) -> None:
    """With repartition("key").sortWithinPartitions(…), every lane has its messages in that order."""
    frame = spark.range(6000).selectExpr("'t' AS topic", "concat('k', id % 11) AS key", "id AS n")
    rows = frame.selectExpr("topic", "key", "cast(n AS string) AS value", "concat('id-', n) AS id", "n")
    write(rows.repartition(3, "key").sortWithinPartitions("key", "n").drop("n"))
    found = read(subscribe="t").selectExpr("key", "offset", "cast(cast(value AS string) AS int) AS n").collect()
    lanes: dict[str, list[int]] = {}
    for row in sorted(found, key=lambda row: row.offset):
        lanes.setdefault(row.key, []).append(row.n)
    assert sum(map(len, lanes.values())) == 6000
    assert all(lane == sorted(lane) for lane in lanes.values())


def test_a_task_that_fails_is_repeated_without_duplicates(
    spark: SparkSession, client: Client, write: Write, read: Read
) -> None:
    """A task dies after it has published some of its rows; its second attempt publishes the rest, in order."""

    def rows(number: int, part: Iterator[int]) -> Iterator[tuple[str, str, bytes | None, str]]:
        context = TaskContext.get()
        assert context is not None
        for index, n in enumerate(part):
            # What the writer refuses, after two transactions that it has committed by then.
            fails = context.attemptNumber() == 0 and index == 2200
            yield "t", f"k{number}", None if fails else b"%d" % n, f"i{n}"

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    try:
        write(
            spark.createDataFrame(spark.sparkContext.parallelize(range(5000), 2).mapPartitionsWithIndex(rows), SCHEMA)
        )
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    found = read(subscribe="t").selectExpr("key", "offset", "cast(cast(value AS string) AS int) AS n").collect()
    assert len(found) == 5000
    for key, first in (("k0", 0), ("k1", 2500)):
        lane = sorted((row.offset, row.n) for row in found if row.key == key)
        assert lane == [(n + 1, first + n) for n in range(2500)]


class Log:
    """Remembers how many messages each transaction had."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def publish_many(self, _topic: str, items: list[lanelog.Outgoing]) -> list[lanelog.Receipt]:
        self.sizes.append(len(items))
        return [lanelog.Receipt(1, item.id or "", duplicate=False) for item in items]


def sizes_of(**columns: Any) -> list[int]:
    """How many messages each transaction has, of rows with these columns."""
    log: Any = Log()
    publishing = writer.Publishing(log.publish_many)
    plain = {"topic": ["t"] * 10, **{name: [str(n) for n in range(10)] for name in ("key", "value", "id")}}
    for row in writer._messages(pa.RecordBatch.from_pydict({**plain, **columns})):
        publishing.take(*row)
    publishing.flush()
    return log.sizes


def test_a_transaction_is_bounded_in_bytes_of_text_too() -> None:
    """A character of a payload that is text has up to four bytes; bytes as such are counted the same."""
    text = "🦊" * (writer.BYTES // 16)  # a quarter of the bound
    assert sizes_of(value=[text] * 10) == sizes_of(value=[text.encode()] * 10) == [4, 4, 2]


def test_a_transaction_is_bounded_in_bytes_of_metadata_too() -> None:
    """Names and values count as payloads do; none, or one that is not there, as nothing."""
    half = "ü" * (writer.BYTES // 16)  # an eighth of the bound
    metadata = pa.array([[(half, half)]] * 8 + [None, [("", None)]], pa.map_(pa.string(), pa.string()))
    assert sizes_of(metadata=metadata) == [4, 4, 2]


def test_a_row_without_a_part_is_refused(spark: SparkSession, client: Client, write: Write, read: Read) -> None:
    """NULL is no name and no payload: the write fails and says which column it was, before that batch is published."""
    whole = {"topic": "t", "key": "k", "value": b"x", "id": "1"}
    for column in ("key", "value"):
        rows = [tuple(whole.values()), tuple({**whole, column: None}.values())]
        with pytest.raises(Exception, match="a row has no") as refused:
            write(spark.createDataFrame(rows, SCHEMA).coalesce(1))
        assert f"a row has no {column}: topic, key, value and id must not be NULL" in last_line(refused.value)
    assert read(subscribePattern=".*").count() == 0


@pytest.mark.parametrize(
    ("column", "kind", "said"),
    [
        ("id", None, "the rows lack id"),
        ("offset", IntegerType(), "no message has offset"),
        ("key", IntegerType(), "the column key must be string, not int"),
        ("metadata", ArrayType(StringType()), "the column metadata must be map<string,string>"),
    ],
)
def test_columns_are_checked_before_anything_is_written(column: str, kind: DataType | None, said: str) -> None:
    """What a message needs must be there, in its type, and nothing that would be dropped without a word."""
    text = StringType()
    fields: dict[str, DataType | None] = {"topic": text, "key": text, "value": BinaryType(), "id": text, column: kind}
    schema = StructType([StructField(name, each) for name, each in fields.items() if each is not None])
    with pytest.raises(ConfigurationError, match=said):
        LanelogSource({"url": "mysql://nobody@127.0.0.1:1/nowhere"}).writer(schema, overwrite=False)
