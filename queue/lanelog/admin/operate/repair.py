"""Lanes whose tables contradict each other, in all topics: found, and repaired on request.

Owns the way through topics and keys. `_log/repair` judges, repairs and takes the locks. A suspect lane is judged by
reads of one snapshot, so that a lane that is removed and created again meanwhile is not taken for a contradiction.

Each lane is repaired in a transaction of its own. If the process dies anywhere, or two do this at once, the next call
finds the rest.
"""

from __future__ import annotations

import time
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Final

from attrs import frozen

from lanelog._log import repair
from lanelog._log.lookup.known import PAGE, pages, read, repeated, snapshot
from lanelog._log.lookup.names import names
from lanelog._stores._points import BEYOND
from lanelog._stores.consumers import groups
from lanelog._stores.log import lane_columns, lane_rows
from lanelog.admin.totals.registrations import GROUPS_MAX
from lanelog.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from lanelog._database import Database, Executor, Session
    from lanelog._log.repair import Contradiction

AT_ONCE: Final = 200
"""Gaps between known names that one statement searches."""

MOST_WATERMARKS: Final = 100_000
"""Watermarks that are compared with their heads, unless all are wanted."""

# The first key between two others that has messages; many gaps joined by UNION ALL (PRIMARY).
KEY_BETWEEN = """(SELECT %s, partition_key FROM queue_messages FORCE INDEX (PRIMARY)
 WHERE topic = %s AND partition_key > %s AND partition_key < %s ORDER BY partition_key LIMIT 1)"""

# The first topic between two others that has messages; many gaps joined by UNION ALL (PRIMARY).
TOPIC_BETWEEN = """(SELECT %s, topic FROM queue_messages FORCE INDEX (PRIMARY)
 WHERE topic > %s AND topic < %s ORDER BY topic LIMIT 1)"""


@frozen(kw_only=True)
class Extent:
    """How much of each topic is compared."""

    everywhere: bool = False
    """Whether messages that belong to no lane are searched for, too; one statement searches 200 gaps."""
    heads: int | None = None
    """At the end of how many lanes the log is read. None: of all."""
    groups: int | None = None
    """How many groups are compared. None: all."""


EVERYWHERE: Final = Extent(everywhere=True)


def listed(database: Database, limit: int, extent: Extent) -> list[Contradiction]:
    """See `Admin.contradictions`."""
    found: list[Contradiction] = []
    for topic in _topics(database, everywhere=extent.everywhere):
        found += _of_topic(database, topic, limit - len(found), extent)
        if len(found) >= limit:
            break
    return found[:limit]


@frozen(kw_only=True)
class TopicsCompared:
    """The contradictions of some topics."""

    found: list[Contradiction]
    not_compared: int
    """Topics for which there was no time."""


def compare_topics(
    database: Database, limit: int, *, chosen: Collection[str] | None, heads: int, seconds: float
) -> TopicsCompared:
    """Compare some topics, or all in order of their names, until `seconds` have passed or enough is found.

    Of each topic, the log is read at the end of `heads` lanes, and no more than `GROUPS_MAX` groups are compared.
    """
    until, extent = time.monotonic() + seconds, Extent(heads=heads, groups=GROUPS_MAX)
    topics = list(chosen) if chosen is not None else _topics(database, everywhere=False)
    found: list[Contradiction] = []
    for number, topic in enumerate(topics):
        if len(found) >= limit:
            break
        if time.monotonic() > until:
            return TopicsCompared(found=found[:limit], not_compared=len(topics) - number)
        found += _of_topic(database, topic, limit - len(found), extent)
    return TopicsCompared(found=found[:limit], not_compared=0)


def _of_topic(database: Database, topic: str, limit: int, extent: Extent) -> Iterator[Contradiction]:
    for key in _suspects(database, topic, limit, extent):
        yield from snapshot(database, repair.examine, "examining a lane", topic, key)


