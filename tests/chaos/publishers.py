"""A publishing process of a chaos run: `python -m chaos.publishers URL DIRECTORY NAME SEED KEYS`, until SIGTERM.

Owns three threads: one publishes single messages, one batches, one in transactions of its own that it sometimes rolls
back. Each writes down what it is about to send, and what became of it.
"""

from __future__ import annotations

import itertools
import logging
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Literal

from attrs import define

import lanelog
from chaos.history import Journal, Publish
from chaos.worker import TOPIC

ROLLS_BACK: Final = 0.3
PACES: Final = {"single": 0.03, "batch": 0.1, "caller": 0.05}
"""Seconds between two publishes of a thread."""

log = logging.getLogger("chaos.publishers")

Sent = list[tuple[str, str]]
Outcome = Literal["attempted", "acknowledged", "unknown", "rolled-back"]


class Undo(Exception):
    """The caller changes its mind."""


@define(eq=False)
class Publisher:
    """One thread's way to publish."""

    client: lanelog.Client
    journal: Journal
    name: str
    dice: random.Random
    keys: int

    def run(self, publish: Callable[[Sent], None], pace: float, most: int, stop: threading.Event) -> None:
        """Publish up to `most` messages at once, until told to stop."""
        for number in itertools.count(1):
            if stop.wait(self.dice.uniform(0.5, 1.5) * pace):
                return
            count = self.dice.randint(1, most)
            sent = [(f"k{self.dice.randrange(self.keys)}", f"{self.name}-{number}-{index}") for index in range(count)]
            self.note("attempted", sent)
            publish(sent)

    def single(self, sent: Sent) -> None:
        """Publish one message."""
        self.retried(sent, lambda: [self.client.publish(TOPIC, key, b"single", id=name) for key, name in sent])

    def batch(self, sent: Sent) -> None:
        """Publish all or nothing, in a transaction of the library."""
        messages = [lanelog.Outgoing(key, b"batch", id=name) for key, name in sent]
        self.retried(sent, lambda: self.client.publish_many(TOPIC, messages))

    def retried(self, sent: Sent, publish: Callable[[], Iterable[lanelog.Receipt]]) -> None:
        """Note the outcome of what the library repeats by itself."""
        try:
            receipts = list(publish())
        except lanelog.DatabaseError:
            log.exception("publish failed")
            self.note("unknown", sent)
        else:
            self.note("acknowledged", sent, receipts)

    def caller(self, sent: Sent) -> None:
        """Publish in a transaction of the caller's, which nobody repeats."""
        undo = self.dice.random() < ROLLS_BACK
        try:
            with self.client.transaction() as connection:
                receipts = [
                    self.client.publish(TOPIC, key, b"caller", id=name, connection=connection) for key, name in sent
                ]
                if undo:
                    raise Undo  # noqa: TRY301 - an exception is how a caller rolls back
        except Undo:
            self.note("rolled-back", sent)
        except lanelog.DatabaseError as error:
            log.warning("transaction failed: %s", error)
            self.note("unknown" if error.outcome_unknown else "rolled-back", sent)
        else:
            self.note("acknowledged", sent, receipts)

    def note(self, outcome: Outcome, sent: Sent, receipts: Iterable[lanelog.Receipt] = ()) -> None:
        """Write down one outcome for all of them."""
        offsets = [receipt.offset for receipt in receipts] or [None] * len(sent)
        self.journal.write(
            *(
                Publish(at=time.monotonic(), outcome=outcome, topic=TOPIC, key=key, id=name, offset=offset)
                for (key, name), offset in zip(sent, offsets, strict=True)
            )
        )


def main(url: str, directory: str, name: str, seed: str, keys: str) -> None:
    """Publish until SIGTERM."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(threadName)s %(message)s")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with Journal(Path(directory) / f"{name}.jsonl") as journal, lanelog.connect(url) as client:
        threads = []
        for way, most in (("single", 1), ("batch", 8), ("caller", 3)):
            label = f"{name}-{way}"
            publisher = Publisher(client, journal, label, random.Random(f"{seed}-{label}"), int(keys))
            arguments = (getattr(publisher, way), PACES[way], most, stop)
            threads.append(threading.Thread(target=publisher.run, args=arguments, name=label))
        for thread in threads:
            thread.start()
        stop.wait()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
