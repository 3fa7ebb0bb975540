"""Expired messages of unattended groups, which have no living member, go to the dead letters, too.

Owns that move, one lane at a time, and the search for such lanes. Never touches a group that has
a living member or is paused, nor a message that a handler may have seen.

Only expired messages right after the watermark are taken. The first message that has not expired ends the search: it
and all after it wait for a consumer.

Lock order: dead letter head X (skipped when locked) → topic row S → group S → lease X → messages (the copy, which
nobody else writes) → delivery → offsets → history. The lease's epoch is raised: it fences an owner that only slept, as
a take-over does. A consumer may register meanwhile. If it takes the lease before, its heartbeat is seen here. If it
takes the lease after, it loads the committed rows.

If the process dies right before the COMMIT, nothing has happened. If it dies right after it, or the COMMIT is not
answered, the watermark has passed the messages, and the next search finds nothing. If two processes do this at once,
the second waits for the lease, and reads again.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

from attrs import field, frozen

from lanelog._base.places import GroupTopic
from lanelog._database import Lock, codes
from lanelog._facts.engine import janitor as facts
from lanelog._facts.fact import AttemptFields
from lanelog._log import bury
from lanelog._log.bury import EXPIRED, DeadLetterTopics
from lanelog._stores.consumers import deliveries, groups, history, offsets
from lanelog._stores.consumers.history import Ended, HistoryWrite
from lanelog._stores.log import expiry, partitions
from lanelog._stores.members import leases
from lanelog.errors import DatabaseError
from lanelog.notices import Notices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from lanelog._database import Executor
    from lanelog._log.append.appender import Appender
    from lanelog._stores.consumers.deliveries import DeliveryRow
    from lanelog._stores.consumers.groups import Unattended
    from lanelog._stores.log.expiry import Expired

TRANSACTION_MESSAGES: Final = 100
"""The most that one transaction moves."""


@frozen
class Buried:
    """The result of one call."""

    messages: int
    complete: bool = True
    """False: the time was over before all these lanes were done."""


@frozen
class ExpiredMessages:
    """Moves expired messages of one topic's unattended groups to the dead letters."""

    topic: str
    autocommit: Callable[[], AbstractContextManager[Executor]]
    transaction: Callable[[], AbstractContextManager[Executor]]
    appender: Appender
    notices: Notices = field(factory=Notices)
    _dead_topics: DeadLetterTopics = field(factory=DeadLetterTopics, init=False)

    def bury(self, group: Unattended, keys: Sequence[str], *, seconds: float = math.inf) -> Buried:
        """Move the expired messages right after the watermarks of these lanes, for `seconds` at most."""
        with self.autocommit() as cx:
            ripe = expiry.expired_lanes(cx, self._at(group), keys)
        buried, until = 0, time.monotonic() + seconds  # counted from here: also after a slow search, a lane is done
        for key in ripe:
            done = TRANSACTION_MESSAGES
            while done == TRANSACTION_MESSAGES:
                if time.monotonic() > until:
                    return Buried(buried, complete=False)
                done = self._lane(group, key)
                buried += done
        return Buried(buried)

    def _lane(self, group: Unattended, key: str) -> int:
        dead_topic = group.dead_letter_topic
        if dead_topic:
            self._prepare(dead_topic, key)
        try:
            with self.transaction() as cx:
                head = partitions.head(cx, dead_topic, key, Lock.FREE) if dead_topic else 0
                gone = [] if head is None else self._move(cx, group, key, head)
        except DatabaseError as error:
            if error.code != codes.DUPLICATE:
                raise
            return 0  # the head of the dead letter lane contradicts the log: an audit repairs it
        if gone and dead_topic:
            self.appender.committed(dead_topic)
        for message in gone:
            context: AttemptFields = {
                "topic": self.topic,
                "key": key,
                "group": group.group,
                "offset": message.offset,
                "attempt": 0,
            }
            if dead_topic:
                facts.message_expired(self.notices, **context, dead_letter_topic=dead_topic)
            else:
                facts.message_expired_dropped(self.notices, **context, dead_letter_topic=None)
        return len(gone)

    def _at(self, group: Unattended) -> GroupTopic:
        return GroupTopic(topic=self.topic, group=group.group)

    def _prepare(self, dead_topic: str, key: str) -> None:
        with self.autocommit() as cx:
            self._dead_topics.prepare(cx, dead_topic)
            there = key in partitions.heads(cx, dead_topic, [key])
        if not there:
            self.appender.ensure_lanes(dead_topic, [key])

    def _move(self, cx: Executor, group: Unattended, key: str, head: int) -> list[Expired]:
        at, topic = self._at(group), self.topic
        lane = at.lane(key)
        row = partitions.topic_row(cx, topic, Lock.SHARE)
        if row is None or groups.lock_shared(cx, at) is None:
            return []
        leases.lock_owners(cx, at, [key])
        if groups.unattended_now(cx, at) != group:  # a member came, or an operator paused the group
            return []
        progress = offsets.load(cx, at, [key])
        own = progress.get((at.group, key))
        if own is not None and own.paused:
            return []
        watermark = offsets.reached(progress, at.group, key)
        rows = deliveries.load(cx, at, [key]).get(key, [])
        marked = 0 if own is None else own.marked_through
        gone = _unseen(expiry.expired(cx, lane, watermark, TRANSACTION_MESSAGES), watermark, marked, rows)
        if not gone:
            return []
        leases.take_away(cx, [lane], row.first_epoch)
        if group.dead_letter_topic:
            for message in gone:
                head += bury.copy(
                    cx,
                    lane,
                    message.offset,
                    message.id,
                    dead_topic=group.dead_letter_topic,
                    head=head,
                    failures=0,
                    error=EXPIRED,
                )
            partitions.set_head(cx, group.dead_letter_topic, key, head)
        reached = deliveries.advanced(rows, gone[-1].offset)
        deliveries.delete(cx, at, [(key, each.offset) for each in rows if each.through <= reached])
        offsets.raise_watermarks(cx, at, {key: reached})
        if group.history:
            now = time.monotonic()
            left = [
                HistoryWrite(key, each.offset, each.id, Ended.EXPIRED, 0, each.published_at, None, now, EXPIRED)
                for each in gone
            ]
            history.upsert(cx, at, "", left, now)
        return gone


def _unseen(messages: Iterable[Expired], watermark: int, marked: int, rows: Sequence[DeliveryRow]) -> list[Expired]:
    """The messages right after the watermark, up to the first one that is missing, or that a handler may have seen."""
    fresh = {row.offset for row in rows if _counts_nothing(row)}
    known = {row.offset for row in rows}
    found: list[Expired] = []
    for message in messages:
        seen = message.offset in known or message.offset <= marked
        if message.offset != watermark + 1 + len(found) or (seen and message.offset not in fresh):
            break
        found.append(message)
    return found


def _counts_nothing(row: DeliveryRow) -> bool:
    """Whether the row says only that a message was handed out and taken back, so that no handler has seen it."""
    started = row.retry_count or row.crashed or row.postponed or row.lease_epoch
    return not (row.acked or started or row.first_age is not None)
