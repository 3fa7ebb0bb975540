"""`queue_partition_leases`: the owner and epoch of each lane, for each group.

Owns the SQL of its table. Never judges whether an owner is alive.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from lanelog._database import NOW_MS, SERVER_MARK, Lock
from lanelog._stores._counted import BEYOND_COUNTING, NEXT_EPOCH
from lanelog._stores._points import chunked, flat, pairs, placeholders, points, united, write

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lanelog._base.places import GroupTopic, LaneId
    from lanelog._database import Executor

OWNERS_TOGETHER: Final = 100
"""Owners whose lanes are counted by one statement."""

# The fence of a settling transaction: share-lock the leases that are still ours, with the mark of the server (PRIMARY).
FENCE = f"""
SELECT partition_key, lease_epoch, {SERVER_MARK} FROM queue_partition_leases FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND partition_key IN ({{keys}}) AND leased_by = %s LOCK IN SHARE MODE
"""

# The fence after a lock time-out, without the leases that another transaction has locked (PRIMARY).
TRY_FENCE = f"""
SELECT partition_key, lease_epoch, {SERVER_MARK}, leased_by FROM queue_partition_leases FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND partition_key IN ({{keys}}) FOR UPDATE SKIP LOCKED
"""

# All lanes of an owner, and whether each is paused (by_owner; queue_offsets PRIMARY).
OWNED = """
SELECT l.partition_key, l.lease_epoch, COALESCE(o.paused_at, 0)
FROM queue_partition_leases l FORCE INDEX (by_owner)
LEFT JOIN queue_offsets o FORCE INDEX (PRIMARY)
       ON o.consumer_group = l.consumer_group AND o.topic = l.topic AND o.partition_key = l.partition_key
WHERE l.consumer_group = %s AND l.topic = %s AND l.leased_by = %s
"""

# Some of them (PRIMARY; queue_offsets PRIMARY).
OWNED_AMONG = f"{OWNED.replace('by_owner', 'PRIMARY')}AND l.partition_key IN ({{keys}})"

# Whether these have changed: their number, and 64 bits over all of them (by_owner). New MySQL servers have no MD5.
DIGEST = """
SELECT COUNT(*), COALESCE(BIT_XOR(CAST(CONV(LEFT(SHA2(CONCAT(lease_epoch, '/', partition_key), 256), 16), 16, 10)
                                       AS UNSIGNED)), 0)
FROM queue_partition_leases FORCE INDEX (by_owner)
WHERE consumer_group = %s AND topic = %s AND leased_by = %s
"""

# Lanes without a lease row, except for paused ones (queue_partitions PRIMARY by topic, leases and queue_offsets PRIMARY
# by lane).
UNCLAIMED = """
SELECT p.partition_key
FROM queue_partitions p FORCE INDEX (PRIMARY)
LEFT JOIN queue_partition_leases l FORCE INDEX (PRIMARY)
       ON l.consumer_group = %s AND l.topic = p.topic AND l.partition_key = p.partition_key
LEFT JOIN queue_offsets o FORCE INDEX (PRIMARY)
       ON o.consumer_group = %s AND o.topic = p.topic AND o.partition_key = p.partition_key
WHERE p.topic = %s AND p.partition_key <> '' AND p.partition_key {like} %s AND l.leased_by IS NULL
      AND COALESCE(o.paused_at, 0) = 0
ORDER BY p.partition_key LIMIT %s
"""

# The same among some lanes (queue_partitions, leases and queue_offsets PRIMARY by lane).
UNCLAIMED_AMONG = UNCLAIMED.replace("AND l.leased_by", "AND p.partition_key IN ({keys}) AND l.leased_by")

# Whether an owner has any lane (by_owner).
HOLDS = """
SELECT 1 FROM queue_partition_leases FORCE INDEX (by_owner)
WHERE consumer_group = %s AND topic = %s AND leased_by = %s LIMIT 1
"""

# Lanes of these owners, except for paused ones. The owner '' stands for no owner (by_owner; queue_offsets PRIMARY).
CANDIDATES = """
SELECT l.partition_key FROM queue_partition_leases l FORCE INDEX (by_owner)
LEFT JOIN queue_offsets o FORCE INDEX (PRIMARY)
       ON o.consumer_group = l.consumer_group AND o.topic = l.topic AND o.partition_key = l.partition_key
