"""The flush of a lane and `message.transaction()`, against the lane's hand-over, a time-out and a sudden death.

One side is stopped in a process of its own, before and behind each of its locks, while the other side runs; then the
other way round. `engine/test_timeouts.py` has time-outs in the handler's own time, `client/test_life_cycle.py` and
`engine/test_fair_share.py` hand-overs that nobody disturbs, `engine/test_slow_lock.py` a flush that meets a lock of
somebody else.
"""

import json

import pytest

from lanelog import Client
from support.pace import paced
from support.settling import assert_nothing_left, create_effects, effects, settling
from support.stage import Actor, Stage, thorough
from support.waiting import Record, eventually

IN_FLIGHT = [
    ("return", "before leases.FENCE"),
    ("return", "before COMMIT following flushes.FLUSH"),
    ("return", "after COMMIT following flushes.FLUSH"),
    ("reject", "after dead_letters.BURY"),
    ("transaction", "after deliveries.SETTLE_SAME"),
]
CLAIMED = [
    "before leases.FENCE following handler_transaction.SET_PATIENCE",
    "after deliveries.SETTLE_SAME",
    "before COMMIT following deliveries.SETTLE_SAME",
    "after COMMIT following deliveries.SETTLE_SAME",
]
VISIBLE = 60.0


@pytest.fixture(autouse=True)
def _soon(stage: Stage) -> None:
    paced(stage.client, keeper={"claim_seconds": 0.2})


def next_member(client: Client) -> Record:
    """What one sees who subscribes now: (key, offset, attempt, token)."""
    seen = Record()
    client.subscribe("t", "g", lambda m: seen((m.key, m.offset, m.attempt, m.fencing_token)), name="next")
    return seen


# -- release and flush ---------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(("how", "point"), [IN_FLIGHT[2], *IN_FLIGHT[:2], *IN_FLIGHT[3:]])
def test_a_lane_is_not_released_by_a_stop_before_its_last_settlement_is_known(
    stage: Stage, how: str, point: str
) -> None:
    """The other lane goes at once, this one after the settlement; the next owner begins behind it, with attempt 1."""
    owner = settling(stage, how, point, "l")
    stopping = owner.call("stop")
    seen = next_member(stage.client)
    stage.client.publish_many("t", [("k", "{}"), ("l", "{}")])
    assert [item[:3] for item in seen.wait(1)] == [("l", 2, 1)]
    owner.pass_by("after leases.OWNED")  # a member that stops reads them in each turn
    assert stage.owners()["k"] == "owner"
    assert not stopping.done
    owner.go(point)
    assert stopping.result() is True
    assert [item[:3] for item in seen.wait(2)] == [("l", 2, 1), ("k", 3, 1)]
    assert owner.started() == [(1, 1), (2, 1)]
    stage.until_acked(3)
    assert_nothing_left(stage)


@pytest.mark.thorough
@pytest.mark.parametrize(("how", "point"), IN_FLIGHT[1::2])
def test_a_lane_is_not_shed_before_its_last_settlement_is_known(stage: Stage, how: str, point: str) -> None:
    """A second member is due one of the two lanes: it gets the settled one, and no message twice."""
    owner = settling(stage, how, point, "l")
    seen = next_member(stage.client)
    owner.pass_by("after heartbeats.MEMBERS")
    owner.turn()
    assert stage.owners()["k"] == "owner"
    stage.client.publish_many("t", [("k", "{}"), ("l", "{}")])
    owner.go(point)
    eventually(lambda: sorted(stage.owners().values()) == ["next", "owner"], what="one lane for each")
    stage.until_acked(3)
    stage.until_acked(2, "l")
    assert owner.started() + [item[1:3] for item in seen.items if item[0] == "k"] == [(1, 1), (2, 1), (3, 1)]
    assert_nothing_left(stage)


@pytest.mark.parametrize(
    "point",
    [
        "before COMMIT following leases.RELEASE",
        *thorough("after leases.RELEASE", "after COMMIT following leases.RELEASE"),
    ],
)
def test_a_message_that_comes_while_its_lane_is_released_is_the_next_owners(stage: Stage, point: str) -> None:
    """The leaving owner starts nothing any more; the next waits for nobody, and has the lane after that COMMIT."""
    owner = stage.member("owner")
    stage.client.publish("t", "k", "{}")
    owner.handled(1, "key")
    owner.pause(point)
    stopping = owner.call("stop")
    owner.paused(point)
    stage.client.publish("t", "k", "{}")
    stage.client.publish("t", "new", "{}")
    seen = next_member(stage.client)
    if "after COMMIT" in point:
        seen.until(lambda items: ("k", 2, 1, 3) in items)
    else:
        # It has its share of lanes to claim, and does not wait for the one that it cannot have.
        assert seen.wait(1) == [("new", 1, 1, 1)]
        assert stage.owners()["k"] == "owner"
    assert not stopping.done
    owner.go(point)
    assert stopping.result() is True
    assert sorted(seen.wait(2)) == [("k", 2, 1, 3), ("new", 1, 1, 1)]
    assert owner.started() == [(1, 1)]


