"""`queue_subscriber_heartbeats`: the rows that administration lists, and what the workers of their owners do.

Owns these statements; the others are in `heartbeats`. Never judges whether an owner is alive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lanelog._base.places import GroupTopic
from lanelog._database import NOW_MS
from lanelog._stores._points import placeholders
from lanelog._stores.members._heartbeat_rows import LOCK_FREE, VERSION_WITH_WORKLOAD, HeartbeatRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._database import Executor

# A workload without where handlers stand: they are the last of its fields, and may be long.
_IN_SHORT = """SUBSTRING_INDEX(workload, ',"handlers":[', 1)"""
_WITHOUT_HANDLERS = ',"handlers":[]}'

# Every owner of some groups of a topic, and what its workers do in short (PRIMARY, prefix). Columns of version 1 say
# enough of the server that granted a lock.
AT_WORK = f"""
SELECT consumer_group, topic, subscriber_name, heartbeat_at, expires_at, deregistered_at, {LOCK_FREE},
       server_started_at, {NOW_MS}, liveness_lock, {_IN_SHORT}
FROM queue_subscriber_heartbeats FORCE INDEX (PRIMARY)
WHERE consumer_group IN ({{groups}}) AND topic = %s AND subscriber_name <> ''
"""

# The same on tables without workloads (PRIMARY, prefix).
AT_WORK_1 = AT_WORK.replace(_IN_SHORT, "NULL")

# The next owners of a group behind a name (PRIMARY, prefix).
NEXT_OF_GROUP = f"""
SELECT consumer_group, topic, subscriber_name, heartbeat_at, expires_at, deregistered_at, {LOCK_FREE},
       server_started_at, {NOW_MS}, liveness_lock, workload
FROM queue_subscriber_heartbeats FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND subscriber_name > %s ORDER BY subscriber_name LIMIT %s
"""

# The same on tables without workloads (PRIMARY, prefix).
NEXT_OF_GROUP_1 = NEXT_OF_GROUP.replace("liveness_lock, workload", "liveness_lock, NULL")

# The next owners of all groups behind a group, a topic and a name (PRIMARY). These are three ranges: what stands before
# the name in a large group is not read.
NEXT = NEXT_OF_GROUP.replace(
    "consumer_group = %s AND topic = %s AND subscriber_name > %s ORDER BY subscriber_name",
    """(consumer_group = %s AND topic = %s AND subscriber_name > %s
       OR consumer_group = %s AND topic > %s OR consumer_group > %s) AND subscriber_name <> ''
ORDER BY consumer_group, topic, subscriber_name""",
)

# The same on tables without workloads (PRIMARY).
NEXT_1 = NEXT.replace("liveness_lock, workload", "liveness_lock, NULL")

# The owners that have not left and say what their workers do, and all that they say (PRIMARY, prefix).
WORKLOADS = f"""{AT_WORK.replace(_IN_SHORT, "workload")}  AND workload IS NOT NULL
  AND deregistered_at IN (0, heartbeat_at)
ORDER BY consumer_group, topic, subscriber_name LIMIT 1000
"""


def at_work(
    cx: Executor, topic: str, groups: Sequence[str], *, tables: int, handlers: bool = False
) -> dict[str, list[HeartbeatRow]]:
    """Return every owner of each of a few groups, living or not. Workloads name no handlers.

    `tables`: the version of the tables. `handlers`: only owners that say what their workers do, with the handlers.
    """
    query = AT_WORK_1 if tables < VERSION_WITH_WORKLOAD else WORKLOADS if handlers else AT_WORK
    end = "" if handlers else _WITHOUT_HANDLERS
    found: dict[str, list[HeartbeatRow]] = {group: [] for group in groups}
    for group, _, *columns, said in cx.query(query.format(groups=placeholders(groups)), (*groups, topic)):
        found.setdefault(group, []).append(_row([*columns, None if said is None else said + end]))
    return found


def next_of_group(cx: Executor, at: GroupTopic, after: str, limit: int, *, tables: int) -> list[HeartbeatRow]:
    """Return the next owners of a group behind a name, in order."""
    query = NEXT_OF_GROUP if tables >= VERSION_WITH_WORKLOAD else NEXT_OF_GROUP_1
    return [_row(columns) for _, _, *columns in cx.query(query, (*at.columns, after, limit))]


def next_of_all(
    cx: Executor, at: GroupTopic, after: str, limit: int, *, tables: int
) -> list[tuple[GroupTopic, HeartbeatRow]]:
    """Return the next owners of all groups behind one of them, in order of group, topic and name."""
    query = NEXT if tables >= VERSION_WITH_WORKLOAD else NEXT_1
    rows = cx.query(query, (*at.columns, after, *at.columns, at.group, limit))
    return [(GroupTopic(topic=topic, group=group), _row(columns)) for group, topic, *columns in rows]


def _row(columns: Sequence[Any]) -> HeartbeatRow:
    *row, started, now, lock, workload = columns
    return HeartbeatRow.of(row, started, "", now, lock, workload)
