"""`queue_partitions`: the lanes with their heads, and the row of each topic (key '').

Owns the SQL of its table. Never decides which lane is created or purged. A statement waits for the lock of a head only
if its caller asks for that.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING
from zlib import crc32

from attrs import frozen

from lanelog._base import open_lane_keys
from lanelog._database import NOW_MS, Lock, Statement
from lanelog._stores._counted import BEYOND_COUNTING, counted
from lanelog._stores._points import chunked, number, placeholders, points, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from lanelog._base.places import GroupTopic
    from lanelog._database import Executor

# Heads of some lanes in key order, one exact row each (PRIMARY).
HEADS = """SELECT partition_key, head_offset FROM queue_partitions FORCE INDEX (PRIMARY)
WHERE topic = %s AND partition_key IN ({keys}) ORDER BY partition_key{lock}"""

# The head of one lane (PRIMARY).
HEAD = "SELECT head_offset FROM queue_partitions WHERE topic = %s AND partition_key = %s{lock}"

# Give out the same number of offsets in each of some lanes, whose heads are locked (PRIMARY).
ADVANCE = """UPDATE queue_partitions FORCE INDEX (PRIMARY) SET head_offset = head_offset + %s
WHERE topic = %s AND partition_key IN ({keys})"""

# After ADVANCE, in one packet with it: note the time, behind the heads' locks. NULL: not so many heads have moved.
NOTE_TIME = f"SELECT IF(ROW_COUNT() = %s, {NOW_MS}, NULL) INTO @lanelog_now"

# The same after a further ADVANCE. NULL stays NULL.
KEEP_TIME = "SELECT IF(ROW_COUNT() = %s, @lanelog_now, NULL) INTO @lanelog_now"

# Lock the head of one lane, and note the offset after it. NULL: missing, taken, or autocommit is on (PRIMARY).
NEXT_OFFSET = """SELECT IF(@@autocommit, NULL, MAX(head_offset) + 1) INTO @lanelog_offset
FROM queue_partitions FORCE INDEX (PRIMARY) WHERE topic = %s AND partition_key = %s FOR UPDATE SKIP LOCKED"""

# Move the head there, and return the offset by LAST_INSERT_ID (PRIMARY).
ADVANCE_TO_NEXT = """UPDATE queue_partitions FORCE INDEX (PRIMARY) SET head_offset = LAST_INSERT_ID(@lanelog_offset)
WHERE topic = %s AND partition_key = %s"""

# The offset that NEXT_OFFSET has noted in this session (no table).
NOTED_OFFSET = "SELECT @lanelog_offset"

# Whether the topic row exists (PRIMARY).
TOPIC_EXISTS = "SELECT 1 FROM queue_partitions WHERE topic = %s AND partition_key = ''"

# Insert the topic row if it is absent (PRIMARY).
CREATE_TOPIC = f"INSERT IGNORE INTO queue_partitions (topic, partition_key, created_at) VALUES (%s, '', {NOW_MS})"

# Share-lock the topic row against the purge of a lane, and read where new lanes begin (PRIMARY).
HOLD_TOPIC = f"""SELECT {counted("head_offset")} FROM queue_partitions
WHERE topic = %s AND partition_key = '' LOCK IN SHARE MODE"""

# The number of a topic's open lanes (PRIMARY).
OPEN_LANES = "SELECT open_lanes FROM queue_partitions WHERE topic = %s AND partition_key = ''"

# Change that number (PRIMARY).
SET_OPEN_LANES = "UPDATE queue_partitions SET open_lanes = %s WHERE topic = %s AND partition_key = ''"

# The heads of new lanes, which begin where the purged lanes of the topic ended (PRIMARY).
CREATE_HEADS = "INSERT IGNORE INTO queue_partitions (topic, partition_key, head_offset, created_at) VALUES {rows}"
NEW_HEAD = f"(%s,%s,%s,{NOW_MS})"

# Lanes of an owner whose head is above the watermark (leases by_owner; heads and offsets PRIMARY).
OWNED_HEADS = """
SELECT l.partition_key, p.head_offset
FROM queue_partition_leases l FORCE INDEX (by_owner)
JOIN queue_partitions p FORCE INDEX (PRIMARY) ON p.topic = l.topic AND p.partition_key = l.partition_key
LEFT JOIN queue_offsets o FORCE INDEX (PRIMARY)
       ON o.consumer_group = l.consumer_group AND o.topic = l.topic AND o.partition_key = l.partition_key
