"""A worker of a soak: `python -m chaos.soak_worker URL NAME RETENTION`, until SIGTERM.

Owns the handlers of two groups: `plain` returns, `retried` fails now and then and succeeds at the next attempt. It
never judges; every second it prints what was handled since the last time, with the latencies counted in buckets.
"""

import logging
import random
import sys
import threading
import time
from collections import Counter
from typing import Final

import tenacity

import lanelog
from chaos.soak_figures import bucket
from chaos.soak_publisher import EVERY, PUBLISH_TIMEOUT, TOPIC, say

PLAIN, RETRIED = "plain", "retried"
WORKERS: Final = 4
FAILS: Final = 0.002
RETRY: Final = lanelog.RetryPolicy(stop=tenacity.stop_after_attempt(10), wait=tenacity.wait_fixed(0.2))
LANE_IDLE_PURGE: Final = 30.0


class Hiccup(Exception):
    """What a handler fails with."""


class Handlers:
    """Both groups' handlers, and what they count."""

    def __init__(self, name: str) -> None:
        self._lock = threading.Lock()
        self._dice = random.Random(name)
        self._handled: Counter[str] = Counter()
        self._latencies: Counter[int] = Counter()

    def plain(self, message: lanelog.Message) -> None:
        """Count it."""
        self._count(message)

    def retried(self, message: lanelog.Message) -> None:
        """Count it, or fail."""
        if self._dice.random() < FAILS:
            raise Hiccup
        self._count(message)

    def _count(self, message: lanelog.Message) -> None:
        latency = time.monotonic() - message.json()["at"]
        with self._lock:
            self._handled[message.group] += 1
            if message.attempt == 1:  # a retry waits on purpose
                self._latencies[bucket(latency)] += 1

    def counted(self) -> dict[str, object]:
        """What was counted since the last time."""
        with self._lock:
            handled, self._handled = self._handled, Counter()
            latencies, self._latencies = self._latencies, Counter()
        return {"handled": handled, "latencies": latencies}


def main(url: str, name: str, retention: str) -> None:
    """Work until SIGTERM."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(threadName)s %(message)s")
    handlers, over = Handlers(name), threading.Event()

    def report() -> None:
        while not over.wait(EVERY):
            say(handlers.counted())
        say(handlers.counted())

    reporter = threading.Thread(target=report, name="report")
    with lanelog.connect(url, lane_idle_purge=LANE_IDLE_PURGE, publish_timeout=PUBLISH_TIMEOUT) as client:
        for group, handler in ((PLAIN, handlers.plain), (RETRIED, handlers.retried)):
            client.subscriber(
                TOPIC, group, name=name, workers=WORKERS, retry=RETRY, max_deliveries=None, retention=float(retention)
            )(handler)
        reporter.start()
        try:
            client.run()
        finally:
            over.set()
            reporter.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
