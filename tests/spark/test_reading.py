"""The data source's parts, called as Spark calls them, without a JVM: what is gone, what is large, what is seen."""

import json
import logging
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

import lanelog
from lanelog._database import Database
from lanelog._database.connection.wire import Wire
from lanelog.client import Client
from lanelog.migrations.declared import declared_tables
from lanelog.spark import DataLost
from lanelog.spark.archiving.group import born
from lanelog.spark.source import columns, queries
from lanelog.spark.source.options import parse_read
from lanelog.spark.source.planning import Planner
from lanelog.spark.source.reading import Reading, read_split
from lanelog.spark.source.schema import TABLES, arrow_schema
from lanelog.spark.source.source import LanelogReader
from lanelog.spark.source.stream import LanelogStreamReader
from support.old_tables import set_back
from support.spark import places, reader_of, rows_of, sent
from support.sql import rows
from support.waiting import accept, events, eventually

pytestmark = pytest.mark.thorough

Load = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def reader(lanelog_url: str) -> Callable[..., LanelogReader]:
    """A batch reader: `reader(subscribe="t")`."""
    return lambda **options: reader_of(lanelog_url, **options)


@pytest.fixture
def load(reader: Callable[..., LanelogReader]) -> Load:
    """The rows of a batch: `load(subscribe="t")`."""
    return lambda **options: rows_of(reader(**options))


@pytest.fixture
def read_by(lanelog_url: str, reader: Callable[..., LanelogReader]) -> Callable[..., list[dict[str, Any]]]:
    """The rows of a batch, read with other sizes: `read_by({"page_bytes": 1000}, subscribe="t")`."""

    def read(sizes: dict[str, Any], **options: str) -> list[dict[str, Any]]:
        reading = sent(Reading(address=parse_read({"url": lanelog_url, "subscribe": "t"}).address, **sizes))
        splits = reader(**options).partitions()
        return [row for split in splits for batch in read_split(reading, sent(split)) for row in batch.to_pylist()]

    return read


def test_topics_are_chosen_by_name_or_pattern(client: Client, load: Load) -> None:
    """A list of names, or a regular expression that matches a whole name; one that matches nothing reads nothing."""
    for topic in ("orders", "orders_dlq", "repairs"):
        client.publish(topic, "k", b"x")
    assert places(load(subscribe="repairs, orders")) == [("orders", "k", 1), ("repairs", "k", 1)]
    assert places(load(subscribePattern="orders")) == [("orders", "k", 1)]
    assert places(load(subscribePattern="o.*")) == [("orders", "k", 1), ("orders_dlq", "k", 1)]
    assert load(subscribePattern="nothing") == []


def test_a_range_is_given_per_lane(client: Client, load: Load) -> None:
    """Starting offsets are the first to be read, ending offsets the first not to be; other lanes are read wholly."""
    client.publish_many("t", [(key, b"x") for key in "abc" for _ in range(5)])
    starting = json.dumps({"t": {"a": 4, "b": -2}})
    ending = json.dumps({"t": {"b": 3, "c": -1}})
    wanted = {"a": [4, 5], "b": [1, 2], "c": [1, 2, 3, 4, 5]}
    assert places(load(subscribe="t", startingOffsets=starting, endingOffsets=ending)) == [
        ("t", key, offset) for key in wanted for offset in wanted[key]
    ]
    assert load(subscribe="t", startingOffsets='{"t": {"a": 6, "b": 6, "c": 6}}') == []
    purged = dict.fromkeys(("startingOffsets", "endingOffsets"), '{"t": {"gone": 5}}')
    assert len(load(subscribe="t", **purged)) == 15


def test_an_instant_is_found_in_every_lane(client: Client, load: Load, raw: Any) -> None:
    """A startingTimestamp reads what was written from that millisecond on, in lanes of any length."""
    client.publish_many("t", [(key, b"x") for key, count in (("a", 9), ("b", 1), ("c", 30)) for _ in range(count)])
    rows(raw, "UPDATE queue_messages SET created_at = 1000 * `offset`")
    late = [("t", "a", 9), *(("t", "c", offset) for offset in range(9, 31))]
    assert places(load(subscribe="t", startingTimestamp="8500")) == late
    assert len(load(subscribe="t", startingTimestamp="1000")) == 40
    assert load(subscribe="t", startingTimestamp="30001") == []


