"""The main paths of the tier, once each: the format, a stream, the example of its page; archive, replay, analysis."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.csv
import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

import lanelog
from lanelog.cli._main import cli
from lanelog.client import Client
from lanelog.spark import Replayed, read_archive, replay
from lanelog.spark.analysing import analysis
from lanelog.spark.source import options
from lanelog.spark.source.schema import TABLES
from support.archives import Archive, Held, publish
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


@pytest.mark.thorough
def test_a_group_reads_from_its_watermark(client: Client, read: Read) -> None:
    """With groupId: what the group has not acked, lanes included that it has never seen."""
    client.publish_many("t", [("a", b"x")] * 3)
    with client.subscribe("t", "g", accept) as subscription:
        eventually(lambda: subscription.stats().acked == 3)
    client.publish_many("t", [("a", b"x"), ("b", b"x")])
    found = read(subscribe="t", groupId="g").collect()
    assert sorted((row.topic, row.key, row.offset) for row in found) == [("t", "a", 4), ("t", "b", 1)]


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_a_second_write_adds_nothing(spark: SparkSession, client: Client, lanelog_url: str, read: Read) -> None:
    """Ids decide: the rows of a run that is repeated are duplicates, and what is new among them is added."""
    frame = spark.range(2500).selectExpr(
        "'t' AS topic", "concat('k', id % 7) AS key", "cast(id AS string) AS value", "concat('id-', id) AS id"
    )
    write(frame, lanelog_url)
    assert read(subscribe="t").count() == 2500
    write(frame.union(frame.selectExpr("topic", "key", "value", "concat('new-', id) AS id").limit(1)), lanelog_url)
    assert read(subscribe="t").count() == 2501


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_the_pages_example(spark: SparkSession, client: Client, lanelog_url: str, read: Read, tmp_path: Path) -> None:
    """The example copies a topic in order, and writes the same messages to Parquet."""
    client.publish_many("orders", [(f"order-{n % 3}", b"%d" % n) for n in range(30)])
    block = example(Example.SPARK)
    names = {"spark": spark, "url": lanelog_url, "path": str(tmp_path / "data"), "checkpoint": str(tmp_path / "state")}
    # The test's account has its password in the URL.
    text = block.text.replace(', "passwordEnv": "JOBS_PASSWORD"', "")
    exec(compile(text, block.place, "exec"), names)  # noqa: S102 - the pages are ours
    assert (read(subscribe="copies").count(), spark.read.parquet(str(tmp_path / "data")).count()) == (30, 30)


def test_the_options_of_a_read_are_listed() -> None:
    """The documentation's table names exactly the options that there are."""
    listed = {name.strip(" `") for row in table("Option of a read", "Meaning") for name in row[0].split(",")}
    known = {*options._ADDRESS, *options._TOPICS, *options._MESSAGES, *options._BATCH, *options._STREAM}
    assert listed == known


@pytest.mark.thorough
def test_everything_is_archived_once_and_as_it_was(
    spark: SparkSession, client: Client, read: Read, archive: Archive, archived: Held, path: str
) -> None:
    """All columns as the live log has them; a second run adds what is new."""
    wanted = publish(client, "t", 40) + publish(client, "häh/ü=%1," + "x" * 200, 10)
    client.publish("u", "schlüssel 🔑", b"\x00\xff", id="eins", metadata={"häh": "é🙂", "": "leer"})
    wanted["u", "schlüssel 🔑", 1] += 1
    with client.subscribe("u", "workers", refuse) as subscription:
        eventually(lambda: subscription.stats().dead_lettered == 1, within=240)
    wanted["u_dlq", "schlüssel 🔑", 1] += 1
    done = archive()
    assert (done.messages, done.total, archived()) == (52, 52, wanted)
    live = read(subscribePattern=".*").orderBy("topic", "key", "offset").collect()
    assert read_archive(spark, path).orderBy("topic", "key", "offset").collect() == live
    assert [row.last_error for row in live if row.topic == "u_dlq"] == ["no"]

    wanted += publish(client, "t", 7, lanes=9)
    assert (archive().messages, archived(), client.admin.groups("t")[0].lag) == (7, wanted, 0)


def refuse(_message: object) -> None:
    raise lanelog.Reject("no")


@pytest.mark.thorough
def test_a_replay_is_the_same_messages_in_their_order_once(
    spark: SparkSession, client: Client, read: Read, archive: Archive, lanelog_url: str, path: str
) -> None:
    """Into another topic, and marked as what they are; the same replay adds nothing. A dry run only counts."""
    client.publish_many("t", [lanelog.Outgoing(f"k{n % 6}", f"{n}", f"id-{n}", {"n": str(n)}) for n in range(60)])
    archive()

    def again(**options: bool) -> Replayed:
        return replay(path, topics=["t"], to="copy", url=lanelog_url, spark=spark, **options)

    counted = again(dry_run=True)
    assert (counted.chosen, counted.published, counted.topics[0]["keys"]) == (60, 0, 6)
    assert "copy" not in [topic.topic for topic in client.admin.topics()]
    done = again()
    assert (done.chosen, done.published, done.duplicates) == (60, 60, 0)
    found = read(subscribe="copy").orderBy("key", "offset").collect()
    assert [(row.key, bytes(row.value)) for row in found] == [
        (f"k{key}", b"%d" % n) for key in range(6) for n in range(key, 60, 6)
    ]
    given = {"n": "0", "content-type": "text/plain; charset=utf-8"}
    assert found[0].metadata == {**given, "lanelog.original_id": "id-0", "lanelog.replay": done.name}
    assert client.admin.groups("copy") == []
    same = again()
    assert (same.done_before, same.published) == (True, 0)


@pytest.mark.thorough
def test_the_command_writes_tables_and_a_report(
    spark: SparkSession, client: Client, lanelog_url: str, tmp_path: Path
) -> None:
    """The command says what it counted and where the report is; there is a file for every table, and nothing else."""
    publish(client, "t", 6, lanes=2)
    output = tmp_path / "results"
    ran = CliRunner().invoke(
        cli, ["analyze", "--url", lanelog_url, "--output", str(output), "--format", "csv", "--topics", "t", "--json"]
    )
    assert ran.exit_code == 0, ran.output
    answer = json.loads(ran.stdout[ran.stdout.index("{") :])
    assert (answer["messages"], answer["lanes"], answer["report"]) == (6, 2, str(output / "report.html"))
    assert sorted(path.name for path in output.iterdir()) == sorted(
        ["report.html", *(f"{name}.csv" for name in analysis.ORDER)]
    )
    assert pyarrow.csv.read_csv(output / "skew.csv").to_pylist()[0]["messages"] == 6
