"""Lists of dead letters: one by one, and counted by reason.

Owns these queries, and how far they read. Changes nothing. They walk the dead letters of a topic in key order, a
bounded number with each statement, the settled ones too; never a backlog. Each statement sees the dead letters that are
there then: one that is settled meanwhile may be in an answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from attrs import define, frozen

from lanelog._base.checks import check_integer
from lanelog._base.payloads.metadata import decode_metadata
from lanelog._base.places import GroupTopic
from lanelog._base.reasons import ERROR_MAX, REASON_MAX, names_of, reason_of, takes
from lanelog._log.lookup.known import known_group, read
from lanelog.admin.dead_letters.selection import check_reason, holders, meant
from lanelog.admin.lookup.arguments import check_text, limit_of, offset_of, optional
from lanelog.admin.read.messages import SETTLING
from lanelog.admin.types.messages import DeadLetterCounts, DeadLetterInfo, DeadLetterPage, DeadLetterReason
from lanelog.config import NAME_MAX, check_name
from lanelog.message import utc_from_ms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lanelog._database import Database, Executor

REASONS_MAX: Final = 1000
"""The most reasons that are returned."""
READ: Final = 1000
"""Dead letters of one statement."""
MOST_MAX: Final = 1_000_000_000
"""The greatest bound of what may be read."""

_ERROR: Final = 8
"""Where the error stands in a row of `LETTERS`."""

_UNSETTLED = f"""{SETTLING}
WHERE m.topic = %s AND m.failed_group <> '' AND d.message_offset IS NULL
      AND (%s = '' OR m.original_topic = %s) AND (%s = '' OR m.failed_group = %s)
"""

# The rest of a lane, and the lanes after it. With `key >= k AND (key > k OR offset > o)`, which says the same, the
# servers read the lane from its start for each page.
_BEHIND = """
      AND (m.partition_key = %s AND m.`offset` > %s OR m.partition_key > %s)
      AND LEFT(m.partition_key, CHAR_LENGTH(%s)) = %s
ORDER BY m.partition_key, m.`offset` LIMIT %s
"""

# Dead letters of a topic that are not settled, in key order, after a key and an offset; of one original topic and one
# group, and of keys that begin so, if these are not empty (both PRIMARY).
LETTERS = f"""
SELECT m.topic, m.partition_key, m.`offset`, m.id, m.original_topic, m.original_offset, m.metadata, m.failed_group,
       m.last_error, m.failure_count, m.failed_at, m.published_at, m.payload_bytes
