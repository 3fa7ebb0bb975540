"""Streams: every message once over restarts, within the limits asked for; what is gone is said."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from lanelog.client import Client
from support.spark import last_line
from support.waiting import accept, eventually

Places = list[tuple[str, str, int]]
WITHIN = 90.0


@define
class Stream:
    """A query over the test's database that keeps what each micro-batch had, in files that survive it."""

    spark: SparkSession
    url: str
    directory: Path
    failing: list[int] = field(factory=list)
    """Micro-batches that fail once, after what they had was kept."""

    def start(self, *, once: bool = True, **options: str) -> StreamingQuery:
        frame = self.spark.readStream.format("lanelog").options(url=self.url, **options).load()
        writer = frame.writeStream.foreachBatch(self.keep).option("checkpointLocation", str(self.directory / "state"))
        return (writer.trigger(availableNow=True) if once else writer).start()

    def run(self, **options: str) -> None:
        """Read what is there, and end."""
        query = self.start(**options)
        try:
            assert query.awaitTermination(WITHIN)
        finally:
            query.stop()

    def keep(self, frame: DataFrame, number: int) -> None:
        rows = [list(row) for row in frame.select("topic", "key", "offset").collect()]
        aside = self.directory / "aside"
        aside.write_text(json.dumps(rows))
        aside.replace(self.directory / f"{number:05d}.json")  # at once: `places` is looked at meanwhile
        if number in self.failing:
            self.failing.remove(number)
            raise RuntimeError("the driver dies here")

    @property
    def batches(self) -> list[Places]:
        """What each micro-batch had, last."""
        return [[tuple(r) for r in json.loads(p.read_text())] for p in sorted(self.directory.glob("*.json"))]

    @property
    def places(self) -> Places:
        return sorted(place for batch in self.batches for place in batch)


@pytest.fixture
def stream(spark: SparkSession, lanelog_url: str, tmp_path: Path) -> Stream:
    return Stream(spark, lanelog_url, tmp_path)


def lane(key: str, *offsets: int, topic: str = "t") -> Places:
    return [(topic, key, offset) for offset in offsets]


def purge(client: Client, topic: str) -> None:
    """Remove the lanes of a topic that everybody has drained."""

    def purged() -> bool:
        client.admin.maintain()  # a lane that was emptied in this very millisecond is not idle yet
        return client.admin.topic(topic).lanes == 0

    eventually(purged)


def test_a_restart_goes_on_where_the_checkpoint_is(client: Client, stream: Stream) -> None:
    """Three runs read what was published before each of them: everything once, lanes made meanwhile included."""
    client.publish_many("t", [(key, b"x") for key in "ab" for _ in range(3)])
    stream.run(subscribe="t", startingOffsets="earliest")
    assert stream.places == lane("a", 1, 2, 3) + lane("b", 1, 2, 3)
    client.publish_many("t", [("b", b"x"), ("c", b"x"), ("c", b"x")])
    stream.run(subscribe="t", startingOffsets="earliest")
    stream.run(subscribe="t", startingOffsets="earliest")
    assert stream.places == lane("a", 1, 2, 3) + lane("b", 1, 2, 3, 4) + lane("c", 1, 2)


def test_a_batch_is_bounded(client: Client, stream: Stream) -> None:
    """With maxOffsetsPerTrigger, no micro-batch has more messages; all come, and no long lane holds up a short one."""
    client.publish_many("t", [("long", b"x")] * 40 + [("short", b"x")] * 3)
    stream.run(subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="10")
    assert stream.places == lane("long", *range(1, 41)) + lane("short", 1, 2, 3)
    sizes = [len(batch) for batch in stream.batches]
    assert sizes == [0, 10, 10, 10, 10, 3]
    assert lane("short", 1, 2, 3) == [place for place in stream.batches[1] if place[1] == "short"]