def repaired(database: Database) -> list[Contradiction]:
    """Repair all contradictions, and return them.

    Raises DatabaseError for a lane that stays locked for `publish_timeout` seconds.
    """
    found: list[Contradiction] = []
    with closing(database.session("repair")) as session:
        for topic in _topics(database, everywhere=True):
            while suspects := _suspects(database, topic, PAGE, EVERYWHERE):
                done = [each for key in suspects for each in _repair_lane(database, session, topic, key)]
                found += done
                if not done:
                    break  # the lane was removed and created again
    return found


def _repair_lane(database: Database, session: Session, topic: str, key: str) -> list[Contradiction]:
    deadline = time.monotonic() + database.config.publish_timeout
    while True:
        found = repeated(database, repair.repair_lane, "repairing a lane", session, topic, key)
        if found is not None:
            return found
        if time.monotonic() > deadline:
            raise DatabaseError(
                f"lane {key!r} of topic {topic!r} is held by another transaction: repeat this when that has ended"
            )


def _suspects(database: Database, topic: str, limit: int, extent: Extent) -> list[str]:
    heads = extent.heads
    if heads is None:
        found = read(database, _all_suspects, "finding contradictions", topic, limit)
    else:
        what = "finding contradictions"
        found = read(database, _first_suspects, what, topic, limit, heads, extent.groups)
        found += snapshot(database, _beyond_heads, what, topic, limit, heads, extent.groups)
    if extent.everywhere:
        known = [key for page in pages(database, topic) for key, _ in page]
        found += _between(database, KEY_BETWEEN, (topic,), known, limit)
    return list(dict.fromkeys(found))[:limit]


def _all_suspects(cx: Executor, topic: str, limit: int) -> list[str]:
    return lane_rows.suspects(cx, topic, list(groups.readers(cx, topic)), limit)


def _first_suspects(cx: Executor, topic: str, limit: int, heads: int, groups_most: int | None) -> list[str]:
    registered = list(groups.readers(cx, topic))[:groups_most]
    return lane_rows.suspects_among(cx, topic, registered, limit, heads, _compared(registered, heads))


def _beyond_heads(cx: Executor, topic: str, limit: int, heads: int, groups_most: int | None) -> list[str]:
    """Return lanes in which a group is beyond the head. Call it inside a snapshot: no log is read meanwhile."""
    registered = list(groups.readers(cx, topic))[:groups_most]
    return list(islice(lane_columns.beyond_heads(cx, topic, registered, _compared(registered, heads)), limit))


def _compared(registered: Sequence[str], heads: int) -> int:
    return max(heads, MOST_WATERMARKS // (1 + len(registered)))


def _topics(database: Database, *, everywhere: bool) -> list[str]:
    """Return the topics. `everywhere`: also those that only the log has."""
    known = [name for name, _ in read(database, names, "listing topics")]
    return sorted([*known, *(_between(database, TOPIC_BETWEEN, (), known, PAGE) if everywhere else ())])


def _between(database: Database, sql: str, where: tuple[str, ...], known: Sequence[str], most: int) -> list[str]:
    """Return names in the log that are not among the known ones; about `most` of them."""
    ordered = ["", *sorted(known, key=str.encode)]  # as the server sorts them
    gaps = list(zip(ordered, [*ordered[1:], BEYOND], strict=True))
    found: list[str] = []
    while gaps and len(found) < most:
        chunk, gaps = gaps[:AT_ONCE], gaps[AT_ONCE:]
        args = [value for at, gap in enumerate(chunk) for value in (at, *where, *gap)]
        met = read(database, _query, "searching the log", " UNION ALL ".join([sql] * len(chunk)), args)
        found += [name for _, name in met]
        gaps += [(name, chunk[int(at)][1]) for at, name in met]  # there may be more after it
    return found


def _query(cx: Executor, sql: str, args: Sequence[object]) -> list[tuple[int, str]]:
    return [(int(at), str(name)) for at, name in cx.query(sql, args)]