WHERE l.consumer_group = %s AND l.topic = %s AND l.leased_by IN ({owners}) AND l.partition_key {like} %s
      AND COALESCE(o.paused_at, 0) = 0 LIMIT %s
"""

# Every owner's number of lanes, in some groups (by_owner).
COUNTS = """SELECT consumer_group, leased_by, COUNT(*) FROM queue_partition_leases FORCE INDEX (by_owner)
WHERE consumer_group IN ({groups}) AND topic = %s GROUP BY consumer_group, leased_by"""

# How many lanes one owner has (by_owner). UNION ALL joins several owners.
COUNT_OF_OWNER = """SELECT %s, COUNT(*) FROM queue_partition_leases FORCE INDEX (by_owner)
WHERE consumer_group = %s AND topic = %s AND leased_by = %s"""

# Take locked candidates over (PRIMARY).
TAKE = f"""
UPDATE queue_partition_leases FORCE INDEX (PRIMARY)
SET leased_by = %s, lease_epoch = {NEXT_EPOCH}, leased_at = {NOW_MS}
WHERE consumer_group = %s AND topic = %s AND partition_key IN ({{keys}}) AND leased_by IN ({{owners}})
"""

# New lease rows, above every epoch that left the topic with a purged lane or deleted group (PRIMARY). An existing row
# stays as it is.
CREATE = """
INSERT INTO queue_partition_leases (consumer_group, topic, partition_key, leased_by, lease_epoch, leased_at)
VALUES {rows} ON DUPLICATE KEY UPDATE leased_at = leased_at
"""

# The owner of one lane (PRIMARY).
HELD = """SELECT leased_by, lease_epoch FROM queue_partition_leases FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND partition_key = %s{lock}"""

# Take one lane from any owner, or insert its lease row as CREATE does (PRIMARY; an existing row is locked).
CLAIM = f"""
INSERT INTO queue_partition_leases (consumer_group, topic, partition_key, leased_by, lease_epoch, leased_at)
VALUES (%s, %s, %s, %s, %s, {NOW_MS})
ON DUPLICATE KEY UPDATE leased_by = VALUES(leased_by), lease_epoch = {NEXT_EPOCH}, leased_at = VALUES(leased_at)
"""

# Give lanes back (PRIMARY). The epoch rises, so that the old owner writes nothing any more.
RELEASE = f"""
UPDATE queue_partition_leases FORCE INDEX (PRIMARY)
SET leased_by = '', lease_epoch = {NEXT_EPOCH}, leased_at = {NOW_MS}
WHERE consumer_group = %s AND topic = %s AND partition_key IN ({{keys}}) AND leased_by = %s
      AND (partition_key, lease_epoch) IN ({{lanes}})
"""

# Take lanes from their owners and leave them without one, under a new epoch (PRIMARY). Missing rows are inserted as
# CREATE does.
TAKE_AWAY = f"""
INSERT INTO queue_partition_leases (consumer_group, topic, partition_key, leased_by, lease_epoch, leased_at)
VALUES {{rows}}
ON DUPLICATE KEY UPDATE leased_by = '', lease_epoch = {NEXT_EPOCH}, leased_at = VALUES(leased_at)
"""

# The owners of these lanes, in key order (PRIMARY).
OWNERS = """SELECT partition_key, leased_by, lease_epoch FROM queue_partition_leases FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND partition_key IN ({keys}) ORDER BY partition_key{lock}"""

ALL_KEYS = ("LIKE", "%")


@frozen
class Held:
    """A lease as it was read. `owner` is '' if it has none."""

    owner: str
    epoch: int


@frozen
class OwnedLane:
    """One lease in an owner's name."""

    key: str
    epoch: int
    paused: bool


