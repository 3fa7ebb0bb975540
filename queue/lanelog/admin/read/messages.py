"""Messages: one message with its state for every group, and a stretch of a lane.

Owns these queries. `message_state` judges the states. A list is bounded in rows and in bytes of payload, before any
payload is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from attrs import frozen

from lanelog._base.payloads.metadata import decode_metadata
from lanelog._base.places import GroupTopic
from lanelog._log.lookup.known import known_lane, read, snapshot
from lanelog._log.lookup.names import dead_letter_topics, names, readers
from lanelog._stores._points import points
from lanelog._stores.consumers import groups, offsets
from lanelog._stores.log import partitions
from lanelog._stores.log.dead_letters import derived_id
from lanelog.admin.lookup.arguments import limit_of, offset_of, optional, when
from lanelog.admin.read import heads
from lanelog.admin.totals import lane_totals, message_state
from lanelog.admin.types.messages import GroupState, MessageInfo
from lanelog.admin.types.topology import MessageState
from lanelog.config import check_name
from lanelog.errors import ConfigurationError
from lanelog.message import DeadLetter, utc_from_ms

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lanelog._database import Database, Executor
    from lanelog.admin.totals.lane_totals import LaneFacts
    from lanelog.admin.totals.message_state import Standing

BYTES_MAX = 16 << 20
"""Payload bytes in one answer of `messages()`."""

_COLUMNS = """m.topic, m.partition_key, m.`offset`, m.id, m.payload, m.payload_bytes, m.metadata, m.published_at,
       m.created_at, m.expires_at, m.target_group, m.original_topic, m.original_offset, m.failed_group, m.failed_at,
       m.failure_count, m.last_error
FROM queue_messages m
"""

SETTLING = """LEFT JOIN queue_delivery_state d FORCE INDEX (PRIMARY)
       ON d.consumer_group = '' AND d.topic = m.topic AND d.partition_key = m.partition_key
          AND d.message_offset = m.`offset`"""
"""The row that settles a dead letter `m`. None: it was neither redriven nor deleted."""

# One message by its offset (PRIMARY).
BY_OFFSET = f"SELECT {_COLUMNS} FORCE INDEX (PRIMARY) WHERE m.topic = %s AND m.partition_key = %s AND m.`offset` = %s"

# One message by its id (by_id).
BY_ID = f"SELECT {_COLUMNS} FORCE INDEX (by_id) WHERE m.topic = %s AND m.partition_key = %s AND m.id = %s"

# Which lanes hold a message with an id (by_id).
HOLDING = """
SELECT partition_key FROM queue_messages FORCE INDEX (by_id)
WHERE topic = %s AND partition_key IN ({keys}) AND id = %s
"""

# Sizes of the next messages of a lane, without payloads (PRIMARY).
SIZES = """
SELECT `offset`, payload_bytes FROM queue_messages FORCE INDEX (PRIMARY)
WHERE topic = %s AND partition_key = %s AND `offset` >= %s ORDER BY `offset` LIMIT %s
"""

# Messages at exact offsets of some lanes (PRIMARY).
AT = f"SELECT {_COLUMNS} FORCE INDEX (PRIMARY) WHERE m.topic = %s AND (m.partition_key, m.`offset`) IN ({{points}})"

# Which of these dead letters are settled (PRIMARY).
SETTLED = """
SELECT partition_key, message_offset FROM queue_delivery_state FORCE INDEX (PRIMARY)
WHERE consumer_group = '' AND topic = %s AND (partition_key, message_offset) IN ({points})
"""

# A dead letter by its own id (by_id).
LETTER = """
SELECT `offset`, id, failure_count, failed_at, last_error FROM queue_messages FORCE INDEX (by_id)
WHERE topic = %s AND partition_key = %s AND id = %s
"""

# The last dead letters of a lane that are not settled, of one group and from an original offset on, with their first
# ids (both PRIMARY, bounded range).
LETTERS = f"""
SELECT m.`offset`, m.id, m.failure_count, m.failed_at, m.last_error, m.metadata
FROM queue_messages m FORCE INDEX (PRIMARY) {SETTLING}
WHERE m.topic = %s AND m.partition_key = %s AND m.`offset` > %s AND m.failed_group = %s AND m.original_topic = %s
      AND m.original_offset >= %s AND d.message_offset IS NULL ORDER BY m.`offset` DESC
