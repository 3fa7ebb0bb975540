"""Turns of this process's keepers and janitors: a test that means "a turn later" waits for it, whatever it takes."""

from typing import Any

import pytest

from lanelog import Subscription
from lanelog._engine.cleanup.janitor import Janitor
from lanelog._engine.leasing.coordinator import Coordinator
from support.waiting import Record


class Turns:
    """How many turns have begun, and which of them have ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.ended = Record(), Record()
        really = Coordinator.turn

        def turn(keeper: Coordinator, *, hurried: bool) -> None:
            number = len(self.begun)
            self.begun(number)
            really(keeper, hurried=hurried)
            self.ended((keeper.member.owner, number))

        monkeypatch.setattr(Coordinator, "turn", turn)

    def pass_by(self, members: list[Subscription]) -> None:
        """Wait until the keeper of each has done one whole turn from now on."""
        first = len(self.begun)

        def everybody(items: list[Any]) -> bool:
            return {owner for owner, number in items if number >= first} >= {member.owner for member in members}

        self.ended.until(everybody, within=20, what="a turn of every keeper")


def collecting_turns(monkeypatch: pytest.MonkeyPatch) -> Record:
    """Every turn of a janitor of this process, from now on."""
    turns, turn = Record(), Janitor.turn

    def counted(self: Janitor, now: float) -> float:
        turns(now)
        return turn(self, now)

    monkeypatch.setattr(Janitor, "turn", counted)
    return turns
