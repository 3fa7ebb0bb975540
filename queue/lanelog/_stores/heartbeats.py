"""`queue_subscriber_heartbeats`: one row for each owner, which keeps all its leases valid at once.

Owns the SQL of its table; never judges who is alive (`assignment`). Called by the keeper (write, read) and the
janitor (old rows). Single-row autocommit statements only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from lanelog._database import NOW_MS, Incarnation, codes
from lanelog.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._database import Executor
    from lanelog._places import GroupTopic

# Write one owner's heartbeat (PRIMARY).
BEAT = f"""
INSERT INTO queue_subscriber_heartbeats (consumer_group, topic, subscriber_name, heartbeat_at, expires_at,
       deregistered_at, liveness_lock, server_started_at, incarnation, wake_host, wake_address, wake_token)
VALUES (%s, %s, %s, {NOW_MS}, {NOW_MS} + %s, 0, %s, %s, %s, %s, %s, %s)
ON DUPLICATE KEY UPDATE heartbeat_at = VALUES(heartbeat_at), expires_at = VALUES(expires_at), deregistered_at = 0,
       liveness_lock = VALUES(liveness_lock), server_started_at = VALUES(server_started_at),
       incarnation = VALUES(incarnation), wake_host = VALUES(wake_host), wake_address = VALUES(wake_address),
       wake_token = VALUES(wake_token)
"""

# Write one on tables of version 2 or 3, which have no addresses for hints (PRIMARY).
BEAT_2 = f"""
INSERT INTO queue_subscriber_heartbeats (consumer_group, topic, subscriber_name, heartbeat_at, expires_at,
       deregistered_at, liveness_lock, server_started_at, incarnation)
VALUES (%s, %s, %s, {NOW_MS}, {NOW_MS} + %s, 0, %s, %s, %s)
ON DUPLICATE KEY UPDATE heartbeat_at = VALUES(heartbeat_at), expires_at = VALUES(expires_at), deregistered_at = 0,
       liveness_lock = VALUES(liveness_lock), server_started_at = VALUES(server_started_at),
       incarnation = VALUES(incarnation)
"""

# Every owner of a group and topic, with the state of its lock as the server sees it (PRIMARY, prefix).
MEMBERS = f"""
SELECT subscriber_name, heartbeat_at, expires_at, deregistered_at,
       IF(liveness_lock = '', NULL, IS_FREE_LOCK(liveness_lock)), server_started_at, incarnation, {NOW_MS}
FROM queue_subscriber_heartbeats WHERE consumer_group = %s AND topic = %s
"""

# Write one on tables of version 1, which know a server by its start alone (PRIMARY).
BEAT_1 = f"""
INSERT INTO queue_subscriber_heartbeats (consumer_group, topic, subscriber_name, heartbeat_at, expires_at,
       deregistered_at, liveness_lock, server_started_at)
VALUES (%s, %s, %s, {NOW_MS}, {NOW_MS} + %s, 0, %s, %s)
ON DUPLICATE KEY UPDATE heartbeat_at = VALUES(heartbeat_at), expires_at = VALUES(expires_at), deregistered_at = 0,
       liveness_lock = VALUES(liveness_lock), server_started_at = VALUES(server_started_at)
"""
# Every owner on those (PRIMARY, prefix).
MEMBERS_1 = MEMBERS.replace("server_started_at, incarnation,", "server_started_at, '',")

# For an account that may not read the table (PRIMARY): on MariaDB an upsert takes SELECT.
_BLIND = ("INSERT INTO", "REPLACE INTO")

# Where the living subscribers of a topic want their hints (by_topic, PRIMARY prefix). Several topics are a UNION ALL:
# for a list of topics, MySQL may read the whole index.
WAKE_PLACES = f"""
SELECT h.topic, h.wake_host, h.wake_address, h.wake_token
FROM queue_groups g FORCE INDEX (by_topic)
STRAIGHT_JOIN queue_subscriber_heartbeats h FORCE INDEX (PRIMARY)
      ON h.consumer_group = g.consumer_group AND h.topic = g.topic
