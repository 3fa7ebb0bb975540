"""Spans of offsets, against a plain set of them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lanelog._engine.lane.intervals import Spans


class SpansMachine(RuleBasedStateMachine):
    """The model: the set of every offset inside."""

    def __init__(self) -> None:
        super().__init__()
        self.spans, self.model = Spans(), set[int]()

    @rule(first=st.integers(1, 40), length=st.integers(1, 5))
    def add(self, first: int, length: int) -> None:
        """What changed is told: every old start whose span is another now, and the new one."""
        added = set(range(first, first + length))
        if added & self.model:
            return
        before = dict(self.spans)
        changed = self.spans.add(first, first + length - 1)
        after = dict(self.spans)
        self.model |= added
        different = {start for start in before | after if before.get(start) != after.get(start)}
        assert different <= set(changed)
        assert set(changed) <= different | {first}

    @precondition(lambda self: self.model)
    @rule(pick=st.integers(0, 40))
    def pop(self, pick: int) -> None:
        spans = list(self.spans)
        first, last = spans[pick % len(spans)]
        assert self.spans.pop(first) == last
        self.model -= set(range(first, last + 1))

    @rule(offset=st.integers(0, 50))
    def miss(self, offset: int) -> None:
        """Only the exact start of a span finds it."""
        if offset not in self.model or offset - 1 in self.model:
            assert self.spans.pop(offset) is None
            assert self.spans.last(offset) is None

    @invariant()
    def is_the_same_set(self) -> None:
        spans = list(self.spans)
        assert [offset for first, last in spans for offset in range(first, last + 1)] == sorted(self.model)
        assert all(left[1] + 1 < right[0] for left, right in pairwise(spans)), "neighbours were not merged"
        assert all(self.spans.last(first) == last for first, last in spans)
        assert len(self.spans) == len(spans)
        assert [offset for offset in range(52) if offset in self.spans] == sorted(self.model)


TestSpans = SpansMachine.TestCase


def test_spans_say_what_they_hold() -> None:
    """The representation of spans shows first and last offsets in order."""
    spans = Spans()
    spans.add(7, 9)
    spans.add(2, 2)
    assert repr(spans) == "Spans(2..2, 7..9)"
    assert "two" not in spans
