"""`queue_schedules`: messages that are published again and again, and the next time of each.

Owns the SQL of its table. Never computes a time (`cron` does) and never touches a lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field, frozen

from lanelog._database import NOW_MS
from lanelog._stores._counted import signed
from lanelog._stores._points import placeholders

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._database import Executor

VERSION_WITH_WALL_CLOCK = 6
"""The first version of the tables with the wall-clock times of schedules."""

# Milliseconds until the next fire. Negative: it is overdue. No row: no schedule runs (by_next).
NEXT_DUE = f"""SELECT {signed("next_fire_at")} - {NOW_MS} FROM queue_schedules FORCE INDEX (by_next)
WHERE paused_at = 0 ORDER BY next_fire_at LIMIT 1"""

# The due schedules, the most overdue first, without a lock (by_next).
DUE = f"""SELECT name, topic, payload_bytes FROM queue_schedules FORCE INDEX (by_next)
WHERE paused_at = 0 AND next_fire_at <= {NOW_MS} ORDER BY next_fire_at LIMIT %s"""

_COLUMNS = """name, expression, timezone, topic, partition_key, payload, metadata, ttl_ms, catch_up, next_fire_at,
       expression_at, last_fire_at, fired, paused_at, paused_by, pause_reason, created_at, updated_at"""

# What stands for `{wall}` in the statements below: since version 6 of the tables, and before.
_WALL = "next_local, fired_local, fired_again, tzdata"
_NO_WALL = "'', '', '', ''"

# Lock schedules, without those that another transaction has locked; with the clock (PRIMARY).
TRY_LOCK = f"""SELECT {_COLUMNS}, {{wall}}, {NOW_MS} FROM queue_schedules FORCE INDEX (PRIMARY)
WHERE name IN ({{names}}) ORDER BY name FOR UPDATE SKIP LOCKED"""

# Lock one schedule (PRIMARY).
LOCK = "SELECT 1 FROM queue_schedules FORCE INDEX (PRIMARY) WHERE name = %s FOR UPDATE"

# One schedule (PRIMARY).
GET = f"SELECT {_COLUMNS}, {{wall}}, {NOW_MS} FROM queue_schedules FORCE INDEX (PRIMARY) WHERE name = %s"

# The first schedules by name (PRIMARY).
LIST = f"""SELECT {_COLUMNS}, {{wall}}, {NOW_MS} FROM queue_schedules FORCE INDEX (PRIMARY)
WHERE name > '' ORDER BY name LIMIT %s"""

# The first thousand names (PRIMARY).
NAMES = "SELECT name FROM queue_schedules FORCE INDEX (PRIMARY) WHERE name > '' ORDER BY name LIMIT 1000"

# The names of schedules that publish to a topic (PRIMARY). Reads all schedules: they are few.
OF_TOPIC = """SELECT name FROM queue_schedules FORCE INDEX (PRIMARY)
WHERE name > '' AND topic = %s ORDER BY name"""

# The schedules that are neither due nor paused, and the clock (PRIMARY). Reads all schedules: they are few.
TO_COME = f"""SELECT name, expression, timezone, topic, next_fire_at, last_fire_at, {{wall}}, {NOW_MS}
FROM queue_schedules FORCE INDEX (PRIMARY) WHERE name > '' AND paused_at = 0 AND next_fire_at > {NOW_MS}"""

_SAME_TIMES = "expression = VALUES(expression) AND timezone = VALUES(timezone)"
_KEEPS_NEXT = f"({_SAME_TIMES}) OR (paused_at = 0 AND next_fire_at <= {NOW_MS})"
_DECLARED = f"""next_fire_at = IF({_KEEPS_NEXT}, next_fire_at, VALUES(next_fire_at)),
  expression_at = IF({_SAME_TIMES}, expression_at, VALUES(expression_at)),
  expression = VALUES(expression), timezone = VALUES(timezone), topic = VALUES(topic),
  partition_key = VALUES(partition_key), payload = VALUES(payload), payload_bytes = VALUES(payload_bytes),
  metadata = VALUES(metadata), ttl_ms = VALUES(ttl_ms), catch_up = VALUES(catch_up), updated_at = VALUES(updated_at)"""

# Declare a schedule, or declare it again (PRIMARY). The server assigns from left to right, so the times stand before
# the columns that they depend on. A time that is due already is fired, even if the expression changes.
DECLARE = f"""INSERT INTO queue_schedules
(name, expression, timezone, topic, partition_key, payload, payload_bytes, metadata, ttl_ms, catch_up, next_fire_at,
 expression_at, created_at, updated_at)
