"""Notifies the loops of this process, and those of others, of what was published.

Owns the engine of a client, once it is made, and the sender of its hints. Never keeps the client alive: a client that
nobody refers to must be collected although its loops run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._hints.sender import Sender
from lanelog._stores.members.heartbeats import NOWHERE, WakeEndpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from weakref import WeakMethod

    from lanelog._database import Database, Executor
    from lanelog._engine.engine import Engine


@define(eq=False)
class ClientAnnouncements:
    """The `Announcements` of a client's publisher."""

    _database: Database
    _made_engine: WeakMethod[Callable[[], Engine | None]]
    """Returns the client's engine, made at its first use. None: the client is closed."""
    _forget: WeakMethod[Callable[[], None]]
    """Forgets the client's threads and locks in a forked child."""
    engine: Engine | None = field(default=None, init=False)
    hints: Sender | None = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.hints = Sender(self._database, self.own_endpoint, self.wake_reader) if self._database.config.wake else None

    def committed(self, topic: str) -> None:
        """See `Announcements`."""
        if self.engine is not None:
            self.engine.announce(topic)
        if self.hints is not None:
            self.hints.announce(topic)

    def grown(self, topic: str) -> None:
        """See `Announcements`."""
        if self.engine is not None:
            self.engine.grown(topic)
        if self.hints is not None:
            self.hints.grown(topic)

    def catch_up(self) -> None:
        """See `Announcements`. It may take as long as the database does."""
        if self.hints is not None:
            self.hints.catch_up()

    def appended(self, topic: str) -> None:
        """Messages were committed without a publisher: no other thread waits for this one."""
        self.committed(topic)
        self.catch_up()

    def scheduled(self, *, committed: bool = True) -> None:
        """See `Announcements`: start or wake the scheduler."""
        made_engine = self._made_engine()
        engine = None if made_engine is None else made_engine()
        if engine is not None:
            engine.schedule(committed=committed)

    def own_endpoint(self) -> WakeEndpoint:
        """Where the hints for this process go."""
        return NOWHERE if self.engine is None else self.engine.context.receiver.endpoint

    def wake_reader(self) -> bool:
        """Make the scheduler's thread call `read_endpoints`. False: it does not run."""
        return self.engine is not None and self.engine.wake_scheduler()

    def read_endpoints(self, cx: Executor) -> None:
        """Read which processes want hints, if that is due."""
        if self.hints is not None:
            self.hints.read_endpoints(cx)

    def abandon(self) -> None:
        """Forget threads and locks in a forked child. A fork copies no thread, and a copied lock may stay locked."""
        self.engine = None
        forget = self._forget()
        if forget is not None:
            forget()