@frozen
class LeasesDigest:
    """A digest of an owner's leases. Equal digests mean the same lanes under the same epochs."""

    count: int
    checksum: int

    @classmethod
    def of(cls, lanes: Iterable[OwnedLane], others: LeasesDigest | None = None) -> LeasesDigest:
        """The server's answer to DIGEST while the owner has exactly these lanes and, apart from them, `others`."""
        count, checksum = (0, 0) if others is None else (others.count, others.checksum)
        for lane in lanes:
            count += 1
            checksum ^= int.from_bytes(sha256(f"{lane.epoch}/{lane.key}".encode()).digest()[:8], "big")
        return cls(count, checksum)


@frozen
class TakenLeases:
    """The leases that one transaction has taken."""

    lanes: int
    absurd: dict[str, int]
    """Lanes whose epoch was beyond counting, each with that epoch. They have another one now, see `_counted`."""


@frozen
class Fence:
    """The facts that the locks of a settling transaction keep true until its end."""

    epochs: dict[str, int | None]
    """The epochs of the locked lanes, by key. None: the lane is not the owner's."""
    server: int | None
    """The mark of the server that answered. None: there was no row."""


def fence(cx: Executor, at: GroupTopic, owner: str, keys: Sequence[str]) -> Fence:
    """Share-lock the leases of these lanes that are still the owner's. An absent key is not the owner's."""
    found = points(cx, FENCE, sorted(keys), before=at.columns, after=[owner])
    server = next((mark for _, _, mark in reversed(found)), None)
    return Fence({key: epoch for key, epoch, _ in found}, server)


def try_fence(cx: Executor, at: GroupTopic, owner: str, keys: Sequence[str]) -> Fence:
    """As `fence`, without waiting. An absent key is locked by another transaction. None: not the owner's."""
    found = points(cx, TRY_FENCE, sorted(keys), before=at.columns)
    server = next((mark for _, _, mark, _ in reversed(found)), None)
    return Fence({key: epoch if holder == owner else None for key, epoch, _, holder in found}, server)


def owned(cx: Executor, at: GroupTopic, owner: str) -> list[OwnedLane]:
    """Return all lanes of an owner."""
    return _owned(cx.query(OWNED, (*at.columns, owner)))


def owned_among(cx: Executor, at: GroupTopic, owner: str, keys: Sequence[str]) -> list[OwnedLane]:
    """Return those of these lanes that are the owner's."""
    return _owned(points(cx, OWNED_AMONG, keys, before=(*at.columns, owner)))


def _owned(rows: Iterable[tuple[Any, ...]]) -> list[OwnedLane]:
    return [OwnedLane(key, epoch, bool(paused)) for key, epoch, paused in rows]


def digest(cx: Executor, at: GroupTopic, owner: str) -> LeasesDigest:
    """Return the digest of an owner's lanes. Pauses are not part of it."""
    row = cx.one(DIGEST, (*at.columns, owner))
    count, checksum = row or (0, 0)
    return LeasesDigest(int(count), int(checksum))


def unclaimed(
    cx: Executor, at: GroupTopic, limit: int, like: tuple[str, str] = ALL_KEYS, among: Sequence[str] = ()
) -> list[str]:
    """Return lanes for which this group has no lease row, without the paused ones.

    `like`: only keys that are `LIKE` (or `NOT LIKE`) a pattern. `among`: only these. Empty: all of the topic.
    """
    sql = UNCLAIMED_AMONG.format(like=like[0], keys=placeholders(among)) if among else UNCLAIMED.format(like=like[0])
    return [key for (key,) in cx.query(sql, (at.group, *at.columns, like[1], *among, limit))]


def holds(cx: Executor, at: GroupTopic, owner: str) -> bool:
    """Whether an owner has any lane."""
    return cx.one(HOLDS, (*at.columns, owner)) is not None


def candidates(
    cx: Executor, at: GroupTopic, owners: Sequence[str], limit: int, like: tuple[str, str] = ALL_KEYS
) -> list[str]:
    """Return lanes of these owners ('': of none), without the paused ones. `like`: as for `unclaimed`."""
    sql = CANDIDATES.format(owners=placeholders(owners), like=like[0])
    return [key for (key,) in cx.query(sql, (*at.columns, *owners, like[1], limit))]


