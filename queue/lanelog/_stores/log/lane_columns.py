"""The lanes of a topic, and where some groups are in them, read page by page as columns.

Owns these two statements over several tables, and lays the columns side by side. Never adds anything up. Call it inside
a snapshot: otherwise heads and watermarks would not fit each other.

To join heads, floors and offsets rows, the server looks up two rows for each lane and group: that takes ten times as
long as reading them in order. So it reads the rows of each group in order, and answers with one row, in which each
column of the table is one text.
"""

from __future__ import annotations

from itertools import compress
from operator import gt
from typing import TYPE_CHECKING, Final

from attrs import frozen

from lanelog._database import NOW_MS
from lanelog._stores._points import GROUPS_TOGETHER, chunked
from lanelog.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lanelog._database import Executor

PAGE: Final = 10_000
"""Lanes of one page. If a column does not fit into one text, the page is cut in half."""

_END: Final = "\t"
"""Behind each value of a column. Names have no control characters."""


def _column(name: str) -> str:
    return f"GROUP_CONCAT({name}, '{_END}' SEPARATOR '')"


# The next lanes behind a key: their number, first and last key, the clock; keys, heads and times of birth (PRIMARY).
HEADS = f"""
SELECT COUNT(*), MIN(p.partition_key), MAX(p.partition_key), {NOW_MS}, {_column("p.partition_key")},
       {_column("p.head_offset")}, {_column("p.created_at")}
FROM (SELECT partition_key, head_offset, created_at FROM queue_partitions FORCE INDEX (PRIMARY)
      WHERE topic = %s AND partition_key > %s ORDER BY partition_key LIMIT %s) p
"""

# The offsets rows of one group in these lanes: their number, how many are paused or have a mark above what is acked;
# keys, watermarks and times of change; several groups joined by UNION ALL (PRIMARY).
OFFSETS = f"""
SELECT %s, COUNT(*), COALESCE(SUM(paused_at > 0 OR marked_through > offset_acked), 0), {_column("partition_key")},
       {_column("offset_acked")}, {_column("updated_at")}
FROM queue_offsets FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND partition_key {{within}}
"""


@frozen
class Lanes:
    """The heads of some lanes. Times in milliseconds."""

    now: int
    """The database's clock."""
    first: str
    last: str
    text: str
    """The keys as the server sent them."""
    keys: list[str]
    heads: list[int]
    born: list[int]


@frozen
class LaneOffsets:
    """The offsets rows of one group in some lanes; the columns as the server sent them."""

    count: int
    marked: int
    """Rows that are paused, or have a mark above what is acked."""
    keys: str
    acked: str
    updated: str

    def beside(self, lanes: Lanes) -> tuple[list[int], list[int]]:
        """Return for each lane what is acked, and when the row was changed last.

        A lane without a row has nothing acked, and was changed at its birth.
        """
        acked, updated = _numbers(self.acked, self.count), _numbers(self.updated, self.count)
        if self.keys == lanes.text:
            return acked, updated
        rows = dict(zip(_texts(self.keys, self.count), zip(acked, updated, strict=True), strict=True))
        found = [rows.get(key, (0, born)) for key, born in zip(lanes.keys, lanes.born, strict=True)]
        return [row[0] for row in found], [row[1] for row in found]


class _Cut(Exception):
    """A column did not fit into one text."""


def pages(
    cx: Executor, topic: str, groups: Sequence[str], most: int | None = None
) -> Iterator[tuple[Lanes, Mapping[str, LaneOffsets]]]:
    """Yield lanes in the order of their keys, with the offsets of each of a few groups. The floor is the group ''.

    `most`: that many lanes.
    """
    after, size, left = "", PAGE, most
    while True:
        try:
            lanes = _lanes(cx, topic, after, size if left is None else min(size, left))
            if not lanes.keys:
                return
            offsets = _offsets(cx, topic, groups, lanes)
        except _Cut:
            if size == 1:
                raise DatabaseError(
                    f"the server cuts off the columns of a single lane of topic {topic!r}: something between it and"
                    " lanelog takes away the session's group_concat_max_len"
                ) from None
            size //= 2
            continue
        yield lanes, offsets
        after = lanes.last
        if len(lanes.keys) < size:
            return
        left = None if left is None else left - len(lanes.keys)


def beyond_heads(cx: Executor, topic: str, groups: Sequence[str], most: int) -> Iterator[str]:
    """Yield the keys of those of the first `most` lanes in which a group is beyond the head."""
    for some in chunked(groups, GROUPS_TOGETHER):
        for lanes, offsets in pages(cx, topic, some, most):
            for of_group in offsets.values():
                acked, _ = of_group.beside(lanes)
                yield from compress(lanes.keys, map(gt, acked, lanes.heads))


def _lanes(cx: Executor, topic: str, after: str, size: int) -> Lanes:
    row = cx.one(HEADS, (topic, after, size))
    assert row is not None  # noqa: S101 - a number always has a row
    count, first, last, now, keys, heads, born = row
    return Lanes(
        now, first or "", last or "", keys or "", _texts(keys, count), _numbers(heads, count), _numbers(born, count)
    )


def _offsets(cx: Executor, topic: str, groups: Sequence[str], lanes: Lanes) -> dict[str, LaneOffsets]:
    sql = " UNION ALL ".join([f"({OFFSETS.format(within='BETWEEN %s AND %s')})"] * len(groups))
    args = [value for group in groups for value in (group, group, topic, lanes.first, lanes.last)]
    return {
        group: LaneOffsets(count, int(marked), *(_complete(column, count) for column in columns))
        for group, count, marked, *columns in cx.query(sql, args)
    }


def _texts(column: str | None, count: int) -> list[str]:
    return _complete(column, count)[:-1].split(_END) if count else []


def _numbers(column: str | None, count: int) -> list[int]:
    return list(map(int, _texts(column, count)))


def _complete(column: str | None, count: int) -> str:
    """Return a column. Raise `_Cut` if the server has cut it off, DatabaseError if a value has the end in it."""
    text = column or ""
    ends = text.count(_END)
    if ends > count:
        raise DatabaseError(
            "a row of queue_partitions or queue_offsets has a key with a tab in it, which lanelog never writes: find it"
            " with partition_key LIKE '%\t%', and delete it if no program needs it"
        )
    if ends < count:
        raise _Cut
    return text
