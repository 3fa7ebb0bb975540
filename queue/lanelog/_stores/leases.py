"""`queue_partition_leases`: who owns which lane, under which fencing token.

Owns the SQL of its table; never judges who is alive. Called by the keeper (most writes), by who takes a lane away, and
by every settling transaction (the share lock that fences it).
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from attrs import frozen

from lanelog._database import NOW_MS, SERVER_MARK
from lanelog._stores._points import chunked, exactly, placeholders

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lanelog._database import Executor
    from lanelog._places import GroupTopic, LaneId

# The fence of a settling transaction: share-lock the lanes, and learn which are still ours, and who says so (PRIMARY).
FENCE = f"""
SELECT partition_key, lease_epoch, {SERVER_MARK} FROM queue_partition_leases FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND partition_key IN ({{keys}}) AND leased_by = %s LOCK IN SHARE MODE
"""

# The same after a lock time-out, leaving out what somebody else holds (PRIMARY).
FENCE_FREE = f"""
SELECT partition_key, lease_epoch, {SERVER_MARK}, leased_by FROM queue_partition_leases FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND partition_key IN ({{keys}}) FOR UPDATE SKIP LOCKED
"""

# The keeper's read-back: everything in an owner's name, and whether it is paused (by_owner; queue_offsets PRIMARY).
OWNED = """
SELECT l.partition_key, l.lease_epoch, COALESCE(o.paused_at, 0)
FROM queue_partition_leases l FORCE INDEX (by_owner)
LEFT JOIN queue_offsets o FORCE INDEX (PRIMARY)
       ON o.consumer_group = l.consumer_group AND o.topic = l.topic AND o.partition_key = l.partition_key
WHERE l.consumer_group = %s AND l.topic = %s AND l.leased_by = %s
"""

# Whether that is what it was: how many, and 64 bits over all of them (by_owner). MySQL has no MD5 any more.
DIGEST = """
SELECT COUNT(*), COALESCE(BIT_XOR(CAST(CONV(LEFT(SHA2(CONCAT(lease_epoch, '/', partition_key), 256), 16), 16, 10)
                                       AS UNSIGNED)), 0)
FROM queue_partition_leases FORCE INDEX (by_owner)
WHERE consumer_group = %s AND topic = %s AND leased_by = %s
"""

# Lanes without a lease row, but for those that an operator paused (queue_partitions PRIMARY by topic, leases and
# queue_offsets PRIMARY by lane).
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

# Whether an owner has any lane (by_owner).
HOLDS = """
SELECT 1 FROM queue_partition_leases FORCE INDEX (by_owner)
WHERE consumer_group = %s AND topic = %s AND leased_by = %s LIMIT 1
"""

# Lanes in nobody's name or in the name of these owners, but for those that an operator paused (by_owner; queue_offsets
# PRIMARY).
FREE = """
SELECT l.partition_key FROM queue_partition_leases l FORCE INDEX (by_owner)
LEFT JOIN queue_offsets o FORCE INDEX (PRIMARY)
       ON o.consumer_group = l.consumer_group AND o.topic = l.topic AND o.partition_key = l.partition_key
WHERE l.consumer_group = %s AND l.topic = %s AND l.leased_by IN ({owners}) AND l.partition_key {like} %s
      AND COALESCE(o.paused_at, 0) = 0 LIMIT %s
