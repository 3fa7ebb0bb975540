"""Writing: a DataFrame's rows become messages, once, however often Spark repeats what it does."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import lanelog
from lanelog.client import Client
from lanelog.spark import _writer
from support.spark import Read, last_line

Write = Callable[[DataFrame], None]
SCHEMA = "topic string, key string, value binary, id string"


@pytest.fixture
def write(lanelog_url: str) -> Write:
    """Appends rows to the test's database."""
    return lambda frame: frame.write.format("lanelog").option("url", lanelog_url).mode("append").save()


def test_rows_become_messages(spark: SparkSession, client: Client, write: Write, read: Read) -> None:
    """Topics, keys, ids, payloads of bytes or text, and metadata, as a publisher would have given them."""
    columns = "topic string, key string, value string, id string, metadata map<string,string>"
    write(spark.createDataFrame([("t", "ä", "é", "1", {"a": "ü"}), ("u", "k", "x", "1", None)], columns))
    write(spark.createDataFrame([("t", "ä", b"\x00\xff", "2")], SCHEMA))
    found = read(subscribe="t,u").orderBy("topic", "offset").select("topic", "key", "offset", "id", "value", "metadata")
    assert [tuple(row) for row in found.collect()] == [
        ("t", "ä", 1, "1", bytearray("é".encode()), {"a": "ü"}),
        ("t", "ä", 2, "2", bytearray(b"\x00\xff"), None),
        ("u", "k", 1, "1", bytearray(b"x"), None),
    ]


def test_what_can_be_read_can_be_written(client: Client, lanelog_url: str, write: Write, read: Read) -> None:
    """A payload that is larger than publishers may send unless they raise their bound is copied like any other."""
    payload = bytes(range(256)) * 8192
    with lanelog.connect(lanelog_url, max_payload_bytes=len(payload)) as generous:
        generous.publish_many("t", [("k", payload)] * 3)
    write(read(subscribe="t").selectExpr("'u' AS topic", "key", "value", "id"))
    found = read(subscribe="u").orderBy("offset").select("offset", "value").collect()
    assert [row.offset for row in found] == [1, 2, 3]
    assert all(row.value == payload for row in found)


def test_a_second_write_adds_nothing(spark: SparkSession, client: Client, write: Write, read: Read) -> None:
    """Ids decide: the rows of a run that is repeated are duplicates, and what is new among them is added."""
    frame = spark.range(2500).selectExpr(
        "'t' AS topic", "concat('k', id % 7) AS key", "cast(id AS string) AS value", "concat('id-', id) AS id"
    )
    write(frame)
    write(frame)
    assert read(subscribe="t").count() == 2500
    write(frame.union(frame.selectExpr("topic", "key", "value", "concat('new-', id) AS id").limit(1)))
    assert read(subscribe="t").count() == 2501


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
        for place, n in enumerate(part):
            # What the writer refuses, behind two transactions that it has committed by then.
            fails = context.attemptNumber() == 0 and place == 2200
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


def test_a_stream_writes_once_through_a_crash(
    spark: SparkSession, client: Client, lanelog_url: str, read: Read, tmp_path: Path
) -> None:
    """A micro-batch whose commit Spark has forgotten is written again when the stream restarts, and adds nothing."""
    client.publish_many("t", [(f"k{n % 3}", b"%d" % n) for n in range(30)])
    state = tmp_path / "state"

    def run() -> None:
        source = spark.readStream.format("lanelog").option("url", lanelog_url).option("subscribe", "t")
        frame = source.option("startingOffsets", "earliest").load().selectExpr("'u' AS topic", "key", "value", "id")
        writer = frame.writeStream.format("lanelog").option("url", lanelog_url).queryName("copies")
        query = writer.option("checkpointLocation", str(state)).trigger(availableNow=True).start()
        assert query.awaitTermination(90)

    run()
    assert read(subscribe="u").count() == 30
    for commit in (state / "commits").iterdir():
        commit.unlink()
    client.publish("t", "k0", b"new")
    run()
    found = read(subscribe="u").groupBy("key").count().collect()
    assert {row.key: row["count"] for row in found} == {"k0": 11, "k1": 10, "k2": 10}


class Log:
    """Remembers how many messages each transaction had."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def publish_many(self, _topic: str, items: list[lanelog.Outgoing]) -> list[lanelog.Receipt]:
        self.sizes.append(len(items))
        return [lanelog.Receipt(1, item.id or "", duplicate=False) for item in items]


def test_a_transaction_is_bounded_in_bytes_of_text_too() -> None:
    """A character of a payload that is text has up to four bytes; bytes as such are counted the same."""
    text = "🦊" * (_writer.BYTES // 16)  # a quarter of the bound
    for values in ([text] * 8, [text.encode()] * 8):
        log: Any = Log()
        publishing = _writer._Publishing(log)
        same, ids = ["t"] * 8, [str(n) for n in range(8)]
        publishing.add(pa.RecordBatch.from_pydict({"topic": same, "key": same, "value": values, "id": ids}))
        publishing.flush()
        assert log.sizes == [4, 4]


def test_a_transaction_is_bounded_in_bytes_of_metadata_too() -> None:
    """Names and values count as payloads do; none, or one that is not there, as nothing."""
    half = "ü" * (_writer.BYTES // 16)  # an eighth of the bound
    log: Any = Log()
    publishing = _writer._Publishing(log)
    metadata = [[(half, half)]] * 8 + [None, [("", None)]]
    columns = {name: [str(n) for n in range(10)] for name in ("key", "value", "id")}
    columns["topic"] = ["t"] * 10
    pairs = pa.array(metadata, pa.map_(pa.string(), pa.string()))
    publishing.add(pa.RecordBatch.from_pydict({**columns, "metadata": pairs}))
    publishing.flush()
    assert log.sizes == [4, 4, 2]


@pytest.mark.parametrize("column", ["key", "value"])
def test_a_row_without_a_part_is_refused(
    spark: SparkSession, client: Client, write: Write, read: Read, column: str
) -> None:
    """NULL is no name and no payload: the write fails and says which column it was, before that batch is published."""
    whole = {"topic": "t", "key": "k", "value": b"x", "id": "1"}
    frame = spark.createDataFrame([tuple(whole.values()), tuple({**whole, column: None}.values())], SCHEMA).coalesce(1)
    with pytest.raises(Exception, match="a row has no") as refused:
        write(frame)
    assert f"a row has no {column}: topic, key, value and id must not be NULL" in last_line(refused.value)
    assert read(subscribePattern=".*").count() == 0


@pytest.mark.parametrize(
    ("select", "said"),
    [
        (("topic", "key", "value"), "the rows lack id"),
        (("topic", "key", "value", "id", "1 AS offset"), "no message has offset"),
        (("topic", "1 AS key", "value", "id"), "the column key must be string, not int"),
        (("topic", "key", "value", "id", "array('a') AS metadata"), "the column metadata must be map<string,string>"),
    ],
)
def test_columns_are_checked_before_anything_is_written(
    spark: SparkSession, client: Client, write: Write, read: Read, select: tuple[str, ...], said: str
) -> None:
    """What a message needs must be there, in its type, and nothing that would be dropped without a word."""
    frame = spark.createDataFrame([("t", "k", b"x", "1")], SCHEMA).selectExpr(*select)
    with pytest.raises(Exception, match="ConfigurationError") as refused:
        write(frame)
    assert said in last_line(refused.value)
    assert read(subscribePattern=".*").count() == 0
