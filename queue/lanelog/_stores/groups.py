"""`queue_groups`: which groups read a topic; a group exists from its registration, not from its first row.

Owns the SQL of its table; never touches a lane. Called at registration, by the keeper (is the group still there, is it
paused) and by the janitor (whom collection has to ask).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from lanelog._database import NOW_MS
from lanelog._stores._pause import Pause

if TYPE_CHECKING:
    from lanelog._database import Executor
    from lanelog._places import GroupTopic

VERSION_WITH_DEAD_LETTER_TOPIC = 3
"""Since this version of the tables a group's row says where its dead letters go."""

# One group (PRIMARY), and milliseconds until the next delayed message of any topic is due, if that is soon (by_due):
# who looks at his group that often need not be told by anybody else.
GET = f"""
SELECT delivery_order, paused_at, retention_ms, created_at, history_ms, lane_pauses,
       (SELECT CAST(deliver_at AS SIGNED) - CAST({NOW_MS} AS SIGNED) FROM queue_scheduled FORCE INDEX (by_due)
        WHERE deliver_at BETWEEN {NOW_MS} - 60000 AND {NOW_MS} + 1500 ORDER BY deliver_at LIMIT 1)
FROM queue_groups WHERE consumer_group = %s AND topic = %s
"""

# One group, locked against deletion while a lease row is born (PRIMARY).
LOCK_SHARED = "SELECT created_at FROM queue_groups WHERE consumer_group = %s AND topic = %s LOCK IN SHARE MODE"

# One group, locked by its registration (PRIMARY).
LOCK = "SELECT delivery_order FROM queue_groups WHERE consumer_group = %s AND topic = %s FOR UPDATE"

# Register (PRIMARY).
CREATE = f"""
INSERT INTO queue_groups (consumer_group, topic, delivery_order, start_at, retention_ms, history_ms, dead_letter_ms,
       created_at)
VALUES (%s, %s, %s, %s, %s, %s, %s, {NOW_MS})
"""

# What a subscription keeps is what the group keeps from its latest start on (PRIMARY).
SET_KEPT = """UPDATE queue_groups FORCE INDEX (PRIMARY) SET retention_ms = %s, history_ms = %s, dead_letter_ms = %s
WHERE consumer_group = %s AND topic = %s"""

# Where its dead letters go, since version 3 of the tables (PRIMARY).
SET_DEAD_LETTER_TOPIC = """UPDATE queue_groups FORCE INDEX (PRIMARY) SET dead_letter_topic = %s
WHERE consumer_group = %s AND topic = %s"""

# Groups that run, say where their dead letters go, and have no living member (by_topic; heartbeats PRIMARY). Whoever
# holds his lock lives, though his heartbeats are over: the clock was set, or the server stood still.
UNATTENDED = f"""
SELECT g.consumer_group, g.dead_letter_topic, g.history_ms
FROM queue_groups g FORCE INDEX (by_topic)
LEFT JOIN queue_subscriber_heartbeats h FORCE INDEX (PRIMARY)
       ON h.consumer_group = g.consumer_group AND h.topic = g.topic
          AND h.deregistered_at = 0
          AND (h.expires_at > {NOW_MS} - %s OR IF(h.liveness_lock = '', 1, IS_FREE_LOCK(h.liveness_lock)) = 0)
WHERE g.topic = %s AND g.dead_letter_topic IS NOT NULL AND g.paused_at = 0 AND h.subscriber_name IS NULL
"""

# Whether one of them is that still (both PRIMARY).
UNATTENDED_NOW = UNATTENDED.replace("(by_topic)", "(PRIMARY)") + " AND g.consumer_group = %s"

SILENCE_MS = 60_000
"""For how long the last heartbeat must have been over of a member that has not left and holds no lock."""

# The pause of a group, locked to be changed (PRIMARY).
LOCK_PAUSE = """SELECT paused_at, paused_by, pause_reason FROM queue_groups FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s FOR UPDATE"""

# Pause a group, or take it back (PRIMARY; the row is locked).
SET_PAUSE = """UPDATE queue_groups FORCE INDEX (PRIMARY) SET paused_at = %s, paused_by = %s, pause_reason = %s
WHERE consumer_group = %s AND topic = %s"""

# Tell the members that a lane of theirs was paused or resumed (PRIMARY; the row is locked).
COUNT_LANE_PAUSE = """UPDATE queue_groups FORCE INDEX (PRIMARY) SET lane_pauses = lane_pauses + 1
WHERE consumer_group = %s AND topic = %s"""

# Where a group began, which for an archive is the name of the archive (PRIMARY).
START = "SELECT start_at FROM queue_groups FORCE INDEX (PRIMARY) WHERE consumer_group = %s AND topic = %s"

# An archive's name (PRIMARY; the row is locked).
SET_START = "UPDATE queue_groups FORCE INDEX (PRIMARY) SET start_at = %s WHERE consumer_group = %s AND topic = %s"

# A registration (PRIMARY).
DELETE = """DELETE queue_groups FROM queue_groups FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s"""