FROM queue_messages m FORCE INDEX (PRIMARY) {_UNSETTLED} {_BEHIND}
"""

# The same, for their reasons alone (both PRIMARY).
ERRORS = f"""
SELECT m.topic, m.partition_key, m.`offset`, m.failed_group, LEFT(m.last_error, {ERROR_MAX}), m.failed_at
FROM queue_messages m FORCE INDEX (PRIMARY) {_UNSETTLED} {_BEHIND}
"""


@frozen(kw_only=True)
class Chosen:
    """Which dead letters of a topic are listed."""

    group: str | None
    reason: str | None = None
    """A reason, or the short name of one."""
    beginning: str = ""
    """What their keys begin with."""
    after: tuple[str, str, int] | None = None
    """Dead letter topic, key and offset of the last one that was listed before."""

    def check(self) -> None:
        """Refuse values that no dead letter can have."""
        optional("group", self.group)
        if self.reason is not None:
            check_text("reason", self.reason, REASON_MAX)
            check_reason(self.reason)
        check_text("key_prefix", self.beginning, NAME_MAX)
        if self.after is not None:
            where, key, offset = self.after
            check_name("after", where)
            check_name("after", key)
            offset_of(offset, "after")

    def takes(self, reason: str) -> bool:
        """Return whether dead letters with this reason are listed."""
        return takes(self.reason, reason)


def page(database: Database, topic: str, chosen: Chosen, *, limit: int, most: int = MOST_MAX) -> DeadLetterPage:
    """See `Admin.dead_letter_page`."""
    limit_of(limit)
    check_integer("most", most, least=1, most=MOST_MAX)
    chosen.check()
    # A reader of all of them reads at most the limit, and one more that shows whether there are more.
    size = min(READ, most + 1, limit + 1 if chosen.reason is None else READ)
    found: list[DeadLetterInfo] = []
    looked, last, ended = 0, chosen.after, True
    for row in _behind(database, topic, chosen, LETTERS, size):
        if len(found) == limit or looked == most:
            ended = False
            break
        looked, last = looked + 1, row[:3]
        if chosen.takes(reason_of(row[_ERROR])):
            found.append(_info(row))
    if chosen.reason is not None:
        meant((each.reason for each in found), chosen.reason)
    return DeadLetterPage(letters=found, looked=looked, after=None if ended else last)


def counts(database: Database, topic: str, group: str | None, *, most: int = MOST_MAX) -> DeadLetterCounts:
    """See `Admin.count_dead_letters`."""
    check_integer("most", most, least=1, most=MOST_MAX)
    chosen = Chosen(group=group)
    chosen.check()
    tallies: dict[tuple[str, str, str], _Tally] = {}
    looked, ended = 0, True
    for where, key, _, name, error, failed in _behind(database, topic, chosen, ERRORS, min(READ, most + 1)):
        if looked == most:
            ended = False
            break
        looked += 1
        tallies.setdefault((where, name, reason_of(error)), _Tally()).add(key, failed)
    names = names_of({reason for _, _, reason in tallies})
    reasons = [
        DeadLetterReason(
            dead_letter_topic=where,
            group=name,
            reason=reason,
            name=names[reason],
            count=tally.count,
            keys=tally.keys,
            oldest_failed_at=utc_from_ms(tally.oldest),
            newest_failed_at=utc_from_ms(tally.newest),
        )
        for (where, name, reason), tally in tallies.items()
    ]
    reasons.sort(key=lambda each: (-each.count, each.dead_letter_topic, each.group, each.reason))
    return DeadLetterCounts(
        reasons=reasons[:REASONS_MAX], looked=looked, complete=ended and len(reasons) <= REASONS_MAX
    )


@define(eq=False)
class _Tally:
    """Dead letters of one reason. They come in order of their keys."""

    count: int = 0
    keys: int = 0
    oldest: int = 0
    newest: int = 0
    _key: str | None = None

    def add(self, key: str, failed: int) -> None:
        self.oldest = min(self.oldest, failed) if self.count else failed
        self.newest = max(self.newest, failed)
        self.count += 1
        self.keys += key != self._key
        self._key = key


def _behind(database: Database, topic: str, chosen: Chosen, sql: str, size: int) -> Iterator[tuple[Any, ...]]:
    """Yield what a statement finds in the dead letter topics of a topic, `size` rows at a time."""
    check_name("topic", topic)
    group, beginning = chosen.group or "", chosen.beginning
    where, original = read(database, _known, "finding dead letter topics", topic, chosen.group)
    for each in where:
        if chosen.after is not None and each < chosen.after[0]:  # topics come in order of their names
            continue
        begin = chosen.after is not None and each == chosen.after[0]
        key, offset = chosen.after[1:] if begin and chosen.after else ("", 0)
        rows: list[tuple[Any, ...]] | None = None
        while rows is None or len(rows) == size:
            args = (each, original, original, group, group, key, offset, key, beginning, beginning, size)
            rows = read(database, _query, "reading dead letters", sql, args)
            yield from rows
            if rows:
                _, key, offset, *_ = rows[-1]


def _query(cx: Executor, sql: str, args: tuple[object, ...]) -> list[tuple[Any, ...]]:
    return list(cx.query(sql, args))


def _known(cx: Executor, topic: str, group: str | None) -> tuple[list[str], str]:
    """Return what `holders` does.

    Refuses a group that is not registered for the original topic and has no dead letters there.
    """
    where, original = holders(cx, topic)
    if group is not None and original:
        one = ((each, original, original, group, group, "", 0, "", "", "", 1) for each in where)
        if not any(cx.query(LETTERS, args) for args in one):
            known_group(cx, GroupTopic(topic=original, group=group))
    return where, original


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