WHERE l.consumer_group = %s AND l.topic = %s AND l.leased_by = %s AND p.head_offset > COALESCE(o.offset_acked, 0)
"""

# Sums that change with every publish: heads grow, and a lane that was purged and is back is younger (PRIMARY, prefix).
# The servers add up integers as DECIMAL, which takes twice as long as the rest. A DOUBLE is exact below 2^53: 32 bits
# of each column are, for two million lanes. Equal sums hide a publish only after 2^32 messages between two digests.
DIGEST = """SELECT COUNT(*), SUM((head_offset & 4294967295) + 0e0), SUM((created_at & 4294967295) + 0e0)
FROM queue_partitions FORCE INDEX (PRIMARY)
WHERE topic = %s"""

_SUMS = 2**32

PARTS = 32
"""A topic's lanes are in so many parts, by a checksum of the key."""

# The same sums for each part of the topic, and the heads once more, each times its key's checksum (PRIMARY, prefix).
PART_DIGESTS = f"""SELECT CRC32(partition_key) & {PARTS - 1},
SUM(((head_offset & 4294967295) * CRC32(partition_key) & 4294967295) + 0e0),
{DIGEST.removeprefix("SELECT")} GROUP BY 1"""

# Lanes that were created within a time (new_lanes).
NEW_LANES = f"""
SELECT partition_key FROM queue_partitions FORCE INDEX (new_lanes)
WHERE topic = %s AND created_at >= {NOW_MS} - %s AND partition_key <> ''
"""

# One page of the keys and heads of a topic, in key order (PRIMARY).
PAGE = """SELECT partition_key, head_offset FROM queue_partitions FORCE INDEX (PRIMARY)
WHERE topic = %s AND partition_key > %s ORDER BY partition_key LIMIT %s"""

# Insert the topic row, or lock the row that exists (PRIMARY).
ENSURE_TOPIC = f"""INSERT INTO queue_partitions (topic, partition_key, created_at) VALUES (%s, '', {NOW_MS})
ON DUPLICATE KEY UPDATE topic = topic"""

# Whether a topic is older than so many milliseconds (PRIMARY).
OLDER = f"""SELECT created_at < {NOW_MS} - %s FROM queue_partitions WHERE topic = %s AND partition_key = ''"""

# The topic row. While it is locked, the topic's groups stay as they are, and no lane is purged (PRIMARY).
TOPIC = f"""SELECT max_epoch, holds_dead_letters, {NOW_MS} FROM queue_partitions
WHERE topic = %s AND partition_key = ''{{lock}}"""

# Note the highest offset and epoch of purged lanes and deleted groups in the topic row (PRIMARY).
RAISE_TOPIC = f"""UPDATE queue_partitions
SET head_offset = GREATEST({counted("head_offset")}, {counted("%s")}),
    max_epoch = GREATEST({counted("max_epoch")}, {counted("%s")})
WHERE topic = %s AND partition_key = ''"""

# Mark a dead letter topic, before its first dead letter (PRIMARY).
MARK_DEAD_LETTERS = "UPDATE queue_partitions SET holds_dead_letters = 1 WHERE topic = %s AND partition_key = ''"

# Advance a head that is locked (PRIMARY).
SET_HEAD = "UPDATE queue_partitions SET head_offset = %s WHERE topic = %s AND partition_key = %s"

# Purge of one lane (PRIMARY).
PURGE = "DELETE FROM queue_partitions WHERE topic = %s AND partition_key = %s"


@frozen
class HeadsDigest:
    """A digest of a topic's heads. Equal digests mean that nothing was published in between."""

    lanes: int
    heads: int
    created: int

    def same_lanes(self, other: HeadsDigest) -> bool:
        """Whether the lanes are the same. A lane that was purged and came back is younger."""
        return (self.lanes, self.created) == (other.lanes, other.created)


@frozen
class Part:
    """What is known of one part of a topic."""

    weighed: int
    """The sum of its heads, each times the checksum of its key."""
    digest: HeadsDigest

    def risen_since(self, before: Part) -> int:
        """Return by how much its heads have risen in all, as 32 bits show. 0 if its lanes are not the same."""
        return (self.digest.heads - before.digest.heads) % _SUMS if self.digest.same_lanes(before.digest) else 0

    def may_be(self, key: str, before: Part) -> bool:
        """Whether the rise of this key's head alone explains the difference. Several lanes may do so by chance."""
        return self.risen_since(before) * checksum(key) % _SUMS == (self.weighed - before.weighed) % _SUMS