def test_payloads_may_stay_behind(client: Client, load: Load) -> None:
    """With includePayload=false, a read brings everything else, their sizes too."""
    client.publish("t", "k", b"x" * 100_000)
    (row,) = load(subscribe="t", includePayload="false")
    assert (row["value"], row["payload_bytes"]) == (None, 100_000)


def test_a_dead_letter_says_where_it_comes_from(client: Client, load: Load) -> None:
    """Original topic and offset, group, time, count and error; a redriven message names the group it is for."""

    def refuse(_message: lanelog.Message) -> None:
        raise lanelog.Reject("bad \N{PILE OF POO} 'input'")

    client.publish("t", "k", b"x", id="one", metadata={"a": "b"})
    with client.subscribe("t", "g", refuse):
        eventually(lambda: client.admin.dead_letters("t", "g"))
    (row,) = load(subscribe="t_dlq")
    assert (row["original_topic"], row["original_offset"], row["failed_group"]) == ("t", 1, "g")
    assert "bad \N{PILE OF POO} 'input'" in row["last_error"]
    assert (row["failure_count"], row["failed_at"]) == (1, row["created_at"])
    assert dict(row["metadata"]) == {"a": "b", "lanelog.original_id": "one"}
    client.admin.redrive("t", "g", all=True, dry_run=False)
    again = [(row["original_topic"], row["failed_at"], row["target_group"]) for row in load(subscribe="t")]
    assert again == [(None, None, None), (None, None, "g")]


def test_the_tables_are_read_as_they_are(client: Client, load: Load) -> None:
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
        for row, topic in zip(load(table="leases"), "tu", strict=True):
            assert (row["topic"], row["key"], row["lease_epoch"] > 0) == (topic, "a", True)
            assert row["leased_at"] is not None
    found = {(row["consumer_group"], row["topic"]): row for row in load(table="offsets")}
    assert found.keys() == {("", "t"), ("", "u"), ("g", "t"), ("g", "u")}
    assert (found["g", "t"]["offset_acked"], found["g", "t"]["paused_at"]) == (2, None)
    assert len(load(table="offsets", subscribe="u", groupId="g")) == 1
    (state,) = load(table="delivery_state", subscribe="t")
    assert (state["message_offset"], state["acked"], state["retry_count"]) == (3, False, 1)
    assert state["invisible_until"] > state["first_attempt_at"]
    groups = [(row["consumer_group"], row["topic"], row["delivery_order"]) for row in load(table="groups")]
    assert sorted(groups) == [("g", "t", "strict"), ("g", "u", "strict")]


