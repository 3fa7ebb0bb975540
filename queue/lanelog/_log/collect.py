"""Collection: messages leave the log in two steps.

Owns the statements of both steps. Never decides when they run, and remembers nothing between two calls.

Step 1 raises floors, in a transaction of the caller: topic row S → floors X (SKIP LOCKED: another collector has the
lane) → nothing else. Step 2 deletes the released messages up to the floor, by exact keys, with no other lock held. It
notes its progress in the floor rows. A crash between the two leaves released messages in the log. The next pass deletes
them, because the floor row says how far the deletion got.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from attrs import asdict, field, frozen

from lanelog._base.places import GroupTopic
from lanelog._database import Lock
from lanelog._facts.engine import janitor as facts
from lanelog._process.identity import ProcessIdentity
from lanelog._stores._points import MAX_POINTS
from lanelog._stores.consumers import deliveries, groups, offsets
from lanelog._stores.log import lane_rows, leaving, partitions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lanelog._database import Executor
    from lanelog._stores.consumers._offset_rows import FloorRow
    from lanelog._stores.consumers.deliveries import DeliveryRow
    from lanelog._stores.log.leaving import LetterAge

STEP_OFFSETS: Final = 1000
"""How many offsets of one lane one pass may release."""

FAR_OFFSETS: Final = 10 * STEP_OFFSETS
"""A lane with more offsets to delete begins at its first message. Usually it has no more than a few steps."""


@frozen(kw_only=True)
class Span:
    """One lane after step 1: deleted up to `deleted`, released up to `floor`. `risen`: this step raised the floor."""

    deleted: int
    floor: int
    risen: bool = False

    @property
    def full(self) -> bool:
        """Whether this pass took as much as it may, so that more may be ready at once."""
        return self.floor - self.deleted >= STEP_OFFSETS


@frozen(kw_only=True)
class Collected:
    """The lanes whose floors step 1 could lock. `no_readers`: the topic has no group to release for."""

    lanes: Mapping[str, Span] = field(factory=dict)
    dead_letters: bool = False
    """Whether this step is not for the topic: it holds dead letters (see `release_letters`), or has no row."""
    no_readers: bool = False
    aged: int = 0
    """How many dead letters were released only because their retention is over."""

    @property
    def more(self) -> bool:
        """Whether another pass may release more at once."""
        return any(span.full for span in self.lanes.values())


def release(cx: Executor, topic: str, keys: Sequence[str], retention_ms: int) -> Collected:
    """Step 1: raise the floors of these lanes over messages that all groups have settled and that are old enough.

    The watermarks are read in a second statement, without locks. READ COMMITTED gives it a new snapshot. A stale
    watermark is safe: only seek lowers one, and seek holds the floor. In one statement with the lock, the snapshot
    could be older than a concurrent seek, and messages would be lost.
    """
    topic_row = partitions.topic_row(cx, topic, Lock.SHARE)
    if topic_row is None or topic_row.holds_dead_letters:
        return Collected(dead_letters=True)
    floors = offsets.floors(cx, topic, keys, Lock.FREE)
    readers = list(groups.readers(cx, topic))
    if not readers:
        return Collected(no_readers=True)
    marks = offsets.watermarks(cx, topic, readers, list(floors))
    floors = _below_heads(cx, topic, floors, marks)
    acked = {key: min(marks.get((group, key), row.floor) for group in readers) for key, row in floors.items()}
    targets = {key: min(acked[key], row.floor + STEP_OFFSETS) for key, row in floors.items()}
    if retention_ms:
        ranges = [(key, row.floor, targets[key]) for key, row in floors.items() if targets[key] > row.floor]
        targets.update(leaving.old_enough(cx, topic, ranges, retention_ms))
    return Collected(lanes=_raise(cx, topic, floors, targets))


def release_letters(cx: Executor, topic: str, keys: Sequence[str], kept: Mapping[tuple[str, str], int]) -> Collected:
    """Step 1 for a dead letter topic: raise the floors over letters that were redriven, deleted, or are old enough.

    `kept`: for how many milliseconds the dead letters of each (original topic, group) are kept. Those of any other pair
    stay for ever. Each letter has the retention of its own group. But letters are deleted in lane order: one that is
    kept keeps all after it. Retention releases a letter only when every group that reads the dead letter topic has
    settled it. A redriven or deleted letter waits for no reader, because an operator has decided.

    The registration of a reader locks the topic row. Either it was committed before, and its group counts here, or it
    begins above the raised floors. A stale watermark is safe, as in `release`.
    """
    topic_row = partitions.topic_row(cx, topic, Lock.SHARE)
    if topic_row is None:
        return Collected(no_readers=True)
    floors = _below_heads(cx, topic, offsets.floors(cx, topic, keys, Lock.FREE), {})
    settled = deliveries.load(cx, GroupTopic.reserved(topic), list(floors))
    ranges = [(key, row.floor, row.floor + STEP_OFFSETS) for key, row in floors.items()]
    letters = leaving.letters(cx, topic, ranges) if kept else {}
    read = _read_by_all(cx, topic, floors) if letters else {}
    targets, aged = {}, {}
    for key, floor, most in ranges:
        through, old = _advanced(settled.get(key, []), letters.get(key, []), kept, floor, read.get(key, most))
        targets[key] = min(through, most)
        aged[key] = sum(offset <= most for offset in old)
    return Collected(lanes=_raise(cx, topic, floors, targets), aged=sum(aged.values()))


def log_aged(account: str, topic: str, released: Collected) -> None:
    """Log how many dead letters retention has released, if there were any. The event comes after the commit."""
    if released.aged:
        why = "dead_letter_retention"
        actor = asdict(ProcessIdentity(account))
        facts.dead_letters_deleted(topic=topic, messages=released.aged, why=why, **actor)


def _below_heads(
    cx: Executor, topic: str, floors: Mapping[str, FloorRow], marks: Mapping[tuple[str, str], int]
) -> dict[str, FloorRow]:
    """The floors of the lanes in which neither the floor nor one of these watermarks is above the head.

    A floor or watermark above the head proves nothing about what is settled: such a lane keeps its messages until it is
    repaired. Heads only grow, and this reads them last: a lane that is right stays in.
    """
    highest = {key: row.floor for key, row in floors.items()}
    for (_, key), acked in marks.items():
        highest[key] = max(highest[key], acked)
    heads = partitions.heads(cx, topic, list(floors))
    return {key: row for key, row in floors.items() if highest[key] <= heads.get(key, 0)}


def _raise(cx: Executor, topic: str, floors: Mapping[str, FloorRow], targets: Mapping[str, int]) -> dict[str, Span]:
    """Raise the floors to their targets. Return what step 2 is to delete of each lane, at most `FAR_OFFSETS` offsets.

    A head that was repaired may be far above the last message, and the floor with it. What the log does not have needs
    no deletion: that of a million million offsets one by one would never end.
    """
    raised = {key: target for key, target in targets.items() if target > floors[key].floor}
    if raised:
        offsets.raise_floors(cx, topic, raised)
    spans = {}
    for key, row in floors.items():
        deleted, floor = row.deleted_through, raised.get(key, row.floor)
        if floor - deleted > FAR_OFFSETS:
            first = lane_rows.first(cx, topic, key)
            deleted = floor if first is None else max(deleted, min(first - 1, floor))
            floor = min(floor, deleted + FAR_OFFSETS)
            offsets.raise_deleted(cx, topic, {key: deleted})
        spans[key] = Span(deleted=deleted, floor=floor, risen=key in raised)
    return spans


def _read_by_all(cx: Executor, topic: str, floors: Mapping[str, FloorRow]) -> dict[str, int]:
    """The lowest watermark of all registered groups in each of these lanes. Empty when no group is registered."""
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
    """The floor, advanced over letters that are settled, or old and read by all; and the offsets of the old ones.

    An offset between two letters that is not in the log is gone, so the floor passes it.
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
    """Step 2, on a connection where every statement commits by itself. Returns how many messages were deleted."""
    return sum(step(cx) for step in deletion(topic, lanes, letters=letters))


