"""The states of an attempt: the table of moves, what the pages say of it, and what a member really does."""

from __future__ import annotations

import random
import re
from contextlib import suppress
from pathlib import Path
from queue import Empty

import pytest

from lanelog._engine.lane.run import MOVES, Attempt, Run, State
from lanelog._engine.lane.values import ACKED, EXPIRED, Outcome, Verb
from lanelog._engine.member.effects import Effects
from lanelog.errors import LanelogError
from support.lanes import row
from support.memberships import Clock, Engine
from support.moves import Moves

ROOT = Path(__file__).parents[4]
OUTCOMES = [ACKED, Outcome(Verb.RETRY, 0.0, "no"), Outcome(Verb.POSTPONE), Outcome(Verb.BURY, 0.0, "bad")]
DECISIONS = ["end", "settle", "claim", "claimed", "unclaim", "give_up"]
STEPS = [*["start"] * 4, *DECISIONS, "flush", "hand_back", "cut_off", "lose", "bury"]


def test_the_protocol_has_the_table_of_moves() -> None:
    """The page on the protocol names the states of an attempt and their moves as the code has them."""
    page = (ROOT / "docs/explanation/protocol.md").read_text()
    lines = re.findall(
        r"^\| (\w+) \| .* \| ([\w, ]*)\|$",
        page.partition("next |\n|---|---|---|\n")[2].partition("\n\n")[0],
        re.MULTILINE,
    )
    said = {State(name): {State(each) for each in re.findall(r"\w+", after)} for name, after in lines}
    assert said == MOVES


def test_only_the_run_assigns_a_state() -> None:
    """Every other module moves an attempt by `Attempt.move`."""
    engine = ROOT / "queue/lanelog/_engine"
    assert [path.name for path in engine.rglob("*.py") if re.search(r"\.state = State\b", path.read_text())] == [
        "run.py"
    ]


class History:
    """What may happen to the messages of one member, in any order."""

    def __init__(self, clock: Clock, chance: random.Random, ack_policy: str) -> None:
        self.clock, self.chance = clock, chance
        self.engine = Engine(clock, seconds=0.001, order="serial", ack_policy=ack_policy)
        self.attempts, self.handing_back = self.engine.member.attempts, self.engine.member.handing_back
        self.cut_off, self.flush = self.handing_back.cut_off, self.engine.flush
        self.hands: list[tuple[Run, Attempt]] = []
        self.open()

    def open(self) -> None:
        self.lane = self.engine.open(head=2)
        late = [row(offset)._replace(start_by=self.clock.now + self.chance.choice([-1, 2])) for offset in (3, 4, 5)]
        self.engine.member.fetching.fetched(self.lane, 2, late)

    def start(self) -> None:
        run = self.chance.choice(self.hands)[0] if self.hands else self.engine.run()
        attempt = run.start_next(self.clock.now, 60.0)
        self.hands += [(run, attempt)] if attempt else []

    def decide(self, name: str) -> None:
        run, attempt = self.chance.choice(self.hands)
        outcome = EXPIRED if attempt.expired else self.chance.choice(OUTCOMES)
        if name == "end":
            self.finish(run, outcome)
        elif name in ("settle", "give_up"):
            getattr(self.attempts, name)(attempt, outcome)
        elif name != "claimed":
            getattr(self.attempts, name)(attempt)
        elif attempt.state is State.CLAIMED:
            self.attempts.claimed(attempt, attempt.term)

    def finish(self, run: Run, outcome: Outcome) -> None:
        for attempt in [attempt for of, attempt in self.hands if of is run]:
            self.attempts.unclaim(attempt)
            if attempt.state is State.RUNNING:
                run.record(attempt, EXPIRED if attempt.expired else outcome)
        self.attempts.finish(run)
        self.hands = [hand for hand in self.hands if hand[0] is not run]

    def hand_back(self) -> None:
        run, attempt = self.chance.choice(self.hands)
        if attempt is run.attempts[-1]:  # who takes a message by hand has it in a run of its own
            self.attempts.detach(attempt, lambda: None)
        self.handing_back.hand_back()

    def lose(self) -> None:
        self.engine.member.lose_lane(self.lane.term, "stolen")
        self.hands.clear()
        self.open()

    def bury(self) -> None:
        dead_letter = self.engine.member.dead_letters.popleft()
        self.engine.member.writing.buried(dead_letter, dead_letter.term)

    def end(self) -> None:
        """Settle what is out, and handle everything."""
        for run, _ in self.hands:
            self.finish(run, ACKED)
        self.handing_back.hand_back()
        member = self.engine.member
        for _ in range(20):
            self.clock.now += 1
            for lane, offsets in member.fetching.take_needing_payload(self.clock.now, 10, 100):
                member.fetching.revived(lane, [row(offset) for offset in offsets], [])
            while member.dead_letters:
                self.bury()
            with suppress(Empty):
                while run := self.engine.run():
                    while attempt := run.start_next(self.clock.now, 60.0):
                        run.record(attempt, EXPIRED if attempt.expired else ACKED)
                    self.attempts.finish(run)


def test_an_interrupt_of_the_user_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes again and again between a step and its effects. In the end every message is handled."""
    clock, carry_out = Clock().drive(monkeypatch), Effects.carry_out
    for seed in range(100):
        chance = random.Random(seed)
        history = History(clock, chance, chance.choice(["nack_on_error", "ack_first"]))

        def interrupted(effects: Effects, chance: random.Random = chance) -> None:
            if chance.random() < 0.5:
                raise KeyboardInterrupt
            carry_out(effects)

        for name in chance.choices(STEPS, k=30):
            clock.now += 1
            with suppress(LanelogError, Empty, IndexError, KeyboardInterrupt), monkeypatch.context() as user:
                if name in DECISIONS:
                    user.setattr(Effects, "carry_out", interrupted)
                    history.decide(name)
                else:
                    getattr(history, name)()
        history.end()
        assert history.lane.idle, (seed, history.lane)
        assert history.lane.state.watermark == 5, (seed, history.lane)


def test_a_member_makes_every_move_of_the_table_and_no_other(moves: Moves, monkeypatch: pytest.MonkeyPatch) -> None:
    """Histories of starts, settlements, claims, time-outs and losses, in which `Moves` refuses any other move."""
    moves.seen.clear()
    clock = Clock().drive(monkeypatch)
    for seed in range(300):
        chance = random.Random(seed)
        history = History(clock, chance, chance.choice(["nack_on_error", "ack_first"]))
        for name in chance.choices(STEPS, k=30):
            clock.now += 1
            with suppress(LanelogError, Empty, IndexError):  # nothing to do it with
                history.decide(name) if name in DECISIONS else getattr(history, name)()
    assert moves.seen == {(before, to) for before, after in MOVES.items() for to in after}
