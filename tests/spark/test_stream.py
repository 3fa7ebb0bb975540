"""Streams: every message once over restarts, within the limits asked for; what is gone is said."""

from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import define, field
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from lanelog.client import Client
from support.spark import Places, lane, purge
from support.waiting import accept, eventually

WITHIN = 240.0
"""A query that hangs is stopped by its test, before the time-out of the tier breaks into a call of the session's."""
pytestmark = pytest.mark.thorough


@define
class Stream:
    """A query over the test's database that keeps what each micro-batch had."""

    spark: SparkSession
    url: str
    state: Path
    kept: dict[int, Places] = field(factory=dict)
    failing: list[int] = field(factory=list)
    """Micro-batches that fail once, after what they had was kept."""
    then: Callable[[int], object] | None = None
    """What happens meanwhile, in each micro-batch."""

    def start(self, *, once: bool = True, **options: str) -> StreamingQuery:
        frame = self.spark.readStream.format("lanelog").options(url=self.url, **options).load()
        writer = frame.writeStream.foreachBatch(self.keep).option("checkpointLocation", str(self.state))
        return (writer.trigger(availableNow=True) if once else writer).start()

    def run(self, **options: str) -> None:
        """Read what is there, and end."""
        query = self.start(**options)
        try:
            assert query.awaitTermination(WITHIN)
        finally:
            query.stop()

    def keep(self, frame: DataFrame, number: int) -> None:
        self.kept[number] = [tuple(row) for row in frame.select("topic", "key", "offset").collect()]
        if self.then is not None:
            self.then(number)
        if number in self.failing:
            self.failing.remove(number)
            raise RuntimeError("the driver dies here")

    @property
    def batches(self) -> list[Places]:
        """What each micro-batch had, last."""
        return [self.kept[number] for number in sorted(self.kept)]

    @property
    def places(self) -> Places:
        return sorted(place for batch in self.batches for place in batch)


@pytest.fixture
def stream(spark: SparkSession, lanelog_url: str, tmp_path: Path) -> Stream:
    return Stream(spark, lanelog_url, tmp_path)


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
    stream.then = lambda number: client.publish_many("t", [("k", b"x"), (f"new{number}", b"x")])
    stream.run(subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="2")
    assert stream.places == lane("k", 1, 2, 3, 4, 5, 6)
    stream.then = None
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
