"""A publishing process of a chaos run: `python -m chaos.publishers URL DIRECTORY NAME SEED KEYS HINTS [RATE]`.

Runs until SIGTERM. Owns its threads: three publish single messages, the main thread among them, one batches, one in
transactions of its own that it sometimes rolls back; with a rate, one thread publishes that many a second. Each writes
down what it is about to send, and what became of it.
"""

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
from chaos import hints
from chaos.exposed import Exposed
from chaos.history import Journal, Publish
from chaos.worker import PUBLISH_TIMEOUT, TOPIC, follow_parent, noted, until_there
from lanelog._database.connection.driver import SILENCE_SECONDS
from lanelog._log.append import draft
from lanelog._log.append import unknown_outcome as doubt
from lanelog.publisher import batch

ROLLS_BACK: Final = 0.3
UNNAMED: Final = 0.7
EXPOSED: Final = 0.18, 0.0
"""Seconds between two single messages of the main thread, usually and in a hurry."""

WAYS: Final = {
    "single": (1, (0.18, 0.0)),
    "single-too": (1, (0.18, 0.0)),
    "batch": (8, (0.2, 0.03)),
    "caller": (3, (0.1, 0.03)),
}
"""The other threads: how many messages at most in one publish, and the seconds between two, usually and in a hurry.

With the main thread, 120 messages a second of two processes, for two groups: two cores, which also reload every lane
and do the lost tail again after a failover, are not what a bound of seconds then measures.
"""
TICK: Final = 0.05
HURRIES: Final = 0.5
"""Seconds for which a process hurries after each signal of the nemesis."""

log = logging.getLogger("chaos.publishers")

made = threading.local()
"""`name`: the next id that the library makes in this thread."""

Sent = list[tuple[str, str]]
Paces = tuple[float, float]
"""Seconds between two publishes, usually and in a hurry."""

Outcome = Literal["attempted", "acknowledged", "unknown", "rolled-back"]


class Undo(Exception):
    """The caller changes its mind."""


@define(eq=False)
class Haste:
    """Whether the threads of this process hardly rest: some are in one transaction then, others wait for it."""

    _until: float = 0.0

    def begin(self) -> None:
        """Hurry for a moment, from now on."""
        self._until = time.monotonic() + HURRIES

    def pace(self, usually: float, hasty: float) -> float:
        """The one of the two that holds now."""
        return usually if time.monotonic() >= self._until else hasty


