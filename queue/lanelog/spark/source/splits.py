"""How much of the log one task reads, and one statement: many small lanes together, a long lane cut by offset.

Pure: it takes numbers and returns numbers. The driver plans splits, a task plans its pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lanelog._base.places import GroupTopic

SPLIT_ROWS: Final = 50_000
"""About this many messages belong to one task, unless minPartitions asks for smaller splits."""
PAGE_ROWS: Final = 5_000
"""The most messages of one statement."""
PAGE_LANES: Final = 250
"""The most lanes of one statement."""
TABLE_SPLITS: Final = 8
"""The most tasks of a table. A task costs more than hundreds of groups with few rows, as most of them are."""


@frozen
class LaneRange:
    """The messages of one lane above `after`, up to and including `through`."""

    topic: str
    key: str
    after: int
    through: int

    @property
    def rows(self) -> int:
        """The number of these messages. Offsets are dense."""
        return self.through - self.after


def plan_splits(
    ranges: Iterable[LaneRange], *, min_partitions: int = 1, split_rows: int = SPLIT_ROWS
) -> list[tuple[LaneRange, ...]]:
    """Cut the ranges, in their order, into splits of the same size. Together they are exactly the ranges.

    There are as many as `split_rows` and `min_partitions` ask for, but none without a message.
    """
    kept = [each for each in ranges if each.rows > 0]
    total = sum(each.rows for each in kept)
    count = min(total, max(min_partitions, -(-total // split_rows)))
    return [tuple(split) for split in _cut(kept, [total * n // count for n in range(1, count + 1)])]


def _cut(ranges: Sequence[LaneRange], ends: Sequence[int]) -> Iterator[list[LaneRange]]:
    """Yield one list for each end. Ends are counted in messages from the beginning, and grow."""
    split: list[LaneRange] = []
    at, position = 0, 0
    for each in ranges:
        after = each.after
        while after < each.through:
            taken = min(each.through - after, ends[at] - position)
            split.append(LaneRange(each.topic, each.key, after, after + taken))
            after += taken
            position += taken
            if position == ends[at]:
                yield split
                split, at = [], at + 1


def split_table(parts: Sequence[GroupTopic], most: int = TABLE_SPLITS) -> list[tuple[GroupTopic, ...]]:
    """Cut the groups and topics of a table, in their order, into at most `most` even parts; none of them is empty."""
    total, count = len(parts), min(len(parts), most)
    return [tuple(parts[total * n // count : total * (n + 1) // count]) for n in range(count)]


def pages(ranges: Iterable[LaneRange]) -> Iterator[list[LaneRange]]:
    """Yield the ranges of one statement each: at most PAGE_ROWS messages of PAGE_LANES lanes of one topic."""
    page: list[LaneRange] = []
    room = PAGE_ROWS
    for each in ranges:
        after = each.after
        while after < each.through:
            if page and (room == 0 or len(page) == PAGE_LANES or page[0].topic != each.topic):
                yield page
                page, room = [], PAGE_ROWS
            through = min(each.through, after + room)
            page.append(LaneRange(each.topic, each.key, after, through))
            room -= through - after
            after = through
    if page:
        yield page