WHERE g.topic = %s AND h.wake_address <> '' AND h.deregistered_at = 0 AND h.expires_at >= {NOW_MS}
"""

# Where a thousand subscribers want their hints, and whether they live (PRIMARY).
ALL_WAKE_PLACES = f"""SELECT s.wake_host, s.wake_address, s.wake_token FROM (
  SELECT wake_host, wake_address, wake_token, deregistered_at, expires_at
  FROM queue_subscriber_heartbeats FORCE INDEX (PRIMARY) WHERE consumer_group > ''
  ORDER BY consumer_group, topic, subscriber_name LIMIT 1000) s
WHERE s.deregistered_at = 0 AND s.expires_at >= {NOW_MS}
"""

# An owner leaves; the row stays a while so that others see it go (PRIMARY).
DEREGISTER = f"""
UPDATE queue_subscriber_heartbeats SET deregistered_at = {NOW_MS}
WHERE consumer_group = %s AND topic = %s AND subscriber_name = %s
"""

# A dead owner that holds nothing any more does not count, unless it has given a sign of life (PRIMARY).
DEREGISTER_DEAD = f"""
UPDATE queue_subscriber_heartbeats SET deregistered_at = {NOW_MS}
WHERE consumer_group = %s AND topic = %s AND subscriber_name = %s AND heartbeat_at = %s
"""

# Rows of owners that left long ago (PRIMARY, prefix).
PURGE_LEFT = f"""
DELETE FROM queue_subscriber_heartbeats
WHERE consumer_group = %s AND topic = %s AND subscriber_name <> %s
      AND deregistered_at > 0 AND deregistered_at < {NOW_MS} - %s
"""

# Owners that fell silent long ago without leaving (PRIMARY, prefix).
SILENT = f"""
SELECT subscriber_name FROM queue_subscriber_heartbeats
WHERE consumer_group = %s AND topic = %s AND subscriber_name <> %s
      AND deregistered_at = 0 AND expires_at < {NOW_MS} - %s
"""

# One of them goes, unless it has given a sign of life (PRIMARY).
PURGE_SILENT = f"""
DELETE FROM queue_subscriber_heartbeats
WHERE consumer_group = %s AND topic = %s AND subscriber_name = %s
      AND deregistered_at = 0 AND expires_at < {NOW_MS} - %s
"""

# A subscriber's heartbeat, one row at a time (PRIMARY).
DELETE = """DELETE queue_subscriber_heartbeats FROM queue_subscriber_heartbeats FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND subscriber_name = %s"""

# The steal's own look at a suspect, in the statement before it takes (PRIMARY).
STILL_SILENT = """
SELECT heartbeat_at, IF(liveness_lock = '', NULL, IS_FREE_LOCK(liveness_lock)) FROM queue_subscriber_heartbeats
WHERE consumer_group = %s AND topic = %s AND subscriber_name = %s
"""


VERSION_WITH_INCARNATION = 2
VERSION_WITH_WAKE_PLACE = 4


@frozen
class WakePlace:
    """Where an owner wants to be told of new messages."""

    host: str = ""
    address: str = ""  # empty: nowhere
    token: int = 0  # a hint without it is ignored


NOWHERE = WakePlace()


@frozen
class HeartbeatRow:
    """One owner as the database sees it; times are the database's, in milliseconds."""

    owner: str
    heartbeat_at: int
    expires_at: int
    deregistered_at: int  # 0: it has not left
    lock_free: bool | None  # None: no lock, or the server would not say
    incarnation: Incarnation  # of the server that granted the lock
    now: int

    @property
    def deregistered(self) -> bool:
        """Whether it has left."""
        return self.deregistered_at != 0

    def lock_free_on(self, server: Incarnation) -> bool | None:
        """Whether its lock is free, as that server sees it; None: the server cannot tell.

        A restart frees every lock. A lock that another life of the server granted says nothing, until its owner has
        written a heartbeat with a new one.
        """
        return self.lock_free if self.incarnation.same(server) else None


