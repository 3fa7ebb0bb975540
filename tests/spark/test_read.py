"""Batch reads: what the format shows of the log, from where to where."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

import lanelog
import lanelog.spark
from lanelog.client import Client
from lanelog.errors import ConfigurationError
from support.spark import Read

pytestmark = pytest.mark.thorough


def test_filters_unions_and_counts_do_not_disturb_each_other(client: Client, read: Read) -> None:
    """A filter restricts its own query alone: not the other side of a union, nor a count that follows."""
    client.publish_many("t", [(f"k{n % 5}", b"x") for n in range(100)])
    client.publish_many("u", [(f"k{n % 5}", b"x") for n in range(50)])
    t, u = read(subscribe="t"), read(subscribe="u")
    assert (t.where("key = 'k1'").count(), t.count()) == (20, 100)
    assert t.where("key = 'k2' and offset > 10").count() == 10
    assert (t.where("key = 'k1'").union(t).count(), t.union(u).where("key = 'k1'").count()) == (120, 30)
    assert t.where("offset = 1").union(u.where("offset = 2")).groupBy("topic").count().count() == 2
    assert (read(subscribe="t").where("key = 'k3'").count(), read(subscribe="t").count()) == (20, 100)
    assert u.count() == 50


def test_a_read_sees_what_was_published_until_it_ran(client: Client, read: Read) -> None:
    """Heads are read at a frame's first action, and Spark keeps what it planned: to see more, load again."""
    client.publish("t", "k", b"x")
    frame = read(subscribe="t")
    client.publish("t", "k", b"x")
    assert frame.count() == 2
    client.publish("t", "k", b"x")
    assert (frame.count(), read(subscribe="t").count()) == (2, 3)


def test_many_lanes_and_a_long_one_are_read_in_order(client: Client, read: Read) -> None:
    """Whatever splits and pages cut: each message once, each lane of a partition in order."""
    client.publish_many("t", [("long", b"%d" % n) for n in range(11_000)])
    client.publish_many("t", [(f"k{n:03d}", b"x") for n in range(700)])
    frame = read(subscribe="t", minPartitions="3")
    assert (frame.rdd.getNumPartitions(), frame.count()) == (3, 11_700)
    assert frame.select("topic", "key", "offset").distinct().count() == 11_700
    long = [(row.offset, int(row.value)) for row in frame.where("key = 'long'").select("offset", "value").collect()]
    assert long == [(n + 1, n) for n in range(11_000)]


def test_spark_finds_the_format_by_itself(spark: SparkSession, client: Client, lanelog_url: str) -> None:
    """A session that nobody registered it with reads it all the same; registering it then changes nothing."""
    client.publish("t", "k", b"x")
    other = spark.newSession()
    reader = other.read.format("lanelog").options(url=lanelog_url, subscribe="t")
    assert reader.load().count() == 1
    lanelog.spark.register(other)
    assert reader.load().count() == 1


def test_java_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Without Java, one line says what to install; the same for one that is too old."""
    from lanelog.spark.session import check_java

    check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="openjdk-17-jre-headless"):
        check_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="no java in the PATH"):
        check_java()
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    with pytest.raises(ConfigurationError, match="is Java 11"):
        check_java()
