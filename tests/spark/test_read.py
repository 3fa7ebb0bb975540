"""Batch reads: what the format shows of the log, from where to where."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documentation gives it
from pyspark.testing import assertDataFrameEqual

import lanelog
import lanelog.spark
from lanelog.client import Client
from lanelog.errors import ConfigurationError
from lanelog.spark._schema import TABLES
from support.spark import Read
from support.waiting import accept, eventually


def places(frame: Any) -> list[tuple[str, str, int]]:
    return sorted((row.topic, row.key, row.offset) for row in frame.select("topic", "key", "offset").collect())


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


def test_filters_unions_and_counts_do_not_disturb_each_other(client: Client, read: Read) -> None:
    """A filter restricts its own query alone: not the other side of a union, nor a count that follows."""
    client.publish_many("t", [(f"k{n % 5}", b"x") for n in range(100)])
    client.publish_many("u", [(f"k{n % 5}", b"x") for n in range(50)])
    t, u = read(subscribe="t"), read(subscribe="u")
    assert t.where("key = 'k1'").count() == 20
    assert t.count() == 100
    assert t.where("key = 'k2' and offset > 10").count() == 10
    assert t.where("key = 'k1'").union(t).count() == 120
    assert t.union(u).where("key = 'k1'").count() == 30
    assert t.where("offset = 1").union(u.where("offset = 2")).groupBy("topic").count().count() == 2
    assert read(subscribe="t").where("key = 'k3'").count() == 20
    assert read(subscribe="t").count() == 100
    assert u.count() == 50


def test_a_read_sees_what_was_published_until_it_ran(client: Client, read: Read) -> None:
    """Heads are read at a frame's first action, and Spark keeps what it planned: to see more, load again."""
    client.publish("t", "k", b"x")
    frame = read(subscribe="t")
    client.publish("t", "k", b"x")
    assert frame.count() == 2
    client.publish("t", "k", b"x")
    assert frame.count() == 2
    assert read(subscribe="t").count() == 3


def test_topics_are_chosen_by_name_or_pattern(client: Client, read: Read) -> None:
    """A list of names, or a regular expression that matches a whole name; one that matches nothing reads nothing."""
    for topic in ("orders", "orders_dlq", "repairs"):
        client.publish(topic, "k", b"x")
    assert places(read(subscribe="repairs, orders")) == [("orders", "k", 1), ("repairs", "k", 1)]
    assert places(read(subscribePattern="orders")) == [("orders", "k", 1)]
    assert places(read(subscribePattern="o.*")) == [("orders", "k", 1), ("orders_dlq", "k", 1)]
    assert read(subscribePattern="nothing").count() == 0


def test_a_range_is_given_per_lane(client: Client, read: Read) -> None:
    """Starting offsets are the first to be read, ending offsets the first not to be; other lanes are read wholly."""
    client.publish_many("t", [(key, b"x") for key in "abc" for _ in range(5)])
    starting = json.dumps({"t": {"a": 4, "b": -2}})
    ending = json.dumps({"t": {"b": 3, "c": -1}})
    found = places(read(subscribe="t", startingOffsets=starting, endingOffsets=ending))
    wanted = {"a": [4, 5], "b": [1, 2], "c": [1, 2, 3, 4, 5]}
    assert found == [("t", key, offset) for key in wanted for offset in wanted[key]]
    assert read(subscribe="t", startingOffsets='{"t": {"a": 6, "b": 6, "c": 6}}').count() == 0
    purged = dict.fromkeys(("startingOffsets", "endingOffsets"), '{"t": {"gone": 5}}')
    assert read(subscribe="t", **purged).count() == 15


def test_an_instant_is_found_in_every_lane(client: Client, read: Read, raw: Any) -> None:
    """A startingTimestamp reads what was written from that millisecond on, in lanes of any length."""
    client.publish_many("t", [(key, b"x") for key, count in (("a", 9), ("b", 1), ("c", 30)) for _ in range(count)])
    with raw.cursor() as cursor:
        cursor.execute("UPDATE queue_messages SET created_at = 1000 * `offset`")
    assert places(read(subscribe="t", startingTimestamp="8500")) == [
        ("t", "a", 9),
        *(("t", "c", offset) for offset in range(9, 31)),
    ]
    assert read(subscribe="t", startingTimestamp="1000").count() == 40
    assert read(subscribe="t", startingTimestamp="30001").count() == 0


def test_a_group_reads_from_its_watermark(client: Client, read: Read) -> None:
    """With groupId: what the group has not acked, lanes included that it has never seen."""
    client.publish_many("t", [("a", b"x")] * 3)
    with client.subscribe("t", "g", accept) as subscription:
        eventually(lambda: subscription.stats().acked == 3)
    client.publish_many("t", [("a", b"x"), ("b", b"x")])
    assert places(read(subscribe="t", groupId="g")) == [("t", "a", 4), ("t", "b", 1)]


