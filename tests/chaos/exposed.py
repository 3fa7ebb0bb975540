"""The main thread of a publishing process of a chaos run, which the nemesis interrupts and lets fork by signals.

Owns what the signals do: SIGUSR1 raises wherever the library is in a publish, SIGUSR2 asks for a child. Each lets the
process hurry, SIGHUP does nothing else. The thread publishes single messages beside the others of its process, and
notes what became of them. An interrupted publish is unknown.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import define, evolve, field

import lanelog
from chaos.history import Journal

if TYPE_CHECKING:
    from chaos.publishers import Haste, Paces, Publisher, Sent  # runs as __main__

CHILD_ENDS_WITHIN: Final = 60
"""Seconds, several times what its publishes may take: one that hangs is ended by SIGALRM."""

log = logging.getLogger("chaos.exposed")


class InterruptError(Exception):
    """An interrupt as a time limit raises it."""


class Interrupt(BaseException):
    """An interrupt as Ctrl-C raises it."""


@define(eq=False)
class Exposed:
    """One process's."""

    publisher: Publisher
    directory: Path
    haste: Haste
    failures: list[str] = field(factory=list, init=False)
    _raises: bool = field(default=False, init=False)
    _asked: int = field(default=0, init=False)
    """Children that are still to be forked."""
    _children: dict[int, str] = field(factory=dict, init=False)

    def listen(self) -> None:
        """Take the nemesis's signals from now on."""
        signal.signal(signal.SIGUSR1, self._interrupt)
        signal.signal(signal.SIGUSR2, self._ask)
        signal.signal(signal.SIGHUP, lambda *_: self.haste.begin())

    def run(self, paces: Paces, stop: threading.Event) -> None:
        """Publish in the main thread, and have children, until told to stop."""
        for number in itertools.count(1):
            if stop.wait(self.publisher.dice.uniform(0.5, 1.5) * self.haste.pace(*paces)):
                break
            while self._asked:
                self._asked -= 1
                self._fork()
            sent = self.publisher.some(number, 1)
            self.publisher.note("attempted", sent)
            self._publish(sent)
        for pid, name in self._children.items():
            _, status = os.waitpid(pid, 0)
            if status:
                self.failures.append(f"{name} ended with status {status}")

    def _publish(self, sent: Sent) -> None:
        one = self.publisher.any_name()
        receipts: list[lanelog.Receipt] = []
        failed: lanelog.DatabaseError | None = None
        try:
            self._raises = True
            try:
                receipts = [one(key, name) for key, name in sent]
            except lanelog.DatabaseError as error:
                failed = error
            finally:
                self._raises = False
        except (Interrupt, InterruptError):  # also where it came just behind the publish
            self._raises = False
            self.publisher.note("unknown", sent)
            return
        if failed is not None:
            self.publisher.failed(sent, failed)
        else:
            self.publisher.note("acknowledged", sent, receipts)

    def _interrupt(self, *_: object) -> None:
        self.haste.begin()
        if self._raises:
            self._raises = False
            raise self.publisher.dice.choice((Interrupt, InterruptError))

    def _ask(self, *_: object) -> None:
        self.haste.begin()
        self._asked += 1

    def _fork(self) -> None:
        """Have a child while the other threads of this process are publishing."""
        name = f"{self.publisher.name}-child{len(self._children) + 1}"
        pid = os.fork()
        if pid:
            self._children[pid] = name
            return
        status = 1
        try:
            signal.alarm(CHILD_ENDS_WITHIN)
            self._be_child(name)
            status = 0
        except BaseException:
            log.exception("%s failed", name)
        finally:
            os._exit(status)

    def _be_child(self, name: str) -> None:
        with Journal(self.directory / f"{name}.jsonl") as journal:  # the parent's may be locked by one of its threads
            mine = evolve(self.publisher, journal=journal, name=name, dice=random.Random(name))
            ways: tuple[tuple[Callable[[Sent], None], int], ...]
            ways = ((mine.single, 1), (mine.single, 1), (mine.batch, 8), (mine.caller, 3))
            for number, (publish, most) in enumerate(ways):
                sent = mine.some(number, most)
                mine.note("attempted", sent)
                publish(sent)
