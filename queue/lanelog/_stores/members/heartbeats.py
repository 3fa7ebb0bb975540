"""`queue_subscriber_heartbeats`: one row for each owner, which keeps all its leases valid at once.

Owns the SQL of its table. Never judges whether an owner is alive: `_log/lookup/liveness` does.

An owner that lives and stands aside is as one that left, also for older versions: `deregistered_at` is set. With each
heartbeat it becomes the same as `heartbeat_at`. Of an owner that left it is greater.

An owner that others found dead is as one that left, too. Its `liveness_lock`, which nobody holds any more, then names
who found it: `FOUND_DEAD` and a name. Its next heartbeat, if it lives after all, puts a lock there again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from lanelog._base.places import GroupTopic
from lanelog._database import NOW_MS, Incarnation, codes
from lanelog._stores._points import placeholders
from lanelog._stores.members._heartbeat_rows import FOUND_DEAD, LOCK_FREE, VERSION_WITH_WORKLOAD, HeartbeatRow
from lanelog.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lanelog._database import Executor

# Write one owner's heartbeat, on tables of version 1, which know a server by its start alone (PRIMARY).
BEAT_1 = f"""
INSERT INTO queue_subscriber_heartbeats (consumer_group, topic, subscriber_name, heartbeat_at, expires_at,
       deregistered_at, liveness_lock, server_started_at)
VALUES (%s, %s, %s, {NOW_MS}, {NOW_MS} + %s, {NOW_MS} * %s, %s, %s)
ON DUPLICATE KEY UPDATE heartbeat_at = VALUES(heartbeat_at), expires_at = VALUES(expires_at),
       deregistered_at = VALUES(deregistered_at), liveness_lock = VALUES(liveness_lock),
       server_started_at = VALUES(server_started_at)
"""


def _beat_with(*later: str) -> str:
    """The same with columns that came later."""
    names = "".join(f", {name}" for name in later)
    wider = BEAT_1.replace(")\nVALUES", f"{names})\nVALUES").replace(")\nON", f"{', %s' * len(later)})\nON")
    return wider + "".join(f", {name} = VALUES({name})" for name in later)


_HINTED = ("incarnation", "wake_host", "wake_address", "wake_token")

# The same on tables of version 2 or 3, which have no addresses for hints (PRIMARY).
BEAT_2 = _beat_with("incarnation")
# The same on tables of version 4 or 5, which have no workload (PRIMARY).
BEAT_4 = _beat_with(*_HINTED)
# Write one owner's heartbeat (PRIMARY).
BEAT = _beat_with(*_HINTED, "workload")

# One owner's row, to prove that the server locks it (PRIMARY).
ROW = """SELECT heartbeat_at FROM queue_subscriber_heartbeats FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND subscriber_name = %s"""

_FINDER_MOST = 64 - len(FOUND_DEAD)
"""Characters of the finder's name that the row holds, in ASCII: members ask for the lock, and servers refuse names that
are longer, or that utf8mb3 does not have."""

# Every owner of some groups of a topic, with its liveness lock and that lock's state (PRIMARY, prefix).
MEMBERS = f"""
SELECT consumer_group, subscriber_name, heartbeat_at, expires_at, deregistered_at,
       {LOCK_FREE}, server_started_at, incarnation, {NOW_MS},
       liveness_lock
FROM queue_subscriber_heartbeats FORCE INDEX (PRIMARY) WHERE consumer_group IN ({{groups}}) AND topic = %s
"""

# Every owner, on tables of version 1 (PRIMARY, prefix).
MEMBERS_1 = MEMBERS.replace("server_started_at, incarnation,", "server_started_at, '',")

# For an account that may not read the table (PRIMARY): on MariaDB an upsert needs the privilege to SELECT.
_BLIND = ("INSERT INTO", "REPLACE INTO")

# The addresses for hints of a topic's living subscribers, without those whose heartbeat another server wrote: in a copy
# of the tables they are the original's processes (by_topic, PRIMARY prefix). UNION ALL joins several topics:
# for a list of topics, MySQL may read the whole index. The limit bounds the packets that an account can cause by rows.
WAKE_ENDPOINTS = f"""
SELECT h.topic, h.wake_host, h.wake_address, h.wake_token
FROM queue_groups g FORCE INDEX (by_topic)
STRAIGHT_JOIN queue_subscriber_heartbeats h FORCE INDEX (PRIMARY)
      ON h.consumer_group = g.consumer_group AND h.topic = g.topic
