"""The data source's parts, called as Spark calls them, without a JVM: what is gone, what is large, what is seen."""

import pickle
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

import lanelog
from lanelog._database.wire import Wire
from lanelog.client import Client
from lanelog.migrations.declared import declared_tables
from lanelog.spark import DataLost, _reading, _store
from lanelog.spark._options import parse_read
from lanelog.spark._planning import Planner
from lanelog.spark._schema import TABLES, arrow_schema
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


def test_a_stream_says_that_the_log_went_back(client: Client, lanelog_url: str, raw: Any) -> None:
    """It fails and says why; with failOnDataLoss=false it warns, and takes a step of its own to the end of the lane."""
    client.publish_many("t", [("k", b"x")] * 5 + [("other", b"x")] * 5)
    options = {"url": lanelog_url, "subscribe": "t", "startingoffsets": "earliest"}
    strict = LanelogStreamReader(parse_read(options, streaming=True))
    everything = strict.getDefaultReadLimit()
    start = strict.latestOffset(strict.initialOffset(), everything)
    read = strict.latestOffset(start, everything)
    with raw.cursor() as cursor:
        cursor.execute("UPDATE queue_partitions SET head_offset = 2 WHERE partition_key = 'k'")
    with pytest.raises(DataLost, match=r"key 'k' are gone, among offsets 3 to 5: the lane ends before them.*failover"):
        strict.latestOffset(read, everything)
    lenient = LanelogStreamReader(parse_read({**options, "failondataloss": "false"}, streaming=True))
    lenient.prepareForTriggerAvailableNow()
    with pytest.warns(RuntimeWarning, match="3 messages of topic 't', key 'k' are gone") as told:
        lowered = lenient.latestOffset(read, everything)
    assert len(told) == 1
    assert lowered == {**read, "t": {**read["t"], "k": 3}}
    assert lenient.partitions(read, lowered) == []
    assert lenient.latestOffset(lowered, everything) is lowered
    strict.stop()
    lenient.stop()


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ('{"n": 1, "none": null, "a": ["é"]}', {"n": "1", "none": "null", "a": '["é"]'}),
        ('["a"]', {}),
        ("null", {}),
    ],
)
def test_what_other_programs_stored_as_metadata_is_text(
    client: Client, reader: Callable[..., LanelogReader], raw: Any, stored: str, shown: dict[str, str]
) -> None:
    """As a subscriber is given it; and what is beside it, also where there is none."""
    client.publish_many("t", [lanelog.Outgoing("k", b"x", metadata=m) for m in ({"a": "b"}, {"a": "b"}, None)])
    with raw.cursor() as cursor:
        cursor.execute("UPDATE queue_messages SET metadata = %s WHERE `offset` = 2", (stored,))
    metadata = [row["metadata"] for row in rows_of(reader(subscribe="t"))]
    assert [None if each is None else dict(each) for each in metadata] == [{"a": "b"}, shown, None]


def test_half_a_character_in_metadata_is_a_question_mark() -> None:
    """MariaDB takes half a surrogate pair for JSON, and no UTF-8 has it."""
    kind = arrow_schema("messages").field("metadata").type
    found = _reading._metadata(['{"\\ud83d": "a\\ud83e", "whole": "\\ud83e\\udd8a"}'], kind)
    assert found.to_pylist() == [[("?", "a?"), ("whole", "🦊")]]


