"""What one thread can expect of publishing, on a real server."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
import structlog

import lanelog
from lanelog._database import Database
from lanelog.errors import ClosedError, ConfigurationError, DatabaseError, PayloadTooLarge
from lanelog.message import Outgoing, Receipt
from lanelog.publisher import Publisher
from support.commands import commands_sent
from support.publishing import REFUSED, Announced, ensure_lanes, publisher_at
from support.situations import NOW
from support.sql import rows
from support.waiting import Record, raising


def lane(raw: Any, key: str, columns: str = "`offset`") -> list[tuple[Any, ...]]:
    return rows(raw, f"SELECT {columns} FROM queue_messages WHERE partition_key = %s ORDER BY `offset`", key)


def test_offsets_of_a_lane_are_dense_and_begin_at_one(publisher: Publisher, raw: Any, published: list[str]) -> None:
    """Each key counts for itself, and every commit is announced with its topic."""
    assert [publisher.publish("t", Outgoing("a", b"x")).offset for _ in range(3)] == [1, 2, 3]
    assert publisher.publish("t", Outgoing("b", b"x")).offset == 1
    assert publisher.publish("other", Outgoing("a", b"x")).offset == 1
    heads = rows(raw, "SELECT topic, partition_key, head_offset FROM queue_partitions WHERE partition_key <> ''")
    assert heads == [("other", "a", 1), ("t", "a", 3), ("t", "b", 1)]
    assert published == ["t"] * 4 + ["other"]


def test_what_is_stored(publisher: Publisher, raw: Any) -> None:
    """Payload and metadata arrive as they were given, with content type, size and the database's time."""
    before = rows(raw, f"SELECT {NOW}")[0][0]
    publisher.publish("t", Outgoing("k", b"\x00\xff'\\%s", metadata={"trace": "ü'%s\\"}))
    publisher.publish("t", Outgoing("k", {"pr": 17, "name": "ü"}))
    publisher.publish("t", Outgoing("k", "text"))
    publisher.publish("t", Outgoing("k", b""))
    stored = lane(raw, "k", "payload, payload_bytes, metadata, created_at, published_at, expires_at, target_group")
    assert [row[0] for row in stored] == [b"\x00\xff'\\%s", b'{"pr":17,"name":"\xc3\xbc"}', b"text", b""]
    assert [row[1] for row in stored] == [6, 21, 4, 0]
    assert json.loads(stored[0][2]) == {"trace": "ü'%s\\"}
    assert json.loads(stored[1][2]) == {"content-type": "application/json"}
    assert json.loads(stored[2][2]) == {"content-type": "text/plain; charset=utf-8"}
    assert stored[3][2] is None
    after = rows(raw, f"SELECT {NOW}")[0][0]
    assert [row[3] for row in stored] == sorted(row[3] for row in stored)
    for row in stored:
        assert before <= row[3] == row[4] <= after
        assert row[5:] == (0, "")


def test_names_are_compared_byte_for_byte(publisher: Publisher) -> None:
    """Case, accents and normal forms make different lanes, and any character may stand in a name."""
    keys = ["k", "K", "é", "e\u0301", "%s", "a'b\\", "键", "🔑", "a b", "k" * 255, "🔑" * 255]
    assert [publisher.publish("t", Outgoing(key, b"x")).offset for key in keys] == [1] * len(keys)


def test_an_id_makes_publishing_repeatable(publisher: Publisher, raw: Any) -> None:
    """The second time nothing is stored, and the receipt names the first one's offset."""
    first = publisher.publish("t", Outgoing("k", b"1", id="pr-17"))
    assert first == Receipt(1, "pr-17", duplicate=False)
    assert publisher.publish("t", Outgoing("k", b"2", id="pr-17")) == Receipt(1, "pr-17", duplicate=True)
    assert publisher.publish("t", Outgoing("other", b"3", id="pr-17")) == Receipt(1, "pr-17", duplicate=False)
    assert publisher.publish("t", Outgoing("k", b"4")).offset == 2
    assert lane(raw, "k", "payload") == [(b"1",), (b"4",)]


def test_the_same_id_from_many_clients_is_stored_once(lanelog_url: str, raw: Any) -> None:
    """Clients that share nothing but the database agree: exactly one publish, of whatever kind, was the first."""
    barrier = threading.Barrier(8)

    def publish(number: int) -> Receipt:
        with publisher_at(lanelog_url) as publisher:
            barrier.wait()
            if number == 0:
                return publisher.publish_many("t", [Outgoing("k", b"many", id="same")])[0]
            if number == 1:
                with publisher.transaction() as connection:
                    return publisher.publish("t", Outgoing("k", b"transaction", id="same"), connection=connection)
            return publisher.publish("t", Outgoing("k", b"one", id="same"))

    with ThreadPoolExecutor(8) as threads:
        receipts = list(threads.map(publish, range(8)))
    assert sorted(receipt.duplicate for receipt in receipts) == [False] + [True] * 7
    assert {receipt.offset for receipt in receipts} == {1}
    assert lane(raw, "k") == [(1,)]


