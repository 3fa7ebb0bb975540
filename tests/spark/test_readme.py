"""The README's example for Spark, executed, and its table of options against the code."""

from pathlib import Path

from pyspark.sql import SparkSession

from lanelog.client import Client
from lanelog.spark import _options
from support.readme import Example, example, table
from support.spark import Read


def test_spark(spark: SparkSession, client: Client, lanelog_url: str, read: Read, tmp_path: Path) -> None:
    """It copies a topic in order, and writes the same messages to Parquet."""
    client.publish_many("orders", [(f"order-{n % 3}", b"%d" % n) for n in range(30)])
    block = example(Example.SPARK)
    names = {"spark": spark, "url": lanelog_url, "path": str(tmp_path / "data"), "checkpoint": str(tmp_path / "state")}
    # The test's account has its password in the URL.
    text = block.text.replace(', "passwordEnv": "JOBS_PASSWORD"', "")
    exec(compile(text, f"README.md:{block.line}", "exec"), names)  # noqa: S102 - the README is ours
    assert read(subscribe="copies").count() == 30
    assert spark.read.parquet(str(tmp_path / "data")).count() == 30


def test_the_options_of_a_read_are_listed() -> None:
    """The README's table names exactly the options that there are."""
    listed = {name.strip(" `") for row in table("Option of a read", "Meaning") for name in row[0].split(",")}
    known = {*_options._PLACE, *_options._TOPICS, *_options._MESSAGES, *_options._BATCH, *_options._STREAM}
    assert listed == known
