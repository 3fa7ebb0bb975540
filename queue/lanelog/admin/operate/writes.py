"""Whether heartbeats say anything: does this server take writes, and is it the one that members write to.

Owns this judgement, which needs no privilege but SELECT. Changes nothing.

Under a global read lock, as a backup takes it, no heartbeat can be written: all of them end, and the members live. On a
replica, the heartbeats are as old as the replica is late, and the members' locks are on another server. Both are shown
before anything else, and nothing about members is concluded there.

A new primary whose workers have all died seems a replica at first. So heartbeats that another server wrote say
nothing only until they have ended for a minute. Then nobody lives, wherever they were written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attrs import frozen

from lanelog._database import codes
from lanelog._log.repair import read_only
from lanelog._stores import origins
from lanelog._stores.members import heartbeats
from lanelog.errors import DatabaseError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._database import Database, Executor
    from lanelog._stores.members._heartbeat_rows import HeartbeatRow

ENDED: Final = 60.0
"""Seconds since the last heartbeat of another server ended, after which no member lives there."""

# The session that holds a global read lock. MySQL shows it to an account that may read the performance schema, MariaDB
# if the plugin metadata_lock_info is installed.
_HOLDER_MYSQL: Final = """SELECT t.PROCESSLIST_ID, t.PROCESSLIST_USER, t.PROCESSLIST_HOST
FROM performance_schema.metadata_locks l JOIN performance_schema.threads t ON t.THREAD_ID = l.OWNER_THREAD_ID
WHERE l.OBJECT_TYPE = 'GLOBAL' AND l.LOCK_TYPE = 'SHARED' AND l.LOCK_STATUS = 'GRANTED' LIMIT 1"""
_HOLDER_MARIADB: Final = """SELECT p.ID, p.USER, p.HOST
FROM information_schema.METADATA_LOCK_INFO l JOIN information_schema.PROCESSLIST p ON p.ID = l.THREAD_ID
WHERE l.LOCK_MODE IN ('MDL_BACKUP_FTWRL1', 'MDL_BACKUP_FTWRL2') LIMIT 1"""


@frozen(kw_only=True)
class Unwritten:
    """Why the heartbeats on this server say nothing about members."""

    what: str
    """The cause in the words of the runbook: `no writes`, `read only`, `another server`."""
    detail: str
    seconds: float | None = None
    """Seconds for which this has lasted. None: not known."""


def unwritten(cx: Executor, database: Database) -> Unwritten | None:
    """Return why heartbeats say nothing. None: they can be believed."""
    return refused(cx, database) or _elsewhere(cx, database)


def refused(cx: Executor, database: Database) -> Unwritten | None:
    """Return why this server takes no writes. None: it seems to take them."""
    if read_only(cx):
        return Unwritten(
            what="read only", detail="this server is read-only: a replica, or a primary before its failover"
        )
    try:
        rows = heartbeats.active(cx, tables=database.tables_version)
    except SchemaError:  # the tables are missing: others report it
        return None
    return _held_up(cx, database, rows)


def _elsewhere(cx: Executor, database: Database) -> Unwritten | None:
    """Return that members write to another server, as long as one of them may live there."""
    if database.tables_version < heartbeats.VERSION_WITH_INCARNATION:
        return None
    try:
        found = origins.load(cx, mariadb=database.facts().mariadb)
    except SchemaError:
        return None
    # The server takes writes. On a replica, newer heartbeats come in. On a new primary, members would be here by now.
    if not found.copied or found.now - found.ends_elsewhere > ENDED * 1000:
        return None
    return Unwritten(
        what="another server",
        detail="the latest heartbeat was written on another server: this is a replica, or a copy, or the primary since "
        "no member is there",
        seconds=_ago(found.now, found.latest_elsewhere),
    )


def _held_up(cx: Executor, database: Database, rows: Sequence[HeartbeatRow]) -> Unwritten | None:
    """Return that writes seem held up: a member's lock is held, and nobody has written since its heartbeat ended."""
    ends = [row.expires_at for row in rows if row.lock_free is False and row.expires_at <= row.now]
    newest = max(rows, key=lambda row: row.heartbeat_at, default=None)
    if newest is None or not ends or newest.heartbeat_at > min(ends):
        return None
    return Unwritten(
        what="no writes",
        detail="no heartbeat has been written since then, though members' sessions are open: either the server takes "
        f"no writes (FLUSH TABLES WITH READ LOCK{_holder(cx, database)}), or a proxy keeps a dead process's session",
        seconds=_ago(newest.now, newest.heartbeat_at),
    )


def _ago(now: int, at: int) -> float:
    return max(0, now - at) / 1000


def _holder(cx: Executor, database: Database) -> str:
    """Return who holds the read lock, if this server shows it to this account."""
    try:
        row = cx.one(_HOLDER_MARIADB if database.facts().mariadb else _HOLDER_MYSQL)
    except SchemaError:
        return ""
    except DatabaseError as error:
        if error.code in codes.DENIED_ANYWHERE or not error.retriable:
            return ""
        raise
    if row is None:
        return ""
    number, user, host = row
    return f"; connection {number} of {user}@{host} holds it"
