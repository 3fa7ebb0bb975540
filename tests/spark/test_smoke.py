"""The main paths of the format, once each: batches in and out, streams, and the documentation's example."""

from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from lanelog.client import Client
from lanelog.spark.source import options
from lanelog.spark.source.schema import TABLES
from support.readme import Example, example, table
from support.spark import Read
from support.waiting import accept, eventually


def write(frame: DataFrame, url: str) -> None:
    frame.write.format("lanelog").option("url", url).mode("append").save()


def test_a_message_comes_with_all_that_was_published(spark: SparkSession, client: Client, read: Read) -> None:
    """Key, id, payload and metadata as they were given, with UTC times, and nothing where there is nothing."""
    before = datetime.now(UTC).replace(microsecond=0, tzinfo=None)
    client.publish("t", "schlüssel 🔑", b"\x00\xff", id="eins", metadata={"häh": "é🙂", "": "leer"})
    client.publish("t", "k", b"", id="two")
    found = read(subscribe="t")
    assert found.schema == TABLES["messages"]
    shown = found.select(
        "topic", "key", "offset", "id", "value", "metadata", "payload_bytes", "failed_at", "target_group"
    )
    wanted = [
        ("t", "schlüssel 🔑", 1, "eins", bytearray(b"\x00\xff"), {"häh": "é🙂", "": "leer"}, 2, None, None),
        ("t", "k", 1, "two", bytearray(b""), None, 0, None, None),
    ]
    assertDataFrameEqual(shown, spark.createDataFrame(wanted, shown.schema))
    times = found.select("timestamp", "created_at").first()
    assert times is not None
    assert before <= times.timestamp.replace(microsecond=0) == times.created_at.replace(microsecond=0)


def test_a_group_reads_from_its_watermark(client: Client, read: Read) -> None:
    """With groupId: what the group has not acked, lanes included that it has never seen."""
    client.publish_many("t", [("a", b"x")] * 3)
    with client.subscribe("t", "g", accept) as subscription:
        eventually(lambda: subscription.stats().acked == 3)
    client.publish_many("t", [("a", b"x"), ("b", b"x")])
    found = read(subscribe="t", groupId="g").collect()
    assert sorted((row.topic, row.key, row.offset) for row in found) == [("t", "a", 4), ("t", "b", 1)]


def test_rows_become_messages(spark: SparkSession, client: Client, lanelog_url: str, read: Read) -> None:
    """Topics, keys, ids, payloads of bytes or text, and metadata; the content type is the rows' to say."""
    columns = "topic string, key string, value string, id string, metadata map<string,string>"
    texts = [("t", "ä", "é", "1", {"a": "ü", "content-type": "text/x-é"}), ("u", "k", "x", "1", None)]
    write(spark.createDataFrame(texts, columns), lanelog_url)
    some = spark.createDataFrame([("t", "ä", b"\x00\xff", "2")], "topic string, key string, value binary, id string")
    write(some, lanelog_url)
    found = read(subscribe="t,u").orderBy("topic", "offset").select("topic", "key", "offset", "id", "value", "metadata")
    assert [tuple(row) for row in found.collect()] == [
        ("t", "ä", 1, "1", bytearray("é".encode()), {"a": "ü", "content-type": "text/x-é"}),
        ("t", "ä", 2, "2", bytearray(b"\x00\xff"), None),
        ("u", "k", 1, "1", bytearray(b"x"), None),
    ]


def test_a_second_write_adds_nothing(spark: SparkSession, client: Client, lanelog_url: str, read: Read) -> None:
    """Ids decide: the rows of a run that is repeated are duplicates, and what is new among them is added."""
    frame = spark.range(2500).selectExpr(
        "'t' AS topic", "concat('k', id % 7) AS key", "cast(id AS string) AS value", "concat('id-', id) AS id"
    )
    write(frame, lanelog_url)
    assert read(subscribe="t").count() == 2500
    write(frame.union(frame.selectExpr("topic", "key", "value", "concat('new-', id) AS id").limit(1)), lanelog_url)
    assert read(subscribe="t").count() == 2501


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
        assert query.awaitTermination(240)

    run()
    assert read(subscribe="u").count() == 30
    for commit in (state / "commits").iterdir():
        commit.unlink()
    client.publish("t", "k0", b"new")
    run()
    found = read(subscribe="u").groupBy("key").count().collect()
    assert {row.key: row["count"] for row in found} == {"k0": 11, "k1": 10, "k2": 10}


def test_the_pages_example(spark: SparkSession, client: Client, lanelog_url: str, read: Read, tmp_path: Path) -> None:
    """It copies a topic in order, and writes the same messages to Parquet."""
    client.publish_many("orders", [(f"order-{n % 3}", b"%d" % n) for n in range(30)])
    block = example(Example.SPARK)
    names = {"spark": spark, "url": lanelog_url, "path": str(tmp_path / "data"), "checkpoint": str(tmp_path / "state")}
    # The test's account has its password in the URL.
    text = block.text.replace(', "passwordEnv": "JOBS_PASSWORD"', "")
    exec(compile(text, block.place, "exec"), names)  # noqa: S102 - the pages are ours
    assert read(subscribe="copies").count() == 30
    assert spark.read.parquet(str(tmp_path / "data")).count() == 30


def test_the_options_of_a_read_are_listed() -> None:
    """The documentation's table names exactly the options that there are."""
    listed = {name.strip(" `") for row in table("Option of a read", "Meaning") for name in row[0].split(",")}
    known = {*options._PLACE, *options._TOPICS, *options._MESSAGES, *options._BATCH, *options._STREAM}
    assert listed == known
