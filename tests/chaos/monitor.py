"""Watches the leases during a chaos run: whose ran out, and whether machine or network were too slow to blame anybody.

Owns one thread and one connection, and never judges. The stage starts two: one that asks the server directly, and one
that asks through the proxy, for those who are behind it.
"""

import threading
import time
from collections.abc import Callable, Collection
from typing import Final, Self

import pymysql
from attrs import define, field

from chaos.history import Fault, Journal

EVERY: Final = 0.25
SLOW: Final = 0.2
"""Seconds of a one-row commit: twenty times what an idle machine takes; a keeper's turn has two dozen statements."""

COMMIT: Final = "REPLACE INTO chaos_probe VALUES (CONNECTION_ID())"
EXPIRED: Final = """
SELECT DISTINCT SUBSTRING_INDEX(subscriber_name, ':', 1) FROM queue_subscriber_heartbeats
WHERE deregistered_at = 0
      AND expires_at < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000"""


@define(eq=False)
class Monitor:
    """A context manager. Times commits; `behind`: of whose network it tells.

    `alive` gives the names of the workers that run, and is asked for those whose lease ran out: a dead one's does so by
    right. None: somebody else looks after leases.
    """

    connect: Callable[[], pymysql.Connection]
    journal: Journal
    behind: Callable[[], tuple[str, ...] | None]
    alive: Callable[[], Collection[str]] | None = None
    _over: threading.Event = field(factory=threading.Event, init=False)
    _thread: threading.Thread = field(init=False)
    _expired: dict[str, float] = field(factory=dict, init=False)
    """Since when."""

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(10)

    def _run(self) -> None:
        connection: pymysql.Connection | None = None
        while not self._over.wait(EVERY):
            began = time.monotonic()
            try:
                if connection is None:
                    connection = self.connect()
                with connection.cursor() as cursor:
                    cursor.execute(COMMIT)
                    took = time.monotonic() - began
                    cursor.execute(EXPIRED)
                    names = {name for (name,) in cursor.fetchall()}
            except (pymysql.err.MySQLError, OSError):
                connection = None  # the nemesis is at work: there is a fault for that
                continue
            if took > SLOW:
                self.journal.write(Fault(kind="slow", start=began, end=began + took, processes=self.behind()))
            if self.alive is not None:
                self._note(names & set(self.alive()), time.monotonic())
        self._note(set(), time.monotonic())

    def _note(self, expired: set[str], now: float) -> None:
        for name in expired - self._expired.keys():
            self._expired[name] = now
        for name in self._expired.keys() - expired:
            self.journal.write(Fault(kind="expiry", start=self._expired.pop(name), end=now, processes=(name,)))
