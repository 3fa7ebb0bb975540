"""Whether the members of this process may take lanes at all: the server must lock rows, and end silent sessions.

Owns the moment of that proof: with the first heartbeat, on the heartbeat's row, which no other process waits for.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._database import row_locks
from lanelog._stores.members import heartbeats
from lanelog.errors import DatabaseError

if TYPE_CHECKING:
    from lanelog._base.places import GroupTopic
    from lanelog._database import Database, Session


@define(eq=False)
class RowLocks:
    """The proof of one client. Until it can be made, members work: only a server that fails it is refused."""

    _database: Database
    again_seconds: float = 5.0
    """Seconds before a proof that was put off is tried again: the pool or the server had no connection to spare."""
    _proven: bool = field(default=False, init=False)
    _next_at: float = field(default=float("-inf"), init=False)  # (monotonic)

    def check(self, session: Session, at: GroupTopic, owner: str) -> None:
        """Raise ConfigurationError if the session must hold no lock, or the server locks no rows."""
        session.check_locks()
        now = time.monotonic()
        if self._proven or now < self._next_at or self._database.short:
            return
        try:
            with self._database.autocommit(wait=0.0) as other:
                server, row = self._database.facts(), (*at.columns, owner)
                self._proven = row_locks.prove(session, other, heartbeats.ROW, row, server=server)
        except DatabaseError:
            if not session.connected:
                raise
        self._next_at = now + self.again_seconds
