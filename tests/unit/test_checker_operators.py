"""What the checker of the chaos runs lets an operator's verb explain, and what it asks of it."""

from __future__ import annotations

import pytest

from chaos.checker import check, unexplained
from chaos.history import Event
from chaos.schedule import VERBS, operations
from support.histories import drained, fault, handled, kinds, logged, redriven, sent, steered

TWO = [*sent(1), *sent(2), *handled(1, 1, settled=True), *handled(2, 2, settled=True)]
BACK = steered("seek", 3, offset=0, before=2)
EFFECT = {"group": "e", "settled": True, "effect": True}

BAD = {
    "unseen: a seek brought two back, and one came again": (
        {"unseen"},
        [*TWO, *BACK, *handled(1, 4, epoch=3), *drained()],
    ),
    "unseen: what a seek brought back was begun and never finished": (
        {"unseen"},
        [*TWO, *BACK, *handled(1, 4, epoch=3), *handled(2, 5, epoch=3, outcome=None), *drained()],
    ),
    "unseen: only who had lost the lane went on with it": (
        {"unseen"},
        [*sent(1), *handled(1, 2.9, until=3.5), *steered("seek", 3, offset=0, before=1), *drained()],
    ),
    "duplicate: behind the place of the seek nothing comes again": (
        {"duplicate", "nonmonotonic-poll"},
        [*TWO, *steered("seek", 3, offset=1, before=2), *handled(1, 4, epoch=3), *handled(2, 5, epoch=3)],
    ),
    "duplicate: a seek brings a message back once": (
        {"duplicate", "nonmonotonic-poll"},
        [*TWO, *BACK, *handled(1, 4.5, epoch=3), *handled(2, 5, epoch=3), *handled(1, 8, epoch=5)],
    ),
    "duplicate: the seek of another group": (
        {"duplicate"},
        [*sent(1), *handled(1, 1, settled=True), *steered("seek", 3, offset=0, group="h"), *handled(1, 4, epoch=3)],
    ),
    "duplicate: the seek of another lane": (
        {"duplicate"},
        [*sent(1), *handled(1, 1, settled=True), *steered("seek", 3, offset=0, key="l"), *handled(1, 4, epoch=3)],
    ),
    "duplicate: under the same epoch no seek has come between": (
        {"duplicate"},
        [*sent(1), *handled(1, 1, settled=True), *steered("seek", 3, offset=0), *handled(1, 4)],
    ),
    "duplicate: a release takes back nothing that was confirmed": (
        {"duplicate"},
        [*sent(1), *handled(1, 1, settled=True), *steered("release", 1.2), *handled(1, 4, epoch=3)],
    ),
    "duplicate: the release came long after the handler": (
        {"duplicate"},
        [*sent(1), *handled(1, 1), *steered("release", 50), *handled(1, 52, epoch=3)],
    ),
    "duplicate: a pause repeats nothing": (
        {"duplicate"},
        [*sent(1), *handled(1, 1), *steered("pause", 1.2, until=3), *handled(1, 4, epoch=3)],
    ),
    "duplicate: a redrive repeats nothing": (
        {"duplicate"},
        [*sent(1), *handled(1, 1), *steered("redrive", 1.2, key=None), *handled(1, 4, epoch=3)],
    ),
    "dual-ownership: long after the release its owner has begun something": (
        {"dual-ownership", "duplicate"},
        [*sent(1), *steered("release", 1), *handled(1, 3, until=9), *handled(1, 5, process="p2", epoch=3)],
    ),
    "lost-write: the skip was of another message": (
        {"lost-write", "poll-skip"},
        [*sent(1), *sent(2), *sent(3), *handled(1, 1), *steered("skip", 1.8, offset=3), *handled(3, 2)],
    ),
    "unseen: it was skipped for another group": (
        {"unseen"},
        [*sent(1), *steered("skip", 1, offset=1, group="h"), *drained()],
    ),
    "poll-skip: the next one began before the skip": (
        {"poll-skip"},
        [*sent(1), *sent(2), *handled(2, 1), *steered("skip", 3, offset=1), *drained()],
    ),
    "effect-twice: one seek, three rows": (
        {"effect-twice"},
        [
            *sent(1),
            *handled(1, 1, **EFFECT),  # type: ignore[arg-type]
            *steered("seek", 3, offset=0, before=1, group="e"),
            *handled(1, 4, epoch=3, **EFFECT),  # type: ignore[arg-type]
            *steered("seek", 5, offset=0, before=1, group="g"),
            *handled(1, 6, epoch=5, outcome="raised", group="e", effect=True),
        ],
    ),
    "effect-twice: a release allows no second row": (
        {"effect-twice", "duplicate"},
        [
            *sent(1),
            *handled(1, 1, **EFFECT),  # type: ignore[arg-type]
            *steered("release", 1.2, group="e"),
            *handled(1, 4, epoch=3, **EFFECT),  # type: ignore[arg-type]
        ],
    ),
    "ghost-ack: settled after a seek had taken its lane away": (
        {"ghost-ack"},
        [*sent(1), *handled(1, 1, until=5, settled=True, asked=4), *BACK],
    ),
    "misdirected: another group gets what was redriven": (
        {"misdirected"},
        [
            *sent(1),
            *handled(1, 1, outcome="raised"),
            *handled(1, 1, group="h"),
            *redriven(2, 1),
            *handled(2, 3),
            *handled(2, 3, group="h"),
        ],
    ),
    "unseen: what was redriven is not handled": (
        {"unseen"},
        [*sent(1), *handled(1, 1, outcome="raised"), *redriven(2, 1), *logged(2), *drained()],
    ),
    "unseen: what was redriven failed again, and is not among the dead letters": (
        {"unseen"},
        [
            *sent(1),
            *handled(1, 1, outcome="raised"),
            *redriven(2, 1),
            *handled(2, 3, outcome="raised"),
            *logged(2),
            *drained(),
        ],
    ),
    "lost-write: what was redriven is passed over": (
        {"lost-write", "poll-skip"},
        [*sent(1), *handled(1, 1, outcome="raised"), *redriven(2, 1), *sent(3), *handled(3, 4)],
    ),
    "inconsistent-offsets: a dead letter was redriven twice": (
        {"inconsistent-offsets", "duplicate"},
        [
            *sent(1),
            *handled(1, 1, outcome="raised"),
            *redriven(2, 1),
            *handled(2, 3, name="m2"),
            *handled(3, 4, name="m2"),
        ],
    ),
    "begun-while-paused: longer than a keeper's turn after it": (
        {"begun-while-paused"},
        [*sent(1), *steered("pause", 1, until=4), *handled(1, 2.5)],
    ),
    "begun-while-paused: the whole group": (
        {"begun-while-paused"},
        [*sent(1), *steered("pause", 1, until=4, key=None), *handled(1, 2.5)],
    ),
}

