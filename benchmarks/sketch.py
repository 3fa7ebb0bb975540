"""The ceilings of the protocol: what its statements do without the library around them.

The same rows are read, the same rows are locked and written, in the same order of marks, handlers and acks. There is no
retry, no lease that moves, no failed message and no check of the server: what the library may cost is the difference.
The scenarios run it alternately with the library and with plain SQL, on the same tables.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
import uuid
from collections import Counter
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pymysql
from attrs import define, field, frozen
from benchmarks import raw
from benchmarks.bench import PAYLOAD, TOPIC
from pymysql.constants import CLIENT

from lanelog._database import NOW_MS, codes
from lanelog._stores.log.messages import insert_next
from lanelog._stores.log.partitions import around_next

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.bench import Bench

GROUP = "sketch"
BARE = "bare"
"""A topic that no client of the library subscribes to."""
OWNER = "owner"
WORKERS = 8
LANES_A_READ = 40
MESSAGES_A_LANE = 50
RUNS_A_FLUSH = 400
OUT = 4000
"""Messages between the reader and the last flush."""

PLACE = f"consumer_group = '{GROUP}' AND topic = '{TOPIC}'"

# What `leases.FENCE`, `flushes.FLUSH` and `fetches.NEXT` say, without their checks.
FENCE = f"""SELECT partition_key, lease_epoch FROM sketch_leases FORCE INDEX (PRIMARY)
WHERE {PLACE} AND partition_key IN ({{keys}}) AND leased_by = '{OWNER}' LOCK IN SHARE MODE"""
FLUSH = """INSERT INTO sketch_offsets
(consumer_group, topic, partition_key, offset_acked, marked_through, marked_epoch, marked_at, updated_at)
VALUES {rows} ON DUPLICATE KEY UPDATE offset_acked = GREATEST(offset_acked, VALUES(offset_acked)),
marked_through = VALUES(marked_through), marked_epoch = VALUES(marked_epoch), marked_at = VALUES(marked_at),
updated_at = VALUES(updated_at)"""
FLUSHED = f"('{GROUP}', '{TOPIC}', %s, %s, %s, 1, 1, 1)"
NEXT_OF = f"""(SELECT %s, `offset`, id, payload, metadata, published_at FROM queue_messages FORCE INDEX (PRIMARY)
WHERE topic = '{{topic}}' AND partition_key = %s AND `offset` > %s ORDER BY `offset` LIMIT {MESSAGES_A_LANE})"""
NEXT = NEXT_OF.format(topic=TOPIC)


@define(eq=False)
class Message:
    """What a handler would be given."""

    lane: int
    offset: int
    id: str
    payload: bytes
    metadata: str | None
    published_at: int
    attempt: int = 1
    failed: bool = False


@frozen
class Run:
    """Messages of one lane, handled one after the other."""

    lane: int
    messages: Sequence[Message]


@define(eq=False)
class Consumer:
    """Reader, settler and workers over one backlog."""

    keys: Sequence[str]
    messages: int
    acked: int = 0
    began: float = 0.0
    _marks: queue.SimpleQueue[Run] = field(factory=queue.SimpleQueue)
    _work: queue.SimpleQueue[Run | None] = field(factory=queue.SimpleQueue)
    _done: queue.SimpleQueue[Run] = field(factory=queue.SimpleQueue)

    def consume(self, reading: pymysql.Connection[Any], settling: pymysql.Connection[Any]) -> float:
        """Messages a second, from the first that is handled to the last that is acked."""
        threads = [threading.Thread(target=self._handle) for _ in range(WORKERS)]
        threads.append(threading.Thread(target=self._settle, args=(settling,)))
        for thread in threads:
            thread.start()
        self._read(reading)
        threads[-1].join()
        ended = time.perf_counter()
        for _ in range(WORKERS):
            self._work.put(None)
        return self.messages / (ended - self.began)

    def _read(self, connection: pymysql.Connection[Any]) -> None:
        read, cursors = 0, [0] * len(self.keys)
        with connection.cursor() as cursor:
            while read < self.messages:
                for start in range(0, len(self.keys), LANES_A_READ):
                    while read - self.acked > OUT:
                        time.sleep(0.001)
                    lanes = range(start, min(start + LANES_A_READ, len(self.keys)))
                    arguments = [value for lane in lanes for value in (lane, self.keys[lane], cursors[lane])]
                    cursor.execute(" UNION ALL ".join([NEXT] * len(lanes)), arguments)
                    runs: dict[int, list[Message]] = {}
                    for row in cursor.fetchall():
                        runs.setdefault(row[0], []).append(Message(*row))
                    for lane, messages in runs.items():
                        cursors[lane] = messages[-1].offset
                        read += len(messages)
                        self._marks.put(Run(lane, messages))

    def _handle(self) -> None:
        while (run := self._work.get()) is not None:
            self.began = self.began or time.perf_counter()
            for message in run.messages:
                try:
                    _nothing(message)
                except BaseException:  # noqa: BLE001 - it ends in the message, as a handler's failure must
                    message.failed = True
            self._done.put(run)

    def _settle(self, connection: pymysql.Connection[Any]) -> None:
        acked, marked = [0] * len(self.keys), [0] * len(self.keys)
        with connection.cursor() as cursor:
            while self.acked < self.messages:
                done, marks = _some(self._done, wait=0.001), _some(self._marks)
                for run in done:
                    acked[run.lane] = run.messages[-1].offset
                for run in marks:
                    marked[run.lane] = run.messages[-1].offset
                lanes = sorted({run.lane for run in (*done, *marks)})
                if not lanes:
                    continue
                cursor.execute("START TRANSACTION")
                keys = [self.keys[lane] for lane in lanes]
                if cursor.execute(FENCE.format(keys=",".join(["%s"] * len(keys))), keys) != len(keys):
                    raise RuntimeError("a lease of the sketch is gone")
                values = [value for lane in lanes for value in (self.keys[lane], acked[lane], marked[lane])]
                cursor.execute(FLUSH.format(rows=",".join([FLUSHED] * len(lanes))), values)
                cursor.execute("COMMIT")
                self.acked += sum(len(run.messages) for run in done)
                for run in marks:
                    self._work.put(run)


def consume(bench: Bench, messages: int, lanes: int) -> float:
    """Messages a second over the backlog of `Bench.backlog(messages, lanes)`, which it leaves as it is."""
    keys = [f"key-{number:05d}" for number in range(lanes)]
    with bench.raw() as reading, bench.raw() as settling:
        cursor = settling.cursor()
        for table in ("leases", "offsets"):
            of = "queue_partition_leases" if table == "leases" else "queue_offsets"
            cursor.execute(f"CREATE TABLE sketch_{table} LIKE {of}")
        for start in range(0, lanes, 1000):
            page = keys[start : start + 1000]
            row = f"('{GROUP}', '{TOPIC}', %s, '{OWNER}', 1, 1)"
            cursor.execute("INSERT INTO sketch_leases VALUES " + ",".join([row] * len(page)), page)
        return Consumer(keys, messages).consume(reading, settling)


def publish(bench: Bench, messages: int, *, threads: int) -> float:
    """Messages a second, each in one packet on a connection of its thread; their lanes exist."""
    with ExitStack() as stack:
        connections = [stack.enter_context(bench.raw(client_flag=CLIENT.MULTI_STATEMENTS)) for _ in range(threads)]
        for connection in connections:
            connection.autocommit(False)  # noqa: FBT003 - PyMySQL's signature

        def work(number: int) -> None:
            for at in range(messages // threads):
                while not publish_one(connections[number], TOPIC, f"key-{(at * 7 + number) % 64}"):
                    pass

        return messages / raw.timed(threads, work)


def publish_one(connection: pymysql.Connection[Any], topic: str, key: str) -> bool:
    """Send the packet that the library sends, and read its answers. False: somebody has the lane, or it is missing."""
    insert = insert_next(topic, key, message_id=uuid.uuid4().hex, payload=PAYLOAD, metadata=None, ttl_ms=0)
    statements = around_next(topic, key, insert)
    sql = ";".join([*(statement.sql for statement in statements), "COMMIT"])
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql, [value for statement in statements for value in statement.args])
            while cursor.nextset():
                pass
    except pymysql.err.IntegrityError as error:
        if error.args[0] != codes.NULL_REFUSED:
            raise
        connection.rollback()
        return False
    return True


@define(eq=False)
class Receiver:
    """Waits for a datagram, reads the message behind it, marks it, and would call its handler: in one thread."""

    place: str
    """The socket's address."""
    _socket: socket.socket
    _connection: pymysql.Connection[Any]
    _key: str
    _read: int

    @classmethod
    @contextmanager
    def on(cls, bench: Bench, key: str) -> Iterator[Receiver]:
        """Make the table of marks and the socket. The lane exists, and has one message."""
        place = f"\0sketch-{uuid.uuid4().hex}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line, bench.raw() as connection:
            line.bind(place)
            connection.cursor().execute("CREATE TABLE IF NOT EXISTS sketch_offsets LIKE queue_offsets")
            yield cls(place, line, connection, key, 1)

    def receive(self) -> float:
        """Return when (monotonic) the next message might be handled."""
        self._socket.recv(1)
        with self._connection.cursor() as cursor:
            cursor.execute(NEXT_OF.format(topic=BARE), (0, self._key, self._read))
            ((_, self._read, *_),) = cursor.fetchall()
            cursor.execute(FLUSH.format(rows=FLUSHED), (self._key, self._read - 1, self._read))
        return time.monotonic()