def test_tables_are_read_before_and_after_their_upgrade(
    client: Client, load: Load, raw: Any, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Tables of version 1 bring the warning of every client; archives know the database by the same birth as before."""
    client.publish("t", "k", b"x")
    new = born(database)
    set_back(raw)
    assert len(load(subscribe="t")) == 1
    assert events(caplog, "tables.older", logging.WARNING)
    assert client.migrate()
    assert len(load(subscribe="t")) == 1
    assert born(database) == new > 0


def test_long_tables_are_read_page_by_page(client: Client, load: Load, raw: Any) -> None:
    """Outcomes by lane, or from an instant on by the time they finished: each row once, in pages of thousands."""
    client.publish("t", "k", b"x")
    client.subscribe("t", "g", accept).stop()
    values = ",".join(f"('g','t','k{n % 7}',{n},'{n}','success',{1000 + n // 3000})" for n in range(1, 6001))
    columns = "consumer_group, topic, partition_key, message_offset, id, outcome, finished_at"
    rows(raw, f"REPLACE INTO queue_history ({columns}) VALUES {values}")
    history = load(table="history", subscribe="t")
    assert {(row["key"], row["message_offset"]) for row in history} >= {(f"k{n % 7}", n) for n in range(1, 6001)}
    since = load(table="history", subscribe="t", groupId="g", startingTimestamp="1001")
    assert sorted(row["message_offset"] for row in since if row["finished_at"].timestamp() < 2) == [*range(3000, 6001)]


def test_any_text_and_bytes_come_as_they_are_stored(client: Client, load: Load, raw: Any) -> None:
    """Ids, keys, metadata and payloads with whatever separates values on their way; other times; a wrong size."""
    texts = [",", "\n", "a,b\r\n,", '"', "'", "\\", "\0", "NULL", "%s", "é\N{PILE OF POO}", "x" * 255]
    items = [
        lanelog.Outgoing(
            f"{text.strip()}{n % 2}", text.encode(), id=f"{text}{n}", metadata={text: text} if n % 3 else None
        )
        for n, text in enumerate(texts[:-1] * 5)
        if "\0" not in text and text.isprintable()
    ]
    client.publish_many("t", items)
    client.publish_many("t", [("plain", payload) for payload in (bytes(range(256)), b"", *map(str.encode, texts))])
    rows(raw, "UPDATE queue_messages SET created_at = published_at + 7 WHERE `offset` % 3 = 0")
    rows(raw, "UPDATE queue_messages SET payload_bytes = 3 WHERE partition_key = 'plain' AND `offset` < 3")
    stored = rows(
        raw,
        "SELECT partition_key, `offset`, id, payload, payload_bytes, metadata, published_at, created_at "
        "FROM queue_messages ORDER BY partition_key, `offset`",
    )
    found = load(subscribe="t")
    assert len(found) == len(items) + len(texts) + 2
    for row, (*values, text, published, created) in zip(found, stored, strict=True):
        assert [row[name] for name in ("key", "offset", "id", "value", "payload_bytes")] == values
        assert row["metadata"] == (None if text is None else list(json.loads(text).items()))
        assert [round(row[name].timestamp() * 1000) for name in ("timestamp", "created_at")] == [published, created]


def test_large_payloads_are_read_in_bounded_parts(
    client: Client, read_by: Callable[..., list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page brings small payloads along and leaves large ones behind, which then come by a bounded number of bytes."""
    sizes = [10, 400, 20, 700, 0, 900, 51, 50, 5000, 3, 100]
    client.publish_many("t", [("k", bytes([n]) * size) for n, size in enumerate(sizes)])
    asked: list[int] = []
    original = queries.payloads

    def counted(cx: Any, topic: str, offsets: Any) -> Any:
        found = original(cx, topic, offsets)
        asked.append(sum(map(len, found.values())))
        return found

    monkeypatch.setattr(queries, "payloads", counted)
    found = read_by({"page_bytes": 1000, "share": 50}, subscribe="t")
    assert [row["value"] for row in found] == [bytes([n]) * size for n, size in enumerate(sizes)]
    assert max(size for size in asked if size < 5000) <= 1000


def test_what_is_collected_before_it_is_read_is_said(
    client: Client, reader: Callable[..., LanelogReader], consume: Callable[[str, int], None]
) -> None:
    """With failOnDataLoss the read fails and names the lane; without, it warns and gives what is left."""
    client.publish_many("t", [(key, b"x") for key in "ab" for _ in range(5)])
    strict, lenient = reader(subscribe="t"), reader(subscribe="t", failOnDataLoss="false")
    plans = strict.partitions(), lenient.partitions()
    consume("t", 10)
    client.publish("t", "a", b"y")
    with pytest.raises(DataLost, match=r"5 messages of topic 't', key 'a' are gone, among offsets 1 to 5"):
        [batch for split in plans[0] for batch in strict.read(split)]
    with pytest.warns(RuntimeWarning, match="are gone"):
        assert [batch for split in plans[1] for batch in lenient.read(split)] == []
    assert [row["offset"] for row in rows_of(strict)] == [6]


def test_a_start_below_the_oldest_message_is_data_loss(
    client: Client, reader: Callable[..., LanelogReader], load: Load, consume: Callable[[str, int], None]
) -> None:
    """An offset that was collected cannot be a start, unless what is left will do; nor one that never was."""
    client.publish_many("t", [("k", b"x")] * 3)
    consume("t", 3)
    client.publish("t", "k", b"y")
    start = '{"t": {"k": 2}}'
    with pytest.raises(DataLost, match="among offsets 2 to 3"):
        reader(subscribe="t", startingOffsets=start).partitions()
    assert [row["offset"] for row in load(subscribe="t", startingOffsets=start, failOnDataLoss="false")] == [4]
    with pytest.raises(lanelog.ConfigurationError, match="whose newest message has 4"):
        reader(subscribe="t", startingOffsets='{"t": {"k": 9}}').partitions()


def test_a_stream_says_that_the_log_went_back(client: Client, lanelog_url: str, raw: Any) -> None:
    """The stream fails and says why; with failOnDataLoss=false it warns, and steps to the end of the lane."""
    client.publish_many("t", [("k", b"x")] * 5 + [("other", b"x")] * 5)
    options = {"url": lanelog_url, "subscribe": "t", "startingoffsets": "earliest"}
    strict = LanelogStreamReader(parse_read(options, streaming=True))
    everything = strict.getDefaultReadLimit()
    start = strict.latestOffset(strict.initialOffset(), everything)
    read = strict.latestOffset(start, everything)
    rows(raw, "UPDATE queue_partitions SET head_offset = 2 WHERE partition_key = 'k'")
    with pytest.raises(DataLost, match=r"key 'k' are gone, among offsets 3 to 5: the lane ends before them.*failover"):
        strict.latestOffset(read, everything)
    lenient = LanelogStreamReader(parse_read({**options, "failondataloss": "false"}, streaming=True))
    lenient.prepareForTriggerAvailableNow()
    with pytest.warns(RuntimeWarning, match="3 messages of topic 't', key 'k' are gone") as warned:
        lowered = lenient.latestOffset(read, everything)
    assert len(warned) == 1
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
    client: Client, load: Load, raw: Any, stored: str, shown: dict[str, str]
) -> None:
    """As a subscriber is given it; and what is beside it, also where there is none."""
    client.publish_many("t", [lanelog.Outgoing("k", b"x", metadata=m) for m in ({"a": "b"}, {"a": "b"}, None)])
    rows(raw, "UPDATE queue_messages SET metadata = %s WHERE `offset` = 2", stored)
    metadata = [row["metadata"] for row in load(subscribe="t")]
    assert [None if each is None else dict(each) for each in metadata] == [{"a": "b"}, shown, None]