WHERE g.topic = %s AND h.wake_address <> '' AND h.deregistered_at = 0 AND h.expires_at >= {NOW_MS}
      AND h.incarnation IN ('', {{here}})
LIMIT 1000
"""

# The addresses for hints among the first thousand rows, of the living subscribers, and whether this server wrote them
# (PRIMARY).
ALL_WAKE_ENDPOINTS = f"""SELECT s.wake_host, s.wake_address, s.wake_token, s.incarnation IN ('', {{here}}) FROM (
  SELECT wake_host, wake_address, wake_token, deregistered_at, expires_at, incarnation
  FROM queue_subscriber_heartbeats FORCE INDEX (PRIMARY) WHERE consumer_group > ''
  ORDER BY consumer_group, topic, subscriber_name LIMIT 1000) s
WHERE s.deregistered_at = 0 AND s.expires_at >= {NOW_MS}
"""

# The owners among the first thousand rows that have not left, with their locks; no marks of evictions (PRIMARY).
ACTIVE = f"""SELECT s.subscriber_name, s.heartbeat_at, s.expires_at, s.deregistered_at,
       {LOCK_FREE}, s.server_started_at, s.incarnation, {NOW_MS}
FROM (
  SELECT subscriber_name, heartbeat_at, expires_at, deregistered_at, liveness_lock, server_started_at, incarnation
  FROM queue_subscriber_heartbeats FORCE INDEX (PRIMARY) WHERE consumer_group > ''
  ORDER BY consumer_group, topic, subscriber_name LIMIT 1000) s
WHERE s.deregistered_at IN (0, s.heartbeat_at) AND s.subscriber_name <> ''
"""
# The same on tables of version 1 (PRIMARY).
ACTIVE_1 = ACTIVE.replace("s.incarnation", "''").replace(", incarnation\n", "\n")

# Later than the heartbeat, or, if nothing is later, another time.
_LEFT = f"GREATEST({NOW_MS}, IF(heartbeat_at < {2**63}, heartbeat_at + 1, 0))"

# An owner leaves. Its row stays for a while, so that others see it go (PRIMARY). It may have been found dead before.
DEREGISTER = f"""
UPDATE queue_subscriber_heartbeats SET deregistered_at = {_LEFT},
       liveness_lock = IF(LEFT(liveness_lock, {len(FOUND_DEAD)}) = '{FOUND_DEAD}', '', liveness_lock)
WHERE consumer_group = %s AND topic = %s AND subscriber_name = %s
"""

# The same for a dead owner, unless it has written a heartbeat since, and who found it (PRIMARY). The second of two that
# find it changes nothing: the name stays that of the first.
DEREGISTER_DEAD = f"""
UPDATE queue_subscriber_heartbeats
SET liveness_lock = IF(LEFT(liveness_lock, {len(FOUND_DEAD)}) = '{FOUND_DEAD}', liveness_lock, %s),
    deregistered_at = {_LEFT}
WHERE consumer_group = %s AND topic = %s AND subscriber_name = %s AND heartbeat_at = %s
"""

# The mark of a group that was deleted while members lived: a row that no owner has (PRIMARY). It has left, so members
# count it neither as one of them nor as dead.
MARK_EVICTED = f"""
INSERT INTO queue_subscriber_heartbeats (consumer_group, topic, subscriber_name, heartbeat_at, expires_at,
       deregistered_at)
VALUES (%s, %s, '', {NOW_MS}, {NOW_MS}, {NOW_MS})
"""

# Whether a group has that mark (PRIMARY).
EVICTED = """SELECT 1 FROM queue_subscriber_heartbeats FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND subscriber_name = %s"""

# The groups of a topic that have that mark (PRIMARY). It reads the keys of all subscribers.
MARKED = """SELECT consumer_group FROM queue_subscriber_heartbeats FORCE INDEX (PRIMARY)
WHERE consumer_group > '' AND topic = %s AND subscriber_name = ''"""

# Rows of owners that left long ago, without the mark (PRIMARY, prefix).
PURGE_LEFT = f"""
DELETE FROM queue_subscriber_heartbeats
WHERE consumer_group = %s AND topic = %s AND subscriber_name <> %s AND subscriber_name <> ''
      AND deregistered_at > 0 AND deregistered_at < {NOW_MS} - %s
