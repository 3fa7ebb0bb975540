"""Messages are handled together, and a quarantined message alone: with real threads that say where they are."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from lanelog._base.backoff import Backoff
from lanelog._engine.member import isolation as module
from lanelog._engine.member.isolation import HOLD, Isolation
from support.memberships import Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

IN_TIME = 20.0


class Visitor(threading.Thread):
    """A thread that handles a message, says when it begins, and ends when the test says so."""

    def __init__(self, isolation: Isolation, *, alone: bool = False, wanted: Callable[[], bool] | None = None) -> None:
        super().__init__(daemon=True)
        self.isolation, self.alone = isolation, alone
        self.asked, self.inside, self.leave = threading.Event(), threading.Event(), threading.Event()
        self.admitted: bool | None = None
        self._wanted = wanted or (lambda: True)
        self.start()

    def run(self) -> None:
        if self.alone:
            self.admitted = self.isolation.enter_alone(self.wanted)
        else:
            self.isolation.enter()
            self.admitted = True
        if self.admitted:
            self.inside.set()
            self.leave.wait(IN_TIME)
            self.isolation.leave()

    def wanted(self) -> bool:
        """Asked under the lock: once it was asked twice, the quarantined message holds the others back."""
        if self.repeated:
            self.asked.set()
        self.repeated = True
        return self._wanted()

    repeated = False

    def has_entered(self) -> bool:
        return self.inside.wait(IN_TIME)

    def looks(self, times: int = 1) -> bool:
        """Wait until the quarantined message has checked again, so many times."""
        for _ in range(times):
            self.asked.clear()
            assert self.asked.wait(IN_TIME)
        return True

    def end(self) -> None:
        self.leave.set()
        self.join(IN_TIME)
        assert not self.is_alive()

    def passes(self) -> None:
        assert self.has_entered()
        self.end()


def entered(isolation: Isolation) -> Visitor:
    """A message that is being handled."""
    visitor = Visitor(isolation)
    assert visitor.has_entered()
    return visitor


def waiting(isolation: Isolation, wanted: Callable[[], bool] | None = None) -> Visitor:
    """A quarantined message that has checked, and holds others back."""
    quarantined = Visitor(isolation, alone=True, wanted=wanted)
    assert quarantined.asked.wait(IN_TIME)
    return quarantined


@pytest.fixture
def isolation(request: pytest.FixtureRequest) -> Iterator[Isolation]:
    """The isolation of one test, empty at its end. Quarantined messages check often, and hold others back for long."""
    made = Isolation(
        **{"check_seconds": 0.001, "hold": Backoff(first=1000.0, most=8000.0), **getattr(request, "param", {})}
    )
    yield made
    assert repr(made) == "Isolation(inside=0, alone=False, held_back=False)"


def test_messages_pass_together(isolation: Isolation) -> None:
    """Any number of messages are handled at the same time."""
    visitors = [entered(isolation) for _ in range(5)]
    assert "inside=5" in repr(isolation)
    for visitor in visitors:
        visitor.end()


def test_a_quarantined_message_waits_until_nobody_is_inside(isolation: Isolation) -> None:
    """A quarantined message starts only after the last message that is being handled has left."""
    first, second = entered(isolation), entered(isolation)
    quarantined = waiting(isolation)
    first.end()
    assert quarantined.looks()  # it checked again, after the first had left
    assert not quarantined.inside.is_set()
    second.end()
    assert quarantined.has_entered()
    assert "inside=1, alone=True" in repr(isolation)
    quarantined.end()


def test_nobody_enters_while_a_quarantined_message_is_alone(isolation: Isolation) -> None:
    """Messages and other quarantined messages wait for the one that is alone, and go on when it leaves."""
    quarantined = Visitor(isolation, alone=True)
    assert quarantined.has_entered()
    message, second = Visitor(isolation), Visitor(isolation, alone=True)
    assert second.asked.wait(IN_TIME)
    assert repr(isolation) == "Isolation(inside=1, alone=True, held_back=False)"
    assert not message.inside.is_set()
    assert not second.inside.is_set()
    quarantined.end()
    for visitor in (message, second):
        visitor.leave.set()  # whoever comes first leaves, and lets the other in
    assert message.has_entered()
    assert second.has_entered()
    message.end()
    second.end()


def test_a_waiting_quarantined_message_holds_back_later_messages(isolation: Isolation) -> None:
    """A steady stream of messages cannot keep a quarantined message waiting: those that come after it wait for it."""
    inside = entered(isolation)
    quarantined = waiting(isolation)
    late = Visitor(isolation)
    assert quarantined.looks()
    assert "held_back=True" in repr(isolation)
    inside.end()
    assert quarantined.has_entered()
    assert not late.inside.is_set()
    quarantined.end()
    late.passes()


@pytest.mark.parametrize("isolation", [{"hold": Backoff(first=0.002, most=0.016)}], indirect=True)
def test_an_impatient_quarantined_message_lets_others_pass(isolation: Isolation) -> None:
    """A quarantined message that waited long for a long handler lets others in meanwhile, and still gets its turn."""
    inside = entered(isolation)
    quarantined = waiting(isolation)
    late = Visitor(isolation)
    assert late.has_entered()
    assert not quarantined.inside.is_set()
    late.end()
    inside.end()
    quarantined.passes()


@pytest.mark.parametrize("isolation", [{"hold": HOLD}], indirect=True)
def test_quarantined_messages_together_are_as_patient_as_one(
    isolation: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one quarantined message lets others pass, no other one holds them back: by turns they would stop all."""
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    inside = entered(isolation)
    all_quarantined = [waiting(isolation)]
    clock.now += 5
    all_quarantined.append(waiting(isolation))
    clock.now += 6  # the first one's patience is over
    for _ in range(3):
        for quarantined in all_quarantined:
            assert quarantined.looks()
    assert "held_back=False" in repr(isolation)
    entered(isolation).end()
    clock.now += 11  # their time is over, too
    assert all_quarantined[0].looks()
    assert "held_back=True" in repr(isolation)
    inside.end()
    for quarantined in all_quarantined:
        quarantined.leave.set()
    for quarantined in all_quarantined:
        quarantined.end()
    assert all(quarantined.admitted for quarantined in all_quarantined)