def test_half_a_character_in_metadata_is_a_question_mark() -> None:
    """MariaDB takes half a surrogate pair for JSON, and no UTF-8 has it."""
    kind = arrow_schema("messages").field("metadata").type
    found = columns._metadata(pa.array(['{"\\ud83d": "a\\ud83e", "whole": "\\ud83e\\udd8a"}']), kind)
    assert found.to_pylist() == [[("?", "a?"), ("whole", "🦊")]]


def test_tables_are_read_by_few_tasks(
    client: Client, reader: Callable[..., LanelogReader], read_by: Callable[..., list[dict[str, Any]]], raw: Any
) -> None:
    """A hundred (group, topic) are a handful of splits, of the groups a single one; each row is there once."""
    topics = [f"t{n:02d}" for n in range(50)]
    for topic in topics:
        client.publish(topic, "k", b"x")
    registered = [(group, topic) for topic in topics for group in ("g", "h")]
    for into, more in (
        ("queue_groups (consumer_group, topic, delivery_order, start_at)", "'strict', ''"),
        ("queue_offsets (consumer_group, topic, partition_key, offset_acked)", "'k', 1"),
    ):
        values = ", ".join(f"('{group}', '{topic}', {more})" for group, topic in registered)
        rows(raw, f"INSERT INTO {into} VALUES {values}")
    floors = [("", topic) for topic in topics]
    for table, most, wanted in (("groups", 1, registered), ("offsets", 8, registered + floors), ("leases", 8, [])):
        assert 1 <= len(reader(table=table).partitions()) <= most
        found = read_by({"page_rows": 3}, table=table)
        assert sorted((row["consumer_group"], row["topic"]) for row in found) == sorted(wanted)
    assert len(reader(table="offsets", subscribe="t07").partitions()) == 3
    assert len(read_by({"page_rows": 3}, table="offsets", subscribe="t07")) == 3


def test_tables_have_the_columns_of_the_schema() -> None:
    """In its order, in types that follow from its own; only what is left out on purpose is missing."""
    declared = declared_tables()
    for table, struct in TABLES.items():
        if table == "messages":
            continue
        columns = declared["queue_partition_leases" if table == "leases" else f"queue_{table}"].columns.values()
        # What keepers alone follow, and what tables of earlier versions do not have.
        kept = [column for column in columns if column.name not in {"lane_pauses", "dead_letter_topic"}]
        assert struct.fieldNames() == ["key" if c.name == "partition_key" else c.name for c in kept]
        selected = getattr(queries, table.upper()).removeprefix("SELECT ").partition("FROM")[0]
        assert [name.strip() for name in selected.split(",")] == [column.name for column in kept]
        for column in kept:
            kind = struct["key" if column.name == "partition_key" else column.name].dataType.typeName()
            flag = column.type.startswith("tinyint")
            assert (kind == "boolean") == flag, column.name
            assert (kind in {"long", "timestamp"}) == (not flag and "int" in column.type), column.name


