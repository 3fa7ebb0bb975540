"""A publisher of a soak: `python -m chaos.soak_publisher URL NAME SEED RATE KEYS`, until SIGTERM.

Owns the steady pace: one thread publishes small batches, one single messages, each by a timetable that a slow publish
does not stretch. It never judges; every second it prints how much it has published since the last time.
"""

import itertools
import json
import logging
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from attrs import define, field

import lanelog

TOPIC: Final = "soak"
SINGLES: Final = 0.2
"""The share of the messages that are published one by one."""

BATCH: Final = 10
SHORT_LIVED: Final = 0.02
"""The share of the messages whose key is used for ten seconds only, so that lanes come and are purged again."""

FILLING: Final = "x" * 150
ARREARS: Final = 1.0
"""Seconds by which a publisher may be behind its timetable and catch up."""

EVERY: Final = 1.0
PUBLISH_TIMEOUT: Final = 15.0


@define(eq=False)
class Publisher:
    """Both threads of this process, and what they count."""

    client: lanelog.Client
    name: str
    seed: int
    rate: float
    keys: int
    stop: threading.Event = field(factory=threading.Event)
    failures: list[BaseException] = field(factory=list)
    _published: int = 0
    _lock: threading.Lock = field(factory=threading.Lock)

    def run(self) -> None:
        """Publish until told to stop."""
        threads = [
            threading.Thread(target=self._work, args=(self._batch, self.rate * (1 - SINGLES) / BATCH), name="batches"),
            threading.Thread(target=self._work, args=(self._single, self.rate * SINGLES), name="singles"),
        ]
        for thread in threads:
            thread.start()
        while not self.stop.wait(EVERY):
            self._report()
        for thread in threads:
            thread.join()
        self._report()
        if self.failures:
            raise self.failures[0]

    def _work(self, publish: Callable[[random.Random], None], pace: float) -> None:
        dice = random.Random(f"{self.seed}/{self.name}/{pace}")
        began = time.monotonic()
        try:
            for number in itertools.count():
                early = began + number / pace - time.monotonic()
                if self.stop.wait(max(0.0, early)):
                    return
                began += max(0.0, -early - ARREARS)  # what a busy machine kept from being published is not made up for
                publish(dice)
        except BaseException as error:
            self.failures.append(error)
            self.stop.set()
            raise

    def _single(self, dice: random.Random) -> None:
        self.client.publish(TOPIC, self._key(dice), _payload())
        self._count(1)

    def _batch(self, dice: random.Random) -> None:
        self.client.publish_many(TOPIC, [(self._key(dice), _payload()) for _ in range(BATCH)])
        self._count(BATCH)

    def _count(self, messages: int) -> None:
        with self._lock:
            self._published += messages

    def _report(self) -> None:
        with self._lock:
            published, self._published = self._published, 0
        say({"published": published})

    def _key(self, dice: random.Random) -> str:
        if dice.random() < SHORT_LIVED:
            return f"short-{self.name}-{int(time.monotonic() / 10)}-{dice.randrange(5)}"
        return f"key-{dice.randrange(self.keys)}"


def say(counted: dict[str, object]) -> None:
    """Tell the runner, in one line."""
    sys.stdout.write(json.dumps(counted) + "\n")
    sys.stdout.flush()


def _payload() -> dict[str, object]:
    """The moment of the publish by the machine's monotonic clock, which the workers share, and some weight."""
    return {"at": time.monotonic(), "filling": FILLING}


def main(url: str, name: str, seed: str, rate: str, keys: str) -> None:
    """Publish until SIGTERM."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(threadName)s %(message)s")
    with lanelog.connect(url, publish_timeout=PUBLISH_TIMEOUT) as client:
        publisher = Publisher(client, name, int(seed), float(rate), int(keys))
        signal.signal(signal.SIGTERM, lambda *_: publisher.stop.set())
        publisher.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
