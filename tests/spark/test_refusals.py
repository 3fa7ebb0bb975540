"""Bad input: one clear line, the password in none, and nothing written."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from lanelog.client import Client
from lanelog.errors import ConfigurationError
from lanelog.spark.errors import one_line
from lanelog.spark.source.options import parse_read
from lanelog.spark.source.stream import LanelogStreamReader
from support.accounts import account
from support.spark import PASSWORD, PASSWORD_VARIABLE, Read, last_line, reader_of, rows_of
from support.sql import one
from support.waiting import accept, eventually

pytestmark = pytest.mark.thorough

SCHEMA = "topic string, key string, value binary, id string"
UNREACHABLE = "mysql://app:s3cret-in-url@127.0.0.1:1/jobs"


def refused(run: Any) -> str:
    with pytest.raises(Exception, match=r"lanelog\.\w+") as caught:
        run()
    assert "s3cret" not in str(caught.value)
    return last_line(caught.value)


def test_what_cannot_be_read_says_so(spark: SparkSession, client: Client, read: Read, raw: Any) -> None:
    """An unknown option, a topic that is not there, another's schema, tables of another version: one line each."""
    client.publish("t", "k", b"x")
    assert "unknown option 'subscribee'" in refused(lambda: read(subscribee="t"))
    assert "topic 'nope' does not exist" in refused(read(subscribe="nope").count)
    own = spark.read.format("lanelog").schema("a int").option("url", UNREACHABLE).option("subscribe", "t")
    assert "leave out schema()" in refused(own.load().count)
    with raw.cursor() as cursor:
        cursor.execute("INSERT INTO queue_schema (version, checksum, oldest_code) VALUES (99, 'x', 99)")
    assert "are of version 99" in refused(read(subscribe="t").count)


def unread(url: str, **options: str) -> str:
    """The line with which a batch is refused, where no JVM takes part."""
    with pytest.raises(ConfigurationError) as caught:
        rows_of(reader_of(url, **options))
    return str(caught.value)


def test_a_group_that_is_registered_nowhere_is_refused(client: Client, lanelog_url: str) -> None:
    """A name that is spelt wrong would show no rows, of messages or of a table; outcomes alone outlive their group."""
    client.publish("t", "k", b"x")
    client.publish("u", "k", b"x")
    with client.subscribe("t", "g", accept) as subscription:
        eventually(lambda: subscription.stats().acked == 1)
    for table in ("offsets", "delivery_state", "leases", "groups"):
        assert unread(lanelog_url, table=table, groupId="gg") == "group 'gg' is not registered for any topic"
    assert rows_of(reader_of(lanelog_url, table="history", groupId="gg")) == []
    assert len(rows_of(reader_of(lanelog_url, table="groups", groupId="g"))) == 1
    assert rows_of(reader_of(lanelog_url, table="offsets", groupId="g", subscribe="u")) == []
    for what in ({"subscribe": "t,u"}, {"subscribePattern": "."}):
        assert "group 'g' is not registered for topic 'u'" in unread(lanelog_url, groupId="g", **what)


def test_offsets_of_a_topic_that_is_not_read_are_refused(client: Client, lanelog_url: str) -> None:
    """A name that is spelt wrong in the offsets would be read wholly, without a word; in a stream as well."""
    client.publish("t", "k", b"x")
    client.publish("u", "k", b"x")
    for other in ("u", "tt"):
        offsets = f'{{"t": {{"k": 1}}, "{other}": {{"k": 1}}}}'
        for what in ({"subscribe": "t"}, {"subscribePattern": "t.*"}):
            for option in ("startingOffsets", "endingOffsets"):
                said = unread(lanelog_url, **what, **{option: offsets})
                assert f"{option} names topic '{other}', which is not read" in said
        options = {"url": lanelog_url, "subscribe": "t", "startingoffsets": offsets}
        stream = LanelogStreamReader(parse_read(options, streaming=True))
        with pytest.raises(ConfigurationError, match=f"startingOffsets names topic '{other}', which is not read"):
            stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
        stream.stop()


