"""The database's clock, and the names of topics, groups and keys that begin with a text.

Owns these small answers, which a shell asks for while a command is typed. Changes and locks nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._log.lookup.known import clock, read
from lanelog._log.lookup.names import names, readers
from lanelog._stores.log import partitions
from lanelog.admin.lookup.arguments import limit_of
from lanelog.message import utc_from_ms

if TYPE_CHECKING:
    from datetime import datetime

    from lanelog._database import Database, Executor


def now(database: Database) -> datetime:
    """See `Admin.now`."""
    return utc_from_ms(read(database, clock, "reading the clock"))


def topics(database: Database, beginning: str, limit: int) -> list[str]:
    """See `Admin.topic_names`."""
    limit_of(limit)
    return sorted(name for name, _ in read(database, names, "finding topics", beginning))[:limit]


def groups(database: Database, topic: str | None, beginning: str, limit: int) -> list[str]:
    """See `Admin.group_names`."""
    limit_of(limit)
    found = read(database, readers, "finding groups", topic)
    return sorted({group for each in found.values() for group in each if group.startswith(beginning)})[:limit]


def keys(database: Database, topic: str, beginning: str, limit: int) -> list[str]:
    """See `Admin.key_names`."""
    limit_of(limit)

    def query(cx: Executor) -> list[str]:
        exact = [key for key in partitions.heads(cx, topic, [beginning]) if key] if beginning else []
        behind = [key for key, _ in partitions.page(cx, topic, beginning, limit) if key.startswith(beginning)]
        return [key for key in (*exact, *behind) if key][:limit]

    return read(database, query, "finding keys")
