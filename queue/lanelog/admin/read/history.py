"""The history: how messages left a group that keeps it.

Owns this query and its filters. Never writes a row of it: the transactions that settle messages do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lanelog._log.lookup.known import known_group, snapshot
from lanelog._stores.consumers.history import Ended
from lanelog.admin.lookup.arguments import (
    OFFSET_MAX,
    aware,
    check_names,
    limit_of,
    milliseconds,
    offset_of,
    optional,
    when,
)
from lanelog.admin.types.messages import HistoryInfo
from lanelog.errors import ConfigurationError
from lanelog.message import utc_from_ms

if TYPE_CHECKING:
    from datetime import datetime

    from lanelog._base.places import GroupTopic
    from lanelog._database import Database, Executor

SKIPPED: Final = "skipped"
OUTCOMES: Final = (*(ended.value for ended in Ended), SKIPPED)

_LEFT = """partition_key, message_offset, id, outcome, attempts, published_at, first_delivered_at, finished_at, owner,
       last_error
FROM queue_history"""
_FILTERS = """finished_at >= %s AND finished_at <= %s AND (%s = '' OR id = %s) AND (%s = '' OR outcome = %s)"""
_NEVER: Final = (1 << 63) - 1

# The messages that left a group last, in a span of time (by_finished).
HISTORY = f"""SELECT {_LEFT} FORCE INDEX (by_finished)
WHERE consumer_group = %s AND topic = %s AND {_FILTERS} ORDER BY finished_at DESC LIMIT %s
"""

# The messages that left a group in one lane, from one offset to another, the highest first (PRIMARY).
HISTORY_OF = f"""SELECT {_LEFT} FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND partition_key = %s AND message_offset >= %s AND message_offset <= %s
      AND {_FILTERS} ORDER BY message_offset DESC LIMIT %s
"""


def history(
    database: Database,
    at: GroupTopic,
    *,
    key: str | None,
    offset: int | None,
    id: str | None,  # noqa: A002 - the field's name
    outcome: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int,
) -> list[HistoryInfo]:
    """See `Admin.history`."""
    check_names(at)
    optional("key", key)
    optional("id", id)
    if outcome is not None and outcome not in OUTCOMES:
        raise ConfigurationError(f"outcome must be one of {', '.join(OUTCOMES)}, not {outcome!r}")
    begin = 0 if since is None else milliseconds(aware("since", since))
    end = _NEVER if until is None else milliseconds(aware("until", until)) - 1
    limit_of(limit)
    sql, place = _at(key, offset)
    args = (*at.columns, *place, begin, end, id or "", id or "", outcome or "", outcome or "", limit)

    def look(cx: Executor) -> list[tuple[Any, ...]]:
        rows = cx.query(sql, args)
        if not rows:  # history outlives its group, so the group is only looked up if there is none
            known_group(cx, at)
        return rows

    return [_left(at, *row) for row in snapshot(database, look, "reading history")]


def _at(key: str | None, offset: int | None) -> tuple[str, tuple[str | int, ...]]:
    """Return the statement, and what it asks for beside group and topic."""
    if key is None and offset is not None:
        raise ConfigurationError("an offset is a place in one lane: give its key, too")
    if key is None:
        return HISTORY, ()
    return HISTORY_OF, (key, *((1, OFFSET_MAX) if offset is None else (offset_of(offset), offset)))


def _left(at: GroupTopic, *row: Any) -> HistoryInfo:
    key, offset, message_id, outcome, attempts, published, first, finished, owner, error = row
    return HistoryInfo(
        topic=at.topic,
        group=at.group,
        key=key,
        offset=offset,
        id=message_id,
        outcome=outcome,
        attempts=attempts,
        published_at=utc_from_ms(published),
        first_delivered_at=when(first),
        finished_at=utc_from_ms(finished),
        owner=owner,
        error=error,
    )