VALUES (%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,{NOW_MS},{NOW_MS})
ON DUPLICATE KEY UPDATE {_DECLARED}"""

# The same, with the wall-clock time of the next one, since version 6 of the tables (PRIMARY).
DECLARE_WALL = f"""INSERT INTO queue_schedules
(name, expression, timezone, topic, partition_key, payload, payload_bytes, metadata, ttl_ms, catch_up, next_fire_at,
 expression_at, next_local, tzdata, created_at, updated_at)
VALUES (%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,{NOW_MS},{NOW_MS})
ON DUPLICATE KEY UPDATE next_local = IF({_KEEPS_NEXT}, next_local, VALUES(next_local)),
  tzdata = IF({_KEEPS_NEXT}, tzdata, VALUES(tzdata)), {_DECLARED}"""

# Move on to the next time (PRIMARY; the row is locked).
ADVANCE = """UPDATE queue_schedules FORCE INDEX (PRIMARY)
SET next_fire_at = %s, last_fire_at = %s, fired = fired + %s WHERE name = %s"""

# The same, and note the wall-clock times, since version 6 of the tables (PRIMARY; the row is locked).
ADVANCE_WALL = """UPDATE queue_schedules FORCE INDEX (PRIMARY)
SET next_fire_at = %s, last_fire_at = %s, fired = fired + %s, next_local = %s, fired_local = %s, fired_again = %s,
    tzdata = %s WHERE name = %s"""

# Note which wall-clock time the next one is, since version 6 of the tables (PRIMARY; the row is locked).
NOTE_NEXT = "UPDATE queue_schedules FORCE INDEX (PRIMARY) SET next_local = %s, tzdata = %s WHERE name = %s"

# The clock went back: go on from now, and forget all noted times after it (PRIMARY; the row is locked).
SET_BACK = """UPDATE queue_schedules FORCE INDEX (PRIMARY)
SET next_fire_at = %s, last_fire_at = LEAST(last_fire_at, %s), expression_at = LEAST(expression_at, %s)
WHERE name = %s"""

# Pause a schedule (PRIMARY; the row is locked).
PAUSE = """UPDATE queue_schedules FORCE INDEX (PRIMARY) SET paused_at = %s, paused_by = %s, pause_reason = %s
WHERE name = %s"""

# Resume a schedule at a later time (PRIMARY; the row is locked).
RESUME = """UPDATE queue_schedules FORCE INDEX (PRIMARY)
SET paused_at = 0, paused_by = '', pause_reason = '', next_fire_at = %s WHERE name = %s"""

# Count a message that an operator had it publish, besides its times (PRIMARY; the row is locked).
COUNT_RUN = "UPDATE queue_schedules FORCE INDEX (PRIMARY) SET fired = fired + 1 WHERE name = %s"

# Remove a schedule (PRIMARY; the row is locked).
REMOVE = "DELETE FROM queue_schedules WHERE name = %s"


@frozen(kw_only=True)
class ScheduleRow:
    """One schedule. Times in milliseconds."""

    name: str
    expression: str
    timezone: str
    topic: str
    key: str
    payload: bytes = field(repr=False)
    metadata: str | None = field(repr=False)
    ttl_ms: int
    catch_up: str
    next_fire_at: int
    expression_at: int
    last_fire_at: int = 0
    fired: int = 0
    paused_at: int = 0
    paused_by: str = ""
    pause_reason: str = ""
    created_at: int = 0
    updated_at: int = 0
    next_local: str = ""
    fired_local: str = ""
    fired_again: str = ""
    tzdata: str = ""
    now: int = 0
    """The database's clock at the reading."""


@frozen
class Due:
    """A schedule that is due. Read without a lock, so it may have changed."""

    name: str
    topic: str
    payload_bytes: int


@frozen
class ToCome:
    """A schedule that is not due yet. Read without a lock, so it may have changed. Times in milliseconds."""

    name: str
    expression: str
    timezone: str
    topic: str
    next_fire_at: int
    last_fire_at: int
    next_local: str
    fired_local: str
    fired_again: str
    tzdata: str
    now: int


@frozen(kw_only=True)
class Wall:
    """The wall-clock times of a schedule, as its row has them."""

    next_local: str
    fired_local: str
    fired_again: str
    tzdata: str


def due(cx: Executor, limit: int) -> list[Due]:
    """Return up to `limit` due schedules, the most overdue first."""
    return [Due(name, topic, int(size)) for name, topic, size in cx.query(DUE, (limit,))]