def test_a_snapshot_of_many_topics_is_a_few_statements(
    client: Client, lanelog_url: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics share statements and lanes share pages, wherever the pages end; the same for a group's watermarks."""
    topics = {f"t{n:02d}": [f"k{m}" for m in range(n % 7)] for n in range(60)}
    lanes = [(topic, key) for topic, keys in topics.items() for key in keys]
    for into, values in (
        ("queue_groups (consumer_group, topic, delivery_order, start_at)", [("g", t, "strict", "") for t in topics]),
        (
            "queue_partitions (topic, partition_key, head_offset)",
            [(topic, key, int(topic[1:])) for topic, key in [*lanes, *((topic, "") for topic in topics)]],
        ),
        (
            "queue_offsets (consumer_group, topic, partition_key, offset_acked)",
            [(group, *lane, acked) for lane in lanes for group, acked in (("", 1), ("g", 2))],
        ),
    ):
        rows(raw, f"INSERT INTO {into} VALUES {', '.join(map(str, values))}")
    options = {"url": lanelog_url, "subscribepattern": "t.*", "groupid": "g"}
    asked: list[str] = []
    run = Wire._run

    def counted(wire: Wire, sql: str, args: Any) -> Any:
        asked.append(sql)
        return run(wire, sql, args)

    monkeypatch.setattr(Wire, "_run", counted)
    for page, shared, most in ((2000, 200, 8), (5, 4, 200), (2, 1, 400)):
        planner = Planner(parse_read(options), queries.PageSizes(rows=page, topics=shared))
        planner.snapshot()
        asked.clear()
        seen = planner.snapshot()
        planner.close()
        assert len(asked) <= most
        assert {topic: list(lanes) for topic, lanes in seen.lanes.items()} == topics
        assert {(lane.head, lane.floor) for lane in seen.lanes["t13"].values()} == {(13, 1)}
        assert seen.watermarks == {topic: dict.fromkeys(keys, 2) for topic, keys in topics.items()}
        assert {topic: state.purged for topic, state in seen.topics.items()} == {t: int(t[1:]) for t in topics}


def test_heads_are_read_at_one_moment(client: Client, lanelog_url: str) -> None:
    """Messages published in one transaction are all in a read or none is, however many pages the heads take."""
    keys = [f"k{n}" for n in range(9)]
    client.publish_many("t", [(key, b"x") for key in keys])
    stop = threading.Event()

    def publish() -> None:
        while not stop.is_set():
            client.publish_many("t", [(key, b"x") for key in keys])

    publisher = threading.Thread(target=publish)
    publisher.start()
    planner = Planner(parse_read({"url": lanelog_url, "subscribe": "t"}), queries.PageSizes(rows=2))
    try:
        for _ in range(30):
            assert len({lane.head for lane in planner.snapshot().lanes["t"].values()}) == 1
    finally:
        stop.set()
        publisher.join()
        planner.close()


def test_nothing_to_read_is_nothing(client: Client, reader: Callable[..., LanelogReader]) -> None:
    """Spark turns no splits into one of its own making, which has no rows."""
    from pyspark.sql.datasource import InputPartition

    client.publish("t", "k", b"x")
    empty = reader(subscribePattern="nothing")
    assert (empty.partitions(), list(empty.read(InputPartition(None)))) == ([], [])


def test_an_idle_stream_polls_seldom(client: Client, lanelog_url: str) -> None:
    """Spark asks a hundred times a second; between two polls that find nothing there is at least a tenth of one."""
    client.publish("t", "k", b"x")
    stream = LanelogStreamReader(parse_read({"url": lanelog_url, "subscribe": "t"}, streaming=True))
    polls: list[float] = []
    snapshot = Planner.snapshot

    def timed(planner: Planner) -> Any:
        polls.append(time.monotonic())
        return snapshot(planner)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Planner, "snapshot", timed)
        start = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
        for _ in range(4):
            assert stream.latestOffset(start, stream.getDefaultReadLimit()) is start
    stream.stop()
    assert all(later - earlier >= 0.1 for earlier, later in pairwise(polls[1:]))
