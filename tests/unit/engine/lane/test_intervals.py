"""Intervals of offsets, against a plain set of them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lanelog._engine.lane.intervals import Intervals


class IntervalsMachine(RuleBasedStateMachine):
    """The model: the set of every offset inside."""

    def __init__(self) -> None:
        super().__init__()
        self.intervals, self.model = Intervals(), set[int]()

    @rule(first=st.integers(1, 40), length=st.integers(1, 5))
    def add(self, first: int, length: int) -> None:
        """What changed is told: every old start that ends elsewhere now, and the new one."""
        added = set(range(first, first + length))
        if added & self.model:
            return
        before = dict(self.intervals)
        changed = self.intervals.add(first, first + length - 1)
        after = dict(self.intervals)
        self.model |= added
        different = {start for start in before | after if before.get(start) != after.get(start)}
        assert different <= set(changed)
        assert set(changed) <= different | {first}

    @precondition(lambda self: self.model)
    @rule(pick=st.integers(0, 40))
    def pop(self, pick: int) -> None:
        intervals = list(self.intervals)
        first, last = intervals[pick % len(intervals)]
        assert self.intervals.pop(first) == last
        self.model -= set(range(first, last + 1))

    @rule(offset=st.integers(0, 50))
    def miss(self, offset: int) -> None:
        """Only the exact start of an interval finds it."""
        if offset not in self.model or offset - 1 in self.model:
            assert self.intervals.pop(offset) is None
            assert self.intervals.last(offset) is None

    @invariant()
    def is_the_same_set(self) -> None:
        intervals = list(self.intervals)
        assert [offset for first, last in intervals for offset in range(first, last + 1)] == sorted(self.model)
        assert all(left[1] + 1 < right[0] for left, right in pairwise(intervals)), "neighbours were not merged"
        assert all(self.intervals.last(first) == last for first, last in intervals)
        assert len(self.intervals) == len(intervals)
        assert [offset for offset in range(52) if offset in self.intervals] == sorted(self.model)


TestIntervals = IntervalsMachine.TestCase


def test_intervals_say_what_they_hold() -> None:
    """The representation of intervals shows first and last offsets in order."""
    intervals = Intervals()
    intervals.add(7, 9)
    intervals.add(2, 2)
    assert repr(intervals) == "Intervals(2..2, 7..9)"
    assert "two" not in intervals