"""

# Owners that fell silent long ago without leaving (PRIMARY, prefix).
SILENT = f"""
SELECT subscriber_name FROM queue_subscriber_heartbeats
WHERE consumer_group = %s AND topic = %s AND subscriber_name <> %s
      AND deregistered_at = 0 AND expires_at < {NOW_MS} - %s
"""

# Delete one of them, unless it has written a heartbeat since (PRIMARY).
PURGE_SILENT = f"""
DELETE FROM queue_subscriber_heartbeats
WHERE consumer_group = %s AND topic = %s AND subscriber_name = %s
      AND deregistered_at = 0 AND expires_at < {NOW_MS} - %s
"""

# Delete one owner's row (PRIMARY).
DELETE = """DELETE queue_subscriber_heartbeats FROM queue_subscriber_heartbeats FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND subscriber_name = %s"""

# A dead owner's last heartbeat and lock, read again right before its lanes are taken (PRIMARY).
LAST_SIGN = f"""
SELECT heartbeat_at, {LOCK_FREE} FROM queue_subscriber_heartbeats
WHERE consumer_group = %s AND topic = %s AND subscriber_name = %s
"""

VERSION_WITH_INCARNATION = 2
VERSION_WITH_WAKE_ENDPOINT = 4


@frozen
class WakeEndpoint:
    """The address at which an owner gets hints of new messages."""

    host: str = ""
    address: str = ""  # empty: it gets none
    token: int = 0  # hints without it are ignored


NOWHERE = WakeEndpoint()


def beat(
    cx: Executor,
    at: GroupTopic,
    owner: str,
    *,
    duration: float,
    lock: str,
    incarnation: Incarnation,
    tables: int,
    wake: WakeEndpoint = NOWHERE,
    aside: bool = False,
    workload: str | None = None,
) -> None:
    """Keep an owner's leases valid for `duration` seconds from now. `tables`: the version of the tables.

    `aside`: it gives its lanes to others, who must not count it. `workload`: what its workers do.
    """
    left, started = int(aside), max(0, incarnation.started_ms)
    args: tuple[object, ...] = (*at.columns, owner, int(duration * 1000), left, lock, started)
    sql = BEAT_1
    if tables >= VERSION_WITH_INCARNATION:
        sql, args = BEAT_2, (*args, incarnation.identity)
    if tables >= VERSION_WITH_WAKE_ENDPOINT:
        sql, args = BEAT_4, (*args, wake.host, wake.address, wake.token)
    if tables >= VERSION_WITH_WORKLOAD:
        sql, args = BEAT, (*args, workload)
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
    """Return every owner with a row, living or not. `tables`: the version of the tables."""
    return members_of(cx, at.topic, [at.group], tables=tables)[at.group]


def members_of(cx: Executor, topic: str, groups: Sequence[str], *, tables: int) -> dict[str, list[HeartbeatRow]]:
    """Return the same of each of a few groups."""
    query = (MEMBERS if tables >= VERSION_WITH_INCARNATION else MEMBERS_1).format(groups=placeholders(groups))
    found: dict[str, list[HeartbeatRow]] = {group: [] for group in groups}
    for group, *row, started, identity, now, lock in cx.query(query, (*groups, topic)):
        if row[0]:  # else it is the mark of an eviction
            found.setdefault(group, []).append(HeartbeatRow.of(row, started, identity, now, lock, None))
    return found


def active(cx: Executor, *, tables: int) -> list[HeartbeatRow]:
    """Return the owners of all groups that have not left, of the first thousand rows. `tables`: as above."""
    found = cx.query(ACTIVE if tables >= VERSION_WITH_INCARNATION else ACTIVE_1)
    return [HeartbeatRow.of(row, started, identity, now, "", None) for *row, started, identity, now in found]


def wake_endpoints(
    cx: Executor, topics: Sequence[str], *, mariadb: bool, bounded: Callable[[str], str] | None = None
) -> dict[str, list[WakeEndpoint]]:
    """Return the living subscribers' addresses for hints, by topic. Only on tables of version 4 or newer.

    `bounded`: gives a query an end on the server.
    """
    found: dict[str, list[WakeEndpoint]] = {topic: [] for topic in topics}
    query = " UNION ALL ".join(
        [f"({WAKE_ENDPOINTS.format(here=Incarnation.identity_in_sql(mariadb=mariadb))})"] * len(topics)
    )
    for topic, host, address, token in cx.query(query if bounded is None else bounded(query), topics):
        if topic in found:  # another program's row may have a space at its end, which the comparison does not see
            found[topic].append(WakeEndpoint(host, address, int(token)))
    return found


def all_wake_endpoints(cx: Executor, *, mariadb: bool) -> list[tuple[WakeEndpoint, bool]]:
    """Return the living of the first thousand subscribers' addresses for hints, the empty ones with them.

    Beside each, whether this server wrote it. Only on tables of version 4 or newer.
    """
    rows = cx.query(ALL_WAKE_ENDPOINTS.format(here=Incarnation.identity_in_sql(mariadb=mariadb)))
    return [(WakeEndpoint(host, address, int(token)), bool(here)) for host, address, token, here in rows]


def deregister(cx: Executor, at: GroupTopic, owner: str) -> None:
    """Note that an owner has left and holds nothing."""
    cx.execute(DEREGISTER, (*at.columns, owner))


def deregister_dead(cx: Executor, at: GroupTopic, owner: str, heartbeat_at: int, *, by: str) -> None:
    """Note that a dead owner has left, and who found it. If it still lives, its next heartbeat takes this back."""
    finder = by[:_FINDER_MOST].encode("ascii", "replace").decode()
    cx.execute(DEREGISTER_DEAD, (FOUND_DEAD + finder, *at.columns, owner, heartbeat_at))


def last_sign(cx: Executor, at: GroupTopic, owner: str) -> tuple[int, bool | None] | None:
    """Return an owner's last heartbeat, and whether its lock is free (None: it has none). None: it has no row."""
    row = cx.one(LAST_SIGN, (*at.columns, owner))
    return row and (int(row[0]), None if row[1] is None else bool(row[1]))


