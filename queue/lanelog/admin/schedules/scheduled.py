"""Messages that are not in the log yet: list them, take one back, delete those of a topic.

Owns these queries. Never appends such a message to the log: the engine does, and `Admin.maintain` through it.

Cancelling deletes one row. It waits for a transaction that is moving the message into the log; the second of the two
finds no row. If the process dies before the COMMIT, the message is still scheduled. If it dies later, the message is
cancelled. If two processes do this at once, one of them cancels it. After an unanswered COMMIT, a repetition that finds
neither the row nor the message in the log knows that it was cancelled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._base.checks import check_name
from lanelog._base.payloads.metadata import decode_metadata
from lanelog._database import NOW_MS, open_in_this_thread
from lanelog._log.lookup.known import read, repeated
from lanelog._stores._counted import signed
from lanelog._stores.later import scheduled
from lanelog._stores.log import messages
from lanelog.admin.audit_entry import Act, Unanswered
from lanelog.admin.lookup import open_lanes
from lanelog.admin.lookup.arguments import limit_of, optional
from lanelog.admin.lookup.given import given_topic
from lanelog.admin.types.messages import ScheduledInfo
from lanelog.errors import ConfigurationError
from lanelog.message import utc_from_ms

if TYPE_CHECKING:
    from typing import Any

    from lanelog._database import Database, Executor

_DELIVER_AT = signed("deliver_at")
_COLUMNS = (
    "topic, partition_key, id, payload_bytes, metadata, published_at, deliver_at, ttl_ms, "
    f"{_DELIVER_AT} - CAST({NOW_MS} AS SIGNED)"
)

# A topic's messages by key and id (PRIMARY, prefix).
LIST = (
    f"SELECT {_COLUMNS} FROM queue_scheduled FORCE INDEX (PRIMARY) WHERE topic = %s ORDER BY partition_key, id LIMIT %s"
)

# Those of one lane (PRIMARY, prefix).
LIST_LANE = f"""SELECT {_COLUMNS} FROM queue_scheduled FORCE INDEX (PRIMARY)
WHERE topic = %s AND partition_key = %s ORDER BY id LIMIT %s"""

BATCH = 1000


def list_scheduled(database: Database, topic: str, key: str | None, limit: int) -> list[ScheduledInfo]:
    """See `Admin.scheduled`."""
    optional("key", key)
    limit_of(limit)
    given_topic(database, topic)
    return [_info(row) for row in read(database, _rows, "listing what is scheduled", topic, key, limit)]


def counts(database: Database) -> dict[str, int]:
    """See `Admin.scheduled_counts`."""
    return read(database, scheduled.counts, "counting delayed messages")


def _rows(cx: Executor, topic: str, key: str | None, limit: int) -> list[tuple[Any, ...]]:
    return cx.query(LIST, (topic, limit)) if key is None else cx.query(LIST_LANE, (topic, key, limit))


def _info(row: tuple[Any, ...]) -> ScheduledInfo:
    topic, key, message_id, size, metadata, published_ms, deliver_ms, ttl_ms, due_in_ms = row
    return ScheduledInfo(
        topic=topic,
        key=key,
        id=message_id,
        payload_bytes=size,
        metadata=decode_metadata(metadata),
        published_at=utc_from_ms(published_ms),
        deliver_at=utc_from_ms(deliver_ms),
        due_in=max(0, due_in_ms) / 1000,
        ttl=ttl_ms / 1000 if ttl_ms else None,
    )


def cancel(
    database: Database, topic: str, key: str | None, message_id: str, act: Act | None = None, *, dry_run: bool = False
) -> bool:
    """See `Admin.cancel_scheduled`. In a topic that does not exist, no message waits: the answer is False.

    `act`: None for a publisher that takes its own message back.
    """
    check_name("topic", topic)
    optional("key", key)
    check_name("id", message_id)
    if open_in_this_thread(database):
        raise ConfigurationError(
            "this thread has a transaction of lanelog open: cancel before it or after it; within it, that would wait "
            "for a message that the transaction itself may have scheduled"
        )
    if key is None:
        key = open_lanes.lane_of(database, topic, message_id)
    if dry_run:
        return read(database, scheduled.exists, "finding a message", topic, key, message_id)
    return repeated(database, _cancel, "cancelling a message", database, topic, key, message_id, Unanswered(), act)


def _cancel(database: Database, topic: str, key: str, message_id: str, unanswered: Unanswered, act: Act | None) -> bool:
    with unanswered.attempt(), database.transaction(hasty=True) as cx:
        # Locks the row in queue_scheduled; an operator also writes a new row of queue_audit.
        deleted = scheduled.cancel(cx, topic, key, message_id)
        unanswered.plan(int(deleted))
        if not deleted and unanswered.lost:
            return not messages.find_in_log(cx, topic, [(key, message_id)])
        if deleted and act is not None:
            act.record(cx, messages=1, key=key)
        return deleted


def delete_all(database: Database, topic: str) -> int:
    """Delete the scheduled messages of a topic in bounded batches. Return their number."""
    deleted = 0
    while True:
        found, gone = repeated(database, _delete_some, "deleting what is scheduled", database, topic)
        deleted += gone
        if found < BATCH:
            return deleted


def _delete_some(database: Database, topic: str) -> tuple[int, int]:
    with database.transaction(hasty=True) as cx:
        points = scheduled.of_topic(cx, topic, BATCH)
        return len(points), scheduled.delete(cx, topic, points)