def try_lock(cx: Executor, names: Sequence[str], *, tables: int) -> list[ScheduleRow]:
    """Lock and return, by name, the schedules that no other transaction has locked. `tables`: their version."""
    rows = cx.query(TRY_LOCK.format(names=placeholders(names), wall=_wall(tables)), sorted(names))
    return [_row(row) for row in rows]


def lock(cx: Executor, name: str, *, tables: int) -> ScheduleRow | None:
    """Lock and return one schedule, or None. `tables`: their version."""
    # A second statement reads it: the clock of the first is that of its start, and it may have waited for the lock.
    return None if cx.one(LOCK, (name,)) is None else get(cx, name, tables=tables)


def get(cx: Executor, name: str, *, tables: int) -> ScheduleRow | None:
    """Return one schedule, or None. `tables`: their version."""
    row = cx.one(GET.format(wall=_wall(tables)), (name,))
    return None if row is None else _row(row)


def by_name(cx: Executor, limit: int, tables: int) -> list[ScheduleRow]:
    """Return the first `limit` schedules, by name. `tables`: their version."""
    return [_row(row) for row in cx.query(LIST.format(wall=_wall(tables)), (limit,))]


def names(cx: Executor) -> Sequence[str]:
    """Return the first thousand names."""
    return [name for (name,) in cx.query(NAMES)]


def of_topic(cx: Executor, topic: str) -> Sequence[str]:
    """Return the names of the schedules that publish to a topic, in order."""
    return [name for (name,) in cx.query(OF_TOPIC, (topic,))]


def declare(cx: Executor, row: ScheduleRow, *, tables: int) -> None:
    """Insert or replace a schedule. Its next time stays if expression and time zone do, or if it is due, not paused.

    `tables`: their version.
    """
    message = (row.topic, row.key, row.payload, len(row.payload), row.metadata, row.ttl_ms)
    times = (row.catch_up, row.next_fire_at, row.expression_at)
    values = (row.name, row.expression, row.timezone, *message, *times)
    if tables < VERSION_WITH_WALL_CLOCK:
        cx.execute(DECLARE, values)
    else:
        cx.execute(DECLARE_WALL, (*values, row.next_local, row.tzdata))


def advance(
    cx: Executor, name: str, *, next_fire_at: int, last_fire_at: int, fired: int, wall: Wall, tables: int
) -> None:
    """Note the next time, the last time, and `fired` more messages. `tables`: their version."""
    if tables < VERSION_WITH_WALL_CLOCK:
        cx.execute(ADVANCE, (next_fire_at, last_fire_at, fired, name))
    else:
        noted = (wall.next_local, wall.fired_local, wall.fired_again, wall.tzdata)
        cx.execute(ADVANCE_WALL, (next_fire_at, last_fire_at, fired, *noted, name))


def note_next(cx: Executor, name: str, *, next_local: str, tzdata: str, tables: int) -> None:
    """Note which wall-clock time the next one is. Older tables have no column for it."""
    if tables >= VERSION_WITH_WALL_CLOCK:
        cx.execute(NOTE_NEXT, (next_local, tzdata, name))


def to_come(cx: Executor, *, tables: int) -> Sequence[ToCome]:
    """Return the schedules that are neither due nor paused. `tables`: their version."""
    return [ToCome(*row) for row in cx.query(TO_COME.format(wall=_wall(tables)))]


def set_back(cx: Executor, name: str, next_fire_at: int, now: int) -> None:
    """Set the next time, and forget noted times after `now`."""
    cx.execute(SET_BACK, (next_fire_at, now, now, name))


def pause(cx: Executor, name: str, now: int, by: str, reason: str) -> None:
    """Pause a schedule."""
    cx.execute(PAUSE, (now, by, reason, name))


def resume(cx: Executor, name: str, next_fire_at: int) -> None:
    """Resume a schedule, whose next time is `next_fire_at`."""
    cx.execute(RESUME, (next_fire_at, name))


def count_run(cx: Executor, name: str) -> None:
    """Count one more message. No time moves."""
    cx.execute(COUNT_RUN, (name,))


def remove(cx: Executor, name: str) -> None:
    """Delete a schedule."""
    cx.execute(REMOVE, (name,))


def _wall(tables: int) -> str:
    return _NO_WALL if tables < VERSION_WITH_WALL_CLOCK else _WALL


def _row(row: Sequence[object]) -> ScheduleRow:
    names = (*(part.strip() for part in f"{_COLUMNS}, {_WALL}".split(",")), "now")
    fields = dict(zip(names, row, strict=True))
    fields["key"] = fields.pop("partition_key")
    return ScheduleRow(**fields)  # type: ignore[arg-type] # as the columns are
