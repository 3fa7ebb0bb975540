"""Creates lanes: the topic row, the floor and the head, for keys that are new or were purged.

Never runs in a publisher's transaction, and never on the shared pool: all its connections may wait for a lane.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from attrs import define, field

from lanelog._base import open_lane_keys
from lanelog._database import Database, Session, register_shared, taking
from lanelog._stores.consumers import offsets
from lanelog._stores.log import messages, partitions
from lanelog.errors import DatabaseError

T = TypeVar("T")


@define(eq=False)
class _Shared:
    """A session that threads share, one at a time, for a few short statements each."""

    session: Session
    _lock: threading.Lock = field(factory=threading.Lock, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        register_shared(self)

    @contextmanager
    def borrowed(self, deadline: float) -> Iterator[Session]:
        with taking(self._lock, seconds=deadline - time.monotonic()) as mine:
            if not mine:
                raise DatabaseError(
                    f"the connection for {self.session.purpose} was in use for too long", retriable=True
                )
            with suppress(DatabaseError):
                self.session.ensure_fresh()
            yield self.session

    def abandon(self) -> None:
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            self.session.close()


@define(eq=False)
class LaneCreator:
    """Finds missing lanes and creates them. Thread-safe: threads share its sessions."""

    _database: Database
    created: Callable[[str], None]
    """Called with the topic when lanes were created in it."""
    _reading: _Shared = field(init=False, repr=False)
    # A second session: creation may wait for locks, and a thread that only reads must not wait for that.
    _writing: _Shared = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._reading = _Shared(self._database.session("reading lanes"))
        self._writing = _Shared(self._database.session("creating lanes"))

    def ensure(self, topic: str, keys: Collection[str], *, deadline: float) -> None:
        """Create the missing lanes. It is tried until `deadline` (monotonic). Raises DatabaseError."""
        missing = self.missing(topic, keys, deadline=deadline)
        if missing:
            self.create(topic, missing, deadline=deadline)

    def create(self, topic: str, keys: Collection[str], *, deadline: float) -> None:
        """Create lanes that were missing just now. One that exists stays as it is. Otherwise as `ensure`."""
        what = "creating lanes"
        self._database.retry(lambda: self._create(topic, sorted(keys), deadline), deadline=deadline, what=what)

    def missing(self, topic: str, keys: Collection[str], *, deadline: float) -> list[str]:
        """Return the keys that have no lane, sorted."""
        found = self._read(lambda cx: partitions.heads(cx, topic, keys), deadline, "reading lanes")
        return sorted(set(keys) - found.keys())

    def open_lanes(self, topic: str, *, deadline: float) -> int:
        """Create the missing open lanes of the topic. Return how many it has."""
        count = self._read(
            lambda cx: partitions.open_lanes(cx, topic, tables=self._database.tables_version),
            deadline,
            "reading the number of open lanes",
        )
        self.ensure(topic, open_lane_keys.lane_keys(count), deadline=deadline)
        return count

    def find_ids(
        self, topic: str, wanted: Collection[tuple[str, str]], *, deadline: float
    ) -> dict[tuple[str, str], int]:
        """Return the offsets of the `wanted` (key, id) that are stored. A caller's old snapshot may not show them."""
        return self._read(lambda cx: messages.find_ids(cx, topic, wanted), deadline, "reading ids")

    def ask(self, sql: str, *, deadline: float) -> tuple[Any, ...] | None:
        """Return the only row of a query without arguments."""
        return self._read(lambda cx: cx.one(sql), deadline, "asking which server it is")

    def close(self) -> None:
        """Close the connections."""
        self._reading.close()
        self._writing.close()

    def _read(self, ask: Callable[[Session], T], deadline: float, what: str) -> T:
        def once() -> T:
            with self._reading.borrowed(deadline) as session:
                return ask(session)

        return self._database.retry(once, deadline=deadline, what=what)

    def _create(self, topic: str, keys: Sequence[str], deadline: float) -> None:
        with self._writing.borrowed(deadline) as session:
            if not self._create_in_topic(session, topic, keys):
                partitions.create_topic(session, topic)
                if not self._create_in_topic(session, topic, keys):
                    raise DatabaseError(f"the topic row of {topic!r} was removed meanwhile", retriable=True)
        self.created(topic)

    @staticmethod
    def _create_in_topic(session: Session, topic: str, keys: Sequence[str]) -> bool:
        """Create lanes of a topic. False: there is no such topic yet, and nothing was written."""
        # topic row S -> floors -> heads. A purge locks the topic row exclusively. So it cannot remove a lane after our
        # reading of `begin`, and before our insert.
        with session.transaction() as cx:
            begin = partitions.hold_topic(cx, topic)
            if begin is None:
                return False
            offsets.create_floors(cx, topic, keys, begin)
            partitions.create_heads(cx, topic, keys, begin)
            return True
