"""The proof that a server locks rows: what one session has locked, another session skips.

A server that takes SKIP LOCKED and locks nothing would give one lane to two members. Not every such server says what it
is. Contains no statement on a table: the caller names a row that no other process waits for.

It never waits for the row. A process that dies meanwhile holds that one row until the server has ended its session.
Somebody else may change the table (ALTER, LOCK TABLES) and wait for the first session. The second session would wait
behind it, and the thread of both with it. So the server itself ends what the second one asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lanelog._database.executor import SERVER_MARK, Executor
from lanelog._database.pool.session import Session
from lanelog._database.server.server_facts import ServerFacts
from lanelog.errors import ConfigurationError

_LOCKING: Final = "FOR UPDATE SKIP LOCKED"
_SERVER: Final = f"SELECT {SERVER_MARK}"
_WITHIN: Final = 1.0
"""Seconds after which the server ends a statement of the second session."""


def prove(first: Session, second: Executor, row: str, args: Sequence[object], *, server: ServerFacts) -> bool:
    """Return whether both sessions see the row, and the second one skips it while the first one has locked it.

    False: it is not known, because the row is gone, or a third session has locked it. Raises ConfigurationError if the
    server locks nothing, and DatabaseError: then it is not known either.

    Args:
        first: It locks the row.
        second: Another connection to the same server.
        row: A SELECT of one row by its primary key, without a locking clause.
        args: Its arguments.
        server: The server of both.
    """
    read, lock = (server.bounded(query, _WITHIN) for query in (row, f"{row} {_LOCKING}"))
    with first.transaction() as locking:
        if locking.one(f"{row} {_LOCKING}", args) is None or second.one(read, args) is None:
            return False
        if locking.one(_SERVER) != second.one(_SERVER):
            return False  # a proxy has led them to two servers
        skipped = second.one(lock, args) is None
    # The COMMIT was answered, so the first session has lived until now, and so has a lock of it.
    if not skipped:
        raise ConfigurationError(
            "this server takes SKIP LOCKED and locks no rows: two processes could work on one lane. "
            "Use MySQL or MariaDB, with InnoDB, and a proxy that passes locking reads on unchanged"
        )
    return True
