"""Seek, skip and release take a lane from its owner: against everything that the owner may be settling meanwhile.

The owner's settlement is stopped in a process of its own before its fence, behind it, or waits at it for an operator
who is stopped before his COMMIT. `test_admin_seek.py` and `test_admin_steer.py` have the verbs undisturbed,
`test_interleavings_steal.py` an owner that loses its lane because it seems to be dead.
"""

import json
from typing import Any

import pytest

from support.settling import BEFORE_THE_FENCE, BEHIND_THE_FENCE, assert_nothing_left, effects, settling
from support.stage import Actor, Stage, thorough, wait_until_blocked

COMMITTING = "before COMMIT following leases.TAKE_AWAY"
VERBS: dict[str, dict[str, Any]] = {
    "seek": {"key": "k", "to": "earliest"},
    "release": {"key": "k"},
    "skip": {"key": "k", "offset": 2, "reason": "it hangs"},
}
SEEK_RETURN, *OTHERS = [
    ("seek", "return"),
    ("seek", "reject"),
    ("seek", "transaction"),
    ("release", "return"),
    ("skip", "return"),
]
PAIRS = pytest.mark.parametrize(("verb", "how"), [SEEK_RETURN, *thorough(*OTHERS)])

REFUSED = {"seek": [(1, 1), (2, 1)], "release": [(2, 2)], "skip": []}
"""(offset, attempt) of what begins again when the verb came before the settlement of offset 2."""

SETTLED = {"seek": [(1, 1), (2, 1)], "release": [], "skip": []}
"""What begins again when the settlement came first."""


def apply(stage: Stage, verb: str) -> Any:
    return getattr(stage.client.admin, verb)("t", "g", dry_run=False, **VERBS[verb])


def assert_goes_on(stage: Stage, owner: Actor, how: str, again: list[tuple[int, int]], *, settled: bool) -> None:
    """These begin again, then the next message; what is settled is settled as often as it was brought back."""
    stage.client.publish("t", "k", json.dumps({"how": how}))
    stage.until_acked(3)
    assert owner.started() == [(1, 1), (2, 1), *again, (3, 1)]
    assert_nothing_left(stage)
    assert stage.letters() == ([1, 2, 3] if how == "reject" else [])
    done = [1, *([2] if settled else []), *(offset for offset, _ in again), 3]
    assert [offset for (offset,) in effects(stage.raw)] == (done if how == "transaction" else [])


@PAIRS
def test_a_settlement_that_has_not_reached_its_fence_is_refused(stage: Stage, verb: str, how: str) -> None:
    """The operator waits for nobody; the settlement finds another epoch, and undoes nothing of what was done."""
    owner = settling(stage, how, BEFORE_THE_FENCE[how])
    assert apply(stage, verb).dry_run is False
    assert stage.acked() == {"seek": 0, "release": 1, "skip": 2}[verb]
    owner.go(BEFORE_THE_FENCE[how])
    owner.is_refused(how)
    assert_goes_on(stage, owner, how, REFUSED[verb], settled=False)


@pytest.mark.thorough
@PAIRS
def test_a_settlement_behind_its_fence_comes_first(stage: Stage, verb: str, how: str) -> None:
    """The operator waits for its COMMIT: a seek brings it back all the same, release and skip find it settled."""
    owner = settling(stage, how, BEHIND_THE_FENCE[how])
    changing = stage.waiting(apply, stage, verb)
    owner.go(BEHIND_THE_FENCE[how])
    changed = changing.result(20)
    if verb == "seek":
        assert changed.again == 2
    elif verb == "skip":
        assert not changed.changed
    assert_goes_on(stage, owner, how, SETTLED[verb], settled=True)


@pytest.mark.parametrize(
    ("verb", "how", "dies"),
    [
        ("seek", "transaction", False),
        *thorough((*SEEK_RETURN, False), (*SEEK_RETURN, True), ("seek", "transaction", True)),
        *thorough(*((*pair, False) for pair in OTHERS if pair != ("seek", "transaction"))),
    ],
)
def test_a_settlement_that_meets_the_operator_waits_and_is_decided_by_his_commit(
    stage: Stage, verb: str, how: str, dies: bool
) -> None:
    """Refused when he commits, written when he dies over it."""
    owner = settling(stage, how, BEFORE_THE_FENCE[how])
    changing = stage.stopped(COMMITTING, "admin", verb=verb, topic="t", group="g", dry_run=False, **VERBS[verb])
    owner.go(BEFORE_THE_FENCE[how])
    wait_until_blocked(stage.raw)
    changing.end(dies=dies)
    assert_goes_on(stage, owner, how, [] if dies else REFUSED[verb], settled=dies)