"""

# Every owner's number of lanes (by_owner).
COUNTS = """
SELECT leased_by, COUNT(*) FROM queue_partition_leases FORCE INDEX (by_owner)
WHERE consumer_group = %s AND topic = %s GROUP BY leased_by
"""

# Lock some candidates, leaving out what another keeper is just taking (PRIMARY).
LOCK_CANDIDATES = """
SELECT partition_key, leased_by FROM queue_partition_leases FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND partition_key IN ({keys}) FOR UPDATE SKIP LOCKED
"""

# Take locked candidates over; the condition is repeated in case the caller's view was old (PRIMARY).
TAKE = f"""
UPDATE queue_partition_leases FORCE INDEX (PRIMARY)
SET leased_by = %s, lease_epoch = lease_epoch + 1, leased_at = {NOW_MS}
WHERE consumer_group = %s AND topic = %s AND partition_key IN ({{keys}}) AND leased_by IN ({{owners}})
"""

# A lease row is born above every epoch ever used in the topic (PRIMARY). A row that is there already stays as it is.
CREATE = """
INSERT INTO queue_partition_leases (consumer_group, topic, partition_key, leased_by, lease_epoch, leased_at)
VALUES {rows} ON DUPLICATE KEY UPDATE leased_at = leased_at
"""

# Who owns one lane (PRIMARY).
HELD = """SELECT leased_by, lease_epoch FROM queue_partition_leases FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND partition_key = %s"""

# The same, locked to be changed (PRIMARY).
LOCK_ONE = f"{HELD} FOR UPDATE"

# Take one lane, whoever has it (PRIMARY; the row is locked). A row that is born begins above every epoch ever used in
# the topic.
CLAIM = f"""
INSERT INTO queue_partition_leases (consumer_group, topic, partition_key, leased_by, lease_epoch, leased_at)
VALUES (%s, %s, %s, %s, %s, {NOW_MS})
ON DUPLICATE KEY UPDATE leased_by = VALUES(leased_by), lease_epoch = lease_epoch + 1, leased_at = VALUES(leased_at)
"""

# Give lanes back (PRIMARY). The epoch rises, so that nothing of the old owner can be written any more.
RELEASE = f"""
UPDATE queue_partition_leases FORCE INDEX (PRIMARY)
SET leased_by = '', lease_epoch = lease_epoch + 1, leased_at = {NOW_MS}
WHERE consumer_group = %s AND topic = %s AND partition_key IN ({{keys}}) AND leased_by = %s
      AND (partition_key, lease_epoch) IN ({{lanes}})
"""

# Nobody owns these lanes any more, under an epoch of their own (PRIMARY). A row that is born here begins above every
# epoch ever used in the topic.
TAKE_AWAY = """
INSERT INTO queue_partition_leases (consumer_group, topic, partition_key, leased_by, lease_epoch, leased_at)
VALUES {rows}
ON DUPLICATE KEY UPDATE leased_by = '', lease_epoch = lease_epoch + 1, leased_at = VALUES(leased_at)
"""

# Who owns these lanes, before they are taken away (PRIMARY).
LOCK_OWNERS = """SELECT partition_key, leased_by, lease_epoch FROM queue_partition_leases FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND partition_key IN ({keys}) ORDER BY partition_key FOR UPDATE"""

# Purge of one lane: take the groups' rows, or find that somebody has them (PRIMARY).
LOCK_LANE = """
SELECT consumer_group, lease_epoch FROM queue_partition_leases FORCE INDEX (PRIMARY)
WHERE consumer_group IN ({groups}) AND topic = %s AND partition_key = %s FOR UPDATE SKIP LOCKED
"""

# Which groups have a lease row for a lane, without locks (PRIMARY by exact group).
COUNT_LANE = """
SELECT COUNT(*) FROM queue_partition_leases FORCE INDEX (PRIMARY)
WHERE consumer_group IN ({groups}) AND topic = %s AND partition_key = %s
"""

# Purge of one lane (PRIMARY by exact group).
PURGE = """DELETE queue_partition_leases FROM queue_partition_leases FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND partition_key = %s"""

# The highest epoch of a group's leftovers (PRIMARY, prefix).
MAX_EPOCH = """SELECT COALESCE(MAX(lease_epoch), 0) FROM queue_partition_leases FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s"""

# Lanes in which a group has a lease row (PRIMARY, prefix).
KEYS_OF_GROUP = (
    "SELECT partition_key FROM queue_partition_leases FORCE INDEX (PRIMARY) WHERE consumer_group = %s AND topic = %s"
)

# Rows, by exact key (PRIMARY, one lookup a key).
DELETE = """
DELETE gone FROM ({exact}) AS exact STRAIGHT_JOIN queue_partition_leases AS gone FORCE INDEX (PRIMARY)
ON gone.consumer_group = %s AND gone.topic = %s AND gone.partition_key = exact.k"""

# Leftovers of an earlier group of that name (PRIMARY).
DELETE_GROUP = """DELETE queue_partition_leases FROM queue_partition_leases FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s"""

ALL_KEYS = ("LIKE", "%")


@frozen
class Held:
    """A lease as it was read; `owner` is '' for nobody."""

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
    """What an owner has, in short: equal digests mean the same lanes under the same epochs."""

    count: int
    checksum: int

    @classmethod
    def of(cls, lanes: Iterable[OwnedLane]) -> LeasesDigest:
        """What the server answers while these are the owner's."""
        count = checksum = 0
        for lane in lanes:
            count += 1
            checksum ^= int.from_bytes(sha256(f"{lane.epoch}/{lane.key}".encode()).digest()[:8], "big")
        return cls(count, checksum)


