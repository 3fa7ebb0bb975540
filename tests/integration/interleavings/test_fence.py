"""Seek, skip, release and retry take a lane from its owner: against all that the owner may be settling meanwhile.

The owner's settlement is stopped in a process of its own before its fence, behind it, or waits at it for an operator
who is stopped before his COMMIT. `admin/test_seek.py` and `admin/test_steer.py` have the verbs undisturbed,
`interleavings/test_steal.py` an owner that loses its lane because it seems to be dead.
"""

import json
from typing import Any

import pytest

from support.settling import BEFORE_THE_FENCE, BEHIND_THE_FENCE, HANDLING, assert_nothing_left, effects, settling
from support.sql import delivery_rows
from support.stage import DIES, Actor, Stage, thorough, wait_until_blocked
from support.waiting import eventually

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


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("verb", "how", "dies"),
    [
        ("seek", "transaction", False),
        (*SEEK_RETURN, False),
        (*SEEK_RETURN, True),
        ("seek", "transaction", True),
        *((*pair, False) for pair in OTHERS if pair != ("seek", "transaction")),
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


# -- retry -------------------------------------------------------------------------------------------------------------


def settling_beside_a_wait(stage: Stage, point: str) -> Actor:
    """An owner of lane k whose offset 1 failed and waits for an hour, stopped at this point of settling offset 2."""
    owner = stage.member("owner", order="concurrent")
    stage.client.publish("t", "k", json.dumps({"how": "later"}))
    eventually(lambda: [row["retry_count"] for row in delivery_rows(stage.raw, "g", "t")] == [1], what="the wait")
    stage.client.publish("t", "k", json.dumps({"wait": HANDLING}))
    owner.paused(HANDLING).pause(point, "k").go(HANDLING)
    return owner.paused(point)


def retry_now(stage: Stage) -> tuple[int, ...]:
    return stage.client.admin.retry("t", "g", "k", dry_run=False).offsets


def assert_all_begun(stage: Stage, owner: Actor, *begun: tuple[int, int]) -> None:
    stage.until_acked(2)
    assert sorted(owner.started()) == sorted(begun)
    assert_nothing_left(stage)


def test_a_retry_before_the_fence_has_the_settlement_refused(stage: Stage) -> None:
    """Waiting and running messages begin again, each with one attempt more."""
    point = BEFORE_THE_FENCE["return"]
    owner = settling_beside_a_wait(stage, point)
    assert retry_now(stage) == (1,)
    owner.go(point)
    owner.is_refused("return")
    assert_all_begun(stage, owner, (1, 1), (2, 1), (1, 2), (2, 2))


@pytest.mark.thorough
def test_a_retry_behind_the_fence_waits_for_the_settlement(stage: Stage) -> None:
    """Running messages are settled, and only waiting ones begin again."""
    point = BEHIND_THE_FENCE["return"]
    owner = settling_beside_a_wait(stage, point)
    retrying = stage.waiting(retry_now, stage)
    owner.go(point)
    assert retrying.result(20) == (1,)
    assert_all_begun(stage, owner, (1, 1), (2, 1), (1, 2))


@pytest.mark.thorough
@DIES
def test_a_settlement_that_meets_a_retry_is_decided_by_its_commit(stage: Stage, *, dies: bool) -> None:
    """Refused if the operator commits. If he dies, it is written, and what waited goes on waiting."""
    point = BEFORE_THE_FENCE["return"]
    owner = settling_beside_a_wait(stage, point)
    retrying = stage.stopped(COMMITTING, "admin", verb="retry", topic="t", group="g", key="k", dry_run=False)
    owner.go(point)
    wait_until_blocked(stage.raw)
    retrying.end(dies=dies)
    if dies:
        eventually(lambda: [row["acked"] for row in delivery_rows(stage.raw, "g", "t")] == [0, 1])
        assert owner.started() == [(1, 1), (2, 1)]
        assert retry_now(stage) == (1,)
    assert_all_begun(stage, owner, (1, 1), (2, 1), (1, 2), *([] if dies else [(2, 2)]))
