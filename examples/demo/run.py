"""One run of the demo, from empty tables to the report.

Owns the order of the steps and their end: publisher, workers, the kill, the view, the verification.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Final

import pymysql
from attrs import define, field

import lanelog
from demo import cleanup, verify
from demo.chaos import Chaos
from demo.fleet import Fleet
from demo.git import Repository
from demo.publish import HistoryPublisher
from demo.rebuild import GROUPS
from demo.report import Report
from demo.tables import Tables, own_connection
from demo.view import View
from demo.watch import Progress, Watch

LOOK_EVERY: Final = 0.05
SHOW_EVERY: Final = 0.25
STALLED_AFTER: Final = 60.0
LETTER_PATIENCE: Final = 10.0

_never: Final = threading.Event()


class Stalled(Exception):
    """No number changed for a long time."""


@define(eq=False)
class DeadLetters:
    """Receives the dead letters of the run, as an application would: by a subscription to their topic."""

    shown: list[str] = field(factory=list)

    def __call__(self, message: lanelog.Message) -> None:
        """Keep a line about the dead letter."""
        letter = message.dead_letter
        if letter is None:
            return  # an ordinary message, published to this topic
        place = f"lane {message.key}, offset {letter.original_offset}, {len(message.payload)} bytes"
        self.shown.append(f"{place}, dead-lettered by group {letter.group}: {letter.last_error}")


@define(eq=False, kw_only=True)
class Run:
    """Rebuilds repositories through the queue in the database at `url`."""

    repositories: Sequence[Repository]
    url: str = field(repr=False)
    workers: int
    pause: float
    name: str = field(factory=lambda: secrets.token_hex(6))

    @property
    def topic(self) -> str:
        """The topic of the jobs."""
        return f"demo-{self.name}"

    def remove(self) -> None:
        """Remove all that the run wrote into the database, if the database still exists.

        Call it when the run is over.
        """
        with suppress(pymysql.Error), own_connection(self.url) as connection:
            cleanup.remove(connection, self.topic, Tables(self.name))

    def __call__(self, view: View) -> Report:
        """Run, and return the report. Raises GitError, LanelogError, WorkerEnded, Stalled."""
        topic = self.topic
        tables = Tables(self.name)
        letters = DeadLetters()
        with ExitStack() as stack:
            client = stack.enter_context(lanelog.connect(self.url))
            client.migrate()
            with own_connection(self.url) as connection:
                tables.create(connection)
            stack.enter_context(client.subscribe(f"{topic}_dlq", "demo", letters, workers=1))
            fleet = stack.enter_context(Fleet(url=self.url, topic=topic, run=self.name, pause=self.pause))
            for _ in range(self.workers):
                fleet.start()
            began = time.monotonic()
            publisher = stack.enter_context(HistoryPublisher(client, topic, self.repositories))
            chaos = Chaos(fleet, Watch(client, topic), view.say)
            progress = self._follow(chaos, publisher, letters, view)
            seconds = time.monotonic() - began
            return self._judge(client, tables, publisher, progress, seconds, chaos, letters)

    def _follow(self, chaos: Chaos, publisher: HistoryPublisher, letters: DeadLetters, view: View) -> Progress:
        """Wait until everything is handled, the killed worker's lanes too."""
        progress = chaos.watch.progress()
        last, changed, shown = None, time.monotonic(), 0.0
        while True:
            publisher.check()
            chaos.fleet.check()
            chaos.turn()
            now = time.monotonic()
            if now - shown >= SHOW_EVERY:
                complete = publisher.done.is_set()  # asked first: then the progress counts all published jobs
                progress, shown = chaos.watch.progress(), now
                view.show(progress, self._doing(chaos, publisher))
                state = (progress.published, tuple(map(progress.handled, GROUPS)), chaos.takeover, len(letters.shown))
                if state != last:
                    last, changed = state, now
                waited = now - changed
                if complete and progress.settled:
                    publisher.check()
                    ready = bool(letters.shown) and (chaos.done or not chaos.killed)
                    if ready or waited >= LETTER_PATIENCE:
                        return progress
                if waited >= STALLED_AFTER:
                    raise Stalled(f"nothing moved for {waited:.0f} s: {progress}")
            _never.wait(LOOK_EVERY)

    @staticmethod
    def _doing(chaos: Chaos, publisher: HistoryPublisher) -> str:
        if not chaos.killed:
            return "soon one worker is killed"
        if not chaos.done:
            return "waiting for the killed worker's lanes to move"
        return "handling the rest" if publisher.done.is_set() else "publishing and handling"

    def _judge(
        self,
        client: lanelog.Client,
        tables: Tables,
        publisher: HistoryPublisher,
        progress: Progress,
        seconds: float,
        chaos: Chaos,
        letters: DeadLetters,
    ) -> Report:
        with client.transaction() as connection:
            authors = tuple(tables.authors(connection))
            return Report(
                jobs=publisher.jobs,
                commits=publisher.commits,
                lanes=progress.lanes,
                seconds=seconds,
                pause=self.pause,
                takeover=chaos.takeover,
                dead_letters=tuple(letters.shown),
                count=verify.count(connection, tables, publisher.lanes),
                counted_by_stats=sum(row.jobs for row in authors),
                authors=authors,
                comparisons=tuple(verify.compare(connection, tables, each) for each in self.repositories),
            )