def counts(cx: Executor, at: GroupTopic) -> dict[str, int]:
    """Return the number of lanes by owner ('': of none)."""
    return counts_of(cx, at.topic, [at.group])[at.group]


def counts_of(cx: Executor, topic: str, groups: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return the same of each of a few groups."""
    found: dict[str, dict[str, int]] = {group: {} for group in groups}
    for group, owner, count in cx.query(COUNTS.format(groups=placeholders(groups)), (*groups, topic)):
        found.setdefault(group, {})[owner] = int(count)
    return found


def counts_of_owners(cx: Executor, owners: Sequence[tuple[GroupTopic, str]]) -> list[int]:
    """Return how many lanes each of some owners has, in their order."""
    found = [0] * len(owners)
    rows = [(str(number), *at.columns, owner) for number, (at, owner) in enumerate(owners)]
    for number, count in united(cx, COUNT_OF_OWNER, rows, OWNERS_TOGETHER):
        found[int(number)] = int(count)
    return found


def take(cx: Executor, at: GroupTopic, owner: str, keys: Sequence[str], holders: Iterable[str]) -> TakenLeases:
    """In a transaction: take those of `keys` that belong to one of `holders` and are not locked."""
    allowed = set(holders)
    taken, absurd = 0, {}
    for chunk in chunked(sorted(keys)):
        rows = points(cx, OWNERS, chunk, before=at.columns, lock=Lock.FREE)
        mine = {key: epoch for key, holder, epoch in rows if holder in allowed}
        if mine:
            sql = TAKE.format(keys=placeholders(list(mine)), owners=placeholders(list(allowed)))
            taken += cx.execute(sql, (owner, *at.columns, *mine, *allowed))
            absurd.update({key: epoch for key, epoch in mine.items() if epoch >= BEYOND_COUNTING})
    return TakenLeases(taken, absurd)


def create(cx: Executor, at: GroupTopic, owner: str, keys: Sequence[str], epoch: int) -> None:
    """Insert lease rows for lanes that have none. A row that appeared meanwhile keeps its owner."""
    rows = [(*at.columns, key, owner, epoch) for key in sorted(keys)]
    write(cx, CREATE, rows, row=f"(%s, %s, %s, %s, %s, {NOW_MS})")


def release(cx: Executor, at: GroupTopic, owner: str, lanes: Iterable[tuple[str, int]]) -> None:
    """Give those lanes (key, epoch) back that are still the owner's."""
    for chunk in chunked(sorted(lanes)):
        keys = [key for key, _ in chunk]
        sql = RELEASE.format(keys=placeholders(keys), lanes=pairs(chunk))
        cx.execute(sql, (*at.columns, *keys, owner, *flat(chunk)))


def lock_owners(cx: Executor, at: GroupTopic, keys: Iterable[str]) -> dict[str, Held]:
    """Lock the leases of these lanes, and return them by key. A missing one has no row."""
    found = points(cx, OWNERS, sorted(keys), before=at.columns, lock=Lock.UPDATE)
    return {key: Held(owner, epoch) for key, owner, epoch in found}


def held(cx: Executor, lane: LaneId, lock: Lock = Lock.NONE) -> Held | None:
    """Return the lease of one lane. None: there is no row."""
    row = cx.one(HELD.format(lock=lock), lane.columns)
    return None if row is None else Held(*row)


def claim(cx: Executor, lane: LaneId, owner: str, epoch: int) -> None:
    """Take one lane from any owner. `epoch`: for a new row."""
    cx.execute(CLAIM, (*lane.columns, owner, epoch))


def take_away(cx: Executor, lanes: Iterable[LaneId], epoch: int) -> None:
    """Take lanes from their owners and leave them without one. `epoch`: for new rows."""
    rows = sorted((*lane.columns, epoch) for lane in lanes)
    write(cx, TAKE_AWAY, rows, row=f"(%s, %s, %s, '', %s, {NOW_MS})")