def beat(
    cx: Executor,
    at: GroupTopic,
    owner: str,
    *,
    duration: float,
    lock: str,
    incarnation: Incarnation,
    tables: int,
    wake: WakePlace = NOWHERE,
) -> None:
    """Keep an owner's leases valid for `duration` seconds from now; `tables`: their version."""
    args: tuple[object, ...] = (*at.columns, owner, int(duration * 1000), lock, max(0, incarnation.started_ms))
    sql = BEAT_1
    if tables >= VERSION_WITH_INCARNATION:
        sql, args = BEAT_2, (*args, incarnation.identity)
    if tables >= VERSION_WITH_WAKE_PLACE:
        sql, args = BEAT, (*args, wake.host, wake.address, wake.token)
    try:
        cx.execute(sql, args)
    except DatabaseError as error:
        if error.code not in codes.DENIED:
            raise
        try:
            cx.execute(sql.partition("ON DUPLICATE")[0].replace(*_BLIND), args)
        except DatabaseError:
            raise error from None


def members(cx: Executor, at: GroupTopic, *, tables: int) -> list[HeartbeatRow]:
    """Every owner that has a row, living or not; `tables`: their version."""
    query = MEMBERS if tables >= VERSION_WITH_INCARNATION else MEMBERS_1
    return [
        HeartbeatRow(
            owner,
            beat,
            expires,
            gone,
            None if free is None else bool(free),
            Incarnation(started, identity),
            now,
        )
        for owner, beat, expires, gone, free, started, identity, now in cx.query(query, at.columns)
    ]


def wake_places(cx: Executor, topics: Sequence[str]) -> dict[str, list[WakePlace]]:
    """Return where the living subscribers of these topics want their hints, by topic. For tables with such columns."""
    found: dict[str, list[WakePlace]] = {topic: [] for topic in topics}
    for topic, host, address, token in cx.query(" UNION ALL ".join([WAKE_PLACES] * len(topics)), topics):
        found[topic].append(WakePlace(host, address, int(token)))
    return found


def all_wake_places(cx: Executor) -> list[WakePlace]:
    """Return where the first thousand subscribers want their hints, those that live. For tables with such columns."""
    return [WakePlace(host, address, int(token)) for host, address, token in cx.query(ALL_WAKE_PLACES)]


def deregister(cx: Executor, at: GroupTopic, owner: str) -> None:
    """Say that an owner has left and holds nothing."""
    cx.execute(DEREGISTER, (*at.columns, owner))


def deregister_dead(cx: Executor, at: GroupTopic, owner: str, heartbeat_at: int) -> None:
    """Say it for an owner that died; its own next heartbeat, if there ever is one, takes it back."""
    cx.execute(DEREGISTER_DEAD, (*at.columns, owner, heartbeat_at))


def still_silent(
    cx: Executor,
    at: GroupTopic,
    owner: str,
    heartbeat_at: int,
    *,
    needs_free: bool,
    may_be_held: bool,
) -> bool:
    """Whether a suspect has given no sign of life since; a missing row is silence.

    `needs_free`: its lock has to be free still; `may_be_held`: whoever holds it says nothing.
    """
    row = cx.one(STILL_SILENT, (*at.columns, owner))
    if row is None:
        return True
    beat, free = row
    return int(beat) == heartbeat_at and (may_be_held or (bool(free) if needs_free else free != 0))


def purge_left(cx: Executor, at: GroupTopic, own: str, age: float) -> int:
    """Remove rows of others that left more than `age` seconds ago; how many."""
    return cx.execute(PURGE_LEFT, (*at.columns, own, int(age * 1000)))


def silent(cx: Executor, at: GroupTopic, own: str, age: float) -> list[str]:
    """Others that have not left, and whose heartbeats ended more than `age` seconds ago."""
    return [owner for (owner,) in cx.query(SILENT, (*at.columns, own, int(age * 1000)))]


def purge_silent(cx: Executor, at: GroupTopic, owner: str, age: float) -> int:
    """Remove the row of such a one; whether it was there."""
    return cx.execute(PURGE_SILENT, (*at.columns, owner, int(age * 1000)))


def delete(cx: Executor, at: GroupTopic, owner: str) -> None:
    """Remove one owner's row."""
    cx.execute(DELETE, (*at.columns, owner))
