"""Where a message stands for a group: rows become a `MessageState`.

Owns that judgement, and the look-ups of single delivery rows and messages. Never lists lanes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve, frozen

from lanelog._base.places import LaneId
from lanelog._stores._points import for_groups, points, united
from lanelog.admin.types.topology import MessageState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lanelog._database import Executor
    from lanelog.admin.totals.lane_totals import LaneFacts

_ROW = """consumer_group, partition_key, message_offset, through_offset, acked, invisible_until, retry_count, postponed,
       lease_epoch, first_attempt_at, last_attempt_at, last_error
FROM queue_delivery_state FORCE INDEX (PRIMARY)
"""

# Delivery rows at exact offsets of one group; several groups joined by UNION ALL (PRIMARY).
ROWS_AT = f"SELECT {_ROW} WHERE consumer_group = %s AND topic = %s AND (partition_key, message_offset) IN ({{points}})"

# The row that covers an offset, if any does: the last that begins at or before it (PRIMARY).
ROW_COVERING = f"""SELECT {_ROW}
WHERE consumer_group = %s AND topic = %s AND partition_key = %s AND message_offset <= %s
ORDER BY message_offset DESC LIMIT 1
"""

# When the messages at exact offsets were written, when they expire and which group they are for (PRIMARY).
MESSAGES_AT = """
SELECT partition_key, `offset`, created_at, expires_at, target_group FROM queue_messages FORCE INDEX (PRIMARY)
WHERE topic = %s AND (partition_key, `offset`) IN ({points})
"""

# The first message after an offset, where the one at the next offset is missing; several lanes joined by UNION ALL,
# each part begins with the offset that was asked for (PRIMARY).
NEXT_MESSAGES = """
SELECT %s, partition_key, `offset`, created_at, expires_at, target_group FROM queue_messages FORCE INDEX (PRIMARY)
WHERE topic = %s AND partition_key = %s AND `offset` > %s ORDER BY `offset` LIMIT 1
"""

GroupLane = tuple[str, str]
"""A group and a key."""

STEPS = 50
"""Settled runs to step over in search of the first unsettled message. There are few: the settler merges neighbours."""


@frozen
class Row:
    """A delivery row. Times in milliseconds."""

    group: str
    key: str
    offset: int
    through: int
    acked: int
    invisible_until: int
    attempts: int
    postponed: int
    epoch: int
    first_at: int
    last_at: int
    last_error: str | None


@frozen
class Body:
    """The columns of a message that decide about its delivery. Times in milliseconds."""

    key: str
    offset: int
    created_at: int
    expires_at: int
    target_group: str


@frozen(kw_only=True)
class Standing:
    """Where one message stands for one group. Times in milliseconds; 0: never, or not known."""

    state: MessageState
    attempts: int = 0
    postponed: int = 0
    next_attempt_in: float | None = None
    first_at: int = 0
    last_at: int = 0
    last_error: str | None = None


@frozen
class First:
    """The first unsettled message of a lane. `age_ms` None: the log does not have it."""

    offset: int
    age_ms: int | None
    standing: Standing


COMPLETED = Standing(state=MessageState.COMPLETED)


def judge(group: str, body: Body, row: Row | None, facts: LaneFacts) -> Standing:
    """Return where a message stands, without regard to a dead letter of it.

    `row` is the delivery row that covers it.
    """
    if body.offset <= facts.watermark or (row is not None and row.acked) or body.target_group not in ("", group):
        return COMPLETED
    found = _unsettled(body.offset, row, facts)
    # A message that a handler has had once is delivered again, however late.
    untouched = not (found.attempts or found.postponed)
    if untouched and 0 < body.expires_at <= facts.now:
        return evolve(found, state=MessageState.EXPIRED, next_attempt_in=None)
    return found


def _unsettled(offset: int, row: Row | None, facts: LaneFacts) -> Standing:
    if row is None:
        if offset > facts.offsets.marked_through:
            return Standing(state=MessageState.PENDING)
        at = facts.offsets.marked_at
        if facts.mark_lives:
            return Standing(state=MessageState.PROCESSING, attempts=1, first_at=at, last_at=at)
        # Its process died, or lost the lane; the next owner counts the attempt.
        return Standing(state=MessageState.RETRYABLE, attempts=1, next_attempt_in=0.0, first_at=at, last_at=at)
    flying = row.epoch != 0 and row.epoch == facts.epoch
    # The wait is no longer than was asked for, even if the clock was ahead when the row was written.
    wait = 0.0 if row.epoch else max(0, row.invisible_until - max(facts.now, row.last_at)) / 1000
    if flying:
        state = MessageState.PROCESSING
    elif row.attempts:
        state = MessageState.RETRYABLE
    else:
        state = MessageState.POSTPONED if row.postponed else MessageState.PENDING
    return Standing(
        state=state,
        attempts=row.attempts,
        postponed=row.postponed,
        next_attempt_in=None if flying or state is MessageState.PENDING else wait,
        first_at=row.first_at,
        last_at=row.last_at if row.attempts or row.postponed else 0,
        last_error=row.last_error,
    )


def covering(cx: Executor, lane: LaneId, offset: int) -> Row | None:
    """Return the delivery row of a message, or the acked run that it is in. None: no row covers it."""
    found = cx.one(ROW_COVERING, (*lane.columns, offset))
    row = None if found is None else Row(*found)
    return row if row is not None and row.through >= offset else None


def firsts(cx: Executor, topic: str, lanes: Mapping[GroupLane, LaneFacts]) -> dict[GroupLane, First]:
    """Return the first unsettled message of each lane that has one, by group and key. For a few groups."""
    at = {lane: facts.watermark + 1 for lane, facts in lanes.items() if facts.watermark < facts.head}
    rows: dict[GroupLane, Row] = {}
    unread = set(at)
    for _ in range(STEPS):
        # A run right after the watermark can be settled for a moment, until the next flush raises the watermark.
        rows_at = for_groups(cx, ROWS_AT, topic, sorted((*lane, at[lane]) for lane in unread))
        found = {(row.group, row.key): row for row in (Row(*each) for each in rows_at)}
        rows.update(found)
        unread = {lane for lane, row in found.items() if row.acked}
        for lane in unread:
            at[lane] = rows.pop(lane).through + 1
        if not unread:
            break
    at = {lane: offset for lane, offset in at.items() if offset <= lanes[lane].head}
    offsets = {(key, offset) for (_, key), offset in at.items()}
    bodies = first_bodies(cx, topic, offsets)
    found_first = {}
    for (group, key), offset in at.items():
        body = bodies.get((key, offset))
        facts = lanes[group, key]
        standing = judge(group, body or Body(key, offset, 0, 0, ""), rows.get((group, key)), facts)
        age = None if body is None else max(0, facts.now - body.created_at)
        found_first[group, key] = First(offset, age, standing)
    return found_first


def first_bodies(cx: Executor, topic: str, offsets: set[tuple[str, int]]) -> dict[tuple[str, int], Body]:
    """Return the messages at these keys and offsets, or the next ones after them.

    A message may be missing because it was collected, or because a crash of the server left a hole: the lane waits for
    the message after it.
    """
    found = [Body(*row) for row in points(cx, MESSAGES_AT, sorted(offsets), before=[topic])]
    bodies = {(body.key, body.offset): body for body in found}
    rows = [(offset, topic, key, offset) for key, offset in sorted(offsets - bodies.keys())]
    behind = united(cx, f"({NEXT_MESSAGES})", rows)
    return bodies | {(body[0], int(asked)): Body(*body) for asked, *body in behind}