def test_tables_are_read_by_few_tasks(
    client: Client, reader: Callable[..., LanelogReader], raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred (group, topic) are a handful of splits, of the groups a single one; each row is there once."""
    monkeypatch.setattr(_store, "PAGE", 3)
    topics = [f"t{n:02d}" for n in range(50)]
    for topic in topics:
        client.publish(topic, "k", b"x")
    registered = [(group, topic) for topic in topics for group in ("g", "h")]
    with raw.cursor() as cursor:
        for sql in (
            "INSERT INTO queue_groups (consumer_group, topic, delivery_order, start_at) VALUES (%s,%s,'strict','')",
            "INSERT INTO queue_offsets (consumer_group, topic, partition_key, offset_acked) VALUES (%s,%s,'k',1)",
        ):
            for pair in registered:
                cursor.execute(sql, pair)
    floors = [("", topic) for topic in topics]
    for table, most, wanted in (("groups", 1, registered), ("offsets", 8, registered + floors), ("leases", 8, [])):
        tables = reader(table=table)
        assert 1 <= len(tables.partitions()) <= most
        assert sorted((row["consumer_group"], row["topic"]) for row in rows_of(tables)) == sorted(wanted)
    one = reader(table="offsets", subscribe="t07")
    assert len(one.partitions()) == 3
    assert len(rows_of(one)) == 3


def test_tables_have_the_columns_of_the_schema() -> None:
    """In its order, in types that follow from its own; only what is left out on purpose is missing."""
    declared = declared_tables()
    for table, struct in TABLES.items():
        if table == "messages":
            continue
        columns = declared["queue_partition_leases" if table == "leases" else f"queue_{table}"].columns.values()
        kept = [column for column in columns if column.name != "lane_pauses"]
        assert struct.fieldNames() == ["key" if c.name == "partition_key" else c.name for c in kept]
        selected = getattr(_store, table.upper()).removeprefix("SELECT ").partition("FROM")[0]
        assert [name.strip() for name in selected.split(",")] == [column.name for column in kept]
        for column in kept:
            kind = struct["key" if column.name == "partition_key" else column.name].dataType.typeName()
            flag = column.type.startswith("tinyint")
            assert (kind == "boolean") == flag, column.name
            assert (kind in {"long", "timestamp"}) == (not flag and "int" in column.type), column.name


def test_a_look_at_many_topics_is_a_few_statements(
    client: Client, lanelog_url: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics share statements and lanes share pages, wherever the pages end; the same for a group's watermarks."""
    topics = {f"t{n:02d}": [f"k{m}" for m in range(n % 7)] for n in range(60)}
    with raw.cursor() as cursor:
        for topic, keys in topics.items():
            cursor.execute(
                "INSERT INTO queue_groups (consumer_group, topic, delivery_order, start_at) "
                "VALUES ('g', %s, 'strict', '')",
                (topic,),
            )
            for key in ("", *keys):
                cursor.execute(
                    "INSERT INTO queue_partitions (topic, partition_key, head_offset) VALUES (%s, %s, %s)",
                    (topic, key, int(topic[1:])),
                )
            for key in keys:
                cursor.execute(
                    "INSERT INTO queue_offsets (consumer_group, topic, partition_key, offset_acked) "
                    "VALUES ('', %s, %s, 1), ('g', %s, %s, 2)",
                    (topic, key) * 2,
                )
    options = {"url": lanelog_url, "subscribepattern": "t.*", "groupid": "g"}
    asked: list[str] = []
    run = Wire._run

    def counted(wire: Wire, sql: str, args: Any) -> Any:
        asked.append(sql)
        return run(wire, sql, args)

    monkeypatch.setattr(Wire, "_run", counted)
    for page, shared, most in ((2000, 200, 8), (5, 4, 200), (2, 1, 400)):
        monkeypatch.setattr(_store, "PAGE", page)
        monkeypatch.setattr(_store, "TOPICS", shared)
        planner = Planner(parse_read(options))
        planner.look()
        asked.clear()
        seen = planner.look()
        planner.close()
        assert len(asked) <= most
        assert {topic: list(lanes) for topic, lanes in seen.lanes.items()} == topics
        assert {(lane.head, lane.floor) for lane in seen.lanes["t13"].values()} == {(13, 1)}
        assert seen.watermarks == {topic: dict.fromkeys(keys, 2) for topic, keys in topics.items()}
        assert {topic: state.purged for topic, state in seen.topics.items()} == {t: int(t[1:]) for t in topics}


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