@frozen
class TopicRow:
    """The row of a topic: the epoch that must never be used again, and whether it holds dead letters."""

    retired_epoch: int
    """The highest epoch that left with a purged lane or a deleted group."""
    holds_dead_letters: bool
    absurd_epoch: int | None = None
    """The epoch that the row has, if that is beyond counting. Then `retired_epoch` is the clock, see `_counted`."""

    @property
    def first_epoch(self) -> int:
        """The epoch of a new lease row. It is above every epoch of a purged or deleted lease row in the topic."""
        return self.retired_epoch + 1


def heads(cx: Executor, topic: str, keys: Iterable[str], lock: Lock = Lock.NONE) -> dict[str, int]:
    """Return heads by key. A purged lane is absent. They are locked in key order."""
    return {key: int(head) for key, head in points(cx, HEADS, sorted(keys), before=[topic], lock=lock)}


def lock_heads(
    cx: Executor, topic: str, keys: set[str], awaited: AbstractSet[str] = frozenset()
) -> tuple[dict[str, int], set[str], set[str]]:
    """Lock the heads that no other transaction has. Return them, the keys whose head another has, and those of no lane.

    First those of `awaited`, which are some of `keys`, with a wait, then the others; each time in key order.
    """
    locked = heads(cx, topic, awaited, Lock.UPDATE) if awaited else {}
    locked |= heads(cx, topic, keys - awaited, Lock.FREE)
    absent = keys - locked.keys()
    busy = set(heads(cx, topic, absent)) if absent else set()
    return locked, busy, absent - busy


def head(cx: Executor, topic: str, key: str, lock: Lock) -> int | None:
    """Return the head of one lane. None: it is missing, or locked by another transaction that `lock` does not await."""
    return number(cx.one(HEAD.format(lock=lock), (topic, key)))


def advance(cx: Executor, topic: str, counts: Mapping[str, int]) -> int:
    """Give out `counts[key]` offsets in each lane. Return how many heads moved, for the caller to compare."""
    return sum(cx.execute(statement.sql, statement.args) for statement, _ in _advances(topic, counts))


def advance_and_note(topic: str, counts: Mapping[str, int]) -> list[Statement]:
    """Return the statements that advance as `advance` does, and note the time for `messages.insert_noted`.

    If a head is not there, the time is NULL, and that insert fails.
    """
    statements: list[Statement] = []
    for advance_some, heads in _advances(topic, counts):
        statements += (advance_some, Statement(KEEP_TIME if statements else NOTE_TIME, (heads,)))
    return statements


def _advances(topic: str, counts: Mapping[str, int]) -> Iterator[tuple[Statement, int]]:
    """The statements that give out `counts[key]` offsets, each with the number of heads that it moves."""
    keys_by_count: dict[int, list[str]] = defaultdict(list)
    for key in sorted(counts):
        keys_by_count[counts[key]].append(key)
    for count, keys in keys_by_count.items():
        for chunk in chunked(keys):
            yield Statement(ADVANCE.format(keys=placeholders(chunk)), (count, topic, *chunk)), len(chunk)


def around_next(topic: str, key: str, insert: Statement) -> tuple[Statement, ...]:
    """Return the statements of one transaction: lock a lane's head, run `insert`, advance the head, return the offset.

    None waits for the head. If it is locked or missing, the offset is NULL and `insert` fails.
    """
    at = (topic, key)
    return Statement(NEXT_OFFSET, at), insert, Statement(ADVANCE_TO_NEXT, at)


def create_topic(cx: Executor, topic: str) -> None:
    """Make sure that the topic row exists, on a connection on which every statement commits.

    An existing row is not locked.
    """
    if cx.one(TOPIC_EXISTS, (topic,)) is None:
        cx.execute(CREATE_TOPIC, (topic,))


def hold_topic(cx: Executor, topic: str) -> int | None:
    """Share-lock the topic row. Return the highest offset of a purged lane, None if there is no such row."""
    return number(cx.one(HOLD_TOPIC, (topic,)))


def open_lanes(cx: Executor, topic: str, *, tables: int) -> int:
    """Return the number of a topic's open lanes: the default on older tables, and for a topic that does not exist."""
    row = cx.one(OPEN_LANES, (topic,)) if tables >= open_lane_keys.SINCE else None
    return open_lane_keys.DEFAULT if row is None else int(row[0])