# -- flush and flush ------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("how", "point"), [("transaction", "after deliveries.SETTLE_SAME"), ("reject", "after deliveries.SETTLE")]
)
def test_flushes_of_two_owners_do_not_meet_in_each_others_lanes(stage: Stage, how: str, point: str) -> None:
    """One owner's delivery row is not committed; the other writes and deletes his own, in the same group, at once."""
    create_effects(stage.raw)
    stage.client.publish_many("t", [("k", "{}"), ("l", "{}")])
    first, _ = stage.member("first"), stage.member("second")
    eventually(lambda: sorted(stage.owners().values()) == ["first", "second"], what="one lane for each")
    stage.until_acked(1, "k", "l")
    lanes = {owner: key for key, owner in stage.owners().items()}
    first.pause(point)
    stage.client.publish("t", lanes["first"], json.dumps({"how": how}))
    first.paused(point)
    stage.client.publish_many("t", [(lanes["second"], json.dumps({"how": "transaction"}))] * 3)
    stage.until_acked(4, lanes["second"])
    assert_nothing_left(stage)
    assert stage.acked(lanes["first"]) == 1
    first.go(point)
    stage.until_acked(2, lanes["first"])
    assert not stage.fleet.logged("loop.failed")


# -- message.transaction() and time-out ----------------------------------------------------------------------------


def in_transaction(stage: Stage, point: str) -> Actor:
    """A process whose handler is stopped at this point of its transaction, and is not extended."""
    create_effects(stage.raw)
    owner = stage.actor("owner").pause(point)
    owner.do("subscribe", topic="t", group="g", visibility_timeout=VISIBLE, auto_extend=False)
    stage.client.publish("t", "k", json.dumps({"how": "transaction"}))
    return owner.paused(point)


@pytest.mark.thorough
def test_a_time_out_before_the_claim_fences_the_transaction(stage: Stage) -> None:
    """The block has ended, its claim has not: attempt 2 commits, attempt 1 raises LeaseLost and leaves nothing."""
    point = "before RECLAIM"
    owner = in_transaction(stage, point)
    owner.do("let_pass", seconds=VISIBLE)
    stage.until_acked(1)
    assert effects(stage.raw, "o, attempt") == [(1, 2)]
    owner.go(point)
    (line,) = owner.program.said("lost")
    assert line["attempt"] == 1
    assert owner.started() == [(1, 1), (1, 2)]
    assert effects(stage.raw, "o, attempt") == [(1, 2)]


@pytest.mark.parametrize("point", [CLAIMED[0], *thorough(*CLAIMED[1:])])
def test_a_claimed_settlement_is_not_given_up(stage: Stage, point: str) -> None:
    """Between the claim and the answer to its COMMIT no time-out counts: there is no attempt 2, and one effect."""
    owner = in_transaction(stage, point)
    stage.client.publish("t", "k", "{}")
    stage.client.publish("t", "other", "{}")
    assert owner.handled(1, "key") == ["other"]
    owner.do("let_pass", seconds=VISIBLE)
    owner.turn()
    stage.client.publish("t", "other", "{}")
    assert owner.handled(2, "key") == ["other", "other"]
    assert owner.started() == [(1, 1)]
    owner.go(point)
    stage.until_acked(2)
    assert owner.started() == [(1, 1), (2, 1)]
    assert effects(stage.raw, "o, attempt") == [(1, 1)]
    assert_nothing_left(stage)


@pytest.mark.thorough
@pytest.mark.parametrize("point", CLAIMED[2:])
def test_a_death_around_the_commit_leaves_one_effect(stage: Stage, point: str) -> None:
    """Killed before it: the next owner does it again, from nothing. Killed after it: the next owner goes on behind."""
    owner = in_transaction(stage, point)
    heir = stage.member("heir")
    owner.program.kill()
    stage.client.publish("t", "k", "{}")
    stage.until_acked(2)
    committed = point.startswith("after")
    assert heir.started() == ([(2, 1)] if committed else [(1, 2), (2, 1)])
    assert effects(stage.raw, "o, attempt") == [(1, 1 if committed else 2)]