@frozen
class Fence:
    """What a settling transaction may rely on until its end."""

    epochs: dict[str, int | None]
    """Of the lanes that are locked; None: not the owner's."""
    server: int | None
    """The mark of the server that said so; None: there was no row."""


def fence(cx: Executor, at: GroupTopic, owner: str, keys: Sequence[str]) -> Fence:
    """Share-lock these lanes; the epochs of those that are still the owner's."""
    found: list[tuple[str, int, int]] = []
    for chunk in chunked(sorted(keys, key=str.encode)):
        found += cx.query(FENCE.format(keys=placeholders(chunk)), (*at.columns, *chunk, owner))
    return Fence({key: epoch for key, epoch, _ in found}, found[-1][2] if found else None)


def fence_free(cx: Executor, at: GroupTopic, owner: str, keys: Sequence[str]) -> Fence:
    """As `fence`, without waiting: an absent key is locked by somebody; None means that it is not the owner's."""
    found: list[tuple[str, int, int, str]] = []
    for chunk in chunked(sorted(keys, key=str.encode)):
        found += cx.query(FENCE_FREE.format(keys=placeholders(chunk)), (*at.columns, *chunk))
    epochs = {key: epoch if holder == owner else None for key, epoch, _, holder in found}
    return Fence(epochs, found[-1][2] if found else None)


def owned(cx: Executor, at: GroupTopic, owner: str) -> list[OwnedLane]:
    """Everything in an owner's name."""
    return [OwnedLane(key, epoch, bool(paused)) for key, epoch, paused in cx.query(OWNED, (*at.columns, owner))]


def digest(cx: Executor, at: GroupTopic, owner: str) -> LeasesDigest:
    """Everything in an owner's name, in short; whether a lane is paused is not part of it."""
    row = cx.one(DIGEST, (*at.columns, owner))
    return LeasesDigest(0, 0) if row is None else LeasesDigest(int(row[0]), int(row[1]))


def unclaimed(cx: Executor, at: GroupTopic, limit: int, like: tuple[str, str] = ALL_KEYS) -> list[str]:
    """Lanes of the topic for which this group has no lease row yet, and which no operator paused.

    `like`: only keys that are `LIKE` (or `NOT LIKE`) a pattern.
    """
    sql = UNCLAIMED.format(like=like[0])
    return [key for (key,) in cx.query(sql, (at.group, *at.columns, like[1], limit))]


def holds(cx: Executor, at: GroupTopic, owner: str) -> bool:
    """Whether any lane is in an owner's name."""
    return cx.one(HOLDS, (*at.columns, owner)) is not None


def free(
    cx: Executor,
    at: GroupTopic,
    owners: Sequence[str],
    limit: int,
    like: tuple[str, str] = ALL_KEYS,
) -> list[str]:
    """Lanes in the name of one of these owners ('' is nobody) that no operator paused; `like` as above."""
    sql = FREE.format(owners=placeholders(owners), like=like[0])
    return [key for (key,) in cx.query(sql, (*at.columns, *owners, like[1], limit))]


def counts(cx: Executor, at: GroupTopic) -> dict[str, int]:
    """How many lanes each owner has ('' is nobody)."""
    return {owner: int(count) for owner, count in cx.query(COUNTS, at.columns)}


def take(cx: Executor, at: GroupTopic, owner: str, keys: Sequence[str], holders: Iterable[str]) -> int:
    """Inside a transaction: take those of `keys` that are in one of the `holders`' names and not locked."""
    allowed = set(holders)
    taken = 0
    for chunk in chunked(sorted(keys, key=str.encode)):
        rows = cx.query(LOCK_CANDIDATES.format(keys=placeholders(chunk)), (*at.columns, *chunk))
        mine = [key for key, holder in rows if holder in allowed]
        if mine:
            sql = TAKE.format(keys=placeholders(mine), owners=placeholders(list(allowed)))
            taken += cx.execute(sql, (owner, *at.columns, *mine, *allowed))
    return taken


