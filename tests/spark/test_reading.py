"""The data source's parts, called as Spark calls them, without a JVM: what is gone, what is large, what is seen."""

import pickle
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

import lanelog
from lanelog.client import Client
from lanelog.spark import DataLost, _reading, _store
from lanelog.spark._options import parse_read
from lanelog.spark._planning import Planner
from lanelog.spark._source import LanelogReader, LanelogSource
from lanelog.spark._stream import LanelogStreamReader


@pytest.fixture
def reader(lanelog_url: str) -> Callable[..., LanelogReader]:
    """A batch reader: `reader(subscribe="t")`."""
    return lambda **options: LanelogReader(parse_read({"url": lanelog_url, **options}, streaming=False))


def _sent(part: Any) -> Any:
    """As another process gets it."""
    return pickle.loads(pickle.dumps(part))  # noqa: S301 - our own


def rows_of(reader: LanelogReader) -> list[dict[str, Any]]:
    """Plan, send the plan as to another process, and read it."""
    splits = [_sent(split) for split in reader.partitions()]
    return [row for split in splits for batch in _sent(reader).read(split) for row in batch.to_pylist()]


def test_large_payloads_are_read_in_bounded_parts(
    client: Client, reader: Callable[..., LanelogReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page brings small payloads along and leaves large ones behind, which then come by a bounded number of bytes."""
    monkeypatch.setattr(_reading, "PAGE_BYTES", 1000)
    monkeypatch.setattr(_reading, "_LARGEST", 50)
    sizes = [10, 400, 20, 700, 0, 900, 51, 50, 5000, 3, 100]
    client.publish_many("t", [("k", bytes([n]) * size) for n, size in enumerate(sizes)])
    asked: list[int] = []
    original = _store.payloads

    def counted(cx: Any, topic: str, places: Any) -> Any:
        found = original(cx, topic, places)
        asked.append(sum(map(len, found.values())))
        return found

    monkeypatch.setattr(_store, "payloads", counted)
    found = rows_of(reader(subscribe="t"))
    assert [row["value"] for row in found] == [bytes([n]) * size for n, size in enumerate(sizes)]
    assert max(size for size in asked if size < 5000) <= 1000


def test_what_is_collected_before_it_is_read_is_said(
    client: Client, reader: Callable[..., LanelogReader], consume: Callable[[str, int], None]
) -> None:
    """With failOnDataLoss the read fails and names the lane; without, it warns and gives what is left."""
    client.publish_many("t", [(key, b"x") for key in "ab" for _ in range(5)])
    strict, lenient = reader(subscribe="t"), reader(subscribe="t", failondataloss="false")
    plans = strict.partitions(), lenient.partitions()
    consume("t", 10)
    client.publish("t", "a", b"y")
    with pytest.raises(DataLost, match=r"5 messages of topic 't', key 'a' are gone, among offsets 1 to 5"):
        [batch for split in plans[0] for batch in strict.read(split)]
    with pytest.warns(RuntimeWarning, match="are gone"):
        assert [batch for split in plans[1] for batch in lenient.read(split)] == []
    assert [row["offset"] for row in rows_of(strict)] == [6]


def test_a_start_below_the_oldest_message_is_data_loss(
    client: Client, reader: Callable[..., LanelogReader], consume: Callable[[str, int], None]
) -> None:
    """An offset that was collected cannot be a start, unless what is left will do; nor one that never was."""
    client.publish_many("t", [("k", b"x")] * 3)
    consume("t", 3)
    client.publish("t", "k", b"y")
    start = '{"t": {"k": 2}}'
    with pytest.raises(DataLost, match="among offsets 2 to 3"):
        reader(subscribe="t", startingoffsets=start).partitions()
    assert [row["offset"] for row in rows_of(reader(subscribe="t", startingoffsets=start, failondataloss="false"))] == [
        4
    ]
    with pytest.raises(lanelog.ConfigurationError, match="whose newest message has 4"):
        reader(subscribe="t", startingoffsets='{"t": {"k": 9}}').partitions()


def test_heads_are_read_at_one_moment(client: Client, lanelog_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages published in one transaction are all in a read or none is, however many pages the heads take."""
    monkeypatch.setattr(_store, "PAGE", 2)
    keys = [f"k{n}" for n in range(9)]
    client.publish_many("t", [(key, b"x") for key in keys])
    stop = threading.Event()

    def publish() -> None:
        while not stop.is_set():
            client.publish_many("t", [(key, b"x") for key in keys])

    publisher = threading.Thread(target=publish)
    publisher.start()
    planner = Planner(parse_read({"url": lanelog_url, "subscribe": "t"}))
    try:
        for _ in range(30):
            assert len({lane.head for lane in planner.look().lanes["t"].values()}) == 1
    finally:
        stop.set()
        publisher.join()
        planner.close()


def test_nothing_to_read_is_nothing(client: Client, reader: Callable[..., LanelogReader]) -> None:
    """Spark turns no splits into one of its own making, which has no rows."""
    from pyspark.sql.datasource import InputPartition

    client.publish("t", "k", b"x")
    empty = reader(subscribepattern="nothing")
    assert empty.partitions() == []
    assert list(empty.read(InputPartition(None))) == []


def test_an_idle_stream_looks_seldom(client: Client, lanelog_url: str) -> None:
    """Spark asks a hundred times a second; between two looks that found nothing there is at least a tenth of one."""
    client.publish("t", "k", b"x")
    stream = LanelogStreamReader(parse_read({"url": lanelog_url, "subscribe": "t"}, streaming=True))
    looks: list[float] = []
    look = Planner.look

    def timed(planner: Planner) -> Any:
        looks.append(time.monotonic())
        return look(planner)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Planner, "look", timed)
        start = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
        for _ in range(4):
            assert stream.latestOffset(start, stream.getDefaultReadLimit()) is start
    stream.stop()
    assert all(later - earlier >= 0.1 for earlier, later in pairwise(looks[1:]))


def test_the_source_names_itself() -> None:
    """What Spark discovers in `pyspark_lanelog` is the format `lanelog`."""
    import pyspark_lanelog

    assert pyspark_lanelog.DefaultSource is LanelogSource
    assert LanelogSource.name() == "lanelog"
