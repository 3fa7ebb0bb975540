"""What operators did: the list of `queue_audit`.

Owns these queries. Never writes a row of it: the transactions of the methods do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lanelog._log.lookup.known import known_topic, read
from lanelog._stores.audit import SINCE
from lanelog.admin.lookup.arguments import limit_of, optional
from lanelog.admin.types.results import AuditInfo
from lanelog.message import utc_from_ms

if TYPE_CHECKING:
    from lanelog._database import Database, Executor

_COLUMNS: Final = """acted_at, id, verb, topic, consumer_group, partition_key, choice, messages, acted_by, reason,
       account, host, pid
FROM queue_audit"""

# The last rows (PRIMARY).
AUDIT = (
    f"SELECT {_COLUMNS} FORCE INDEX (PRIMARY) WHERE acted_at > 0 ORDER BY acted_at DESC, id DESC, part DESC LIMIT %s"
)

# The last rows of a topic (by_topic).
AUDIT_OF = f"""SELECT {_COLUMNS} FORCE INDEX (by_topic)
WHERE topic = %s ORDER BY acted_at DESC, id DESC, part DESC LIMIT %s"""


def audit(database: Database, topic: str | None, limit: int) -> list[AuditInfo]:
    """See `Admin.audit`."""
    optional("topic", topic)
    rows = read(database, _rows, "reading the audit", database, topic, limit_of(limit))
    return [_info(*row) for row in rows]


def _rows(cx: Executor, database: Database, topic: str | None, limit: int) -> list[tuple[Any, ...]]:
    if database.tables_version < SINCE:
        return []
    if topic is None:
        return cx.query(AUDIT, (limit,))
    found = cx.query(AUDIT_OF, (topic, limit))
    if not found:  # entries outlive their topic, so the topic is only looked up if there is none
        known_topic(cx, topic)
    return found


def _info(*row: Any) -> AuditInfo:
    at, call, verb, topic, group, key, choice, messages, by, reason, account, host, pid = row
    return AuditInfo(
        at=utc_from_ms(at),
        call=call,
        verb=verb,
        topic=topic or None,
        group=group or None,
        key=key or None,
        choice=choice,
        messages=messages,
        by=by,
        reason=reason,
        account=account,
        process=f"{host}:{pid}",
    )
