"""The ceilings: what plain SQL does on this machine with the log's own table, driver and payload, and nothing else.

No order, no group, no lease, no retry: it is what remains when the library is taken away, not an alternative to it.
The scenarios run it and the library alternately.
"""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from benchmarks.bench import PAYLOAD, TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pymysql
    from benchmarks.bench import Bench

# The log without the library: the same columns and indexes, offsets given by the sketch itself.
CREATE = "CREATE TABLE raw_messages LIKE queue_messages"
COLUMNS = "topic, partition_key, `offset`, id, payload, payload_bytes, created_at, published_at"
INSERT = f"INSERT INTO raw_messages ({COLUMNS}) VALUES "
ROW = "(%s,%s,%s,%s,_binary %s,%s,%s,%s)"
# The next messages of one lane, as the library reads them, without its columns for dead letters.
READ = (
    "(SELECT partition_key, `offset`, id, payload, metadata, published_at FROM queue_messages FORCE INDEX (PRIMARY)"
    " WHERE topic = %s AND partition_key = %s AND `offset` > %s ORDER BY `offset` LIMIT 100)"
)
LANES_A_READ = 40


def create(bench: Bench) -> None:
    """Make the table that the inserts go to."""
    with bench.raw() as connection:
        connection.cursor().execute(CREATE)


def insert_single(bench: Bench, messages: int, *, threads: int) -> float:
    """Rows a second, one row a statement and commit."""
    return _inserts(bench, messages, threads=threads, size=1)


def insert_many(bench: Bench, messages: int, *, size: int) -> float:
    """Rows a second, `size` rows a statement and commit, one thread."""
    return _inserts(bench, messages, threads=1, size=size)


def read_by_lane(bench: Bench, lanes: int) -> float:
    """Rows a second of one thread that reads every lane from its beginning, 100 rows a lane, 40 lanes a statement."""
    keys = [f"key-{number:05d}" for number in range(lanes)]
    cursors = dict.fromkeys(keys, 0)
    total = 0
    with bench.raw() as connection, connection.cursor() as cursor:
        began = time.perf_counter()
        while keys:
            unfinished = set()
            for start in range(0, len(keys), LANES_A_READ):
                page = keys[start : start + LANES_A_READ]
                arguments = [value for key in page for value in (TOPIC, key, cursors[key])]
                cursor.execute(" UNION ALL ".join([READ] * len(page)), arguments)
                for key, offset, *_ in cursor.fetchall():
                    cursors[key] = offset
                    unfinished.add(key)
                    total += 1
            keys = [key for key in keys if key in unfinished]
        return total / (time.perf_counter() - began)


def timed(threads: int, work: Callable[[int], None]) -> float:
    """Seconds that `work(number)` takes in so many threads, started together."""
    gate = threading.Barrier(threads + 1)

    def run(number: int) -> None:
        gate.wait()
        work(number)

    workers = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    gate.wait()
    began = time.perf_counter()
    for worker in workers:
        worker.join()
    return time.perf_counter() - began


def _inserts(bench: Bench, messages: int, *, threads: int, size: int) -> float:
    share = messages // threads
    name = uuid.uuid4().hex
    with ExitStack() as stack:
        connections = [stack.enter_context(bench.raw()) for _ in range(threads)]

        def work(number: int) -> None:
            _insert(connections[number], [f"{name}-{number}-{lane}" for lane in range(64)], share, size)

        return share * threads / timed(threads, work)


def _insert(connection: pymysql.Connection[Any], keys: Sequence[str], messages: int, size: int) -> None:
    now = int(time.time() * 1000)
    with connection.cursor() as cursor:
        for start in range(0, messages, size):
            arguments: list[object] = []
            for number in range(start, start + size):
                key, offset = keys[number % len(keys)], number // len(keys) + 1
                arguments += [TOPIC, key, offset, uuid.uuid4().hex, PAYLOAD, len(PAYLOAD), now, now]
            cursor.execute(INSERT + ",".join([ROW] * size), arguments)