def create(cx: Executor, at: GroupTopic, owner: str, keys: Sequence[str], epoch: int) -> None:
    """Insert lease rows for lanes that have none; a row that appeared meanwhile keeps its owner."""
    values = f"(%s, %s, %s, %s, %s, {NOW_MS})"
    for chunk in chunked(sorted(keys, key=str.encode)):
        args = [value for key in chunk for value in (*at.columns, key, owner, epoch)]
        cx.execute(CREATE.format(rows=",".join([values] * len(chunk))), args)


def release(cx: Executor, at: GroupTopic, owner: str, lanes: Iterable[tuple[str, int]]) -> None:
    """Give lanes (key, epoch) back, as far as they are still the owner's."""
    for chunk in chunked(sorted(lanes, key=lambda lane: lane[0].encode())):
        keys = [key for key, _ in chunk]
        sql = RELEASE.format(keys=placeholders(keys), lanes=",".join(["(%s, %s)"] * len(chunk)))
        cx.execute(sql, (*at.columns, *keys, owner, *(value for lane in chunk for value in lane)))


def lock_owners(cx: Executor, at: GroupTopic, keys: Iterable[str]) -> dict[str, Held]:
    """Lock the leases of these lanes, by key; one that is missing was never owned."""
    found: dict[str, Held] = {}
    for chunk in chunked(sorted(keys, key=str.encode)):
        sql = LOCK_OWNERS.format(keys=placeholders(chunk))
        found.update({key: Held(owner, epoch) for key, owner, epoch in cx.query(sql, (*at.columns, *chunk))})
    return found


def held(cx: Executor, lane: LaneId) -> Held | None:
    """The lease of one lane, without a lock."""
    row = cx.one(HELD, lane.columns)
    return None if row is None else Held(*row)


def lock_one(cx: Executor, lane: LaneId) -> Held | None:
    """Lock the lease of one lane; None: it was never owned."""
    row = cx.one(LOCK_ONE, lane.columns)
    return None if row is None else Held(*row)


def claim(cx: Executor, lane: LaneId, owner: str, epoch: int) -> None:
    """Take one lane from whoever has it; `epoch` is that of a row that is born."""
    cx.execute(CLAIM, (*lane.columns, owner, epoch))


def take_away(cx: Executor, lanes: Iterable[LaneId], epoch: int) -> None:
    """Leave lanes to nobody; `epoch` is that of rows that are born."""
    row = f"(%s, %s, %s, '', %s, {NOW_MS})"
    for chunk in chunked(sorted(lanes, key=lambda lane: (lane.group.encode(), lane.key.encode()))):
        args = [value for lane in chunk for value in (*lane.columns, epoch)]
        cx.execute(TAKE_AWAY.format(rows=",".join([row] * len(chunk))), args)


def lock_lane(cx: Executor, topic: str, key: str, groups: Sequence[str]) -> int | None:
    """Lock every group's lease row of a lane and return the highest epoch; None when somebody holds one of them."""
    names = placeholders(groups)
    rows = cx.query(LOCK_LANE.format(groups=names), (*groups, topic, key))
    counted = cx.one(COUNT_LANE.format(groups=names), (*groups, topic, key))
    if counted is None or counted[0] != len(rows):
        return None
    return max((int(epoch) for _, epoch in rows), default=0)


def purge(cx: Executor, topic: str, key: str, groups: Sequence[str]) -> None:
    """Remove a lane's lease rows."""
    for group in sorted(groups, key=str.encode):  # several at once might be read as the whole table, and wait
        cx.execute(PURGE, (group, topic, key))


def max_epoch(cx: Executor, at: GroupTopic) -> int:
    """The highest epoch in a group's rows for a topic."""
    row = cx.one(MAX_EPOCH, at.columns)
    return 0 if row is None else int(row[0])


def delete_group(cx: Executor, at: GroupTopic) -> None:
    """Remove every lease row of a group for a topic."""
    cx.execute(DELETE_GROUP, at.columns)


def keys_of_group(cx: Executor, at: GroupTopic) -> list[str]:
    """Keys of the lanes in which a group has a lease row."""
    return [key for (key,) in cx.query(KEYS_OF_GROUP, at.columns)]


def delete(cx: Executor, at: GroupTopic, keys: Iterable[str]) -> None:
    """Remove a group's lease rows of these lanes."""
    for chunk in chunked(sorted(keys, key=str.encode)):
        args = [value for key in chunk for value in (key, 0)]
        cx.execute(DELETE.format(exact=exactly(chunk)), (*args, *at.columns))