def test_a_new_lane_gets_its_rows(publisher: Publisher, raw: Any) -> None:
    """The topic row, the lane's head, and its floor at the offset before the first."""
    publisher.publish("t", Outgoing("k", b"x"))
    heads = rows(raw, "SELECT partition_key, head_offset, max_epoch, created_at > 0 FROM queue_partitions")
    assert heads == [("", 0, 0, 1), ("k", 1, 0, 1)]
    columns = "consumer_group, partition_key, offset_acked, marked_through, updated_at > 0"
    assert rows(raw, f"SELECT {columns} FROM queue_offsets") == [("", "k", 0, 0, 1)]


def test_publish_many_keeps_the_order(publisher: Publisher, raw: Any, published: list[str]) -> None:
    """Receipts come in the order of the items, whatever their keys, and offsets follow it within each key."""
    items: list[Any] = [
        ("b", b"1"),
        Outgoing("a", b"2", id="x", metadata={"m": "1"}),
        ("b", b"3"),
        ("c", {"n": 4}),
        ("b", b"5"),
    ]
    receipts = publisher.publish_many("t", items)
    assert [receipt.offset for receipt in receipts] == [1, 1, 2, 1, 3]
    assert receipts[1].id == "x"
    assert lane(raw, "b", "payload") == [(b"1",), (b"3",), (b"5",)]
    assert published == ["t"]


def test_publish_many_finds_duplicates_inside_and_outside(publisher: Publisher, raw: Any) -> None:
    """An id that is stored, or comes twice in the call, takes no offset."""
    publisher.publish("t", Outgoing("k", b"old", id="a"))
    items: list[Any] = [
        Outgoing("k", b"1", id="b"),
        Outgoing("k", b"2", id="a"),
        Outgoing("k", b"3", id="b"),
        ("k", b"4"),
    ]
    receipts = publisher.publish_many("t", items)
    found = [(receipt.offset, receipt.duplicate) for receipt in receipts]
    assert found == [(2, False), (1, True), (2, True), (3, False)]
    assert lane(raw, "k", "`offset`, payload") == [(1, b"old"), (2, b"1"), (3, b"4")]
    assert [receipt.duplicate for receipt in publisher.publish_many("t", items[:3])] == [True] * 3


