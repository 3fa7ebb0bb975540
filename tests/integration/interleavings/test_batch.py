"""The transaction of a batch of two lanes, against an operator who takes one, and a process that dies over it."""

import json

import pytest

from support.settling import HANDLING, assert_nothing_left, create_effects, effects
from support.stage import Actor, Stage
from support.waiting import eventually

BATCH = {"size": 2, "wait": 2.0, "across": "lanes"}
BEFORE_THE_FENCE = "before leases.FENCE following handler_transaction.SET_PATIENCE"
BEHIND_THE_FENCE = "before COMMIT following deliveries.SETTLE_UNSETTLED"
COMMITTED = "after COMMIT following deliveries.SETTLE_UNSETTLED"


def settling(stage: Stage, point: str) -> Actor:
    """An owner of the lanes j and k, stopped at this point of settling the first message of both."""
    create_effects(stage.raw)
    payload = json.dumps({"wait": HANDLING})
    stage.client.publish_many("t", [("j", payload), ("k", payload)])
    owner = stage.member("owner", batch=BATCH)
    owner.paused(HANDLING).pause(point).go(HANDLING)
    return owner.paused(point)


def assert_each_once(stage: Stage, attempts: dict[str, int]) -> None:
    """Both messages are settled, and the effect of each is there once, of this attempt."""
    stage.until_acked(1, "j", "k")
    assert_nothing_left(stage)
    assert sorted(effects(stage.raw, "k, o, attempt")) == [(key, 1, attempts[key]) for key in ("j", "k")]


def release(stage: Stage) -> object:
    return stage.client.admin.release("t", "g", "k", dry_run=False)


@pytest.mark.thorough
def test_a_lane_that_is_released_before_the_fence_takes_the_whole_batch_with_it(stage: Stage) -> None:
    """The fence finds one of two epochs: nothing is committed, and both messages come again, one of them uncounted."""
    owner = settling(stage, BEFORE_THE_FENCE)
    release(stage)
    owner.go(BEFORE_THE_FENCE)
    owner.program.said("lost")
    assert_each_once(stage, {"j": 1, "k": 2})


@pytest.mark.thorough
def test_an_operator_waits_for_a_batch_behind_its_fence(stage: Stage) -> None:
    """The leases of all its lanes are locked until its COMMIT, and the operator comes after that."""
    owner = settling(stage, BEHIND_THE_FENCE)
    releasing = stage.waiting(release, stage)
    owner.go(BEHIND_THE_FENCE)
    releasing.result(20)
    assert_each_once(stage, {"j": 1, "k": 1})
    assert owner.started("j") == owner.started("k") == [(1, 1)]


@pytest.mark.thorough
@pytest.mark.parametrize("point", [BEHIND_THE_FENCE, COMMITTED])
def test_a_process_that_dies_over_the_commit_has_settled_all_of_the_batch_or_nothing(stage: Stage, point: str) -> None:
    """Before the COMMIT another process handles both messages, as attempt 2; after it nobody does."""
    owner = settling(stage, point)
    owner.program.kill()
    heir = stage.member("heir", batch=BATCH)
    assert_each_once(stage, dict.fromkeys("jk", 2 if point == BEHIND_THE_FENCE else 1))
    stage.client.publish("t", "j", "{}")
    eventually(lambda: heir.started("j")[-1:] == [(2, 1)])
    stage.until_acked(2, "j")
    assert len(effects(stage.raw)) == 3
