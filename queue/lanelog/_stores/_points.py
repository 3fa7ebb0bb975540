"""One statement for many keys, in as few parts as the servers take: `points`, `write`, `united`. Never names a table.

A statement says by one of these words where the keys stand, and with which columns:

* `{keys}`: keys, for an IN list;
* `{points}`: rows of two columns, for an IN list;
* `{exact}`: the same as a derived table, see `exactly`;
* `{rows}`: the rows of an INSERT.

`{lock}` stands for a mode of locking, see `Lock`.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lanelog._database import Lock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lanelog._database import Executor

T = TypeVar("T")

MAX_POINTS = 1000
"""Rows or exact keys in one statement."""

MAX_CHARACTERS: Final = 100_000
"""Characters of the rows or keys in one statement. The servers' least usual max_allowed_packet is one mebibyte, and a
character has up to four bytes."""

GROUPS_TOGETHER: Final = 10
"""Groups whose queries are joined into one statement."""

BEYOND: Final = "\U0010ffff" * 255
"""A text that sorts after every topic and key."""


def placeholders(values: Sequence[object]) -> str:
    """`%s, %s, …` for an IN list."""
    return ",".join(["%s"] * len(values))


def pairs(points: Sequence[object]) -> str:
    """`(%s, %s), (%s, %s), …` for an IN list of rows with two columns."""
    return ",".join(["(%s, %s)"] * len(points))


def exactly(points: Sequence[object]) -> str:
    """A derived table of `k` and `o`, for a join by the whole primary key, one row after the other.

    `k` is a key and `o` an offset, or what else the primary key ends with. Without a second column `o` is not read.

    For statements that lock. `(key, offset) IN (…)` leaves the servers a choice: for many points of a small table, or
    of a small part of one, they read all of it (MariaDB for a single point, too) and wait for locks on other rows.
    """
    return " UNION ALL ".join(["SELECT %s AS k, %s AS o"] * len(points))


_WORDS: Final = {"keys": placeholders, "points": pairs, "exact": exactly}


def points(
    cx: Executor,
    sql: str,
    values: Iterable[Any],
    *,
    before: Sequence[object] = (),
    after: Sequence[object] = (),
    lock: Lock = Lock.NONE,
) -> list[tuple[Any, ...]]:
    """Return the rows that a query finds for many keys or points.

    `before` and `after`: its other arguments, those in front of the keys and those behind.
    """
    return [row for part, args in _parts(sql, values, before, after, lock=lock) for row in cx.query(part, args)]


def write(
    cx: Executor,
    sql: str,
    values: Iterable[Any],
    *,
    before: Sequence[object] = (),
    after: Sequence[object] = (),
    row: str = "",
    size: int = MAX_POINTS,
) -> int:
    """Execute a statement for many keys, points or rows. Return how many rows it matched.

    `row`: what stands for each value in `{rows}`.
    """
    return sum(cx.execute(part, args) for part, args in _parts(sql, values, before, after, row=row, size=size))


def united(cx: Executor, sql: str, rows: Iterable[Sequence[object]], size: int = 100) -> list[tuple[Any, ...]]:
    """Return the rows of a query that is asked once for each row of arguments, so many joined by UNION ALL."""
    found: list[tuple[Any, ...]] = []
    for some in chunked(list(rows), size):
        found += cx.query(" UNION ALL ".join([sql] * len(some)), flat(some))
    return found


def for_groups(cx: Executor, sql: str, topic: str, values: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the rows that a query finds for keys or points of several groups, joined by UNION ALL.

    Its arguments are a group, the topic, and the keys or points. `values`: each a group, and a key or point of it.
    """
    found: list[tuple[Any, ...]] = []
    for chunk in chunked(list(values)):
        named: dict[str, list[tuple[Any, ...]]] = {}
        for group, *value in chunk:
            named.setdefault(group, []).append(tuple(value))
        args = [each for group, some in named.items() for each in (group, topic, *flat(some))]
        found += cx.query(" UNION ALL ".join(f"({_filled(sql, some)})" for some in named.values()), args)
    return found


def flat(values: Sequence[Any]) -> tuple[object, ...]:
    """Return keys, or the columns of rows, as the arguments of a statement."""
    return tuple(values) if values and isinstance(values[0], str) else tuple(chain.from_iterable(values))


def _parts(
    sql: str,
    values: Iterable[Any],
    before: Sequence[object],
    after: Sequence[object],
    *,
    row: str = "",
    size: int = MAX_POINTS,
    lock: Lock = Lock.NONE,
) -> Iterator[tuple[str, tuple[object, ...]]]:
    for chunk in chunked(list(values), size):
        yield _filled(sql, chunk, row, lock), (*before, *flat(chunk), *after)


def _filled(sql: str, values: Sequence[Any], row: str = "", lock: Lock = Lock.NONE) -> str:
    if row:
        return sql.format(rows=",".join([row] * len(values)))
    word = next(each for each in _WORDS if f"{{{each}}}" in sql)
    return sql.format(**{word: _WORDS[word](values), "lock": lock})


def all_locked(
    cx: Executor, sql: str, count: str, groups: Sequence[str], topic: str, key: str
) -> list[tuple[Any, ...]] | None:
    """Return the rows of these groups for a lane, which `sql` locks without waiting. None: one is locked by another.

    `count`: asks how many rows there are, without a lock.
    """
    names = placeholders(groups)
    rows = cx.query(sql.format(groups=names), (*groups, topic, key))
    return rows if number(cx.one(count.format(groups=names), (*groups, topic, key))) == len(rows) else None


def number(row: tuple[Any, ...] | None) -> int | None:
    """Return the only column of a row, a number. None: there is no row."""
    return None if row is None else int(row[0])


def chunked(values: Sequence[T], size: int = MAX_POINTS) -> Iterator[Sequence[T]]:
    """Slices of at most `size` values and MAX_CHARACTERS. An empty sequence has none. A long value has its own.

    The texts count, and those in tuples. Other values are counted by their number alone.
    """
    for start in range(0, len(values), size):
        some = values[start : start + size]
        if _characters(some) <= MAX_CHARACTERS:  # counted together, five times as fast
            yield some
        else:
            yield from fitting(some, [_characters([value]) for value in some], MAX_CHARACTERS, most=size)


def _characters(values: Sequence[Any]) -> int:
    """The characters of texts, or of the texts in tuples. All values of a column are of one kind, or None.

    Each statement about lanes asks this, so no value is visited one by one.
    """
    if values and isinstance(values[0], str):
        return sum(map(len, values))
    columns = zip(*values, strict=True) if values and isinstance(values[0], tuple) else ()
    return sum(sum(map(len, filter(None, each))) for each in columns if isinstance(next(filter(None, each), None), str))


def fitting(rows: Sequence[T], sizes: Sequence[int], limit: int, *, most: int = MAX_POINTS) -> Iterator[Sequence[T]]:
    """Cut rows into parts of at most `most` rows, whose sizes are at most `limit` together.

    A row above `limit` is a part of its own.
    """
    start, total = 0, 0
    for at, size in enumerate(sizes):
        if at > start and (total + size > limit or at - start == most):
            yield rows[start:at]
            start, total = at, 0
        total += size
    if start < len(rows):
        yield rows[start:]
