"""Per-key order is commit order: a reader that follows the offsets misses nothing, whoever publishes how."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lanelog.message import Outgoing
from lanelog.publisher import Publisher
from support.publishing import ensure_lanes
from support.sql import rows

NEXT = "SELECT `offset`, payload FROM {table} WHERE partition_key = %s AND `offset` > %s ORDER BY `offset`"


class Reader:
    """Follows one lane from the last offset it saw, and remembers everything."""

    def __init__(self, raw: Any, key: str, table: str = "queue_messages") -> None:
        self.raw, self.key, self.table = raw, key, table
        self.last = 0
        self.seen: list[tuple[int, bytes]] = []

    def look(self) -> None:
        for offset, payload in rows(self.raw, NEXT.format(table=self.table), self.key, self.last):
            self.seen.append((offset, payload))
            self.last = offset


def test_plain_inserts_lose_messages(open_raw: Any, raw: Any) -> None:
    """The test below bites: where an insert gives out the offset, who commits late is skipped by the reader."""
    columns = "`offset` BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, partition_key VARCHAR(255), payload BLOB"
    rows(raw, f"CREATE TABLE plain ({columns}) ENGINE=InnoDB")
    insert = "INSERT INTO plain (partition_key, payload) VALUES ('k', %s)"
    first, second = open_raw(), open_raw()
    reader = Reader(raw, "k", "plain")
    for part in range(3):
        rows(first, insert, f"first {part}")
    rows(second, insert, "second")
    second.commit()
    reader.look()
    first.commit()
    reader.look()
    assert [payload for _, payload in reader.seen] == [b"second"]
    assert rows(raw, "SELECT COUNT(*) FROM plain") == [(4,)]


KEYS = ("k0", "k1", "k2", "k3")


def publish_somehow(publisher: Publisher, turn: int, key: str) -> int:
    """Publish in one of three ways; how many messages that was."""
    if turn % 3 == 0:
        with publisher.transaction() as connection:
            for _ in range(3):
                publisher.publish("t", Outgoing(key, b"x"), connection=connection)
        return 3
    if turn % 3 == 1:
        return len(publisher.publish_many("t", [(other, b"x") for other in KEYS]))
    publisher.publish("t", Outgoing(key, b"x"))
    return 1


def follow(raw: Any, done: threading.Event) -> list[Reader]:
    """Read all lanes as they grow, and once more when nobody publishes any more."""
    readers = [Reader(raw, key) for key in KEYS]
    finished = False
    while not finished:
        finished = done.is_set()
        for reader in readers:
            reader.look()
    return readers


@pytest.mark.thorough
def test_nothing_is_missed_under_eight_publishers(publisher: Publisher, open_raw: Any, raw: Any) -> None:
    """Singles, batches and three-row transactions over four keys: every lane is read dense and complete."""
    done = threading.Event()
    barrier = threading.Barrier(8)

    def publish(number: int) -> int:
        barrier.wait()
        return sum(publish_somehow(publisher, turn, KEYS[(number + turn) % 4]) for turn in range(40))

    with ThreadPoolExecutor(9) as threads:
        reading = threads.submit(follow, open_raw(autocommit=True), done)
        counts = list(threads.map(publish, range(8)))
        done.set()
        readers = reading.result()
    for reader in readers:
        assert [offset for offset, _ in reader.seen] == list(range(1, len(reader.seen) + 1))
        sql = "SELECT created_at FROM queue_messages WHERE partition_key = %s ORDER BY `offset`"
        times = rows(raw, sql, reader.key)
        assert times == sorted(times)
    assert sum(len(reader.seen) for reader in readers) == sum(counts)


@pytest.mark.thorough
def test_unsorted_keys_never_deadlock(publisher: Publisher, raw: Any) -> None:
    """Batches over the same keys in opposite orders lock them in one order."""
    keys = [f"k{number:02}" for number in range(20)]
    ensure_lanes(publisher, "t", keys)
    before = deadlocks(raw)
    barrier = threading.Barrier(8)

    def publish(number: int) -> None:
        barrier.wait()
        for _ in range(15):
            publisher.publish_many("t", [(key, b"x") for key in (keys if number % 2 else reversed(keys))])

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(publish, range(8)))
    assert deadlocks(raw) == before
    heads = rows(raw, "SELECT MIN(head_offset), MAX(head_offset) FROM queue_partitions WHERE partition_key <> ''")
    assert heads == [(120, 120)]


def deadlocks(raw: Any) -> int:
    (count,) = rows(raw, "SELECT count FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'")[0]
    return int(count)
