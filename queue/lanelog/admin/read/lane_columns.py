"""The lanes of a topic as some groups see them, read page by page as columns.

Owns these queries, the sums over heads and watermarks, and the choice of the lanes in which nothing was settled for
longest. Call it inside a snapshot.

To join heads, floors and offsets rows, the server looks up two rows for each lane and group: that takes ten times as
long as reading them in order. So it reads the rows of each group in order, and answers with one row, in which each
column of the table is one text. The columns are laid side by side here.
"""

from __future__ import annotations

from heapq import nsmallest
from operator import sub
from typing import TYPE_CHECKING, Final, NamedTuple

from attrs import define, field, frozen

from lanelog._database import NOW_MS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lanelog._database import Executor

PAGE: Final = 10_000
"""Lanes of one page. If a column does not fit into one text, the page is cut in half."""

_END: Final = "\t"
"""Behind each value of a column. Names have no control characters."""


def _column(name: str) -> str:
    return f"GROUP_CONCAT({name}, '{_END}' SEPARATOR '')"


# The next lanes behind a key: their number, first and last key, the clock, and keys, heads and times of birth (PRIMARY).
HEADS = f"""
SELECT COUNT(*), MIN(p.partition_key), MAX(p.partition_key), {NOW_MS}, {_column("p.partition_key")},
       {_column("p.head_offset")}, {_column("p.created_at")}
FROM (SELECT partition_key, head_offset, created_at FROM queue_partitions FORCE INDEX (PRIMARY)
      WHERE topic = %s AND partition_key > %s ORDER BY partition_key LIMIT %s) p
"""

# The offsets rows of one group in these lanes: their number, how many are paused or have a mark above what is acked,
# and keys, watermarks and times of change; several groups joined by UNION ALL (PRIMARY).
PLACES = f"""
SELECT %s, COUNT(*), COALESCE(SUM(paused_at > 0 OR marked_through > offset_acked), 0), {_column("partition_key")},
       {_column("offset_acked")}, {_column("updated_at")}
FROM queue_offsets FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND partition_key {{within}}
"""


class Still(NamedTuple):
    """A lane with something unsettled. Times in milliseconds. The smallest is unchanged for longest."""

    since: int
    """When its offsets row was changed last, or its birth, if it has none."""
    key: str
    watermark: int


@define
class GroupLanes:
    """All lanes of a topic as one group sees them, added up."""

    now: int = 0
    """The database's clock, in milliseconds."""
    count: int = 0
    marked: int = 0
    """Offsets rows that are paused, or have a mark above what is acked."""
    lagging: int = 0
    head: int = 0
    behind: int = 0
    """Messages above the watermark."""
    still: list[Still] = field(factory=list)
    """Lagging lanes in which nothing was settled for longest, in this order."""


class _Cut(Exception):
    """A column did not fit into one text."""


@frozen
class _Rows:
    """The columns of some offsets rows, as texts."""

    count: int
    marked: int
    keys: str
    acked: str
    updated: str

    def placed(self, page: _Page) -> tuple[list[int], list[int]]:
        """Return for all lanes of a page what is acked, and since when."""
        acked, updated = _numbers(self.acked, self.count), _numbers(self.updated, self.count)
        if self.keys == page.text:
            return acked, updated
        rows = dict(zip(_texts(self.keys, self.count), zip(acked, updated, strict=True), strict=True))
        found = [rows.get(key) for key in page.keys]
        return (
            [0 if row is None else row[0] for row in found],
            [born if row is None else row[1] for row, born in zip(found, page.born, strict=True)],
        )


_NO_ROWS: Final = _Rows(0, 0, "", "", "")


@frozen
class _Page:
    """Some lanes, and the offsets rows of each group in them."""

    now: int
    first: str
    last: str
    text: str
    keys: list[str]
    heads: list[int]
    born: list[int]


def load(cx: Executor, topic: str, groups: Sequence[str], still: int = 0) -> dict[str, GroupLanes]:
    """Return the lanes of each group, added up, and at most `still` of them by name."""
    found = {group: GroupLanes() for group in groups}
    for page, rows in _pages(cx, topic, groups):
        floors, _ = rows[""].placed(page)
        for group, sums in found.items():
            _add(sums, page, floors, rows[group], still)
    return found


def _pages(cx: Executor, topic: str, groups: Sequence[str]) -> Iterator[tuple[_Page, dict[str, _Rows]]]:
    after, size = "", PAGE
    while True:
        try:
            page = _page(cx, topic, after, size)
            if not page.keys:
                return
            rows = _rows(cx, topic, ["", *groups], page)
        except _Cut:
            size //= 2  # a single key always fits
            continue
        yield page, rows
        if len(page.keys) < size:
            return
        after = page.last


def _page(cx: Executor, topic: str, after: str, size: int) -> _Page:
    row = cx.one(HEADS, (topic, after, size))
    assert row is not None  # noqa: S101 - a number always has a row
    count, first, last, now, keys, heads, born = row
    return _Page(
        now, first or "", last or "", keys or "", _texts(keys, count), _numbers(heads, count), _numbers(born, count)
    )


def _rows(cx: Executor, topic: str, groups: Sequence[str], page: _Page) -> dict[str, _Rows]:
    sql = " UNION ALL ".join([f"({PLACES.format(within='BETWEEN %s AND %s')})"] * len(groups))
    args = [value for group in groups for value in (group, group, topic, page.first, page.last)]
    found = {}
    for group, count, marked, *columns in cx.query(sql, args):
        for column in columns:
            _complete(column, count)
        found[group] = _Rows(count, int(marked), *columns) if count else _NO_ROWS
    return found


def _add(sums: GroupLanes, page: _Page, floors: Sequence[int], rows: _Rows, still: int) -> None:
    acked, since = rows.placed(page)
    watermarks = list(map(max, acked, floors))
    lags = [lag for lag in map(sub, page.heads, watermarks) if lag > 0]
    sums.now = page.now
    sums.count += len(page.keys)
    sums.marked += rows.marked
    sums.lagging += len(lags)
    sums.head += sum(page.heads)
    sums.behind += sum(lags)
    if still:
        lanes = zip(since, page.keys, watermarks, page.heads, strict=True)
        lagging = [(when, key, mark) for when, key, mark, head in lanes if head > mark]
        sums.still = list(map(Still._make, nsmallest(still, [*sums.still, *lagging])))


def _texts(column: str | None, count: int) -> list[str]:
    return _complete(column, count)[:-1].split(_END) if count else []


def _numbers(column: str | None, count: int) -> list[int]:
    return list(map(int, _texts(column, count)))


def _complete(column: str | None, count: int) -> str:
    """Return a column. Raise `_Cut` if the server has cut it off."""
    text = column or ""
    if text.count(_END) < count:
        raise _Cut
    return text
