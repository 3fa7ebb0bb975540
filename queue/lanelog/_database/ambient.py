"""Which of lanelog's own transactions are open, and in which thread, so that nobody waits for a lock he holds himself.

It never talks to the database. Whoever hands a connection to user code (`client.transaction()` and
`message.transaction()`) opens an entry; the publisher looks it up, both by connection and by thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from attrs import define, field

from lanelog._database import fork
from lanelog.errors import LanelogError


@define(eq=False)
class OpenTransaction:
    """A transaction of ours that user code is in."""

    database: object
    raw: Any = field(repr=False)
    thread: int = field(factory=threading.get_ident)
    topics: set[str] = field(factory=set)
    """Topics published to in it: they are announced after its commit, by whoever opened it."""
    scheduled: bool = False
    """Whether a message with a delay was published in it: the same, for the scheduler."""
    lost: LanelogError | None = None
    """Why the server has rolled it back already; nothing more may be done in it."""


class _Registry:
    """All open entries; any thread may ask."""

    def __init__(self) -> None:
        self.abandon()
        fork.register_shared(self)

    def abandon(self) -> None:
        self.lock = threading.Lock()
        self.entries: list[OpenTransaction] = []


_registry = _Registry()


@contextmanager
def own_transaction(database: object, raw: Any) -> Iterator[OpenTransaction]:
    """Mark `raw`, a connection of `database` with a transaction of ours, as in the hands of this thread's user code."""
    entry = OpenTransaction(database=database, raw=raw)
    with _registry.lock:
        _registry.entries.append(entry)
    try:
        yield entry
    finally:
        with _registry.lock:
            if entry in _registry.entries:
                _registry.entries.remove(entry)


def open_in_this_thread(database: object) -> bool:
    """Whether the calling thread is inside a transaction of ours on this database."""
    thread = threading.get_ident()
    with _registry.lock:
        return any(entry.thread == thread and entry.database is database for entry in _registry.entries)


def find_open(raw: Any) -> OpenTransaction | None:
    """Return the entry of this connection, None if it is not one that we gave out."""
    with _registry.lock:
        return next((entry for entry in _registry.entries if entry.raw is raw), None)
