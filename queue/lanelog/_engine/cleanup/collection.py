"""Collection: what leaves the log, step by step, for whoever has a connection.

Owns the transactions' insides and the deletes behind them; never decides when, and remembers nothing from one call to
the next. Called by the janitor, on its session, and by `admin.maintain()` for topics that nobody consumes.

Step 1 raises floors, in a transaction of the caller: topic row S → floors X (SKIP LOCKED: who is collecting there
already does the work) → nothing else. Step 2 deletes what lies between how far the deletion got and the floor, by exact
keys, with no other lock held, and notes it in the floor rows. Whoever dies between the two leaves released messages in
the log; the next pass deletes them, because the floor row says how far the deletion got.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from attrs import field, frozen

from lanelog._places import GroupTopic
from lanelog._stores import deliveries, groups, heartbeats, leases, moves, offsets, partitions
from lanelog._stores._points import MAX_POINTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lanelog._database import Executor
    from lanelog._stores._offset_rows import FloorRow
    from lanelog._stores.deliveries import DeliveryRow
    from lanelog._stores.moves import LetterAge

STEP = 1000
"""Offsets of one lane that one pass may release."""

HEARTBEATS_KEPT = 600.0


@frozen(kw_only=True)
class Span:
    """One lane after step 1: deleted up to `deleted`, released up to `floor`; `risen`: by this step."""

    deleted: int
    floor: int
    risen: bool = False

    @property
    def full(self) -> bool:
        """Whether this pass took all that it may: there may be more to release at once."""
        return self.floor - self.deleted >= STEP


@frozen(kw_only=True)
class Collected:
    """What step 1 found: the lanes whose floors could be had; `unread`: nobody reads the topic, nothing is released."""

    lanes: Mapping[str, Span] = field(factory=dict)
    dead_letters: bool = False
    """The topic holds dead letters, which `release_letters` is for."""
    unread: bool = False
    aged: int = 0
    """Dead letters that nobody settled, and that are released because their retention is over."""

    @property
    def more(self) -> bool:
        """Whether another pass may release more at once."""
        return any(span.full for span in self.lanes.values())


def release(cx: Executor, topic: str, keys: Sequence[str], retention_ms: int) -> Collected:
    """Step 1: raise the floors of these lanes to what every group is past and what is older than the retention.

    The watermarks are read in a second statement, without locks: READ COMMITTED gives it a new snapshot, stale is safe
    because only seek lowers a watermark, and seek holds the floor. In one statement with the lock it lost messages
    against a concurrent seek.
    """
    topic_row = partitions.share_topic(cx, topic)
    if topic_row is None or topic_row.holds_dead_letters:
        return Collected(dead_letters=True)
    floors = offsets.try_lock_floors(cx, topic, keys)
    readers = list(groups.readers(cx, topic))
    if not readers:
        return Collected(unread=True)
    marks = offsets.watermarks(cx, topic, readers, list(floors))
    acked = {key: min(marks.get((group, key), row.floor) for group in readers) for key, row in floors.items()}
    targets = {key: min(acked[key], row.floor + STEP) for key, row in floors.items()}
    if retention_ms:
        ranges = [(key, row.floor, targets[key]) for key, row in floors.items() if targets[key] > row.floor]
        targets.update(moves.old_enough(cx, topic, ranges, retention_ms))
    raised = {key: target for key, target in targets.items() if target > floors[key].floor}
    if raised:
        offsets.raise_floors(cx, topic, raised)
    return Collected(
        lanes={
            key: Span(deleted=row.deleted_through, floor=raised.get(key, row.floor), risen=key in raised)
            for key, row in floors.items()
        }
    )


def release_letters(cx: Executor, topic: str, keys: Sequence[str], kept: Mapping[tuple[str, str], int]) -> Collected:
    """Step 1 for a dead letter topic: raise the floors over what was redriven, deleted, or is past its retention.

    `kept`: for how many milliseconds the dead letters of each (original topic, group) are kept; those of any other stay
    for ever. Each dead letter has its own group's retention, but they leave a lane in order: one that stays holds those
    behind it. Retention releases only what every group that reads the dead letter topic is past. What was redriven or
    deleted waits for no reader: that was an operator's decision.

    A reader's registration locks the topic row: either it was committed before, and its group counts here, or it begins
    above the raised floors. Watermarks as in `release`: stale is safe.
    """
    topic_row = partitions.share_topic(cx, topic)
    if topic_row is None:
        return Collected(unread=True)
    floors = offsets.try_lock_floors(cx, topic, keys)
    settled = deliveries.load(cx, GroupTopic.reserved(topic), list(floors))
    ranges = [(key, row.floor, row.floor + STEP) for key, row in floors.items()]
    letters = moves.letters(cx, topic, ranges) if kept else {}
    read = _read_by_all(cx, topic, floors) if letters else {}
    targets, aged = {}, {}
    for key, floor, most in ranges:
        through, old = _advanced(settled.get(key, []), letters.get(key, []), kept, floor, read.get(key, most))
        targets[key] = min(through, most)
        aged[key] = sum(offset <= most for offset in old)
    raised = {key: target for key, target in targets.items() if target > floors[key].floor}
    if raised:
        offsets.raise_floors(cx, topic, raised)
    return Collected(
        lanes={
            key: Span(deleted=row.deleted_through, floor=raised.get(key, row.floor), risen=key in raised)
            for key, row in floors.items()
        },
        aged=sum(aged.values()),
    )


def _read_by_all(cx: Executor, topic: str, floors: Mapping[str, FloorRow]) -> dict[str, int]:
    """How far every registered group is in these lanes, by key; nothing where none is registered."""
    readers = list(groups.readers(cx, topic))
    if not readers:
        return {}
    marks = offsets.watermarks(cx, topic, readers, list(floors))
    return {key: min(marks.get((group, key), row.floor) for group in readers) for key, row in floors.items()}


def _advanced(
    rows: Sequence[DeliveryRow],
    letters: Sequence[LetterAge],
    kept: Mapping[tuple[str, str], int],
    floor: int,
    read: int,
) -> tuple[int, list[int]]:
    """The floor, over what follows it and is settled, or old and read by all; and the done that are old.

    What the log does not hold between two letters is gone.
    """
    old = []
    settled = sorted((row for row in rows if row.acked), key=lambda row: row.offset)
    for row in settled:
        if row.offset <= floor + 1:
            floor = max(floor, row.through)
    done = {row.offset for row in settled}
    for letter in letters:
        if letter.offset <= floor or letter.offset in done:
            floor = max(floor, letter.offset)
            continue
        retention_ms = kept.get((letter.original_topic, letter.group))
        if retention_ms is None or letter.age_ms < retention_ms or letter.offset > read:
            break
        floor = letter.offset
        old.append(floor)
    return floor, old


def delete(cx: Executor, topic: str, lanes: Mapping[str, Span], *, letters: bool = False) -> int:
    """Step 2, on a connection on which every statement commits by itself; how many messages were deleted."""
    return sum(step(cx) for step in deletion(topic, lanes, letters=letters))


def deletion(topic: str, lanes: Mapping[str, Span], *, letters: bool = False) -> Iterator[Callable[[Executor], int]]:
    """Step 2 as single statements, each bounded, and harmless to repeat; each returns how many messages it deleted.

    `letters`: with the rows of the reserved group '' that settle dead letters, which last as long as these.
    """
    for batch in _batches(lanes):
        yield partial(moves.delete, topic=topic, points=batch)
        if letters:
            yield partial(_forget_letters, topic=topic, points=batch)
        yield partial(_note, topic=topic, through=dict(batch))  # in order: the last offset of each key stands


def _forget_letters(cx: Executor, topic: str, points: Sequence[tuple[str, int]]) -> int:
    deliveries.delete(cx, GroupTopic.reserved(topic), points)
    return 0


def _note(cx: Executor, topic: str, through: Mapping[str, int]) -> int:
    offsets.raise_deleted(cx, topic, through)
    return 0


def _batches(lanes: Mapping[str, Span]) -> Iterator[list[tuple[str, int]]]:
    batch: list[tuple[str, int]] = []
    for key in sorted(lanes, key=str.encode):
        for offset in range(lanes[key].deleted + 1, lanes[key].floor + 1):
            batch.append((key, offset))
            if len(batch) == MAX_POINTS:
                yield batch
                batch = []
    if batch:
        yield batch


def forget_members(cx: Executor, at: GroupTopic, own: str = "") -> int:
    """Delete the heartbeats of members, but for `own`, that left or fell silent long ago; how many that was."""
    gone = heartbeats.purge_left(cx, at, own, HEARTBEATS_KEPT)
    for owner in heartbeats.silent(cx, at, own, HEARTBEATS_KEPT):
        # Its row, with its lock, is the quick proof that it is dead: without, a take-over lasts a lease duration.
        if not leases.holds(cx, at, owner):
            gone += heartbeats.purge_silent(cx, at, owner, HEARTBEATS_KEPT)
    return gone