def test_payloads_may_stay_behind(client: Client, read: Read) -> None:
    """With includePayload=false, a read brings everything else, their sizes too."""
    client.publish("t", "k", b"x" * 100_000)
    row = read(subscribe="t", includePayload="false").first()
    assert row is not None
    assert (row.value, row.payload_bytes) == (None, 100_000)


def test_a_dead_letter_says_where_it_comes_from(client: Client, read: Read) -> None:
    """Original topic and offset, group, time, count and error; a redriven message names the group it is for."""

    def refuse(_message: lanelog.Message) -> None:
        raise lanelog.Reject("bad \N{PILE OF POO} 'input'")

    client.publish("t", "k", b"x", id="one", metadata={"a": "b"})
    with client.subscribe("t", "g", refuse):
        eventually(lambda: client.admin.dead_letters("t", "g"))
    row = read(subscribe="t_dlq").first()
    assert row is not None
    assert (row.original_topic, row.original_offset, row.failed_group) == ("t", 1, "g")
    assert "bad \N{PILE OF POO} 'input'" in row.last_error
    assert row.failure_count == 1
    assert row.failed_at == row.created_at
    assert row.metadata == {"a": "b", "lanelog.original_id": "one"}
    client.admin.redrive("t", "g", all=True)
    again = read(subscribe="t").orderBy("offset").collect()
    assert [(r.original_topic, r.failed_at, r.target_group) for r in again] == [(None, None, None), (None, None, "g")]


def test_many_lanes_and_a_long_one_are_read_in_order(client: Client, read: Read) -> None:
    """Whatever splits and pages cut: each message once, each lane of a partition in order."""
    client.publish_many("t", [("long", b"%d" % n) for n in range(11_000)])
    client.publish_many("t", [(f"k{n:03d}", b"x") for n in range(700)])
    frame = read(subscribe="t", minPartitions="3")
    assert frame.rdd.getNumPartitions() == 3
    assert frame.count() == 11_700
    assert frame.select("topic", "key", "offset").distinct().count() == 11_700
    long = [(row.offset, int(row.value)) for row in frame.where("key = 'long'").select("offset", "value").collect()]
    assert long == [(n + 1, n) for n in range(11_000)]


def test_the_tables_are_read_as_they_are(client: Client, read: Read) -> None:
    """Watermarks, exceptions, leases and groups, typed; of all topics, of some, or of one group."""
    client.publish_many("t", [("a", b"x")] * 3)
    client.publish("u", "a", b"x")
    held = []

    def hold(message: lanelog.Message) -> None:
        held.append(message)
        if message.topic == "t" and message.offset == 3:
            raise lanelog.Retry(delay=500)

    with client.subscribe(["t", "u"], "g", hold) as subscription:
        eventually(lambda: len(held) == 4 and subscription.stats().acked == 3)
        eventually(lambda: client.admin.lanes("t", "g")[0].waiting)
        leases = read(table="leases").orderBy("topic").collect()
        assert [(row.topic, row.key, row.lease_epoch > 0, row.leased_at is not None) for row in leases] == [
            ("t", "a", True, True),
            ("u", "a", True, True),
        ]
    offsets = read(table="offsets")
    assert offsets.schema == TABLES["offsets"]
    found = {(row.consumer_group, row.topic): row for row in offsets.collect()}
    assert found.keys() == {("", "t"), ("", "u"), ("g", "t"), ("g", "u")}
    assert found["g", "t"].offset_acked == 2
    assert found["g", "t"].paused_at is None
    assert read(table="offsets", subscribe="u", groupId="g").count() == 1
    state = read(table="delivery_state", subscribe="t").collect()
    assert [(row.message_offset, row.acked, row.retry_count) for row in state] == [(3, False, 1)]
    assert state[0].invisible_until > state[0].first_attempt_at
    groups = read(table="groups").orderBy("topic").collect()
    assert [(row.consumer_group, row.topic, row.delivery_order) for row in groups] == [
        ("g", "t", "strict"),
        ("g", "u", "strict"),
    ]


def test_long_tables_are_read_page_by_page(client: Client, read: Read, raw: Any) -> None:
    """Outcomes by lane, or from an instant on by the time they finished: each row once, in pages of thousands."""
    client.publish("t", "k", b"x")
    with client.subscribe("t", "g", accept):
        pass
    values = ",".join(f"('g','t','k{n % 7}',{n},'{n}','success',{1000 + n // 3000})" for n in range(1, 6001))
    with raw.cursor() as cursor:
        cursor.execute(
            "REPLACE INTO queue_history "
            f"(consumer_group, topic, partition_key, message_offset, id, outcome, finished_at) VALUES {values}"
        )
    history = read(table="history", subscribe="t")
    assert history.schema == TABLES["history"]
    assert history.where("outcome = 'success' and id <> ''").select("key", "message_offset").distinct().count() >= 6000
    since = read(table="history", subscribe="t", groupId="g", startingTimestamp="1001")
    assert since.where(F.unix_millis("finished_at") < 2000).agg(F.count("*"), F.min("message_offset")).first() == (
        3001,
        3000,
    )


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
    from lanelog.spark._session import check_java

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