def deletion(topic: str, lanes: Mapping[str, Span], *, letters: bool = False) -> Iterator[Callable[[Executor], int]]:
    """Step 2 as single statements. Each is bounded, can be repeated, and returns how many messages it deleted.

    `letters`: delete also the rows of the reserved group '' that settle dead letters. They last as long as the letters.
    """
    for batch in _batches(lanes):
        yield partial(leaving.delete, topic=topic, offsets=batch)
        if letters:
            yield partial(_forget_letters, topic=topic, points=batch)
        yield partial(_note, topic=topic, through=dict(batch))  # the dict keeps the last, highest offset of each key


def _forget_letters(cx: Executor, topic: str, points: Sequence[tuple[str, int]]) -> int:
    deliveries.delete(cx, GroupTopic.reserved(topic), points)
    return 0


def _note(cx: Executor, topic: str, through: Mapping[str, int]) -> int:
    offsets.raise_deleted(cx, topic, through)
    return 0


def _batches(lanes: Mapping[str, Span]) -> Iterator[list[tuple[str, int]]]:
    points = (
        (key, offset)
        for key in sorted(lanes, key=str.encode)
        for offset in range(lanes[key].deleted + 1, lanes[key].floor + 1)
    )
    while batch := list(islice(points, MAX_POINTS)):
        yield batch