@pytest.mark.parametrize("isolation", [{"hold": Backoff(first=10.0, most=40.0)}], indirect=True)
def test_a_hold_in_vain_makes_the_next_one_twice_as_long(isolation: Isolation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers that outlast a hold do not starve a quarantined message: each hold is twice as long, up to a bound."""
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    inside = entered(isolation)
    quarantined = Visitor(isolation, alone=True)

    def looked() -> str:
        """What its repr says after the quarantined message has looked at the clock once more."""
        assert quarantined.looks(2)
        return repr(isolation)

    for hold in (10.0, 20.0, 40.0, 40.0):
        assert "held_back=True" in looked()
        clock.now += hold - 0.5
        assert "held_back=True" in looked()
        clock.now += 1
        assert "held_back=False" in looked()  # the others may pass for as long
        clock.now += hold - 1.5
        assert "held_back=False" in looked()
        clock.now += 2
    assert "held_back=True" in looked()
    inside.end()
    quarantined.passes()
    inside = entered(isolation)
    quarantined = Visitor(isolation, alone=True)
    assert "held_back=True" in looked()
    clock.now += 11  # one that had its turn: the next begins with the shortest hold
    assert "held_back=False" in looked()
    inside.end()
    quarantined.passes()


def test_a_quarantined_message_that_is_not_wanted_any_more_gives_up(isolation: Isolation) -> None:
    """A quarantined message whose lane is lost or closing stops waiting, and holds nobody back any longer."""
    wanted = threading.Event()
    wanted.set()
    inside = entered(isolation)
    quarantined = waiting(isolation, wanted.is_set)
    late = Visitor(isolation)
    wanted.clear()
    quarantined.join(IN_TIME)
    assert quarantined.admitted is False
    late.passes()
    inside.end()
    assert isolation.enter_alone(lambda: False) is False  # also when nobody is there


def test_a_question_that_raises_holds_nobody_back(isolation: Isolation) -> None:
    """An error in the question whether the quarantined message is wanted passes through, and messages go on."""
    isolation.enter()
    answers = iter([True])
    with pytest.raises(StopIteration):
        isolation.enter_alone(lambda: next(answers))
    isolation.enter()
    isolation.leave()
    isolation.leave()


def test_after_a_fork_nobody_is_inside() -> None:
    """All clients of a process share one isolation; what the parent's threads were handling is not in the child's."""
    code = (
        "import os\n"
        "from lanelog._engine.member.isolation import process_isolation\n"
        "process_isolation().enter()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(0 if process_isolation().enter_alone(lambda: True) else 1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), process_isolation())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split(" ", 1) == ["0", "Isolation(inside=1, alone=False, held_back=False)\n"]
