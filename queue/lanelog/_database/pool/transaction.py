"""A transaction on a pooled connection, as its block sees it.

Never begins or ends one, but for `commit_with`: `pool` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lanelog._database.connection.packet import Statement
from lanelog._database.connection.wire import Wire
from lanelog._database.executor import Executor
from lanelog._database.pool.instrumentation import instrumented


class Transaction:
    """A transaction on a pooled connection. An Executor for one thread, only inside its `with` block."""

    def __init__(self, wire: Wire, executor: Executor | None = None) -> None:
        self._wire = wire
        self.execute = (executor or wire).execute
        self.query = (executor or wire).query
        self.one = (executor or wire).one
        self._lent: Any = None

    def __repr__(self) -> str:
        return f"<Transaction on {self._wire!r}>"

    @property
    def raw(self) -> Any:
        """The driver's own connection, for user code, which an instrumentor of the application may trace."""
        if self._lent is None:
            self._lent = instrumented(self._wire.raw)
        return self._lent

    @property
    def max_packet(self) -> int:
        """Bytes of the longest statement the server accepts."""
        return self._wire.facts.max_allowed_packet if self._wire.facts else 0

    @property
    def line(self) -> Wire:
        """Its connection, which knows the server."""
        return self._wire

    def takes_packets(self) -> bool:
        """Let the server take several statements in a packet, in a block without user code. Return whether it does.

        Raises DatabaseError: the transaction is lost.
        """
        return self._wire.takes_packets(begun=True)

    def commit_with(self, statements: Sequence[Statement]) -> None:
        """Run statements and COMMIT in one packet, as the last of the block, after `takes_packets`.

        Raises DatabaseError as the COMMIT does. If one of the statements was refused, none is committed.
        """
        self._wire.commit_with(statements)

    def discard(self) -> None:
        """Give up the connection, and with it the transaction: another server answers than expected."""
        self._wire.drop()

    def reclaim(self) -> None:
        """Undo what user code has set in the session, before our own statements.

        User code may have committed, rolled back, altered a table (an implicit commit), or swallowed a deadlock. Its
        earlier writes are then committed or lost already, and ours would not be one with them. So COMMIT proves that it
        is still the transaction that was begun.
        """
        self._wire.reclaim()
