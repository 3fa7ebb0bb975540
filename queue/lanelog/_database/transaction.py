"""A transaction on a pooled connection, as its block sees it.

Never begins or ends one, but for `commit_with`: `pool` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lanelog._database import codes
from lanelog._database.executor import Executor
from lanelog._database.instrumentation import instrumented
from lanelog._database.packet import Statement
from lanelog._database.wire import Wire
from lanelog.errors import DatabaseError


class Transaction:
    """A transaction on a pooled connection. An Executor for one thread, only inside its `with` block."""

    def __init__(self, wire: Wire, executor: Executor | None = None) -> None:
        self._wire = wire
        self.execute = (executor or wire).execute
        self.query = (executor or wire).query
        self.one = (executor or wire).one
        self._guarded = False
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

    def guard(self) -> None:
        """Set a savepoint before user code gets `raw`. A connection that died while idle is replaced."""
        try:
            self._wire.execute("SAVEPOINT lanelog_start")
        except DatabaseError:
            if self._wire.raw is not None:
                raise
            self._wire.ensure()
            self._wire.execute("SAVEPOINT lanelog_start")
        self._guarded = True

    def reclaim(self) -> None:
        """Verify, and undo what user code has set in the session, before our own statements."""
        self.verify()
        self._wire.reclaim()

    def verify(self) -> None:
        """Raise unless it is still the transaction that was begun. Called before the last writes, or the COMMIT.

        User code may have committed, rolled back, altered a table (an implicit commit), or swallowed a deadlock. Its
        earlier writes are then committed or lost already, and a later commit would not be one with them.
        """
        if self._wire.doomed is not None:
            raise self._wire.doomed
        if not self._guarded:
            return
        self._guarded = False
        try:
            self._wire.execute("RELEASE SAVEPOINT lanelog_start")
        except DatabaseError as exc:
            if exc.code != codes.NO_SUCH_SAVEPOINT:
                raise
            raise DatabaseError(
                "the transaction ended inside the block, by commit(), rollback(), a statement that commits implicitly "
                "or a deadlock that was not raised: what was written before that point is not part of it any more",
                code=exc.code,
            ) from exc