GOOD = {
    "a seek brings two back, confirmed or not": [
        *TWO,
        *BACK,
        *handled(1, 4, epoch=3),
        *handled(2, 5, epoch=3),
        *drained(),
    ],
    "a seek whose outcome is unknown asks for nothing": [
        *TWO,
        *steered("seek", 3, certain=False),
        *handled(2, 5, epoch=3),
        *drained(),
    ],
    "a seek back while a handler runs: its settlement is refused": [
        *sent(1),
        *sent(2),
        *handled(1, 1, settled=True),
        *handled(2, 2.5, until=6, settled=False, outcome="raised"),
        *steered("seek", 3, offset=0, before=1),
        *handled(1, 4, process="p2", epoch=3),
        *handled(2, 5, process="p2", epoch=3),
        *drained(),
    ],
    "who has not heard of it begins one more": [
        *sent(1),
        *sent(2),
        *handled(1, 2.5),
        *steered("release", 2.6),
        *handled(2, 3.1, until=3.3),
        *handled(1, 3.4, process="p2", epoch=3),
        *handled(2, 4, process="p2", epoch=3),
        *drained(),
    ],
    "each seek allows one effect more": [
        *sent(1),
        *handled(1, 1, **EFFECT),  # type: ignore[arg-type]
        *steered("seek", 3, offset=0, before=1, group="e"),
        *handled(1, 4, epoch=3, **EFFECT),  # type: ignore[arg-type]
        *drained("e"),
    ],
    "skipped while its handler runs": [
        *sent(1),
        *sent(2),
        *handled(1, 1, until=5, settled=False, outcome="raised"),
        *steered("skip", 2, offset=1),
        *handled(2, 3, epoch=3),
        *drained(),
    ],
    "skipped, and then brought back by a seek": [
        *TWO,
        *sent(3),
        *steered("skip", 2.7, offset=3),
        *steered("seek", 3, offset=1, before=3),
        *handled(2, 4, epoch=4),
        *handled(3, 5, epoch=4),
        *drained(),
    ],
    "redriven for one group, passed by the other": [
        *sent(1),
        *handled(1, 1, outcome="raised"),
        *handled(1, 1, group="h"),
        *redriven(2, 1),
        *sent(3),
        *handled(2, 4),
        *handled(3, 5),
        *handled(3, 5, group="h"),
        *logged(0, head=3),
        *drained("g"),
        *drained("h"),
    ],
    "redriven, failed again, and redriven again": [
        *sent(1, outcome="unknown"),
        *handled(1, 1, outcome="raised"),
        *redriven(2, 1),
        *handled(2, 3, outcome="raised"),
        *redriven(3, 1),
        *handled(3, 5),
        *logged(0, head=3),
        *drained(),
    ],
    "paused: what ran goes on, and one begins before the keeper's turn": [
        *sent(1),
        *sent(2),
        *handled(1, 1, until=3),
        *steered("pause", 1.2, until=4),
        *handled(2, 4.1),
        *drained(),
    ],
    "paused: another lane and another group go on": [
        *sent(1),
        *steered("pause", 0.5, until=4, key="l"),
        *steered("pause", 0.5, until=4, group="h"),
        *handled(1, 2.5),
    ],
    "paused, and its process could not hear of it": [
        *sent(1),
        *steered("pause", 1, until=4),
        *fault("cut", 0.9, 0.9),
        *handled(1, 2.5),
    ],
}


