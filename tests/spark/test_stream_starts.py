"""Where streams start, and what they say is gone. Spark's part, from checkpoint to checkpoint, is played: no JVM."""

from collections.abc import Callable
from typing import Any

import pytest
from attrs import define, field

import lanelog
from lanelog.client import Client
from lanelog.spark import DataLost
from lanelog.spark.source.options import parse_read
from lanelog.spark.source.stream import LanelogStreamReader
from support.spark import Places, lane, places, purge, rows_of
from support.sql import rows
from support.waiting import accept, eventually

pytestmark = pytest.mark.thorough


@define
class Stream:
    """Runs that read what is there, and end, each from where the checkpoint of the last one is."""

    url: str
    checkpoint: dict[str, Any] | None = None
    seen: list[dict[str, Any]] = field(factory=list)

    def reader(self, **options: str) -> LanelogStreamReader:
        given = {name.lower(): value for name, value in options.items()}
        return LanelogStreamReader(parse_read({"url": self.url, **given}, streaming=True))

    def run(self, **options: str) -> None:
        reader = self.reader(**options)
        try:
            reader.prepareForTriggerAvailableNow()
            self.go_on(reader)
        finally:
            reader.stop()

    def go_on(self, reader: LanelogStreamReader) -> None:
        """Micro-batches, until there is nothing new."""
        start = self.checkpoint or reader.initialOffset()
        while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
            self.seen += rows_of(LanelogStreamReader(reader._options), reader.partitions(start, end))
            self.checkpoint = start = end

    @property
    def places(self) -> Places:
        return places(self.seen)


@pytest.fixture
def stream(lanelog_url: str) -> Stream:
    return Stream(lanelog_url)


def test_what_is_gone_of_a_lane_that_the_stream_never_saw_is_an_error(
    client: Client, stream: Stream, consume: Callable[[str, int], None]
) -> None:
    """A lane is born, and partly collected, between two runs: the second says so, or goes on with what is left."""
    client.publish_many("t", [("old", b"x")] * 2)
    stream.run(subscribe="t", startingOffsets="earliest")
    client.publish_many("t", [("new", b"x")] * 5)
    consume("t", 7)
    client.publish_many("t", [("new", b"y")] * 2)
    with pytest.raises(DataLost, match="5 messages of topic 't', key 'new' are gone, among offsets 1 to 5"):
        stream.run(subscribe="t")
    stream.run(subscribe="t", failOnDataLoss="false")
    assert stream.places == lane("new", 6, 7) + lane("old", 1, 2)


def test_what_is_gone_of_a_lane_that_came_back_is_an_error(
    client: Client, stream: Stream, consume: Callable[[str, int], None]
) -> None:
    """Purged lanes come back above the highest of them, and new ones begin there: a loss only from there on."""
    client.publish_many("t", [("k", b"x")] * 3 + [("long", b"x")] * 5)
    stream.run(subscribe="t", startingOffsets="earliest")
    consume("t", 8)
    purge(client, "t")
    client.publish_many("t", [(key, b"x") for key in ("k", "new") for _ in range(2)])
    stream.run(subscribe="t")
    assert stream.places == lane("k", 1, 2, 3, 6, 7) + lane("long", *range(1, 6)) + lane("new", 6, 7)
    consume("t", 4)
    purge(client, "t")
    client.publish_many("t", [("k", b"x")] * 3)
    consume("t", 3)
    client.publish("t", "k", b"y")
    with pytest.raises(DataLost, match="3 messages of topic 't', key 'k' are gone, among offsets 8 to 10"):
        stream.run(subscribe="t")


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
    with pytest.raises(DataLost, match="3 messages of topic 't-2', key 'k' are gone, among offsets 1 to 3"):
        stream.run(subscribePattern="t-.*")


def test_a_log_that_went_back_is_read_on_from_its_end(client: Client, stream: Stream, raw: Any) -> None:
    """Without failOnDataLoss, what is published under offsets that were read and then lost is read, each once."""
    client.publish_many("t", [("k", b"x")] * 5 + [("other", b"x")])
    stream.run(subscribe="t", startingOffsets="earliest")
    rows(raw, "DELETE FROM queue_messages WHERE `offset` > 2")
    rows(raw, "UPDATE queue_partitions SET head_offset = 2 WHERE partition_key = 'k'")
    with pytest.warns(RuntimeWarning, match="are gone"):
        stream.run(subscribe="t", failOnDataLoss="false")
    client.publish_many("t", [("k", b"new")] * 5 + [("other", b"new")])
    stream.run(subscribe="t")
    assert stream.places == sorted(lane("k", 1, 2, 3, 4, 5) + lane("k", 3, 4, 5, 6, 7) + lane("other", 1, 2))


def test_a_stream_of_a_group_starts_at_its_watermark(client: Client, stream: Stream) -> None:
    """And a group that is not registered is refused: collection would not wait for it."""
    client.publish_many("t", [("k", b"x")] * 3)
    with pytest.raises(lanelog.ConfigurationError, match=r"group 'g' is not registered for topic 't'$"):
        stream.run(subscribe="t", groupId="g")
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
    running = stream.reader(subscribePattern="t-.*", groupId="g")
    stream.go_on(running)
    client.publish_many("t-2", [("k", b"x")] * 2)
    client.publish("t-1", "k", b"x")
    stream.go_on(running)
    running.stop()
    assert stream.places == lane("k", 2, topic="t-1")
    client.subscribe("t-2", "g", accept, start="latest").stop()
    client.publish("t-2", "k", b"y")
    stream.run(subscribePattern="t-.*", groupId="g")
    assert stream.places == lane("k", 2, topic="t-1") + lane("k", 3, topic="t-2")
    client.admin.delete_group("t-1", "g", dry_run=False)
    with pytest.raises(lanelog.ConfigurationError, match=r"group 'g' is not registered for topic 't-1'$"):
        stream.run(subscribePattern="t-.*", groupId="g")


def test_a_stream_of_a_group_that_nobody_knows_is_refused(client: Client, stream: Stream) -> None:
    """A name that is registered for no topic that matches would wait for ever; a batch refuses any such topic."""
    client.publish("t", "k", b"x")
    with pytest.raises(lanelog.ConfigurationError, match=r"group 'nobody' is not registered for topic 't'$"):
        stream.run(subscribePattern="t.*", groupId="nobody")
