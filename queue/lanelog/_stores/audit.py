"""`queue_audit`: what operators did, one row per transaction of a method of `Admin`.

Owns the SQL of its table. Never decides what a method is, nor who acts. No row is ever updated.

It is the last table of a method's lock order. A row is new under a random id, so two methods never wait for each other
here, except where both delete the same old rows: these are locked in primary-key order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attrs import astuple, frozen

from lanelog._database import NOW_MS, codes
from lanelog.errors import DatabaseError

if TYPE_CHECKING:
    from lanelog._database import Executor

SINCE: Final = 5
"""The first version of the tables that has this one."""

RETENTION_MS: Final = 365 * 24 * 3_600_000
"""Rows that are older are deleted by later methods of accounts that may delete here: of the roles, those of `admin`."""

BATCH: Final = 100
"""Most rows that one transaction of a method deletes."""

# Insert one row (PRIMARY).
RECORD = f"""
INSERT INTO queue_audit (acted_at, id, part, verb, topic, consumer_group, partition_key, choice, messages, acted_by,
       reason, account, host, pid)
VALUES ({NOW_MS}, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
"""

# The oldest rows that are over the retention (PRIMARY).
OLD = f"""
SELECT acted_at, id, part FROM queue_audit FORCE INDEX (PRIMARY)
WHERE acted_at < {NOW_MS} - %s ORDER BY acted_at, id, part LIMIT %s
"""

# Delete one row (PRIMARY).
FORGET = "DELETE FROM queue_audit WHERE acted_at = %s AND id = %s AND part = %s"


@frozen(kw_only=True)
class AuditRow:
    """What a transaction of a method does, and who asked for it, as RECORD has it. Names that do not apply: empty."""

    id: str
    part: int
    verb: str
    topic: str
    group: str
    key: str
    choice: str
    messages: int
    by: str
    reason: str
    account: str
    host: str
    pid: int


def record(cx: Executor, row: AuditRow) -> None:
    """Insert the row. Raises DatabaseError, also without the privilege: then nothing of the method is done."""
    cx.execute(RECORD, astuple(row))


def forget(cx: Executor) -> None:
    """Delete some rows that are over the retention. An account without the privilege leaves them to others."""
    try:
        for old in cx.query(OLD, (RETENTION_MS, BATCH)):
            cx.execute(FORGET, old)
    except DatabaseError as error:
        if error.code not in codes.DENIED:
            raise
