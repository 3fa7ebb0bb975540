"""Registrations: the rows of groups, of one topic or of one name.

Owns these queries. What the lanes of a group hold is not read here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lanelog._database import NOW_MS
from lanelog._log.lookup.names import LAST

if TYPE_CHECKING:
    from lanelog._database import Executor

GROUPS_MAX = 1000
"""The most groups that one answer names."""

_REGISTRATION = f"""topic, consumer_group, delivery_order, start_at, retention_ms, created_at, paused_at, paused_by,
       pause_reason, {NOW_MS}
FROM queue_groups
"""

# Registrations, in order of topic and name (by_topic).
GROUPS = f"SELECT {_REGISTRATION} FORCE INDEX (by_topic) WHERE topic > '' ORDER BY topic, consumer_group LIMIT %s"

# Registrations of one topic (by_topic).
GROUPS_OF = f"SELECT {_REGISTRATION} FORCE INDEX (by_topic) WHERE topic = %s ORDER BY consumer_group LIMIT %s"

# Registrations of one name, in order of topic (PRIMARY).
GROUPS_NAMED = f"SELECT {_REGISTRATION} FORCE INDEX (PRIMARY) WHERE consumer_group = %s ORDER BY topic LIMIT %s"

# One registration (PRIMARY).
GROUP = f"SELECT {_REGISTRATION} FORCE INDEX (PRIMARY) WHERE consumer_group = %s AND topic = %s"

# How many registrations the topics in a range have (by_topic).
COUNT = "SELECT COUNT(*) FROM queue_groups FORCE INDEX (by_topic) WHERE topic >= %s AND topic <= %s"


class Registration(NamedTuple):
    """`_REGISTRATION` of one group. Times in milliseconds."""

    topic: str
    group: str
    order: str
    start: str
    retention_ms: int
    created_at: int
    paused_at: int
    paused_by: str
    pause_reason: str
    now: int


def registrations(cx: Executor, topic: str | None, group: str | None, limit: int) -> list[Registration]:
    """Return the registrations of a topic, of a name, of both, or all, in order of topic and name."""
    if topic is None:
        rows = cx.query(GROUPS, (limit,)) if group is None else cx.query(GROUPS_NAMED, (group, limit))
    else:
        rows = cx.query(GROUPS_OF, (topic, limit)) if group is None else cx.query(GROUP, (group, topic))
    return [Registration(*row) for row in rows]


def count(cx: Executor, topic: str | None) -> int:
    """Return how many registrations a topic has, or all topics together."""
    row = cx.one(COUNT, ("", LAST) if topic is None else (topic, topic))
    return 0 if row is None else int(row[0])
