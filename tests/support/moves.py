"""Every move of every attempt, checked against the table of moves."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import define, field

from lanelog._engine.lane.run import MOVES, Attempt, State


@define
class Moves:
    """Stands in the place of `Attempt.state`, and refuses what `MOVES` has not."""

    slot: Any
    seen: set[tuple[State, State]] = field(factory=set)

    @classmethod
    def checked(cls, monkeypatch: pytest.MonkeyPatch) -> Moves:
        moves = cls(vars(Attempt)["state"])
        monkeypatch.setattr(Attempt, "state", moves)
        return moves

    def __get__(self, attempt: Attempt | None, owner: object) -> Any:
        return self if attempt is None else self.slot.__get__(attempt, owner)

    def __set__(self, attempt: Attempt, to: State) -> None:
        try:
            before = self.slot.__get__(attempt)
        except AttributeError:  # a new one
            assert to is State.READY
        else:
            assert to in MOVES[before], f"{before} to {to}: {attempt}"
            self.seen.add((before, to))
        self.slot.__set__(attempt, to)