"""
LETTERS_BACK = 1000
"""A message may have been redriven, and have failed again: how far back its dead letter is searched from the head."""
ORIGINAL_ID = "lanelog.original_id"


class _MessageRow(NamedTuple):
    """`_COLUMNS` of one message."""

    topic: str
    key: str
    offset: int
    id: str
    payload: bytes
    payload_bytes: int
    metadata: bytes | None
    published_at: int
    created_at: int
    expires_at: int
    target_group: str
    original_topic: str
    original_offset: int
    failed_group: str
    failed_at: int
    failure_count: int
    last_error: str | None


@frozen
class _Letter:
    """A dead letter that was neither redriven nor deleted."""

    topic: str
    id: str
    failures: int
    failed_at: int
    error: str | None


def message(
    database: Database, topic: str, key: str, *, message_id: str | None, offset: int | None
) -> MessageInfo | None:
    """See `Admin.message`."""
    check_name("topic", topic)
    check_name("key", key)
    optional("id", message_id)
    if (message_id is None) == (offset is None):
        raise ConfigurationError("give exactly one of id= and offset=")
    if offset is not None:
        offset_of(offset)

    def query(cx: Executor) -> MessageInfo | None:
        known_lane(cx, topic, key)
        if message_id is None:
            found = cx.one(BY_OFFSET, (topic, key, offset))
        else:
            found = cx.one(BY_ID, (topic, key, message_id))
        if found is None:
            return None
        row = _MessageRow(*found)
        return _info(row, _settled(cx, topic, [(key, row.offset)]), _states_of(cx, row))

    return snapshot(database, query, "reading a message")


def keys_of(database: Database, topic: str, message_id: str, limit: int) -> list[str]:
    """See `Admin.keys_of`. A thousand lanes are one statement, with a look-up for each lane."""
    check_name("id", message_id)
    keys = heads.heads(database, topic, limit)
    rows = read(database, points, "finding a message", HOLDING, keys, before=[topic], after=[message_id])
    return sorted(key for (key,) in rows)


def messages(
    database: Database, topic: str, key: str, *, from_offset: int | None, limit: int, bytes_max: int = BYTES_MAX
) -> list[MessageInfo]:
    """See `Admin.messages`."""
    check_name("topic", topic)
    check_name("key", key)
    limit_of(limit)
    start = 1 if from_offset is None else offset_of(from_offset, "from_offset")

    def query(cx: Executor) -> list[MessageInfo]:
        known_lane(cx, topic, key)
        # Below that offset the server would walk rows that are deleted and still in the index.
        floor = offsets.floors(cx, topic, [key]).get(key)
        first = start if floor is None else max(start, floor.deleted_through + 1)
        wanted: list[tuple[str, int]] = []
        room = bytes_max
        for offset, size in cx.query(SIZES, (topic, key, first, limit)):
            room -= size
            if room < 0 and wanted:
                break
            wanted.append((key, offset))
        return _at(cx, topic, wanted)

    return snapshot(database, query, "reading messages")


def at(database: Database, topic: str, offsets: Sequence[tuple[str, int]]) -> list[MessageInfo]:
    """Return messages by key and offset, in this order. One that is not there is left out."""
    return snapshot(database, _at, "reading messages", topic, offsets)


def _at(cx: Executor, topic: str, offsets: Sequence[tuple[str, int]]) -> list[MessageInfo]:
    settled = _settled(cx, topic, offsets)
    rows = map(_MessageRow._make, points(cx, AT, offsets, before=[topic]))
    found = {(row.key, row.offset): _info(row, settled, ()) for row in rows}
    return [found[at] for at in offsets if at in found]


def _settled(cx: Executor, topic: str, offsets: Sequence[tuple[str, int]]) -> set[tuple[str, int]]:
    return {(key, offset) for key, offset in points(cx, SETTLED, offsets, before=[topic])}


def _info(row: _MessageRow, settled: Collection[tuple[str, int]], states: tuple[GroupState, ...]) -> MessageInfo:
    return MessageInfo(
        topic=row.topic,
        key=row.key,
        offset=row.offset,
        id=row.id,
        payload=row.payload,
        payload_bytes=row.payload_bytes,
        metadata=decode_metadata(row.metadata),
        published_at=utc_from_ms(row.published_at),
        created_at=utc_from_ms(row.created_at),
        expires_at=when(row.expires_at),
        target_group=row.target_group or None,
        dead_letter=_dead_letter(row),
        settled=(row.key, row.offset) in settled,
        states=states,
    )


def _dead_letter(row: _MessageRow) -> DeadLetter | None:
    if not row.failed_group:
        return None
    return DeadLetter(
        original_topic=row.original_topic,
        original_offset=row.original_offset,
        group=row.failed_group,
        failed_at=utc_from_ms(row.failed_at),
        failure_count=row.failure_count,
        last_error=row.last_error or "",
    )


def _states_of(cx: Executor, row: _MessageRow) -> tuple[GroupState, ...]:
    """Return the states for every registered group, with a few look-ups by exact key for each."""
    topic, key, offset = row.topic, row.key, row.offset
    body = message_state.Body(
        key, offset, created_at=row.created_at, expires_at=row.expires_at, target_group=row.target_group
    )
    registered = readers(cx, topic).get(topic, [])
    facts = lane_totals.load(cx, topic, registered, [key])
    letters = dead_letter_topics([topic], names(cx, topic))[topic]
    found = []
    for group in registered:
        at, lane = GroupTopic(topic=topic, group=group), facts[(group, key)]
        standing = message_state.judge(group, body, message_state.covering(cx, at.lane(key), offset), lane)
        letter = None
        if standing.state is MessageState.COMPLETED:
            letter = _letter(cx, letters, group, row)
        registration = groups.get(cx, at)
        paused = bool(lane.offsets.paused_at) or (registration is not None and registration.paused)
        found.append(_group_state(group, standing, lane, letter, paused=paused))
    return tuple(found)


def _letter(cx: Executor, dead_topics: Collection[str], group: str, row: _MessageRow) -> _Letter | None:
    """Return the dead letter of a message, or of its copy: the message may have been redriven, and have failed again.

    The id of that later dead letter is derived from every dead letter and copy before it, which may be collected by
    now. Its metadata holds the first id. A later dead letter that lies further back than `LETTERS_BACK` is not found.
    """
    key = row.key
    first_id = decode_metadata(row.metadata).get(ORIGINAL_ID, row.id)
    for dead_topic in dead_topics:
        found = cx.one(LETTER, (dead_topic, key, derived_id(group, row.id, row.offset)))
        if found is not None:
            letter_offset, *facts = found
            if not _settled(cx, dead_topic, [(key, letter_offset)]):
                return _Letter(dead_topic, *facts)
        head = partitions.heads(cx, dead_topic, [key]).get(key, 0)
        floor = offsets.floors(cx, dead_topic, [key]).get(key)
        least = max(head - LETTERS_BACK, 0 if floor is None else floor.floor)
        for _, *facts, metadata in cx.query(LETTERS, (dead_topic, key, least, group, row.topic, row.offset)):
            if decode_metadata(metadata).get(ORIGINAL_ID) == first_id:
                return _Letter(dead_topic, *facts)
    return None


def _group_state(
    group: str, standing: Standing, lane: LaneFacts, letter: _Letter | None, *, paused: bool
) -> GroupState:
    return GroupState(
        group=group,
        state=standing.state if letter is None else MessageState.FAILED,
        attempts=standing.attempts if letter is None else letter.failures,
        postponed=standing.postponed,
        next_attempt_in=standing.next_attempt_in,
        first_attempt_at=when(standing.first_at),
        last_attempt_at=when(standing.last_at if letter is None else letter.failed_at),
        last_error=standing.last_error if letter is None else letter.error,
        owner=lane.owner or None,
        paused=paused,
        dead_letter_topic=None if letter is None else letter.topic,
        dead_letter_id=None if letter is None else letter.id,
    )
