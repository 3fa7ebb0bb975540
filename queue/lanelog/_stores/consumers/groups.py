"""`queue_groups`: the groups of each topic. A group exists from its registration, not from its first message.

Owns the SQL of its table. Never touches a lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from lanelog._database import NOW_MS
from lanelog._stores._counted import BEYOND_COUNTING, LONGEST_MS
from lanelog._stores._due_soon import HORIZON_MS, RECENT_MS
from lanelog._stores._pause import Pause
from lanelog._stores._points import number

if TYPE_CHECKING:
    from lanelog._base.places import GroupTopic
    from lanelog._database import Executor

VERSION_WITH_DEAD_LETTER_TOPIC = 3
"""The first version of the tables with a group's dead letter topic."""

# One group (PRIMARY), and milliseconds until the next delayed message of any topic is due, if that is soon (by_due).
# The keeper reads its group often, so the scheduler learns in time of messages that other processes have delayed.
GET = f"""
SELECT delivery_order, paused_at, created_at, history_ms, lane_pauses,
       (SELECT CAST(deliver_at AS SIGNED) - CAST({NOW_MS} AS SIGNED) FROM queue_scheduled FORCE INDEX (by_due)
        WHERE deliver_at BETWEEN {NOW_MS} - {RECENT_MS} AND {NOW_MS} + {HORIZON_MS} ORDER BY deliver_at LIMIT 1)
FROM queue_groups WHERE consumer_group = %s AND topic = %s
"""

# One group, locked against deletion (PRIMARY).
LOCK_SHARED = "SELECT created_at FROM queue_groups WHERE consumer_group = %s AND topic = %s LOCK IN SHARE MODE"

# One group, locked (PRIMARY).
LOCK = "SELECT delivery_order FROM queue_groups WHERE consumer_group = %s AND topic = %s FOR UPDATE"

# Register (PRIMARY).
CREATE = f"""
INSERT INTO queue_groups (consumer_group, topic, delivery_order, start_at, retention_ms, history_ms, dead_letter_ms,
       created_at)
VALUES (%s, %s, %s, %s, %s, %s, %s, {NOW_MS})
"""

# The retentions of a group. The latest subscription decides (PRIMARY).
SET_KEPT = """UPDATE queue_groups FORCE INDEX (PRIMARY) SET retention_ms = %s, history_ms = %s, dead_letter_ms = %s
WHERE consumer_group = %s AND topic = %s"""

# The dead letter topic of a group, since version 3 of the tables (PRIMARY).
SET_DEAD_LETTER_TOPIC = """UPDATE queue_groups FORCE INDEX (PRIMARY) SET dead_letter_topic = %s
WHERE consumer_group = %s AND topic = %s"""

# Groups that are not paused, have noted their dead letter topic, and have no living member (by_topic; heartbeats
# PRIMARY). The join finds the members of which `may_live` in `_log/lookup/liveness` says yes; a test compares the two.
UNATTENDED = f"""
SELECT g.consumer_group, g.dead_letter_topic, g.history_ms
FROM queue_groups g FORCE INDEX (by_topic)
LEFT JOIN queue_subscriber_heartbeats h FORCE INDEX (PRIMARY)
       ON h.consumer_group = g.consumer_group AND h.topic = g.topic
          AND h.deregistered_at IN (0, h.heartbeat_at)
          AND (h.expires_at BETWEEN {NOW_MS} - %s + 1 AND {NOW_MS} + {LONGEST_MS}
               OR IF(h.liveness_lock = '', 1, IS_FREE_LOCK(h.liveness_lock)) = 0)
WHERE g.topic = %s AND g.dead_letter_topic IS NOT NULL AND g.paused_at = 0 AND h.subscriber_name IS NULL
"""

# One of these groups, if it is still unattended (both PRIMARY).
UNATTENDED_NOW = UNATTENDED.replace("(by_topic)", "(PRIMARY)") + " AND g.consumer_group = %s"

SILENCE_MS = 60_000
"""A member that holds no liveness lock counts as dead this long after the end of its last heartbeat."""

# The pause of a group, locked for a change (PRIMARY).
LOCK_PAUSE = """SELECT paused_at, paused_by, pause_reason FROM queue_groups FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s FOR UPDATE"""

# Pause a group, or resume it (PRIMARY; the row is locked).
SET_PAUSE = """UPDATE queue_groups FORCE INDEX (PRIMARY) SET paused_at = %s, paused_by = %s, pause_reason = %s
WHERE consumer_group = %s AND topic = %s"""

# Count a pause or resume of a lane. The members see the count change (PRIMARY; the row is locked).
COUNT_LANE_PAUSE = f"""UPDATE queue_groups FORCE INDEX (PRIMARY)
SET lane_pauses = IF(lane_pauses < {BEYOND_COUNTING}, lane_pauses + 1, 0) WHERE consumer_group = %s AND topic = %s"""

# The start of a group. For an archive it is the archive's name (PRIMARY).
START = "SELECT start_at FROM queue_groups FORCE INDEX (PRIMARY) WHERE consumer_group = %s AND topic = %s"

# Change an archive's name (PRIMARY; the row is locked).
SET_START = "UPDATE queue_groups FORCE INDEX (PRIMARY) SET start_at = %s WHERE consumer_group = %s AND topic = %s"

