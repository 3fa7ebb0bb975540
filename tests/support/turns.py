"""Turns of the keepers of this process: a test that means "a turn later" waits for it, whatever a turn takes."""

from typing import Any

import pytest

from lanelog import Subscription
from lanelog._engine.membership_keeper import MembershipKeeper
from support.waiting import Record


class Turns:
    """How many turns have begun, and which of them have ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.ended = Record(), Record()
        really = MembershipKeeper.turn

        def turn(keeper: MembershipKeeper) -> None:
            number = len(self.begun)
            self.begun(number)
            really(keeper)
            self.ended((keeper.membership.owner, number))

        monkeypatch.setattr(MembershipKeeper, "turn", turn)

    def pass_by(self, members: list[Subscription]) -> None:
        """Wait until the keeper of each has done one whole turn from now on."""
        first = len(self.begun)

        def everybody(items: list[Any]) -> bool:
            return {owner for owner, number in items if number >= first} >= {member.owner for member in members}

        self.ended.until(everybody, within=20, what="a turn of every keeper")
