"""The archive job as a living member of its group: heartbeat, liveness lock, and new topics as they appear.

Owns one connection and the thread that keeps it; never leases a topic and never moves a watermark. Made by `archive`,
asked by `group`. While it beats, `lanelog status` and `lanelog members` show the job as any other subscriber,
and when its process dies, the server frees its lock at once, so that the next job need not wait.

The connection is also what tells whether the server has restarted: commits are visible before they are durable, so a
message that was read may be gone after a crash, and its offset another message's. A heartbeat that commits on a
connection from before the message was read proves that the message is durable, because its commit came first.
"""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING, Final

from attrs import define, field

from lanelog._loop import Loop
from lanelog._places import GroupTopic
from lanelog._stores import heartbeats
from lanelog._telemetry import get_logger
from lanelog.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lanelog._database import Database, Session

TURN: Final = 5.0
"""Seconds between two heartbeats and two looks for topics: far less than a retention, and than the server's time-out
for idle sessions of the library."""
DURATION: Final = 30.0
"""Seconds after which a job that cannot be asked for its lock counts as gone."""

# The liveness lock, fresh for each session: a half-open session of ours may still hold the last one.
_GET_LOCK = "SELECT GET_LOCK(%s, 0)"

log = get_logger("spark")


@define(eq=False)
class Presence:
    """Heartbeats of `owner`; its thread runs from `start` to `stop`."""

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
        self, topics: Callable[[], list[str]], look: Callable[[], None], failed: Callable[[BaseException], None]
    ) -> None:
        """From now on beat for every topic that `topics` names, and `look` for new ones after each beat.

        `failed` is told the error when that does not get through.
        """

        def turn(_now: float) -> float:
            self.beat(topics())
            look()
            return TURN

        self._loop = Loop("archive", turn, failed=failed)
        self._loop.start()

    def stop(self, topics: list[str]) -> None:
        """Beat no more, say so for these topics, and give the lock back."""
        if self._loop is not None:
            self._loop.stop()
        with self._lock:
            try:
                for topic in topics:
                    heartbeats.deregister(self._session, GroupTopic(topic=topic, group=self.group), self.owner)
            except DatabaseError as error:
                log.warning("archive.deregister_failed", group=self.group, error=error)
            self._session.close()

    def beat(self, topics: list[str]) -> int:
        """Beat for these topics; the number of the connection, which changes when it was lost.

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
        got = self._session.one(_GET_LOCK, (name,))
        # Refused: others then fall back to the heartbeat's expiry.
        self._lock_name = name if got is not None and got[0] == 1 else ""
        self._generation = self._session.generation