# Whom collection has to ask, and for how long acked messages are kept (by_topic).
READERS = "SELECT consumer_group, retention_ms FROM queue_groups FORCE INDEX (by_topic) WHERE topic = %s"

# How long the groups of a topic keep their dead letters (by_topic).
LETTERS_KEPT = """SELECT consumer_group, dead_letter_ms FROM queue_groups FORCE INDEX (by_topic)
WHERE topic = %s AND dead_letter_ms > 0"""


@frozen(kw_only=True)
class Kept:
    """How long a group keeps what is done, in seconds."""

    messages: float
    history: float | None
    """None: it writes none."""
    dead_letters: float | None
    """None: for ever."""

    @property
    def columns(self) -> tuple[int, int, int]:
        """In milliseconds; of the last two only None is 0."""
        return int(self.messages * 1000), _ms_or_zero(self.history), _ms_or_zero(self.dead_letters)


def _ms_or_zero(seconds: float | None) -> int:
    return 0 if seconds is None else max(1, int(seconds * 1000))


@frozen
class Unattended:
    """A group that runs, and that nobody consumes."""

    group: str
    dead_letter_topic: str
    """Empty: it keeps no dead letters."""
    history: bool


@frozen
class GroupRow:
    """One group's registration for a topic; milliseconds."""

    order: str
    paused: bool
    retention_ms: int
    created_at: int
    history_ms: int
    lane_pauses: int
    """Grows with every pause and resume of one of its lanes."""
    due_in_ms: int | None
    """Until the next delayed message, of whatever topic, is due; negative: it is; None: none is within 1.5 s."""


def get(cx: Executor, at: GroupTopic) -> GroupRow | None:
    """The registration, or None."""
    row = cx.one(GET, at.columns)
    return None if row is None else GroupRow(row[0], bool(row[1]), *row[2:])


def lock_shared(cx: Executor, at: GroupTopic) -> int | None:
    """Hold a registration in place until the transaction ends; when it was made, or None."""
    row = cx.one(LOCK_SHARED, at.columns)
    return None if row is None else int(row[0])


def lock(cx: Executor, at: GroupTopic) -> str | None:
    """Lock a registration; its order, or None."""
    row = cx.one(LOCK, at.columns)
    return None if row is None else str(row[0])


def create(cx: Executor, at: GroupTopic, *, order: str, start: str, kept: Kept) -> None:
    """Register a group."""
    cx.execute(CREATE, (*at.columns, order, start, *kept.columns))


def set_kept(cx: Executor, at: GroupTopic, kept: Kept) -> None:
    """How long things are kept on behalf of this group."""
    cx.execute(SET_KEPT, (*kept.columns, *at.columns))


def readers(cx: Executor, topic: str) -> dict[str, int]:
    """Retention in milliseconds by group."""
    return dict(cx.query(READERS, (topic,)))


def letters_kept(cx: Executor, topic: str) -> dict[str, int]:
    """For how many milliseconds dead letters are kept, by group; without those that keep them for ever."""
    return dict(cx.query(LETTERS_KEPT, (topic,)))


def set_dead_letter_topic(cx: Executor, at: GroupTopic, dead_letter_topic: str | None) -> None:
    """Where this group's dead letters go; None: it keeps none. Only on tables of version 3 or newer."""
    cx.execute(SET_DEAD_LETTER_TOPIC, (dead_letter_topic or "", *at.columns))


def unattended(cx: Executor, topic: str) -> list[Unattended]:
    """The groups of a topic that nobody consumes. Only on tables of version 3 or newer."""
    return [Unattended(group, to, bool(kept)) for group, to, kept in cx.query(UNATTENDED, (SILENCE_MS, topic))]


def unattended_now(cx: Executor, at: GroupTopic) -> Unattended | None:
    """That of one group, or None: somebody came, or it was paused or deleted."""
    row = cx.one(UNATTENDED_NOW, (SILENCE_MS, at.topic, at.group))
    return None if row is None else Unattended(row[0], row[1], bool(row[2]))


def lock_pause(cx: Executor, at: GroupTopic) -> Pause | None:
    """Lock a registration; its pause, or None if the group is not there."""
    row = cx.one(LOCK_PAUSE, at.columns)
    return None if row is None else Pause(*row)


def set_pause(cx: Executor, at: GroupTopic, pause: Pause) -> None:
    """Pause a group that is locked, or let it run."""
    cx.execute(SET_PAUSE, (*pause, *at.columns))


def count_lane_pause(cx: Executor, at: GroupTopic) -> None:
    """Note that a lane of the group was paused or resumed, so that its members look."""
    cx.execute(COUNT_LANE_PAUSE, at.columns)


def start(cx: Executor, at: GroupTopic) -> str | None:
    """What was noted as the group's start, or None if it is not there."""
    row = cx.one(START, at.columns)
    return None if row is None else str(row[0])


def set_start(cx: Executor, at: GroupTopic, start: str) -> None:
    """Note another start."""
    cx.execute(SET_START, (start, *at.columns))


def delete(cx: Executor, at: GroupTopic) -> None:
    """Remove a registration."""
    cx.execute(DELETE, at.columns)