# Delete a registration (PRIMARY).
DELETE = """DELETE queue_groups FROM queue_groups FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s"""

# The groups of a topic, and how long each keeps acked messages (by_topic).
READERS = "SELECT consumer_group, retention_ms FROM queue_groups FORCE INDEX (by_topic) WHERE topic = %s"

# How long the groups of a topic keep their dead letters, if not for ever (by_topic).
LETTERS_KEPT = """SELECT consumer_group, dead_letter_ms FROM queue_groups FORCE INDEX (by_topic)
WHERE topic = %s AND dead_letter_ms > 0"""


@frozen(kw_only=True)
class Kept:
    """The retentions of a group, in seconds."""

    messages: float
    history: float | None
    """None: the group writes no history."""
    dead_letters: float | None
    """None: for ever."""

    @property
    def columns(self) -> tuple[int, int, int]:
        """In milliseconds. In the last two 0 means None, so a shorter retention is 1."""
        return int(self.messages * 1000), _ms_or_zero(self.history), _ms_or_zero(self.dead_letters)


def _ms_or_zero(seconds: float | None) -> int:
    return 0 if seconds is None else max(1, int(seconds * 1000))


@frozen
class Unattended:
    """A group that is not paused and has no living member."""

    group: str
    dead_letter_topic: str
    """Empty: the group keeps no dead letters."""
    history: bool


@frozen
class GroupRow:
    """One group's registration for a topic. Times in milliseconds."""

    order: str
    paused: bool
    created_at: int
    history_ms: int
    lane_pauses: int
    """Grows with every pause and resume of one of its lanes."""
    due_in_ms: int | None
    """Milliseconds until the next delayed message of any topic is due. Negative: it is due. None: no message was due
    within `RECENT_MS` or will be due within `HORIZON_MS`."""


def get(cx: Executor, at: GroupTopic) -> GroupRow | None:
    """Return the registration, or None."""
    row = cx.one(GET, at.columns)
    return None if row is None else GroupRow(row[0], bool(row[1]), *row[2:])


def lock_shared(cx: Executor, at: GroupTopic) -> int | None:
    """Share-lock a registration until the transaction ends. Return the time of the registration, or None."""
    return number(cx.one(LOCK_SHARED, at.columns))


def lock(cx: Executor, at: GroupTopic) -> str | None:
    """Lock a registration. Return the group's order, or None."""
    row = cx.one(LOCK, at.columns)
    return None if row is None else str(row[0])


def create(cx: Executor, at: GroupTopic, *, order: str, start: str, kept: Kept) -> None:
    """Register a group."""
    cx.execute(CREATE, (*at.columns, order, start, *kept.columns))


def set_kept(cx: Executor, at: GroupTopic, kept: Kept) -> None:
    """Set the retentions of a group."""
    cx.execute(SET_KEPT, (*kept.columns, *at.columns))


def readers(cx: Executor, topic: str) -> dict[str, int]:
    """Return the retention in milliseconds by group."""
    return dict(cx.query(READERS, (topic,)))


def letters_kept(cx: Executor, topic: str) -> dict[str, int]:
    """Return the retention of dead letters in milliseconds by group, without the groups that keep them for ever."""
    return dict(cx.query(LETTERS_KEPT, (topic,)))


def set_dead_letter_topic(cx: Executor, at: GroupTopic, dead_letter_topic: str | None) -> None:
    """Note the dead letter topic of a group. None: it keeps no dead letters. Only on tables of version 3 or newer."""
    cx.execute(SET_DEAD_LETTER_TOPIC, (dead_letter_topic or "", *at.columns))


def unattended(cx: Executor, topic: str) -> list[Unattended]:
    """Return the unattended groups of a topic. Only on tables of version 3 or newer."""
    return [Unattended(group, to, bool(kept)) for group, to, kept in cx.query(UNATTENDED, (SILENCE_MS, topic))]


def unattended_now(cx: Executor, at: GroupTopic) -> Unattended | None:
    """Return one group if it is still unattended. None: it has a living member, or it was paused or deleted."""
    row = cx.one(UNATTENDED_NOW, (SILENCE_MS, at.topic, at.group))
    return None if row is None else Unattended(row[0], row[1], bool(row[2]))


def lock_pause(cx: Executor, at: GroupTopic) -> Pause | None:
    """Lock a registration. Return its pause, or None if the group does not exist."""
    row = cx.one(LOCK_PAUSE, at.columns)
    return None if row is None else Pause(*row)


def set_pause(cx: Executor, at: GroupTopic, pause: Pause) -> None:
    """Pause or resume a group whose row is locked."""
    cx.execute(SET_PAUSE, (*pause, *at.columns))


def count_lane_pause(cx: Executor, at: GroupTopic) -> None:
    """Count a pause or resume of one of the group's lanes, so that its members read it."""
    cx.execute(COUNT_LANE_PAUSE, at.columns)


def start(cx: Executor, at: GroupTopic) -> str | None:
    """Return the group's start, or None if the group does not exist."""
    row = cx.one(START, at.columns)
    return None if row is None else str(row[0])


def set_start(cx: Executor, at: GroupTopic, start: str) -> None:
    """Change the group's start."""
    cx.execute(SET_START, (start, *at.columns))


def delete(cx: Executor, at: GroupTopic) -> None:
    """Remove a registration."""
    cx.execute(DELETE, at.columns)
