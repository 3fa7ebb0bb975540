"""The transactions that publishers wait for: which lane's head each of them has locked, and since when.

Owns these questions. They go by what waits, because most locks on heads last for a moment and hold nobody up. Changes
nothing and judges nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from attrs import frozen

from lanelog._log.lookup.known import permitted, read

if TYPE_CHECKING:
    from lanelog._database import Database, Executor

# The rows of queue_partitions that a connection waits for, and the connections that have locked them and wait for no
# lock themselves (needs PROCESS; data locks: those waited for; the other tables are in the server's memory).
OF_MARIADB: Final = """SELECT wanted.lock_data, holder.trx_mysql_thread_id, session.USER, session.HOST,
TIMESTAMPDIFF(SECOND, holder.trx_started, CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM'))
FROM information_schema.INNODB_LOCK_WAITS AS waits
JOIN information_schema.INNODB_LOCKS AS wanted ON wanted.lock_id = waits.requested_lock_id
JOIN information_schema.INNODB_TRX AS holder ON holder.trx_id = waits.blocking_trx_id
LEFT JOIN information_schema.PROCESSLIST AS session ON session.ID = holder.trx_mysql_thread_id
WHERE wanted.lock_table = CONCAT('`', DATABASE(), '`.`queue_partitions`') AND wanted.lock_index = 'PRIMARY'
AND holder.trx_state <> 'LOCK WAIT'"""
# Without INNODB_TRX, which MySQL refuses while any transaction runs a statement with a character of four bytes. Where
# transactions are not watched, the age is that of the session's state, which is no longer.
OF_MYSQL: Final = """SELECT wanted.LOCK_DATA,
session.PROCESSLIST_ID, session.PROCESSLIST_USER, session.PROCESSLIST_HOST,
COALESCE(active.TIMER_WAIT DIV 1000000000000, session.PROCESSLIST_TIME)
FROM performance_schema.data_lock_waits AS waits
JOIN performance_schema.data_locks AS wanted ON wanted.ENGINE_LOCK_ID = waits.REQUESTING_ENGINE_LOCK_ID
JOIN performance_schema.threads AS session ON session.THREAD_ID = waits.BLOCKING_THREAD_ID
LEFT JOIN performance_schema.events_transactions_current AS active
ON active.THREAD_ID = session.THREAD_ID AND active.STATE = 'ACTIVE'
WHERE wanted.OBJECT_SCHEMA = DATABASE() AND wanted.OBJECT_NAME = 'queue_partitions' AND wanted.INDEX_NAME = 'PRIMARY'
AND NOT EXISTS (SELECT 1 FROM performance_schema.data_lock_waits AS others
WHERE others.REQUESTING_ENGINE_TRANSACTION_ID = waits.BLOCKING_ENGINE_TRANSACTION_ID)"""

# Whether MySQL's performance schema is on (no table).
_WATCHED: Final = "SELECT @@performance_schema"

# How both families write the primary key of a locked row: `'topic', 'key'`, quotes doubled.
_LANE: Final = re.compile(r"'((?:[^']|'')*)', '((?:[^']|'')*)'")


@frozen(kw_only=True)
class HeldHead:
    """A lane whose head a transaction has locked, while others wait to publish there."""

    topic: str
    key: str
    connection: int
    account: str
    """`user@host`. Empty: the server does not report it."""
    seconds: float
    """Seconds for which the transaction has been open."""
    waiting: int
    """Connections that wait for the head."""


def held_heads(database: Database) -> list[HeldHead] | None:
    """Return the heads that are waited for, the oldest transaction first.

    None: the account lacks PROCESS, or MySQL's performance schema is off or not to be read.
    """
    mariadb = database.facts().mariadb
    return permitted(read, database, _held_heads, "asking who holds heads", mariadb=mariadb)


def _held_heads(cx: Executor, *, mariadb: bool) -> list[HeldHead] | None:
    if not mariadb and cx.one(_WATCHED) == (0,):
        return None  # its tables are there, and empty
    found: dict[tuple[str, int], HeldHead] = {}
    for data, connection, user, host, seconds in cx.query(OF_MARIADB if mariadb else OF_MYSQL):
        lane = _LANE.match(str(data))
        if lane is None or seconds is None:
            continue
        topic, key = (name.replace("''", "'") for name in lane.groups())
        before = found.get((str(data), int(connection)))
        found[str(data), int(connection)] = HeldHead(
            topic=topic,
            key=key,
            connection=int(connection),
            account=f"{user}@{host}" if user else "",
            seconds=max(0, int(seconds)),
            waiting=1 if before is None else before.waiting + 1,
        )
    return sorted(found.values(), key=lambda each: -each.seconds)