def test_available_now_ends_while_others_publish(client: Client, stream: Stream) -> None:
    """What is published after the run began is another run's, in known lanes and in new ones."""
    client.publish_many("t", [("k", b"x")] * 6)

    def publish_more(frame: DataFrame, number: int) -> None:
        client.publish_many("t", [("k", b"x"), (f"new{number}", b"x")])
        Stream.keep(stream, frame, number)

    frame = stream.spark.readStream.format("lanelog").options(
        url=stream.url, subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="2"
    )
    query = (
        frame.load()
        .writeStream.foreachBatch(publish_more)
        .option("checkpointLocation", str(stream.directory / "state"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WITHIN)
    assert stream.places == lane("k", 1, 2, 3, 4, 5, 6)
    stream.run(subscribe="t")
    assert len(stream.places) == 6 + 2 * 4


def test_latest_is_pinned_by_the_first_batch(client: Client, stream: Stream) -> None:
    """A run that dies over its first micro-batch has fixed where the stream starts: the next one skips nothing."""
    client.publish_many("t", [("k", b"old")] * 3)
    stream.failing = [0]
    with pytest.raises(StreamingQueryException):
        stream.run(subscribe="t")
    client.publish_many("t", [("k", b"new"), ("new", b"new")])
    stream.run(subscribe="t")
    assert stream.places == lane("k", 4) + lane("new", 1)


def test_a_batch_that_failed_is_read_again_as_it_was(client: Client, stream: Stream) -> None:
    """After a crash in the middle, the same micro-batch has the same messages, and none is read twice or left out."""
    client.publish_many("t", [(key, b"x") for key in "ab" for _ in range(4)])
    stream.failing = [2]
    with pytest.raises(StreamingQueryException):
        stream.run(subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="3")
    before = stream.batches
    assert len(before) == 3
    client.publish_many("t", [("a", b"x"), ("c", b"x")])
    stream.run(subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="3")
    assert stream.batches[:3] == before
    assert stream.places == lane("a", 1, 2, 3, 4, 5) + lane("b", 1, 2, 3, 4) + lane("c", 1)


def test_a_running_stream_follows(client: Client, stream: Stream) -> None:
    """New messages, lanes and topics are read as they come, and a lane that was purged and comes back."""
    client.publish("t-1", "k", b"x")
    query = stream.start(once=False, subscribePattern="t-.*", startingOffsets="earliest")
    try:
        query.processAllAvailable()
        client.publish("t-2", "k", b"x")
        client.publish("t-1", "l", b"x")
        eventually(lambda: len(stream.places) == 3, within=WITHIN)
        with client.subscribe("t-1", "g", accept, retention=0) as subscription:
            eventually(lambda: subscription.stats().acked == 2)

        purge(client, "t-1")
        client.publish("t-1", "k", b"x")
        eventually(lambda: len(stream.places) == 4, within=WITHIN)
    finally:
        query.stop()
    assert stream.places == [("t-1", "k", 1), ("t-1", "k", 2), ("t-1", "l", 1), ("t-2", "k", 1)]


def test_what_is_gone_below_a_checkpoint_is_an_error(
    client: Client, stream: Stream, consume: Callable[[str, int], None]
) -> None:
    """A restart that finds its next messages collected says so; without failOnDataLoss it goes on with what is left."""
    client.publish_many("t", [("k", b"x"), ("other", b"x")])
    stream.run(subscribe="t", startingOffsets="earliest")
    client.publish_many("t", [("k", b"x")] * 3)
    consume("t", 5)
    client.publish("t", "k", b"y")
    with pytest.raises(StreamingQueryException) as failed:
        stream.run(subscribe="t")
    assert "3 messages of topic 't', key 'k' are gone, among offsets 2 to 4" in str(failed.value)
    assert stream.places == lane("k", 1) + lane("other", 1)
    stream.run(subscribe="t", failOnDataLoss="false")
    assert stream.places == lane("k", 1, 5) + lane("other", 1)


def test_what_is_gone_of_a_lane_that_the_stream_never_saw_is_an_error(
    client: Client, stream: Stream, consume: Callable[[str, int], None]
) -> None:
    """A lane is born, and partly collected, between two runs: the second says so, or goes on with what is left."""
    client.publish_many("t", [("old", b"x")] * 2)
    stream.run(subscribe="t", startingOffsets="earliest")
    client.publish_many("t", [("new", b"x")] * 5)
    consume("t", 7)
    client.publish_many("t", [("new", b"y")] * 2)
    with pytest.raises(StreamingQueryException) as failed:
        stream.run(subscribe="t")
    assert "5 messages of topic 't', key 'new' are gone, among offsets 1 to 5" in last_line(failed.value)
    stream.run(subscribe="t", failOnDataLoss="false")
    assert stream.places == lane("new", 6, 7) + lane("old", 1, 2)


def test_what_is_gone_of_a_lane_that_came_back_is_an_error(
    client: Client, stream: Stream, consume: Callable[[str, int], None]
) -> None:
    """Purged lanes come back above their last message, and new ones begin there: a loss only from there on."""
    client.publish_many("t", [("k", b"x")] * 3)
    stream.run(subscribe="t", startingOffsets="earliest")
    consume("t", 3)
    purge(client, "t")
    client.publish_many("t", [(key, b"x") for key in ("k", "new") for _ in range(2)])
    stream.run(subscribe="t")
    assert stream.places == lane("k", 1, 2, 3, 4, 5) + lane("new", 4, 5)
    consume("t", 4)
    purge(client, "t")
    client.publish_many("t", [("k", b"x")] * 3)
    consume("t", 3)
    client.publish("t", "k", b"y")
    with pytest.raises(StreamingQueryException) as failed:
        stream.run(subscribe="t")
    assert "3 messages of topic 't', key 'k' are gone, among offsets 6 to 8" in last_line(failed.value)


def test_what_was_gone_before_a_stream_came_is_no_error(
    client: Client, stream: Stream, consume: Callable[[str, int], None]
) -> None:
    """Lanes half collected when the first micro-batch pins them, and in a topic that is added to the options later."""
    for topic in "tu":
        client.publish_many(topic, [("k", b"x")] * 3)
        consume(topic, 3)
        client.publish(topic, "k", b"y")
    stream.run(subscribePattern="t")
    assert stream.places == []
    client.publish_many("t", [("k", b"x"), ("new", b"x")])
    stream.run(subscribe="t")
    stream.run(subscribe="t,u")
    seen = [*lane("k", 5), *lane("new", 1), *lane("k", 4, topic="u")]
    assert stream.places == seen
    client.publish_many("v", [("k", b"x")] * 3)
    consume("v", 3)
    client.publish("v", "k", b"y")
    client.publish("t", "newer", b"x")
    stream.run(subscribe="t,u")
    stream.run(subscribePattern=".")
    assert stream.places == sorted([*seen, *lane("newer", 1), *lane("k", 4, topic="v")])


def test_what_is_gone_of_a_topic_that_appeared_is_an_error(
    client: Client, stream: Stream, consume: Callable[[str, int], None]
) -> None:
    """A topic that matches is created, and partly collected, between two runs."""
    client.publish("t-1", "k", b"x")
    stream.run(subscribePattern="t-.*", startingOffsets="earliest")
    client.publish_many("t-2", [("k", b"x")] * 3)
    consume("t-2", 3)
    client.publish("t-2", "k", b"y")
    with pytest.raises(StreamingQueryException) as failed:
        stream.run(subscribePattern="t-.*")
    assert "3 messages of topic 't-2', key 'k' are gone, among offsets 1 to 3" in last_line(failed.value)


def test_a_log_that_went_back_is_an_error(client: Client, stream: Stream, raw: Any) -> None:
    """A checkpoint beyond the lane's head, as after a restore of an old backup, would skip what comes next."""
    client.publish_many("t", [("k", b"x")] * 3)
    stream.run(subscribe="t", startingOffsets="earliest")
    with raw.cursor() as cursor:
        cursor.execute("DELETE FROM queue_messages WHERE `offset` > 1")
        cursor.execute("UPDATE queue_partitions SET head_offset = 1 WHERE partition_key = 'k'")
    with pytest.raises(StreamingQueryException, match="key 'k' are gone, among offsets 2 to 3"):
        stream.run(subscribe="t")


def test_a_log_that_went_back_is_read_on_from_its_end(client: Client, stream: Stream, raw: Any) -> None:
    """Without failOnDataLoss, what is published under offsets that were read and then lost is read, each once."""
    client.publish_many("t", [("k", b"x")] * 5 + [("other", b"x")])
    stream.run(subscribe="t", startingOffsets="earliest")
    with raw.cursor() as cursor:
        cursor.execute("DELETE FROM queue_messages WHERE `offset` > 2")
        cursor.execute("UPDATE queue_partitions SET head_offset = 2 WHERE partition_key = 'k'")
    stream.run(subscribe="t", failOnDataLoss="false")
    client.publish_many("t", [("k", b"new")] * 5 + [("other", b"new")])
    stream.run(subscribe="t")
    assert stream.places == sorted(lane("k", 1, 2, 3, 4, 5) + lane("k", 3, 4, 5, 6, 7) + lane("other", 1, 2))


def test_a_stream_of_a_group_starts_at_its_watermark(client: Client, stream: Stream) -> None:
    """And a group that is not registered is refused: collection would not wait for it."""
    client.publish_many("t", [("k", b"x")] * 3)
    with pytest.raises(StreamingQueryException) as refused:
        stream.run(subscribe="t", groupId="g")
    assert last_line(refused.value).endswith("group 'g' is not registered for topic 't'")
    with client.subscribe("t", "g", accept) as subscription:
        eventually(lambda: subscription.stats().acked == 3)
    client.publish_many("t", [("k", b"x"), ("l", b"x")])
    stream.run(subscribe="t", groupId="g")
    assert stream.places == lane("k", 4) + lane("l", 1)


def test_a_stream_of_a_group_waits_for_it_in_new_topics(client: Client, stream: Stream) -> None:
    """By pattern, a topic is left out until the group is registered there; its watermark is the start, as ever."""
    client.publish("t-1", "k", b"x")
    with client.subscribe("t-1", "g", accept, retention=0) as subscription:
        eventually(lambda: subscription.stats().acked == 1)
    query = stream.start(once=False, subscribePattern="t-.*", groupId="g")
    try:
        query.processAllAvailable()
        client.publish_many("t-2", [("k", b"x")] * 2)
        client.publish("t-1", "k", b"x")
        eventually(lambda: stream.places == lane("k", 2, topic="t-1"), within=WITHIN)
    finally:
        query.stop()
    with client.subscribe("t-2", "g", accept, start="latest"):
        pass
    client.publish("t-2", "k", b"y")
    stream.run(subscribePattern="t-.*", groupId="g")
    assert stream.places == lane("k", 2, topic="t-1") + lane("k", 3, topic="t-2")
    client.admin.delete_group("t-1", "g")
    with pytest.raises(StreamingQueryException) as refused:
        stream.run(subscribePattern="t-.*", groupId="g")
    assert last_line(refused.value).endswith("group 'g' is not registered for topic 't-1'")


def test_a_stream_of_a_group_that_nobody_knows_is_refused(client: Client, stream: Stream) -> None:
    """A name that is registered for no topic that matches would wait for ever; a batch refuses any such topic."""
    client.publish("t", "k", b"x")
    with pytest.raises(StreamingQueryException) as refused:
        stream.run(subscribePattern="t.*", groupId="nobody")
    assert last_line(refused.value).endswith("group 'nobody' is not registered for topic 't'")
