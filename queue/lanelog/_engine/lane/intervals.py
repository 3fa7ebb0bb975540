"""Sets of offsets, kept as maximal intervals: ten thousand neighbours cost one entry.

Owns the arithmetic of merging. Never knows what the offsets mean.
"""

from __future__ import annotations

from collections.abc import Iterator


class Intervals:
    """Disjoint, never touching, inclusive intervals of offsets with constant-time insertion of one offset."""

    __slots__ = ("_first_of", "_last_of")

    def __init__(self) -> None:
        self._last_of: dict[int, int] = {}
        self._first_of: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._last_of)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(sorted(self._last_of.items()))

    def __repr__(self) -> str:
        return f"Intervals({', '.join(f'{a}..{b}' for a, b in self)})"

    def __contains__(self, offset: object) -> bool:
        """Linear in the number of intervals: for tests and for loading a lane, not for the hot path."""
        return any(first <= offset <= last for first, last in self._last_of.items() if isinstance(offset, int))

    def last(self, first: int) -> int | None:
        """The end of the interval that starts exactly at `first`, or None."""
        return self._last_of.get(first)

    def add(self, first: int, last: int) -> tuple[int, ...]:
        """Insert first..last, which must not overlap. Returns the starts whose interval changed or vanished."""
        changed = [first]
        left = self._first_of.pop(first - 1, None)
        if left is not None:
            first = left
            changed.append(left)
        right = self._last_of.pop(last + 1, None)
        if right is not None:
            changed.append(last + 1)
            del self._first_of[right]
            last = right
        self._last_of[first] = last
        self._first_of[last] = first
        return tuple(changed)

    def pop(self, first: int) -> int | None:
        """Remove the interval that starts exactly at `first`, and return its end, or None."""
        last = self._last_of.pop(first, None)
        if last is not None:
            del self._first_of[last]
        return last
