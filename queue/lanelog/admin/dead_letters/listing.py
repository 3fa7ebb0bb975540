"""Lists of dead letters: one by one, and counted by reason.

Owns these queries. Changes nothing. They walk the dead letters of a topic in key order, the settled ones too; never a
backlog.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

from lanelog._places import GroupTopic
from lanelog.admin.dead_letters.selection import REASON_MAX, reason_of
from lanelog.admin.lookup.arguments import check_text, limit_of, offset_of, optional
from lanelog.admin.lookup.known import known_group, known_topic, repeated
from lanelog.admin.lookup.names import names
from lanelog.admin.read.topics import dead_letter_topics
from lanelog.admin.types.messages import DeadLetterInfo, DeadLetterReason
from lanelog.config import NAME_MAX, check_name
from lanelog.message import decode_metadata, utc_from_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lanelog._database import Database, Executor

REASONS_MAX = 1000
"""The most reasons that are told apart."""

REASON = f"LEFT(SUBSTRING_INDEX(COALESCE(m.last_error, ''), CHAR(10 USING utf8mb4), 1), {REASON_MAX})"
"""The SQL of `reason_of`, for the error of a dead letter `m`."""

_UNSETTLED = """
LEFT JOIN queue_delivery_state d FORCE INDEX (PRIMARY)
       ON d.consumer_group = '' AND d.topic = m.topic AND d.partition_key = m.partition_key
          AND d.message_offset = m.`offset`
WHERE m.topic = %s AND m.failed_group <> '' AND d.message_offset IS NULL
      AND (%s = '' OR m.original_topic = %s) AND (%s = '' OR m.failed_group = %s)
"""

# Dead letters of a topic that are not settled, in key order, behind a key and an offset; of one original topic and one
# group, of keys that begin so, and of a reason, if these are not empty (both PRIMARY).
LETTERS = f"""
SELECT m.topic, m.partition_key, m.`offset`, m.id, m.original_topic, m.original_offset, m.metadata, m.failed_group,
       m.last_error, m.failure_count, m.failed_at, m.published_at, m.payload_bytes
FROM queue_messages m FORCE INDEX (PRIMARY) {_UNSETTLED}
      AND m.partition_key >= %s AND (m.partition_key > %s OR m.`offset` > %s)
      AND LEFT(m.partition_key, CHAR_LENGTH(%s)) = %s AND (%s IS NULL OR {REASON} = %s)
ORDER BY m.partition_key, m.`offset` LIMIT %s
"""

# The same, counted by group and reason (both PRIMARY).
REASONS = f"""
SELECT m.topic, m.failed_group, {REASON} AS reason, COUNT(*) AS letters, COUNT(DISTINCT m.partition_key),
       MIN(m.failed_at), MAX(m.failed_at)
FROM queue_messages m FORCE INDEX (PRIMARY) {_UNSETTLED}
GROUP BY m.topic, m.failed_group, reason ORDER BY letters DESC, m.failed_group, reason LIMIT %s
"""


def holders(cx: Executor, topic: str) -> tuple[list[str], str]:
    """Return the topics that hold a topic's dead letters, and the original topic that these must have ('': any).

    For an original topic, its dead letter topics. For a dead letter topic, itself.
    """
    known_topic(cx, topic)
    found = names(cx, topic)
    if dict(found)[topic]:
        return [topic], ""
    return list(dead_letter_topics([topic], found)[topic]), topic


@frozen(kw_only=True)
class Chosen:
    """Which dead letters of a topic are listed."""

    group: str | None
    reason: str | None = None
    beginning: str = ""
    """What their keys begin with."""
    after: tuple[str, str, int] | None = None
    """Dead letter topic, key and offset of the last one that was listed before."""

    def holds(self, where: str) -> bool:
        """Return whether any of a dead letter topic may be listed: topics come in order of their names."""
        return self.after is None or where >= self.after[0]

    def values(self, where: str, original: str, limit: int) -> tuple[object, ...]:
        """Return the arguments of `LETTERS`."""
        group, (_, key, offset) = self.group or "", self.after if self.after and self.after[0] == where else ("", "", 0)
        fixed = (where, original, original, group, group)
        return (*fixed, key, key, offset, self.beginning, self.beginning, self.reason, self.reason, limit)


def dead_letters(database: Database, topic: str, chosen: Chosen, *, limit: int) -> list[DeadLetterInfo]:
    """See `Admin.dead_letters`."""
    limit_of(limit)
    if chosen.reason is not None:
        check_text("reason", chosen.reason, REASON_MAX)
    check_text("key_prefix", chosen.beginning, NAME_MAX)
    if chosen.after is not None:
        where, key, offset = chosen.after
        check_name("after", where)
        check_name("after", key)
        offset_of(offset, "after")

    def rows(cx: Executor, where: Sequence[str], original: str) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        for each in where:
            if len(found) < limit and chosen.holds(each):
                found += cx.query(LETTERS, chosen.values(each, original, limit - len(found)))
        return found

    return [_info(row) for row in _rows(database, topic, chosen.group, rows)]


def dead_letter_reasons(database: Database, topic: str, group: str | None) -> list[DeadLetterReason]:
    """See `Admin.dead_letter_reasons`."""

    def counted(cx: Executor, where: Sequence[str], original: str) -> list[tuple[Any, ...]]:
        name = group or ""
        return [row for each in where for row in cx.query(REASONS, (each, original, original, name, name, REASONS_MAX))]

    reasons = [
        DeadLetterReason(
            dead_letter_topic=where,
            group=name,
            reason=reason,
            count=int(count),
            keys=int(keys),
            oldest_failed_at=utc_from_ms(oldest),
            newest_failed_at=utc_from_ms(newest),
        )
        for where, name, reason, count, keys, oldest, newest in _rows(database, topic, group, counted)
    ]
    reasons.sort(key=lambda each: (-each.count, each.dead_letter_topic, each.group, each.reason))
    return reasons[:REASONS_MAX]


def _rows(
    database: Database,
    topic: str,
    group: str | None,
    query: Callable[[Executor, Sequence[str], str], list[tuple[Any, ...]]],
) -> list[tuple[Any, ...]]:
    """Return what a query finds in the dead letter topics of a topic, given them and the original topic."""
    check_name("topic", topic)
    optional("group", group)

    def look() -> list[tuple[Any, ...]]:
        with database.snapshot() as cx:
            where, original = holders(cx, topic)
            _check_group(cx, where, original, group)
            return query(cx, where, original)

    return repeated(database, look, "reading dead letters")


def _check_group(cx: Executor, where: Sequence[str], original: str, group: str | None) -> None:
    """Refuse a group that is not registered for the original topic and has no dead letters there."""
    if group is None:
        return
    any_of = Chosen(group=group)
    if original and not any(cx.query(LETTERS, any_of.values(each, original, 1)) for each in where):
        known_group(cx, GroupTopic(topic=original, group=group))


def _info(row: tuple[Any, ...]) -> DeadLetterInfo:
    where, key, offset, letter_id, topic, original, metadata, group, error, failures, failed, published, size = row
    return DeadLetterInfo(
        dead_letter_topic=where,
        key=key,
        offset=offset,
        id=letter_id,
        original_topic=topic,
        original_offset=original,
        original_id=decode_metadata(metadata).get("lanelog.original_id", ""),
        group=group,
        reason=reason_of(error),
        last_error=error or "",
        failure_count=failures,
        failed_at=utc_from_ms(failed),
        published_at=utc_from_ms(published),
        payload_bytes=size,
    )