WAITED = (
    "An error occurred while calling o97.getResult.\n: E: {0}\n\tat a.b(C.scala:70)\n"
    "Caused by: E: {0}\n\tat a.b(C.scala:7)\nCaused by: E: {1}\n\tat a.b(C.scala:1)\nCaused by: E: another"
)
"""An error of Spark's, with causes."""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "An error occurred while calling o7.collect.\n: org.apache.spark.SparkException: Job aborted\n\tat a.B",
            "org.apache.spark.SparkException: Job aborted",
        ),
        (
            "[X] Failed: Traceback (most recent call last):\n  File 1\nlanelog.errors.DatabaseError: denied\n\tat a.B",
            "denied",
        ),
        ("\n  no file at mysql://app:s3cret@db:3306/jobs, app@db", "no file at mysql://***@db:3306/jobs, app@db"),
        ("", ""),
        (WAITED.format("Exception thrown in awaitResult: ", "Job aborted: too big"), "E: Job aborted: too big"),
        (WAITED.format("no", "why"), "E: no"),
        ("SparkException: Exception thrown in awaitResult: ", "SparkException: Exception thrown in awaitResult:"),
    ],
)
def test_of_what_spark_says_one_line_is_shown(text: str, line: str) -> None:
    """The first that says something, or that of an error of this package; no password of a URL.

    Of an error that says only that it waited, its first cause that says more is shown.
    """
    assert one_line(text) == line


def test_a_database_that_does_not_answer_fails_at_once(spark: SparkSession) -> None:
    """Reading and writing, without showing the password."""
    options = {"url": UNREACHABLE, "subscribe": "t"}
    assert "DatabaseError" in refused(spark.read.format("lanelog").options(**options).load().count)
    frame = spark.createDataFrame([("t", "k", b"x", "1")], SCHEMA)
    writer = frame.write.format("lanelog").option("url", UNREACHABLE).mode("append")
    assert "DatabaseError" in refused(writer.save)


def test_the_log_is_never_overwritten(spark: SparkSession, client: Client, lanelog_url: str, read: Read) -> None:
    """Every mode but append is refused, and what was there stays."""
    client.publish("t", "k", b"x")
    frame = spark.createDataFrame([("t", "k", b"y", "1")], SCHEMA)
    writer = frame.write.format("lanelog").option("url", lanelog_url)
    assert 'write with mode("append")' in refused(writer.mode("overwrite").save)
    for mode in ("error", "ignore"):
        with pytest.raises(Exception, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
            writer.mode(mode).save()
    assert [row.value for row in read(subscribe="t").collect()] == [bytearray(b"x")]


def test_the_password_may_stay_in_the_environment(
    spark: SparkSession, client: Client, lanelog_url: str, raw: Any
) -> None:
    """With passwordEnv, driver and tasks log in, and no plan shows the password; nor does one show that of a URL."""
    with account(raw, lanelog_url, {"*": "SELECT, INSERT, UPDATE"}, PASSWORD) as with_url:
        url = with_url.replace(f":{PASSWORD}@", "@")
        frame = spark.createDataFrame([("t", "k", b"x", "1")], SCHEMA)
        options = {"url": url, "passwordEnv": PASSWORD_VARIABLE}
        frame.write.format("lanelog").options(**options).mode("append").save()
        found = spark.read.format("lanelog").options(**options).option("subscribe", "t").load()
        assert found.count() == 1
        shown = spark.read.format("lanelog").options(url=with_url, subscribe="t").load()
        assert shown.count() == 1
        for each in (found, shown):
            plan = each._jdf.queryExecution().toString()  # type: ignore[operator] # all four plans
            assert "lanelog" in plan
            assert PASSWORD not in plan
        assert one(raw, "SELECT COUNT(*) FROM queue_messages") == 1