def set_open_lanes(cx: Executor, topic: str, count: int) -> None:
    """Change the number of a topic's open lanes."""
    cx.execute(SET_OPEN_LANES, (count, topic))


def create_heads(cx: Executor, topic: str, keys: Sequence[str], begin: int) -> None:
    """Insert the heads that are absent."""
    write(cx, CREATE_HEADS, [(topic, key, begin) for key in sorted(keys)], row=NEW_HEAD)


def owned_heads(cx: Executor, at: GroupTopic, owner: str) -> list[tuple[str, int]]:
    """Return (key, head) of the owner's lanes whose head is above the watermark."""
    return [(key, head) for key, head in cx.query(OWNED_HEADS, (*at.columns, owner))]


def digest(cx: Executor, topic: str) -> HeadsDigest:
    """Return the digest of a topic's heads."""
    row = cx.one(DIGEST, (topic,))
    return HeadsDigest(*(0, 0, 0) if row is None else (int(value or 0) for value in row))


def checksum(key: str) -> int:
    """Return the checksum of a key, as the server computes it."""
    return crc32(key.encode())


def part_of(key: str) -> int:
    """Return the part of its topic in which a lane is."""
    return checksum(key) % PARTS


def parts(cx: Executor, topic: str) -> dict[int, Part]:
    """Return the parts of a topic. A part without a lane is absent."""
    return {
        part: Part(int(weighed), HeadsDigest(*map(int, sums)))
        for part, weighed, *sums in cx.query(PART_DIGESTS, (topic,))
    }


def whole(parts: Mapping[int, Part]) -> HeadsDigest:
    """Return the digest of the topic that has these parts."""
    each = [part.digest for part in parts.values()]
    return HeadsDigest(sum(one.lanes for one in each), sum(one.heads for one in each), sum(one.created for one in each))


def new_lanes(cx: Executor, topic: str, age: float) -> list[str]:
    """Return the keys of lanes that were created in the last `age` seconds."""
    return [key for (key,) in cx.query(NEW_LANES, (topic, int(age * 1000)))]


def page(cx: Executor, topic: str, after: str, limit: int) -> list[tuple[str, int]]:
    """Return (key, head) of up to `limit` lanes with keys above `after`."""
    return [(key, head) for key, head in cx.query(PAGE, (topic, after, limit))]


def pages(read: Callable[[str], list[tuple[str, int]]], size: int) -> Iterator[list[tuple[str, int]]]:
    """Yield (key, head) of all lanes, page by page. `read` returns the `page` of this size behind a key."""
    after = ""
    while True:
        page = read(after)
        if lanes := [(key, head) for key, head in page if key]:
            yield lanes
        if len(page) < size:
            return
        after = page[-1][0]


def ensure_topic(cx: Executor, topic: str) -> None:
    """Make sure that the topic row exists, on a connection on which every statement commits."""
    cx.execute(ENSURE_TOPIC, (topic,))


def is_older(cx: Executor, topic: str, seconds: float) -> bool:
    """Whether a topic was there so long ago."""
    row = cx.one(OLDER, (int(seconds * 1000), topic))
    return row is not None and bool(row[0])


def topic_row(cx: Executor, topic: str, lock: Lock) -> TopicRow | None:
    """Lock the topic row and return it. None: as for `head`."""
    row = cx.one(TOPIC.format(lock=lock), (topic,))
    if row is None:
        return None
    epoch, letters, now = row
    return TopicRow(epoch, bool(letters)) if epoch < BEYOND_COUNTING else TopicRow(now, bool(letters), epoch)


def raise_topic(cx: Executor, topic: str, offset: int, epoch: int) -> None:
    """Note an offset and an epoch that must never be used again."""
    cx.execute(RAISE_TOPIC, (offset, offset, epoch, epoch, topic))


def mark_dead_letters(cx: Executor, topic: str) -> None:
    """Mark a topic as a dead letter topic: its messages leave by redrive, deletion or the retention of dead letters."""
    cx.execute(MARK_DEAD_LETTERS, (topic,))


def set_head(cx: Executor, topic: str, key: str, head: int) -> None:
    """Move a locked head."""
    cx.execute(SET_HEAD, (head, topic, key))


def purge(cx: Executor, topic: str, key: str) -> None:
    """Remove a head."""
    cx.execute(PURGE, (topic, key))
