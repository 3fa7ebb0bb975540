"""What is measured: each step of the plan takes a fresh database and yields (figure, value) pairs.

A step never decides what is good: `report` says which figures are rates, and what each is compared with.
"""

from __future__ import annotations

import itertools
import queue
import random
import statistics
import threading
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from benchmarks import behind, crowd, flood, looking, measured, processes, raw, sketch
from benchmarks.bench import PAYLOAD, TOPIC
from benchmarks.neighbour import Neighbour

import lanelog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.bench import Bench

KEYS = 64
SAMPLES = 40
IDLE_SECONDS = 6.0
IDLE_LONG = 40.0
"""Longer than a lease: once a lease all rows are read."""
PATIENCE = 600.0
STATUS_LOOKS = 3


def publish(bench: Bench) -> Iterator[tuple[str, float]]:
    """Publishing, against plain inserts."""
    raw.create(bench)
    client = bench.client
    single, shared, many = bench.messages(3000), bench.messages(12_000), bench.messages(40_000)
    client.publish_many(TOPIC, [(f"key-{number}", PAYLOAD) for number in range(KEYS)])  # the lanes exist from here on

    def one_by_one(count: int) -> Callable[[int], None]:
        def work(thread: int) -> None:
            for number in range(count):
                client.publish(TOPIC, f"key-{(number * 7 + thread) % KEYS}", PAYLOAD)

        return work

    yield "raw_insert_single", raw.insert_single(bench, single, threads=1)
    yield "sketch_publish_single", sketch.publish(bench, single, threads=1)
    yield "publish_single", single / raw.timed(1, one_by_one(single))
    yield "raw_insert_8_threads", raw.insert_single(bench, shared, threads=8)
    yield "sketch_publish_8_threads", sketch.publish(bench, shared, threads=8)
    yield "publish_8_threads", shared / raw.timed(8, one_by_one(shared // 8))
    crowd_of = 64 * (bench.messages(20_000) // 64)
    yield "sketch_publish_64_threads", sketch.publish_grouped(bench, crowd_of, threads=64)
    yield "publish_64_threads", crowd_of / raw.timed(64, one_by_one(crowd_of // 64))
    yield "raw_insert_many_100", raw.insert_many(bench, many, size=100)

    def in_hundreds(_: int) -> None:
        for start in range(0, many, 100):
            client.publish_many(TOPIC, [(f"key-{n % KEYS}", PAYLOAD) for n in range(start, start + 100)])

    yield "publish_many_100", many / raw.timed(1, in_hundreds)


def consume_100_lanes(bench: Bench) -> Iterator[tuple[str, float]]:
    """Consuming a backlog of 100 lanes."""
    yield from _consume(bench, 100)


def consume_1000_lanes(bench: Bench) -> Iterator[tuple[str, float]]:
    """Consuming a backlog of 1,000 lanes."""
    yield from _consume(bench, 1000)


def consume_10000_lanes(bench: Bench) -> Iterator[tuple[str, float]]:
    """Consuming a backlog of 10,000 lanes."""
    yield from _consume(bench, 10_000)


def consume_100000_lanes(bench: Bench) -> Iterator[tuple[str, float]]:
    """Consuming a backlog of 100,000 lanes, ten messages each."""
    yield from _consume(bench, 100_000, bench.messages(1_000_000))


def consume_open_lanes(bench: Bench) -> Iterator[tuple[str, float]]:
    """Consuming a backlog of messages without keys."""
    yield from _consume(bench, 0)


def latency(bench: Bench) -> Iterator[tuple[str, float]]:
    """Latency from publish to handler, idle: in one process, and between processes with hints and without."""
    yield from _latencies(bench, wake=True, lanes=1)
    yield from _latencies(bench, wake=True, lanes=1000)
    yield from _latencies(bench, wake=False, lanes=1)


def _latencies(bench: Bench, *, wake: bool, lanes: int) -> Iterator[tuple[str, float]]:
    arrived: queue.SimpleQueue[float] = queue.SimpleQueue()

    def handle(_message: lanelog.Message) -> None:
        arrived.put(time.monotonic())

    def here(key: str) -> float:
        began = time.monotonic()
        client.publish(TOPIC, key, PAYLOAD)
        return arrived.get(timeout=PATIENCE) - began

    def other(key: str) -> float:
        began = neighbour.publish(key)
        return arrived.get(timeout=PATIENCE) - began

    def bare(key: str) -> float:
        sketched.ask(key)
        ended = receiver.receive()
        return ended - sketched.began()

    told = f"{'' if lanes == 1 else f'_{lanes}_lanes'}{'' if wake else '_without_hints'}"
    bench.client.publish_many(sketch.BARE, [("key-0", PAYLOAD)])
    with (
        bench.other_client(wake=wake) as client,
        client.subscribe(TOPIC, f"latency{told}", handle, start="latest"),
        Neighbour.on(bench.url, wake=wake) as neighbour,
        sketch.Receiver.on(bench, "key-0") as receiver,
        Neighbour.on(bench.url, bare=receiver.place) as sketched,
    ):
        client.publish_many(TOPIC, [(f"key-{number}", PAYLOAD) for number in range(lanes)])
        neighbour.publish("key-0")
        for _ in range(lanes + 1):
            arrived.get(timeout=PATIENCE)
        # The same process wakes its own fetcher, another one sends a hint; a new key needs an owner first. The sketch
        # alternates with the other process: other load of this machine affects both.
        for ways in (
            {} if told else {"same_process": here},
            {"other_process": other} if told else {"other_process": other, "bare": bare},
            {"new_key": other},
        ):
            taken: dict[str, list[float]] = {}
            for number in range(SAMPLES):
                for name, way in ways.items():
                    # The polls back off to poll_interval; never in step with them.
                    time.sleep(random.uniform(0.15, 0.30))
                    seconds = way(f"new{told}-{number}" if name == "new_key" else "key-0")
                    taken.setdefault(name, []).append(1000 * seconds)
            for name, each in taken.items():
                percentiles = statistics.quantiles(each, n=100, method="inclusive")
                yield f"latency_{name}{told}_p50", percentiles[49]
                yield f"latency_{name}{told}_p99", percentiles[98]


def inserting(bench: Bench) -> Iterator[tuple[str, float]]:
    """A row for each message with its ack, one by one and in batches of 100, from 100 lanes."""
    messages = bench.messages(5000)
    bench.backlog(messages, 100)
    with bench.raw() as connection:
        connection.cursor().execute(
            "CREATE TABLE inserted (way VARCHAR(20), k VARCHAR(20), o INT, PRIMARY KEY (way, k, o))"
        )
    insert = "INSERT INTO inserted VALUES (%s, %s, %s)"
    ways = {
        "insert_singly": None,
        "insert_batch_lane": lanelog.Batch(100),
        "insert_batch_lanes": lanelog.Batch(100, across="lanes"),
    }
    for way, batch in ways.items():
        last, counted, lock = threading.Event(), itertools.count(1), threading.Lock()

        def done(count: int, last: threading.Event = last, counted: Iterator[int] = counted, lock: Any = lock) -> None:
            with lock:
                if max(next(counted) for _ in range(count)) == messages:
                    last.set()

        def one(message: lanelog.Message, way: str = way, done: Callable[[int], None] = done) -> None:
            with message.transaction() as connection:
                connection.cursor().execute(insert, (way, message.key, message.offset))
            done(1)

        def many(found: lanelog.Messages, way: str = way, done: Callable[[int], None] = done) -> None:
            with found.transaction() as connection:
                connection.cursor().executemany(insert, [(way, each.key, each.offset) for each in found])
            done(len(found))

        began = time.monotonic()
        with bench.client.subscribe(TOPIC, way, one if batch is None else many, batch=batch):
            if not last.wait(PATIENCE):
                raise TimeoutError(way)
            yield way, messages / (time.monotonic() - began)


def idle(bench: Bench) -> Iterator[tuple[str, float]]:
    """Statements a second with 1,000 idle lanes."""
    bench.backlog(1000, 1000)
    for wake in (True, False):
        yield from _idle(bench, lanes=1000, wake=wake)


def idle_20000_lanes(bench: Bench) -> Iterator[tuple[str, float]]:
    """What 20,000 idle lanes of one worker take of a core, there and in the server."""
    lanes = bench.messages(20_000)
    bench.backlog(lanes, lanes)
    done = Countdown(lanes)
    with bench.client.subscribe(TOPIC, "idle", done):
        done.wait()
        wait_for_acks(bench, lanes, "idle")
        time.sleep(5.0)  # flushes, polls and collection calm down
        statements, worker, server = bench.statements(), time.process_time(), bench.server_seconds()
        began = time.perf_counter()
        time.sleep(IDLE_LONG)
        seconds = time.perf_counter() - began
        worker, server = time.process_time() - worker, bench.server_seconds() - server
        yield "idle_20000_lanes_worker", 100 * worker / seconds
        yield "idle_20000_lanes_server", 100 * server / seconds
        yield "idle_20000_lanes_statements", (bench.statements() - statements) / seconds


def _idle(bench: Bench, *, lanes: int, wake: bool) -> Iterator[tuple[str, float]]:
    told, done = "" if wake else "_without_hints", Countdown(lanes)
    with (
        lanelog.connect(bench.url, wake=wake) as client,
        client.subscribe(TOPIC, f"idle{told}", done) as subscription,
    ):
        done.wait()
        time.sleep(2.0)  # flushes and polls calm down
        if subscription.stats().lanes != lanes:
            raise RuntimeError(f"holds {subscription.stats().lanes} lanes instead of {lanes}")
        before, began = bench.statements(), time.perf_counter()
        time.sleep(IDLE_SECONDS)
        # The two counts are statements themselves, with what their connections send at the start.
        yield f"idle_statements_1000_lanes{told}", (bench.statements() - before) / (time.perf_counter() - began)


def crowded(bench: Bench) -> Iterator[tuple[str, float]]:
    """Ten processes that publish and fifty subscribers, with hints and without."""
    bench.client.publish_many(TOPIC, [(f"key-{number}", PAYLOAD) for number in range(crowd.KEYS)])
    with bench.raw() as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL max_connections = 1000")
    reached: dict[bool, list[float]] = {True: [], False: []}
    with crowd.Crowd.on(bench.url) as publishers:
        publishers.publish(wake=True)  # lanes find their owners, everybody warms up
        for wake in (False, True, True, False):  # what slows down with time slows both down
            reached[wake].append(publishers.publish(wake=wake))
    yield "publish_crowd_without_hints", statistics.mean(reached[False])
    yield "publish_crowd", statistics.mean(reached[True])


def working(bench: Bench) -> Iterator[tuple[str, float]]:
    """Handlers that take a millisecond of Python each, in one process and in two."""
    messages = bench.messages(4000)
    bench.client.publish_many(TOPIC, [(f"key-{n:05d}", PAYLOAD) for n in range(processes.LANES)])  # lanes exist
    bench.client.subscribe(TOPIC, processes.GROUP, lambda _message: None).stop()  # and so does the group
    handled, reached = processes.LANES, {1: 0.0, 2: 0.0}
    for number in (1, 2):
        with processes.running(bench, number):
            began = time.perf_counter()
            bench.backlog(messages, processes.LANES)
            handled += messages
            wait_for_acks(bench, handled, processes.GROUP)
            reached[number] = messages / (time.perf_counter() - began)
    yield "handle_1_process", reached[1]
    yield "handle_2_processes", reached[2]


def flooding(bench: Bench) -> Iterator[tuple[str, float]]:
    """Consuming a backlog of 100 lanes while datagrams flood the subscriber's socket."""
    messages = bench.messages(100_000)
    bench.backlog(messages, 100)
    floods = ["none", "elsewhere", "wrong_token", "right_token"]
    random.shuffle(floods)
    rates, reached = {}, {}
    for number, which in enumerate(["none", *floods]):  # the first round warms the server up, and does not count
        rates[which], reached[which] = _flooded(bench, messages, which, f"group-{number}")
    for which in ("none", "elsewhere", "wrong_token", "right_token"):
        yield f"consume_flood_{which}", rates[which]
    for which in ("wrong_token", "right_token"):
        yield f"flood_sent_{which}", reached[which].sent
        yield f"flood_taken_{which}", reached[which].taken


def _flooded(bench: Bench, messages: int, which: str, group: str) -> tuple[float, flood.Reached]:
    """Messages a second of one new group, from the first delivery until the last ack; and what the flood reached."""
    done = Countdown(messages)
    with (
        flood.unread() as unread,
        lanelog.connect(bench.url, wake=True) as client,
        client.subscribe("quiet", "quiet", done),  # its engine's socket is there before the flood
    ):
        place = client._announcements.own_endpoint()  # noqa: SLF001 - nothing public has it
        address = unread if which == "elsewhere" else place.address
        token = place.token + (which != "right_token")
        with (
            nullcontext(flood.Reached()) if which == "none" else flood.flooded(address, token) as reached,
            client.subscribe(TOPIC, group, done),
        ):
            done.wait()
            wait_for_acks(bench, messages, group)
            ended = time.perf_counter()
    return messages / (ended - done.began), reached


def measuring(bench: Bench) -> Iterator[tuple[str, float]]:
    """What metrics and traces cost: handlers with and without them, alternately."""
    yield from measured.figures(bench)


def million_behind(bench: Bench) -> Iterator[tuple[str, float]]:
    """Status, scrape and dashboard with 1 million messages behind, and the start of consuming them."""
    lag = looking.backlog(bench, bench.messages(1_000_000))
    # The first query finds little of it in the server's memory, and none of the statements prepared.
    yield "admin_status_first", looking.status(bench)
    yield "admin_status_again", min(looking.status(bench) for _ in range(STATUS_LOOKS))
    looking.more_groups(bench)
    yield "admin_status_20_groups", min(looking.status(bench) for _ in range(STATUS_LOOKS))
    yield "scrape_20_groups", min(looking.scrape(bench) for _ in range(STATUS_LOOKS))
    yield "front_page_20_groups", min(looking.front_page(bench) for _ in range(STATUS_LOOKS))
    for by in ("age", "lag", "key"):
        yield f"lanes_page_by_{by}", min(looking.lanes_page(bench, by) for _ in range(STATUS_LOOKS))
    yield "admin_status_statements", looking.statements(bench, looking.status)
    yield "scrape_statements", looking.statements(bench, looking.scrape)
    yield "front_page_statements", looking.statements(bench, looking.front_page)
    yield "watched_statements", 100 * looking.watched(bench) / looking.workers(bench)
    began = behind.measured(bench, min(behind.HANDLED, lag // 2))
    yield "first_message_million", began.first_ms
    yield "memory_million", began.memory_mib


PLAN = (
    publish,
    consume_100_lanes,
    consume_1000_lanes,
    consume_10000_lanes,
    consume_100000_lanes,
    consume_open_lanes,
    inserting,
    latency,
    idle,
    idle_20000_lanes,
    crowded,
    flooding,
    working,
    measuring,
    million_behind,
)


class Countdown:
    """A handler that does nothing but notice its first and its last message."""

    def __init__(self, messages: int) -> None:
        self._messages = messages
        self._count = itertools.count(1)
        self._last = threading.Event()
        self.began = 0.0

    def __call__(self, _message: lanelog.Message) -> None:
        """Count a message."""
        count = next(self._count)
        if count == 1:
            self.began = time.perf_counter()
        if count == self._messages:
            self._last.set()

    def wait(self) -> None:
        """Wait for the last message; raises TimeoutError."""
        if not self._last.wait(PATIENCE):
            raise TimeoutError(f"{self._messages} messages were not handled within {PATIENCE:g} s")


def _consume(bench: Bench, lanes: int, messages: int = 0) -> Iterator[tuple[str, float]]:
    """A backlog, strict order, a handler that does nothing; from the first delivery until the last ack is committed.

    `lanes` 0: the messages have no keys, and lie in the topic's open lanes.
    """
    messages = messages or bench.messages(100_000)
    bench.backlog(messages, lanes)
    name = f"{lanes}_lanes" if lanes else "open_lanes"
    if lanes:
        yield f"raw_read_{name}", raw.read_by_lane(bench, lanes)
        yield f"sketch_consume_{name}", sketch.consume(bench, messages, lanes)
    done = Countdown(messages)
    before, started = bench.statements(), time.perf_counter()
    with bench.client.subscribe(TOPIC, "group", done):
        done.wait()
        wait_for_acks(bench, messages)
        ended = time.perf_counter()
        statements = bench.statements() - before
    yield f"consume_{name}", messages / (ended - done.began)
    yield f"first_message_{name}", 1000 * (done.began - started)
    yield f"statements_per_message_{name}", statements / messages


def wait_for_acks(bench: Bench, messages: int, group: str = "group") -> None:
    """Until the watermarks in the database say that every message is acked."""
    with bench.raw() as connection, connection.cursor() as cursor:
        for _ in range(round(PATIENCE / 0.005)):
            cursor.execute(
                "SELECT COALESCE(SUM(offset_acked), 0) FROM queue_offsets WHERE consumer_group = %s", (group,)
            )
            row = cursor.fetchone()
            if row and int(row[0]) >= messages:
                return
            time.sleep(0.005)
    raise TimeoutError("the last messages were not acked")
