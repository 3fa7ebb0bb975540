"""Pieces of hand-built statements: placeholders and chunks. Never names a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from lanelog._places import LaneId

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


def chunked(values: Sequence[T], size: int = MAX_POINTS, *, beside: str = "") -> Iterator[Sequence[T]]:
    """Slices of at most `size` values and MAX_CHARACTERS. An empty sequence has none. A long value has its own.

    `beside`: what each row repeats beside its value.

    The values are texts, tuples of texts and other values, lanes, or rows with a text `key` and, perhaps, `last_error`.
    """
    sizes = [_characters(value) + len(beside) for value in values]
    return fitting(values, sizes, MAX_CHARACTERS, most=size)


def _characters(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, LaneId):
        value = value.columns
    if isinstance(value, tuple):
        return sum(len(part) for part in value if isinstance(part, str))
    return len(getattr(value, "key", "")) + len(getattr(value, "last_error", None) or "")


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
