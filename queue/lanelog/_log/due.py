"""Delayed messages: those that are due move from the schedule to the end of their lanes.

Owns that transaction, and the choice of lanes that it leaves alone for a moment. Never decides when to poll.

One transaction moves a bounded number of due messages of one topic: heads X (SKIP LOCKED: a locked lane is left for
later) → messages → scheduled, exact rows (SKIP LOCKED: a message that is being cancelled is left alone). Ids are looked
up in the log under the heads' locks. A row whose id is in the log already is dropped. No payload leaves the server.

If the process dies before the COMMIT, or sleeps until the server ends the session, nothing has happened, and heads and
rows are free. If it dies later, or the COMMIT is not answered, the rows are gone, and the next poll does not find them.
If two processes do this at once, one has a lane's head, and the other skips the lane. A lane that was purged meanwhile
is created again, above its old end.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from lanelog._base.backoff import RANDOM, Backoff
from lanelog._database import codes
from lanelog._log import repair
from lanelog._stores._points import MAX_POINTS
from lanelog._stores.later import scheduled
from lanelog._stores.log import messages, partitions
from lanelog.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._database import Executor, Session
    from lanelog._log.append.appender import Appender
    from lanelog._stores.later.scheduled import DueRow


@frozen
class Moved:
    """The result of one transaction: the number of moved messages, the busy lanes, and the missing lanes."""

    messages: int
    busy: set[str]
    missing: set[str]


@define
class _Wait:
    until: float
    seconds: float


@define(eq=False)
class DelayedMessages:
    """Moves due messages. Remembers for a moment which lanes are busy."""

    session: Session
    appender: Appender
    page_messages: int = 1000
    """How many messages one poll finds at most."""
    transaction_bytes: int = 16 * 1024 * 1024
    """Payload bytes after which a transaction takes no further message."""
    locked: Backoff = Backoff(first=0.025, most=0.25)
    """The wait before a locked lane is tried again."""
    stuck_seconds: float = 5.0
    """Seconds before a lane that could not be written to, although its head was free, is tried again."""
    _waits: dict[tuple[str, str], _Wait] = field(factory=dict)

    def append(self, topics: Sequence[str] = (), *, everything: bool = True) -> int:
        """Move one page of due messages, of these topics or of all. Returns how many were moved.

        `everything`: also messages that have been due for more than a minute. With `topics` it is always so.

        Raises DatabaseError. If only some lanes could not be written to, the other lanes are done first.
        """
        now = time.monotonic()
        busy = [lane for lane, wait in self._waits.items() if wait.until > now][: MAX_POINTS - 1]
        by_topic: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for topic, key, message_id in scheduled.due(
            self.session, busy, self.page_messages, everything=everything, topics=topics
        ):
            by_topic[topic].append((key, message_id))
        if not by_topic and not busy:
            self._waits.clear()
        todo = deque((topic, by_topic[topic]) for topic in sorted(by_topic))
        moved = 0
        failure: DatabaseError | None = None
        repaired: set[tuple[str, str]] = set()
        while todo:
            topic, points = todo.popleft()
            try:
                moved += self._append(topic, points)
            except DatabaseError as error:
                taken = error.code == codes.DUPLICATE  # ids were looked up before, so an offset is the duplicate
                if not ((error.retriable or taken) and self.session.connected):
                    raise
                # The lock is not on a head. It may be on a gap of an index, held by a SERIALIZABLE transaction of a
                # user. Each lane is tried by itself, so that the other lanes go on.
                by_key = _by_key(points)
                if len(by_key) > 1:
                    todo.extend((topic, points) for points in by_key.values())
                elif taken and (topic, points[0][0]) not in repaired and self._repaired(topic, points[0][0]):
                    repaired.add((topic, points[0][0]))
                    todo.append((topic, points))
                else:
                    self._waits[topic, points[0][0]] = _Wait(time.monotonic() + self.stuck_seconds, self.locked.most)
                    failure = failure or error
        if failure is not None:
            raise failure
        return moved

    @property
    def held_up(self) -> bool:
        """Whether messages wait for lanes that were busy."""
        return bool(self._waits)

    def wait(self) -> float | None:
        """Seconds until the next poll of busy lanes. None: no lane is busy. Any thread may call it."""
        now = time.monotonic()
        waits = [wait.until - now for wait in list(self._waits.values()) if wait.until > now]
        return max(self.locked.first / 2, min([*waits, self.locked.most])) if waits else None

    def _repaired(self, topic: str, key: str) -> bool:
        """Whether a lane was checked, and repaired if necessary. False: another transaction holds the lane."""
        return repair.repair_lane(self.session, topic, key) is not None

    def _append(self, topic: str, points: Sequence[tuple[str, str]]) -> int:
        with self.session.transaction() as cx:
            moved = self._move(cx, topic, points)
        if moved.messages:
            self.appender.committed(topic)
        held = moved.busy if self._created(topic, moved.missing) else moved.busy | moved.missing
        # All lanes get the same jitter: lanes that one transaction holds are tried again together.
        now, jitter = time.monotonic(), RANDOM.uniform(0.5, 1.0)
        for key in {key for key, _ in points}:
            self._remember((topic, key), now, jitter, held=key in held)
        return moved.messages

    def _created(self, topic: str, keys: set[str]) -> bool:
        """Create lanes that were purged. False: that failed for now, say because of a lock."""
        try:
            if keys:
                self.appender.ensure_lanes(topic, sorted(keys))
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
        seconds = self.locked.following(0.0 if before is None else before.seconds)
        self._waits[lane] = _Wait(now + seconds * jitter, seconds)

    def _move(self, cx: Executor, topic: str, points: Sequence[tuple[str, str]]) -> Moved:
        # heads X, in key order, SKIP LOCKED -> messages -> scheduled
        heads, locked, missing = partitions.lock_heads(cx, topic, {key for key, _ in points})
        found = scheduled.lock(cx, topic, [point for point in points if point[0] in heads]) if heads else []
        rows = _bounded(found, self.transaction_bytes)
        # A lane without a locked row is busy, too: its messages are being cancelled, or another process moves them.
        busy = locked | (heads.keys() - {row.key for row in rows})
        if rows:
            _write(cx, topic, rows, heads)
        return Moved(len(rows), busy, missing)


def _by_key(points: Sequence[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for point in points:
        found[point[0]].append(point)
    return found


def _bounded(rows: list[DueRow], most: int) -> list[DueRow]:
    """The first rows in order: those with at most `most` payload bytes, and at least one row."""
    rows.sort()
    size = 0
    for at, row in enumerate(rows):
        size += row.payload_bytes
        if at and size > most:
            return rows[:at]
    return rows


def _write(cx: Executor, topic: str, rows: Sequence[DueRow], heads: dict[str, int]) -> None:
    """Append the messages that are not in the log yet, and delete all these rows of the schedule."""
    points = [(row.key, row.id) for row in rows]
    logged = messages.find_in_log(cx, topic, points)
    moves: Counter[str] = Counter()
    appended = []
    for key, message_id in points:
        if (key, message_id) not in logged:
            moves[key] += 1
            appended.append((key, message_id, heads[key] + moves[key]))
    if appended:
        done = partitions.advance(cx, topic, moves), messages.append_scheduled(cx, topic, appended)
        if done != (len(moves), len(appended)):
            raise DatabaseError("locked rows of the schedule vanished: reading again", retriable=True)
    scheduled.delete(cx, topic, points)