@pytest.mark.parametrize(("expected", "history"), BAD.values(), ids=list(BAD))
def test_an_operator_is_no_excuse(expected: set[str], history: list[Event]) -> None:
    """What a verb cannot have caused, or has promised, is named: nothing is lost by a seek, a skip or a redrive."""
    assert kinds(unexplained(check(history, effect_groups=["e"]))) == expected


@pytest.mark.parametrize("history", GOOD.values(), ids=list(GOOD))
def test_what_an_operator_asked_for_is_no_anomaly(history: list[Event]) -> None:
    """Redelivery behind the place of a seek, and overlap until the owner hears that its lane was taken."""
    assert unexplained(check(history, effect_groups=["e"])) == []


def test_the_cause_is_the_verb() -> None:
    """What an operator's verb explains is counted under it."""
    found = check(GOOD["a seek brings two back, confirmed or not"])
    assert {(a.kind, a.explained_by) for a in found} == {("duplicate", "seek"), ("nonmonotonic-poll", "seek")}
    found = check(GOOD["who has not heard of it begins one more"])
    assert {a.explained_by for a in found} == {"release"}


def test_the_same_seed_gives_the_same_operations() -> None:
    """Verbs and their times depend on the seed alone; all of them come within a minute."""
    assert operations(7, 60, 200) == operations(7, 60, 200)
    assert operations(7, 60, 200) != operations(8, 60, 200)
    for seed in range(20):
        plan = operations(seed, 60, 200)
        assert {operation.verb for operation in plan} == set(VERBS)
        assert all((operation.lane is None) <= (operation.verb in ("redrive", "pause")) for operation in plan)
