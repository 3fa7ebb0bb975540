"""One side of `make bench-compare`: measures the lanelog that it is started with.

Each line of its input names a step. It takes the step, and prints what it found as a line of JSON. It is a program of
its own and imports nothing of the benchmarks, because it runs with the packages of other commits. So it uses public
names alone. A measurement that a commit cannot do is left out, with the reason.
"""

from __future__ import annotations

import json
import os
import queue
import statistics
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import lanelog

if TYPE_CHECKING:
    from collections.abc import Callable

PAYLOAD = os.urandom(200)
PATIENCE = 120.0


def clocks() -> tuple[float, float]:
    """Seconds by the clock, and of this process."""
    return time.perf_counter(), time.process_time()


def figures(messages: int, begun: tuple[float, float], ended: tuple[float, float]) -> dict[str, float]:
    """Messages a second, and microseconds of this process for a message."""
    return {"rate": messages / (ended[0] - begun[0]), "cost": 1e6 * (ended[1] - begun[1]) / messages}


def publish(client: lanelog.Client, topic: str, messages: int) -> dict[str, float]:
    """One message at a time, one thread."""
    begun = clocks()
    for number in range(messages):
        client.publish(topic, f"key-{number % 64}", PAYLOAD)
    return figures(messages, begun, clocks())


def publish_many(client: lanelog.Client, topic: str, messages: int) -> dict[str, float]:
    """A hundred messages at a time."""
    begun = clocks()
    for start in range(0, messages, 100):
        client.publish_many(topic, [(f"key-{number % 64}", PAYLOAD) for number in range(start, start + 100)])
    return figures(messages, begun, clocks())


def consume(client: lanelog.Client, topic: str, messages: int) -> dict[str, float]:
    """A backlog, by a handler that does nothing. What comes before the first message is the start."""
    left, done, lock = messages, threading.Event(), threading.Lock()
    first = last = (0.0, 0.0)

    def handle(_message: lanelog.Message) -> None:
        nonlocal left, first, last
        with lock:
            if left == messages:
                first = clocks()
            left -= 1
            if left == 0:
                last = clocks()
                done.set()

    subscribed = time.perf_counter()
    with client.subscribe(topic, "group", handle):
        if not done.wait(PATIENCE):
            raise TimeoutError(f"{left} of {messages} messages were not handled within {PATIENCE:g} s")
    return {**figures(messages, first, last), "start": 1e3 * (first[0] - subscribed)}


def arrive(client: lanelog.Client, topic: str, messages: int) -> dict[str, float]:
    """One message after the other, from the call of publish to its handler. The subscription is idle in between."""
    arrived: queue.SimpleQueue[float] = queue.SimpleQueue()
    took: list[float] = []
    with client.subscribe(topic, "group", lambda _message: arrived.put(time.perf_counter())):
        for number in range(64 + messages):
            begun = time.perf_counter()
            client.publish(topic, f"key-{number % 64}", PAYLOAD)
            took.append(1e3 * (arrived.get(timeout=PATIENCE) - begun))
    took = sorted(took[64:])
    return {"median": statistics.median(took), "p95": took[len(took) * 95 // 100]}


def backlog(lanes: int) -> Callable[[lanelog.Client, str, int], None]:
    """Publishes what `consume` handles, evenly over `lanes`."""

    def prepare(client: lanelog.Client, topic: str, messages: int) -> None:
        for start in range(0, messages, 1000):
            end = min(start + 1000, messages)
            client.publish_many(topic, [(f"key-{number % lanes}", PAYLOAD) for number in range(start, end)])

    return prepare


def nothing(_client: lanelog.Client, _topic: str, _messages: int) -> None:
    """Nothing is there before."""


def warm(client: lanelog.Client, topic: str, _messages: int) -> None:
    """The lanes are there, and the connections open."""
    client.publish_many(topic, [(f"key-{number}", PAYLOAD) for number in range(64)])


STEPS: dict[
    str, tuple[Callable[[lanelog.Client, str, int], None], Callable[[lanelog.Client, str, int], dict[str, float]], int]
] = {
    "publish": (warm, publish, 2000),
    "publish_many of 100": (warm, publish_many, 20_000),
    "consume, 100 lanes": (backlog(100), consume, 30_000),
    "consume, 1,000 lanes": (backlog(1000), consume, 30_000),
    "consume, 10,000 lanes": (backlog(10_000), consume, 30_000),
    "publish to handler": (nothing, arrive, 400),
}


def measured(client: lanelog.Client, name: str, scale: float) -> dict[str, Any]:
    """What a step has found, or why it has found nothing."""
    prepare, work, count = STEPS[name]
    topic, messages = name.replace(" ", "-").replace(",", ""), max(200, round(count * scale / 100) * 100)
    try:
        prepare(client, topic, messages)
        return dict(work(client, topic, messages))
    except Exception as exc:  # noqa: BLE001 - another commit may lack anything
        return {"missing": f"{type(exc).__name__}: {exc}"}


def main(url: str, scale: str) -> None:
    """Say which steps there are, and take those that are asked for, until the end of the input."""
    with lanelog.connect(url) as client:
        client.migrate()
        print(json.dumps(list(STEPS)), flush=True)
        for line in sys.stdin:
            print(json.dumps(measured(client, line.strip(), float(scale))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
