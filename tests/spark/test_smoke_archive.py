"""The main paths of archive, replay and analysis, once each."""

import json
from pathlib import Path

import pyarrow.csv
from click.testing import CliRunner
from pyspark.sql import SparkSession

import lanelog
from lanelog.cli._main import cli
from lanelog.client import Client
from lanelog.spark import Replayed, read_archive, replay
from lanelog.spark.analysing import analysis
from support.archives import Archive, Held, publish
from support.spark import Read
from support.waiting import eventually


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
    assert (done.messages, done.total) == (52, 52)
    assert archived() == wanted
    live = read(subscribePattern=".*").orderBy("topic", "key", "offset").collect()
    assert read_archive(spark, path).orderBy("topic", "key", "offset").collect() == live
    assert [row.last_error for row in live if row.topic == "u_dlq"] == ["no"]

    wanted += publish(client, "t", 7, lanes=9)
    assert archive().messages == 7
    assert archived() == wanted
    assert client.admin.groups("t")[0].lag == 0


def refuse(_message: object) -> None:
    raise lanelog.Reject("no")


def test_a_replay_is_the_same_messages_in_their_order_once(
    spark: SparkSession, client: Client, read: Read, archive: Archive, lanelog_url: str, path: str
) -> None:
    """Into another topic, and marked as what they are; the same replay adds nothing. A dry run only counts."""
    client.publish_many("t", [lanelog.Outgoing(f"k{n % 6}", f"{n}", f"id-{n}", {"n": str(n)}) for n in range(60)])
    archive()

    def again(**options: bool) -> Replayed:
        return replay(path, topics=["t"], to="copy", url=lanelog_url, spark=spark, **options)

    looked = again(dry_run=True)
    assert (looked.chosen, looked.published, looked.topics[0]["keys"]) == (60, 0, 6)
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


def test_the_command_writes_tables_and_a_report(
    spark: SparkSession, client: Client, lanelog_url: str, tmp_path: Path
) -> None:
    """It says what it counted and where the report is; there is a file for every table, and nothing else."""
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
