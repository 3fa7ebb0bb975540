"""The open transactions of lanelog that user code has, by connection and thread.

With them a thread does not wait for its own locks. Never talks to the database.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from attrs import define, field

from lanelog._database import fork
from lanelog._database.connection.unwrap import innermost
from lanelog.errors import ConfigurationError, LanelogError


@define(eq=False)
class OpenTransaction:
    """A transaction of ours in the hands of user code."""

    database: object
    raw: Any = field(repr=False)
    thread: int = field(factory=threading.get_ident)
    topics: set[str] = field(factory=set)
    """Topics that were published to in it. They are announced after its commit."""
    scheduled: bool = False
    """Whether a message with a delay was published in it. The scheduler is notified after its commit."""
    lost: LanelogError | None = None
    """Why the server has rolled it back already. No other statement may run in it."""


class _Registry:
    """All open entries. Thread-safe without a lock: each change is one call, which no interrupt leaves half done."""

    def __init__(self) -> None:
        self.abandon()
        fork.register_shared(self)

    def abandon(self) -> None:
        self.entries: dict[OpenTransaction, None] = {}

    def all(self) -> list[OpenTransaction]:
        return list(self.entries)


_registry = _Registry()


@contextmanager
def own_transaction(database: object, raw: Any, *, block: str, instead: str) -> Iterator[OpenTransaction]:
    """Register `raw`, a connection of `database` with a transaction of ours, while this thread's user code has it.

    Its methods `commit` and `rollback` raise ConfigurationError meanwhile, also behind an ORM's session: `block` names
    whose end does that, and `instead` what serves a transaction of the caller's own. What is sent as a statement is
    found out at the end of the block.
    """
    entry = OpenTransaction(database=database, raw=raw)
    driver = innermost(raw)

    def refuse() -> NoReturn:
        raise ConfigurationError(
            f"the end of the block of {block} commits or rolls back: leave it, by an exception for a rollback; to "
            f"commit in a transaction of your own, as an ORM's session does, use {instead}"
        )

    try:
        _registry.entries[entry] = None
        driver.commit = driver.rollback = refuse
        yield entry
    finally:
        _registry.entries.pop(entry, None)
        vars(driver).pop("commit", None)
        vars(driver).pop("rollback", None)


def open_in_this_thread(database: object) -> bool:
    """Whether the calling thread is inside a transaction of ours on this database."""
    thread = threading.get_ident()
    return any(entry.thread == thread and entry.database is database for entry in _registry.all())


def find_open(raw: Any) -> OpenTransaction | None:
    """Return the entry of this connection, None if it has none. A tracer's proxy around it makes no difference."""
    inner = innermost(raw)
    return next((entry for entry in _registry.all() if innermost(entry.raw) is inner), None)
