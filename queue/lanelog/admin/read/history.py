"""The history: how messages left a group that keeps it.

Owns this query and its filters. Never writes a row of it: the transactions that settle messages do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from lanelog._base.checks import aware
from lanelog._log.lookup.known import known_group, snapshot
from lanelog._stores.consumers.history import Ended
from lanelog.admin.lookup.arguments import (
    OFFSET_MAX,
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


@frozen(kw_only=True)
class HistoryFilter:
    """Which messages are listed. The fields are those of `Admin.history`."""

    key: str | None
    offset: int | None
    id: str | None
    outcome: str | None
    since: datetime | None
    until: datetime | None

    def statement(self) -> tuple[str, tuple[str | int, ...]]:
        """Return the statement, and what it asks for beside group and topic. Raises ConfigurationError."""
        optional("key", self.key)
        optional("id", self.id)
        if self.outcome is not None and self.outcome not in OUTCOMES:
            raise ConfigurationError(f"outcome must be one of {', '.join(OUTCOMES)}, not {self.outcome!r}")
        begin = 0 if self.since is None else milliseconds(aware("since", self.since))
        end = _NEVER if self.until is None else milliseconds(aware("until", self.until)) - 1
        filters = (begin, end, self.id or "", self.id or "", self.outcome or "", self.outcome or "")
        if self.key is None and self.offset is not None:
            raise ConfigurationError("an offset is of one lane: give its key, too")
        if self.key is None:
            return HISTORY, filters
        span = (1, OFFSET_MAX) if self.offset is None else (offset_of(self.offset), self.offset)
        return HISTORY_OF, (self.key, *span, *filters)


def history(database: Database, at: GroupTopic, chosen: HistoryFilter, limit: int) -> list[HistoryInfo]:
    """See `Admin.history`."""
    check_names(at)
    limit_of(limit)
    sql, args = chosen.statement()

    def query(cx: Executor) -> list[tuple[Any, ...]]:
        rows = cx.query(sql, (*at.columns, *args, limit))
        if not rows:  # history outlives its group, so the group is only looked up if there is none
            known_group(cx, at)
        return rows

    return [_left(at, *row) for row in snapshot(database, query, "reading history")]


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