def purge_left(cx: Executor, at: GroupTopic, own: str, age: float) -> int:
    """Delete rows of others that left more than `age` seconds ago. Return how many."""
    return cx.execute(PURGE_LEFT, (*at.columns, own, int(age * 1000)))


def silent(cx: Executor, at: GroupTopic, own: str, age: float) -> list[str]:
    """Return the others that have not left, and whose heartbeats ended more than `age` seconds ago."""
    return [owner for (owner,) in cx.query(SILENT, (*at.columns, own, int(age * 1000)))]


def purge_silent(cx: Executor, at: GroupTopic, owner: str, age: float) -> int:
    """Delete the row of such an owner. Return 1 if it was there and still silent, else 0."""
    return cx.execute(PURGE_SILENT, (*at.columns, owner, int(age * 1000)))


def mark_evicted(cx: Executor, at: GroupTopic) -> None:
    """Note that a group without such a mark was deleted while members lived."""
    cx.execute(MARK_EVICTED, at.columns)


def unmark(cx: Executor, at: GroupTopic) -> None:
    """Take that mark away, if there is one."""
    delete(cx, at, "")


def evicted(cx: Executor, at: GroupTopic) -> bool:
    """Whether a group was deleted while members lived, and not registered again since."""
    return cx.one(EVICTED, (*at.columns, "")) is not None


def marked(cx: Executor, topic: str) -> list[GroupTopic]:
    """Return the groups of a topic that were evicted, and not registered again since."""
    return [GroupTopic(topic=topic, group=group) for (group,) in cx.query(MARKED, (topic,))]


def delete(cx: Executor, at: GroupTopic, owner: str) -> None:
    """Delete one owner's row."""
    cx.execute(DELETE, (*at.columns, owner))
