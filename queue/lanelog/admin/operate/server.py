"""What the server says of itself: its oldest transaction, the deleted rows that it keeps, the sizes of our tables.

Owns these questions. Reads no table of lanelog, changes nothing and judges nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from lanelog._database import codes
from lanelog._stores._points import placeholders
from lanelog.errors import DatabaseError
from lanelog.migrations.declared import declared_tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._database import Executor

# The oldest open transaction of the server, which keeps deleted rows in every index (needs PROCESS). The server shows
# its start in the zone of its host, whatever time_zone says.
OLDEST = """SELECT trx_mysql_thread_id,
TIMESTAMPDIFF(SECOND, trx_started, CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM')) FROM information_schema.innodb_trx
WHERE trx_mysql_thread_id <> 0 AND trx_mysql_thread_id <> CONNECTION_ID() ORDER BY trx_started LIMIT 1"""
# The same on MySQL while some transaction runs a statement with a character of four bytes, such as an emoji in a key:
# it refuses the table above then. (The server's memory.)
OLDEST_WATCHED = """SELECT session.PROCESSLIST_ID, active.TIMER_WAIT DIV 1000000000000
FROM performance_schema.events_transactions_current AS active
JOIN performance_schema.threads AS session ON session.THREAD_ID = active.THREAD_ID
WHERE active.STATE = 'ACTIVE' AND active.TIMER_WAIT IS NOT NULL AND session.PROCESSLIST_ID <> CONNECTION_ID()
ORDER BY active.TIMER_WAIT DESC LIMIT 1"""

# How many transactions have deleted rows that are still in the indexes: MariaDB, and MySQL (which needs PROCESS).
_HISTORY_MARIADB = "SHOW GLOBAL STATUS LIKE 'Innodb_history_list_length'"
_HISTORY_MYSQL = "SELECT name, `count` FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'"

# Estimated rows, and bytes with the indexes, of the tables of this database that the account may see.
_SIZES = """SELECT table_name, COALESCE(table_rows, 0), COALESCE(data_length, 0) + COALESCE(index_length, 0)
FROM information_schema.tables WHERE table_schema = DATABASE()"""


# The accounts of connections (needs PROCESS for those of other accounts; the server's memory). MySQL warns that it will
# lose this table, but has the other one only where the performance schema is on. `INFO` may be no text at all, and is
# not read.
_SESSIONS = "SELECT ID, USER, HOST FROM information_schema.PROCESSLIST WHERE ID IN ({connections})"


@frozen(kw_only=True)
class OldestTransaction:
    """The transaction that has been open for longest."""

    connection: int
    seconds: float


@frozen(kw_only=True)
class TableSize:
    """How large a table is, as the server estimates it. MySQL renews its estimates once a day."""

    rows: int
    bytes: int


def accounts(cx: Executor, connections: Sequence[int]) -> dict[int, str]:
    """Return the accounts of these connections, as `user@host`. One that may not be seen is left out."""
    rows = cx.query(_SESSIONS.format(connections=placeholders(connections)), connections)
    return {int(number): f"{user}@{str(host).partition(':')[0]}" for number, user, host in rows}


def oldest_transaction(cx: Executor) -> OldestTransaction | None:
    """Return the oldest open transaction of other connections. None: none is open.

    Raises DatabaseError if the account lacks PROCESS, or if MySQL cannot say it at this moment.
    """
    try:
        row = cx.one(OLDEST)
    except DatabaseError as error:
        if error.code != codes.NOT_CONVERTIBLE:
            raise
        row = cx.one(OLDEST_WATCHED)
        if row is None:  # transactions are not watched: one has just been met
            raise
    if row is None:
        return None
    connection, seconds = row
    return OldestTransaction(connection=int(connection), seconds=max(0, int(seconds)))


def history_list_length(cx: Executor, *, mariadb: bool) -> int:
    """Return how many transactions wait for purge. On MySQL it raises DatabaseError if the account lacks PROCESS."""
    row = cx.one(_HISTORY_MARIADB if mariadb else _HISTORY_MYSQL)
    _, length = row or ("", 0)
    return int(length)


def table_sizes(cx: Executor) -> dict[str, TableSize]:
    """Return the sizes of lanelog's tables by name. The server leaves out tables that the account may not see."""
    ours = declared_tables()
    return {
        str(name): TableSize(rows=int(rows), bytes=int(size)) for name, rows, size in cx.query(_SIZES) if name in ours
    }