@define(eq=False)
class Publisher:
    """One thread's way to publish."""

    client: lanelog.Client
    journal: Journal
    name: str
    dice: random.Random
    keys: int
    haste: Haste

    def run(self, publish: Callable[[Sent], None], paces: Paces, most: int, stop: threading.Event) -> None:
        """Publish up to `most` messages at once, until told to stop."""
        for number in itertools.count(1):
            if stop.wait(self.dice.uniform(0.5, 1.5) * self.haste.pace(*paces)):
                return
            sent = self.some(number, most)
            self.note("attempted", sent)
            publish(sent)

    def some(self, number: int, most: int) -> Sent:
        """The keys and ids of the messages of one publish."""
        count = self.dice.randint(1, most)
        return [(f"k{self.dice.randrange(self.keys)}", f"{self.name}-{number}-{index}") for index in range(count)]

    def steadily(self, rate: float, stop: threading.Event) -> None:
        """Publish so many messages a second over all keys in turn; what an outage held up is not made up for."""
        keys = itertools.cycle(range(self.keys))
        due = time.monotonic()
        for number in itertools.count(1):
            due = max(due + TICK, time.monotonic() - TICK)
            if stop.wait(max(0.0, due - time.monotonic())):
                return
            count = round(rate * TICK * number) - round(rate * TICK * (number - 1))
            sent = [(f"k{next(keys)}", f"{self.name}-{number}-{index}") for index in range(count)]
            self.note("attempted", sent)
            self.batch(sent)

    def single(self, sent: Sent) -> None:
        """Publish one message, under an id of ours or, in one packet, as if the library had made the id."""
        one = self.any_name()
        self.retried(sent, lambda: [one(key, name) for key, name in sent])

    def any_name(self) -> Callable[[str, str], lanelog.Receipt]:
        """One of the two ways to publish a single message."""
        return self.unnamed if self.dice.random() < UNNAMED else self.named

    def named(self, key: str, name: str) -> lanelog.Receipt:
        """Publish a message under the id that it was written down with."""
        return self.client.publish(TOPIC, key, b"single", id=name)

    def unnamed(self, key: str, name: str) -> lanelog.Receipt:
        """The same, and the library takes it for an id that nobody can have used before."""
        made.name = name
        return self.client.publish(TOPIC, key, b"single")

    def batch(self, sent: Sent) -> None:
        """Publish all or nothing, in a transaction of the library."""
        messages = [lanelog.Outgoing(key, b"batch", id=name) for key, name in sent]
        self.retried(sent, lambda: self.client.publish_many(TOPIC, messages))

    def retried(self, sent: Sent, publish: Callable[[], Iterable[lanelog.Receipt]]) -> None:
        """Note the outcome of what the library repeats by itself."""
        try:
            receipts = list(publish())
        except lanelog.DatabaseError as error:
            log.exception("publish failed")
            self.failed(sent, error)
        else:
            self.note("acknowledged", sent, receipts)

    def caller(self, sent: Sent) -> None:
        """Publish in a transaction of the caller's, which nobody repeats: in the order of keys, against deadlocks."""
        sent = sorted(sent)
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
            self.failed(sent, error)
        else:
            self.note("acknowledged", sent, receipts)

    def failed(self, sent: Sent, error: lanelog.DatabaseError) -> None:
        """Write down an error for all of them."""
        self.note("unknown" if error.outcome_unknown else "rolled-back", sent, error=str(error))

    def note(self, outcome: Outcome, sent: Sent, receipts: Iterable[lanelog.Receipt] = (), error: str = "") -> None:
        """Write down one outcome for all of them."""
        offsets = [receipt.offset for receipt in receipts] or [None] * len(sent)
        self.journal.write(
            *(
                Publish(at=time.monotonic(), outcome=outcome, topic=TOPIC, key=key, id=name, offset=offset, error=error)
                for (key, name), offset in zip(sent, offsets, strict=True)
            )
        )


def make_id() -> str:
    """For the library: the id that this thread has written down."""
    name: str = made.__dict__.pop("name")
    return name


def main(url: str, directory: str, name: str, seed: str, keys: str, become: hints.Hints, rate: str = "0") -> None:
    """Publish until SIGTERM."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(threadName)s %(message)s")
    follow_parent()
    draft.new_id = make_id
    # Packets in spite of the short time-out: what had an unknown outcome is never published again here. A repetition of
    # the library's own waits no longer than the server keeps a silent session.
    batch.LATEST = PUBLISH_TIMEOUT
    doubt.LATEST = float(SILENCE_SECONDS)
    stop, haste = threading.Event(), Haste()
    # By a thread, since the main one waits for the event again and again: it may have its lock just now.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=stop.set).start())
    with (
        Journal(Path(directory) / f"{name}.jsonl") as journal,
        lanelog.connect(url, publish_timeout=PUBLISH_TIMEOUT, wake=hints.switch(become, name)) as client,
    ):
        until_there(client.ping)

        def publisher(label: str) -> Publisher:
            return Publisher(client, journal, label, random.Random(f"{seed}-{label}"), int(keys), haste)

        threads = []
        if float(rate):
            threads = [threading.Thread(target=publisher(name).steadily, args=(float(rate), stop), name=name)]
        for way, (most, paces) in {} if threads else WAYS.items():
            mine = publisher(f"{name}-{way}")
            arguments = (getattr(mine, way.removesuffix("-too")), paces, most, stop)
            threads.append(threading.Thread(target=mine.run, args=arguments, name=mine.name))
        broken: list[BaseException | None] = []

        def note(args: threading.ExceptHookArgs) -> None:
            log.error("%s ended", args.thread, exc_info=args.exc_value)
            broken.append(args.exc_value)

        threading.excepthook = note
        exposed = Exposed(publisher(f"{name}-main"), Path(directory), haste)
        exposed.listen()
        for thread in threads:
            thread.start()
        if float(rate):
            stop.wait()
        else:
            exposed.run(EXPOSED, stop)
        for thread in threads:
            thread.join()
        journal.write(noted(client, name))
    for failure in exposed.failures:
        log.error(failure)
    sys.exit(1 if broken or exposed.failures else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