LOCK = f"""BEGIN; SELECT partition_key, head_offset FROM queue_partitions FORCE INDEX (PRIMARY)
WHERE topic = '{TOPIC}' AND partition_key IN ({{keys}}) FOR UPDATE SKIP LOCKED"""
ADVANCE = f"""UPDATE queue_partitions FORCE INDEX (PRIMARY)
SET head_offset = head_offset + CASE partition_key {{cases}} END
WHERE topic = '{TOPIC}' AND partition_key IN ({{keys}});
INSERT INTO queue_messages
(topic, partition_key, `offset`, id, payload, payload_bytes, metadata, created_at, published_at, expires_at)
VALUES {{rows}}; COMMIT"""
MESSAGE = f"('{TOPIC}', %s, %s, %s, _binary %s, %s, NULL, {NOW_MS}, {NOW_MS}, 0)"


@define(eq=False)
class Group:
    """Threads that share one transaction after the other, two packets each: the first one leads, the others wait."""

    _connection: pymysql.Connection[Any]
    _waiting: list[tuple[str, threading.Event]] = field(factory=list)
    _led: bool = False
    _lock: threading.Lock = field(factory=threading.Lock)

    def publish(self, key: str) -> None:
        """Return when the message is committed."""
        committed = threading.Event()
        with self._lock:
            self._waiting.append((key, committed))
            leads, self._led = not self._led, True
        while leads:
            with self._lock:
                batch, self._waiting = self._waiting, []
                leads = self._led = bool(batch)
            if batch:
                self._commit([key for key, _ in batch])
            for _, each in batch:
                each.set()
        committed.wait()

    def _commit(self, keys: Sequence[str]) -> None:
        counts = Counter(keys)
        locked = sorted(counts)
        holes = ",".join(["%s"] * len(locked))
        with self._connection.cursor() as cursor:
            cursor.execute(LOCK.format(keys=holes), locked)
            cursor.nextset()
            heads = dict(cursor.fetchall())
            rows: list[object] = []
            for key in keys:
                heads[key] += 1
                rows += (key, heads[key], uuid.uuid4().hex, PAYLOAD, len(PAYLOAD))
            cases = "WHEN %s THEN %s " * len(locked)
            sql = ADVANCE.format(cases=cases, keys=holes, rows=",".join([MESSAGE] * len(keys)))
            cursor.execute(sql, [*(value for key in locked for value in (key, counts[key])), *locked, *rows])
            while cursor.nextset():
                pass


def publish_grouped(bench: Bench, messages: int, *, threads: int) -> float:
    """Messages a second of threads that share transactions; their lanes exist, and nobody else locks them."""
    with bench.raw(client_flag=CLIENT.MULTI_STATEMENTS) as connection:
        group = Group(connection)

        def work(number: int) -> None:
            for at in range(messages // threads):
                group.publish(f"key-{(at * 7 + number) % 64}")

        return messages / raw.timed(threads, work)


def _some(source: queue.SimpleQueue[Run], *, wait: float = 0.0) -> list[Run]:
    found: list[Run] = []
    try:
        found.append(source.get(timeout=wait) if wait else source.get_nowait())
        while len(found) < RUNS_A_FLUSH:
            found.append(source.get_nowait())
    except queue.Empty:
        pass
    return found


def _nothing(_message: Message) -> None:
    """The handler."""