@pytest.mark.thorough
def test_publish_many_takes_thousands_of_keys_and_messages(publisher: Publisher, raw: Any) -> None:
    """Statements are split by rows; it is still one transaction, created lanes included."""
    items: list[Any] = [(f"k{number % 2300}", b"x") for number in range(5000)]
    receipts = publisher.publish_many("t", items)
    assert [receipt.offset for receipt in receipts] == [number // 2300 + 1 for number in range(5000)]
    assert rows(raw, "SELECT COUNT(*), COUNT(DISTINCT partition_key) FROM queue_messages") == [(5000, 2300)]


@pytest.mark.thorough
def test_publish_many_splits_below_the_packet(database: Database, publisher: Publisher, raw: Any) -> None:
    """Payloads that together exceed the server's packet travel in several statements of one transaction."""
    payload = b"\xff" * 1_000_000
    count = database.max_packet() // len(payload) // 2 + 5
    receipts = publisher.publish_many("t", [("k", payload)] * count)
    assert [receipt.offset for receipt in receipts] == list(range(1, count + 1))
    assert rows(raw, "SELECT COUNT(*), MIN(LENGTH(payload)) FROM queue_messages") == [(count, len(payload))]


def test_publish_many_is_all_or_nothing(publisher: Publisher, raw: Any) -> None:
    """One message that the server refuses takes all others with it, and leaves no hole."""
    publisher.publish("t", Outgoing("k", b"x"))
    rows(raw, REFUSED)
    with pytest.raises(DatabaseError, match="refused"):
        publisher.publish_many("t", [("k", b"1"), Outgoing("k", b"2", id="bad"), ("j", b"3")])
    assert lane(raw, "k") == [(1,)]
    assert lane(raw, "j") == []
    assert publisher.publish("t", Outgoing("k", b"x")).offset == 2


def test_what_is_wrong_is_refused_before_any_sql(publisher: Publisher) -> None:
    """A list that is none, a codec and times that make no sense. Names and payloads are in `client/test_fuzz.py`."""
    with commands_sent() as sent:
        for items in ("ab", {"k": 1}, 7, [("k",)], [("k", b"x", 1)], ["k"], [None]):
            with pytest.raises(ConfigurationError):
                publisher.publish_many("t", items)
        for wrong in ({"payload": object(), "codec": 7}, {"delay": -1}, {"ttl": 0}):
            with pytest.raises(ConfigurationError):
                publisher.publish("t", Outgoing(**{"key": "k", "payload": b"x", **wrong}))
    assert sent == []


def test_publish_many_of_nothing_does_nothing(publisher: Publisher, lanelog_url: str) -> None:
    """An empty batch has no receipts, sends no statement and calls no middleware. Its topic is checked all the same."""
    layer = Record()
    with commands_sent() as sent, lanelog.connect(lanelog_url, middleware=[lambda *args: layer(args)]) as client:
        for publish_many in (publisher.publish_many, client.publish_many):
            assert publish_many("t", []) == publish_many("t", iter(())) == []
            assert publish_many("t", [], connection=object()) == []
            with pytest.raises(ConfigurationError, match="topic"):
                publish_many("", [])
    assert (sent, layer.items) == ([], [])


@pytest.mark.thorough
def test_a_payload_fills_the_packet_and_no_more(lanelog_url: str, raw: Any) -> None:
    """A row less than the packet arrives; a larger one is refused: it would look like a lost connection."""
    with publisher_at(lanelog_url, max_payload_bytes=200_000_000) as publisher:
        half = publisher._database.max_packet() // 2
        for call in (
            lambda: publisher.publish("t", Outgoing("k", bytes(half))),
            lambda: publisher.publish_many("t", [("k", bytes(half))]),
            lambda: publisher.publish("t", Outgoing("k", bytes(half)), connection=raw),
        ):
            with pytest.raises(PayloadTooLarge, match="max_allowed_packet"):
                call()
        publisher.publish("t", Outgoing("k", b"\xff" * (half - 2000)))
    assert rows(raw, "SELECT LENGTH(payload), payload_bytes FROM queue_messages") == [(half - 2000,) * 2]


def test_a_database_that_was_never_reached_fails_at_once() -> None:
    """A wrong address is noticed by the first publish, not after publish_timeout."""
    with publisher_at("mysql://root@127.0.0.1:1/q", publish_timeout=3600.0) as publisher:
        for call in (
            lambda: publisher.publish("t", Outgoing("k", b"x")),
            lambda: publisher.publish_many("t", [("k", b"x")]),
            lambda: ensure_lanes(publisher, "t", ["k"]),
        ):
            with pytest.raises(DatabaseError) as caught:
                call()
            assert caught.value.retriable


def test_a_closed_client_refuses(database: Database, publisher: Publisher) -> None:
    """After close every way to publish says so."""
    publisher.publish("t", Outgoing("k", b"x"))
    database.close()
    with pytest.raises(ClosedError):
        publisher.publish("t", Outgoing("k", b"x"))
    with pytest.raises(ClosedError):
        publisher.publish_many("t", [("k", b"x")])
    with pytest.raises(ClosedError), publisher.transaction():
        pass


def test_a_failing_notification_is_only_logged(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    """The message is committed: an error of the local wake-up must not make its publisher repeat it.

    The event has the context variables that the application has bound around its publish.
    """
    bound = structlog.contextvars.bound_contextvars(request_id="r-1")
    with closing(Publisher(database, Announced(raising(RuntimeError, "mine")))) as publisher, bound:
        assert publisher.publish("t", Outgoing("k", b"x")).offset == 1
    (record,) = (record for record in caplog.records if record.__dict__.get("event") == "publish.notification_failed")
    assert record.__dict__["request_id"] == "r-1"


def test_ensure_lanes_creates_what_is_missing(publisher: Publisher, raw: Any) -> None:
    """The engine makes a dead letter lane before its first dead letter; what exists is left alone."""
    publisher.publish("t", Outgoing("a", b"x"))
    ensure_lanes(publisher, "t", ["b", "a", "c"])
    heads = rows(raw, "SELECT partition_key, head_offset FROM queue_partitions WHERE partition_key <> ''")
    assert heads == [("a", 1), ("b", 0), ("c", 0)]


@pytest.mark.thorough
def test_lanes_created_at_once_do_not_collide(lanelog_url: str, raw: Any) -> None:
    """Clients that create the same new lanes in any order neither fail nor create one twice."""
    barrier = threading.Barrier(6)

    def publish(number: int) -> None:
        keys = [f"k{key}" for key in range(40)]
        with publisher_at(lanelog_url) as publisher:
            barrier.wait()
            for key in keys if number % 2 else reversed(keys):
                publisher.publish("t", Outgoing(key, b"x"))

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(publish, range(6)))
    heads = "SELECT MIN(head_offset), MAX(head_offset) FROM queue_partitions WHERE partition_key <> ''"
    assert rows(raw, heads) == [(6, 6)]
