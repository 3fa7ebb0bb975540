"""Pieces of hand-built statements: placeholders and chunks; nothing here knows a table. Called by the stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

T = TypeVar("T")

MAX_POINTS = 1000
"""Rows or exact keys in one statement."""


def placeholders(values: Sequence[object]) -> str:
    """`%s, %s, …` for an IN list."""
    return ",".join(["%s"] * len(values))


def chunked(values: Sequence[T], size: int = MAX_POINTS) -> Iterator[Sequence[T]]:
    """Slices of at most `size`; none for an empty sequence."""
    for start in range(0, len(values), size):
        yield values[start : start + size]
