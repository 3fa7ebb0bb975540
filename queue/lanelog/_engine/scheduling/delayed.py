"""Moves messages that have become due from the schedule to the end of their lanes.

Owns that transaction and which lanes it leaves alone for a moment; never decides when to look. Called by the scheduler,
on its session, and by `admin.maintain()`.

One transaction for what is due of one topic, a bounded number of messages: heads X (SKIP LOCKED: a lane that somebody
holds is left for later) → messages → scheduled, exact rows (SKIP LOCKED: what is being cancelled is left alone). Ids
are looked up in the log under the heads' locks: a row whose id is there already is dropped. No payload leaves the
server.

Dies before the COMMIT, or sleeps in the middle until the server ends its session: nothing has happened, heads and rows
are free. After it, or with an unanswered COMMIT: the rows are gone, and the next look does not find them. Two at once:
one has a lane's head, the other skips the lane. A lane that was purged meanwhile is created again, above its old end.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING, Final

from attrs import define, field, frozen

from lanelog._database import codes
from lanelog._engine import contradictions
from lanelog._stores import messages, partitions, scheduled
from lanelog._stores._points import MAX_POINTS
from lanelog.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lanelog._database import Executor, Session
    from lanelog._stores.scheduled import DueRow

PAGE: Final = 1000
"""Messages that one look finds."""

BYTES_A_TRANSACTION: Final = 16 * 1024 * 1024
"""Payload bytes after which a transaction takes no further message."""

LEAST_WAIT: Final = 0.025
MOST_WAIT: Final = 0.25
"""Seconds until a lane that somebody holds is tried again, the first time and in the end."""

STUCK_WAIT: Final = 5.0
"""The same for a lane whose head could be had, and which could not be written to all the same."""


@frozen
class Moved:
    """What one transaction did: how many messages it moved, and whose lanes it could not have."""

    messages: int
    busy: set[str]
    missing: set[str]


@define
class _Wait:
    until: float
    seconds: float


@define(eq=False)
class DelayedMessages:
    """Moves due messages; remembers for a moment which lanes are busy."""

    session: Session
    ensure_lanes: Callable[[str, Sequence[str]], None]
    published: Callable[[str], None]
    _waits: dict[tuple[str, str], _Wait] = field(factory=dict)

    def append(self, topics: Sequence[str] = (), *, everything: bool = True) -> int:
        """Move one page of what is due, of these topics if any are given; how many messages that was.

        `everything`: also what has been due for more than a minute.

        Raises DatabaseError, after the other lanes had their turn if only some could not be written to.
        """
        now = time.monotonic()
        busy = [lane for lane, wait in self._waits.items() if wait.until > now][: MAX_POINTS - 1]
        by_topic: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for topic, key, message_id in scheduled.due(self.session, busy, PAGE, everything=everything, topics=topics):
            by_topic[topic].append((key, message_id))
        if not by_topic and not busy:
            self._waits.clear()
        todo = deque((topic, by_topic[topic]) for topic in sorted(by_topic))
        moved = 0
        failure: DatabaseError | None = None
        mended: set[tuple[str, str]] = set()
        while todo:
            topic, points = todo.popleft()
            try:
                moved += self._append(topic, points)
            except DatabaseError as error:
                taken = error.code == codes.DUPLICATE  # ids were looked up: it is an offset
                if not ((error.retriable or taken) and self.session.connected):
                    raise
                # Not a head, but say a gap in an index, by a caller that is SERIALIZABLE. Whichever lane that concerns,
                # the others go on: each by itself.
                by_key = _by_key(points)
                if len(by_key) > 1:
                    todo.extend((topic, points) for points in by_key.values())
                elif taken and (topic, points[0][0]) not in mended and self._mended(topic, points[0][0]):
                    mended.add((topic, points[0][0]))
                    todo.append((topic, points))
                else:
                    self._waits[topic, points[0][0]] = _Wait(time.monotonic() + STUCK_WAIT, MOST_WAIT)
                    failure = failure or error
        if failure is not None:
            raise failure
        return moved

    @property
    def held_up(self) -> bool:
        """Whether messages wait for lanes that somebody has."""
        return bool(self._waits)

    def wait(self) -> float | None:
        """Seconds until what is due is to be looked for again, as lanes are busy; None: none is. For any thread."""
        now = time.monotonic()
        waits = [wait.until - now for wait in list(self._waits.values()) if wait.until > now]
        return max(LEAST_WAIT / 2, min([*waits, MOST_WAIT])) if waits else None

    def _mended(self, topic: str, key: str) -> bool:
        """Whether a lane's head was seen to, by us or by somebody else a moment ago; False: somebody holds the lane."""
        return contradictions.mend(self.session, topic, key) is not None

    def _append(self, topic: str, points: Sequence[tuple[str, str]]) -> int:
        with self.session.transaction() as cx:
            moved = self._move(cx, topic, points)
        if moved.messages:
            self.published(topic)
        held = moved.busy if self._created(topic, moved.missing) else moved.busy | moved.missing
        # One for all: lanes that somebody holds together are tried again together.
        now, jitter = time.monotonic(), random.uniform(0.5, 1.0)
        for key in {key for key, _ in points}:
            self._remember((topic, key), now, jitter, held=key in held)
        return moved.messages

    def _created(self, topic: str, keys: set[str]) -> bool:
        """Create lanes that were purged; False: somebody holds what that needs."""
        try:
            if keys:
                self.ensure_lanes(topic, sorted(keys))
        except DatabaseError as error:
            if not error.retriable:
                raise
            return False
        return True

    def _remember(self, lane: tuple[str, str], now: float, jitter: float, *, held: bool) -> None:
        if not held:
            self._waits.pop(lane, None)
            return
        before = self._waits.get(lane)
        seconds = LEAST_WAIT if before is None else min(MOST_WAIT, 2 * before.seconds)
        self._waits[lane] = _Wait(now + seconds * jitter, seconds)

    @staticmethod
    def _move(cx: Executor, topic: str, points: Sequence[tuple[str, str]]) -> Moved:
        # heads X, in key order, SKIP LOCKED -> messages -> scheduled
        keys = {key for key, _ in points}
        heads = partitions.lock_heads(cx, topic, keys, wait=False)
        absent = keys - heads.keys()
        existing = partitions.existing(cx, topic, absent) if absent else set()
        rows = _bounded(scheduled.lock(cx, topic, [point for point in points if point[0] in heads])) if heads else []
        # A lane of which nothing could be had: its messages are being cancelled, or another process has moved them.
        busy = existing | (heads.keys() - {row.key for row in rows})
        if rows:
            _write(cx, topic, rows, heads)
        return Moved(len(rows), busy, absent - existing)


def _by_key(points: Sequence[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for point in points:
        found[point[0]].append(point)
    return found


def _bounded(rows: list[DueRow]) -> list[DueRow]:
    """In order, as many as one transaction should have, and one at least: of each lane, those that come first."""
    rows.sort()
    size = 0
    for at, row in enumerate(rows):
        size += row.payload_bytes
        if at and size > BYTES_A_TRANSACTION:
            return rows[:at]
    return rows


def _write(cx: Executor, topic: str, rows: Sequence[DueRow], heads: dict[str, int]) -> None:
    """Append what is not in the log yet, and take all of it out of the schedule."""
    points = [(row.key, row.id) for row in rows]
    logged = messages.find_in_log(cx, topic, points)
    moves: Counter[str] = Counter()
    places = []
    for key, message_id in points:
        if (key, message_id) not in logged:
            moves[key] += 1
            places.append((key, message_id, heads[key] + moves[key]))
    if places:
        advanced = partitions.advance(cx, topic, moves)
        appended = messages.append_scheduled(cx, topic, places)
        if (advanced, appended) != (len(moves), len(places)):
            raise DatabaseError("locked rows of the schedule vanished: looking again", retriable=True)
    scheduled.delete(cx, topic, points)
