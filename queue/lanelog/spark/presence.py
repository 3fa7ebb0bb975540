"""A run of a job as a living member of its group: its heartbeat and its liveness lock.

Owns one connection and the thread that uses it. Never leases a topic, and never moves a watermark. While it beats,
`lanelog status` and `lanelog members` show the job like a subscriber. When its process dies, the server frees its lock
at once, so that the next job need not wait.

The connection also shows whether the server has restarted. Commits are visible before they are durable. After a crash
of the server, a message that was read may be gone, and its offset may be given to another. A heartbeat that commits on
a connection from before the message was read proves that the message is durable, because the message's commit came
first.
"""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING, Final

from attrs import define, field

from lanelog._base.places import GroupTopic
from lanelog._facts import spark as facts
from lanelog._process.loop import Loop
from lanelog._stores.members import heartbeats
from lanelog.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lanelog._database import Database, Session

TURN: Final = 5.0
"""Seconds between two heartbeats, and between two polls for topics.

It is far less than a retention, and less than the time after which the server drops an idle session of the library.
"""
DURATION: Final = 30.0
"""Seconds without a heartbeat after which a job counts as gone, if its lock is inconclusive."""

# The liveness lock. Each session has a new one, because a half-open session of ours may still hold the last one.
_GET_LOCK = "SELECT GET_LOCK(%s, 0)"


@define(eq=False)
class Presence:
    """Heartbeats of `owner`. The thread runs from `start` to `stop`."""

    database: Database
    group: str
    owner: str
    _session: Session = field(init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)
    _loop: Loop | None = field(default=None, init=False)
    _generation: int = field(default=0, init=False)
    _lock_name: str = field(default="", init=False)

    def __attrs_post_init__(self) -> None:
        self._session = self.database.session("archive")

    def start(
        self, topics: Callable[[], list[str]], poll: Callable[[], None], failed: Callable[[BaseException], None]
    ) -> None:
        """From now on beat for every topic that `topics` returns, and call `poll` after each beat.

        `failed` gets the error if five turns in a row fail with an error that is not retriable.
        """

        def turn(_now: float) -> float:
            self.beat(topics())
            poll()
            return TURN

        self._loop = Loop("archive", turn, failed=failed)
        self._loop.start()

    def stop(self, topics: list[str]) -> None:
        """End the heartbeats, deregister from these topics, and free the lock."""
        if self._loop is not None:
            self._loop.stop()
        with self._lock:
            try:
                for topic in topics:
                    heartbeats.deregister(self._session, GroupTopic(topic=topic, group=self.group), self.owner)
            except DatabaseError as error:
                facts.archive_deregister_failed(group=self.group, error=error)
            self._session.close()

    def beat(self, topics: list[str]) -> int:
        """Beat for these topics. Return the number of the connection, which changes when the connection was lost.

        Raises DatabaseError.
        """
        with self._lock:
            self._renew()
            for topic in topics:
                heartbeats.beat(
                    self._session,
                    GroupTopic(topic=topic, group=self.group),
                    self.owner,
                    duration=DURATION,
                    lock=self._lock_name,
                    incarnation=self._session.incarnation,
                    tables=self.database.tables_version,
                )
            return self._session.generation

    def _renew(self) -> None:
        self._session.ensure_fresh()
        if self._session.generation == self._generation:
            return
        name = f"lanelog:{uuid.uuid4().hex}"
        got = self._session.one(_GET_LOCK, (name,)) if self.database.config.by_lock else None
        # Without the lock, others go by the heartbeat's expiry.
        self._lock_name = name if got is not None and got[0] == 1 else ""
        self._generation = self._session.generation
