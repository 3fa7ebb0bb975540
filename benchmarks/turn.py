"""One turn of `make bench-compare`: measures the lanelog that it is started with, and prints what it found as JSON.

It is a program of its own and imports nothing of the benchmarks, because it runs with the packages of other commits. So
it uses public names alone. A measurement that a commit cannot do is left out, with the reason.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import lanelog

if TYPE_CHECKING:
    from collections.abc import Callable

PAYLOAD = os.urandom(200)
PATIENCE = 120.0


def publish(client: lanelog.Client, topic: str, messages: int) -> None:
    """One message at a time, one thread."""
    for number in range(messages):
        client.publish(topic, f"key-{number % 64}", PAYLOAD)


def publish_many(client: lanelog.Client, topic: str, messages: int) -> None:
    """A hundred messages at a time."""
    for start in range(0, messages, 100):
        client.publish_many(topic, [(f"key-{number % 64}", PAYLOAD) for number in range(start, start + 100)])


def consume(client: lanelog.Client, topic: str, messages: int) -> None:
    """A backlog, by a handler that does nothing."""
    left, done, lock = messages, threading.Event(), threading.Lock()

    def handle(_message: lanelog.Message) -> None:
        nonlocal left
        with lock:
            left -= 1
            if left == 0:
                done.set()

    with client.subscribe(topic, "group", handle):
        if not done.wait(PATIENCE):
            raise TimeoutError(f"{left} of {messages} messages were not handled within {PATIENCE:g} s")


def backlog(lanes: int) -> Callable[[lanelog.Client, str, int], None]:
    """Publishes what `consume` handles, evenly over `lanes`."""

    def prepare(client: lanelog.Client, topic: str, messages: int) -> None:
        for start in range(0, messages, 1000):
            end = min(start + 1000, messages)
            client.publish_many(topic, [(f"key-{number % lanes}", PAYLOAD) for number in range(start, end)])

    return prepare


def warm(client: lanelog.Client, topic: str, _messages: int) -> None:
    """The lanes are there, and the connections open."""
    client.publish_many(topic, [(f"key-{number}", PAYLOAD) for number in range(64)])


STEPS: dict[str, tuple[Callable[[lanelog.Client, str, int], None], Callable[[lanelog.Client, str, int], None], int]] = {
    "publish": (warm, publish, 2000),
    "publish_many of 100": (warm, publish_many, 20_000),
    "consume, 100 lanes": (backlog(100), consume, 30_000),
    "consume, 1,000 lanes": (backlog(1000), consume, 30_000),
}


def measured(client: lanelog.Client, name: str, scale: float) -> dict[str, Any]:
    """Messages a second, and microseconds of this process for a message; or why there are none."""
    prepare, work, count = STEPS[name]
    topic, messages = name.replace(" ", "-").replace(",", ""), max(200, round(count * scale / 100) * 100)
    try:
        prepare(client, topic, messages)
        began, used = time.perf_counter(), time.process_time()
        work(client, topic, messages)
        used, took = time.process_time() - used, time.perf_counter() - began
    except Exception as exc:  # noqa: BLE001 - another commit may lack anything
        return {"missing": f"{type(exc).__name__}: {exc}"}
    return {"rate": messages / took, "cost": 1e6 * used / messages}


def main(url: str, scale: str) -> None:
    """Measure everything once."""
    with lanelog.connect(url) as client:
        client.migrate()
        print(json.dumps({name: measured(client, name, float(scale)) for name in STEPS}))


if __name__ == "__main__":
    main(*sys.argv[1:])
