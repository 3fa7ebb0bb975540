"""The steal of a lane, against everything that its old owner may be in the middle of: flush, dead letter, transaction.

The old owner is a process whose keeper hangs, whose heartbeat the test lets run out, and whose settlement is stopped
before, between and behind its statements; then the thief is the one that is stopped. Last, the thief judges an owner
whose heartbeat comes between the statements of the steal. `engine/test_stopped_process.py` has the process that is
stopped as a whole, `engine/test_failover.py` the one that dies.
"""

import json

import pytest

import lanelog
from lanelog import Client, Message, Reject
from support.elapsed import trust_heartbeats_at_once
from support.pace import paced
from support.settling import BEFORE_THE_FENCE, BEHIND_THE_FENCE, HANDLING, assert_nothing_left, effects, settling
from support.sql import rows
from support.stage import DIES, Actor, Stage, thorough, wait_until_blocked
from support.turns import Turns
from support.waiting import Record, eventually

HANG = "before groups.GET"
TAKING = "before COMMIT following leases.TAKE"
COMMITTED = [(how, point.replace("before", "after")) for how, point in BEHIND_THE_FENCE.items()]
AT_THE_FENCE = [
    ("return", "after leases.FENCE"),
    ("reject", "after leases.FENCE following partitions.TRY_LOCK_HEAD"),
    ("transaction", "after leases.FENCE following handler_transaction.SET_PATIENCE"),
]
HOW = pytest.mark.parametrize("how", ["return", *thorough("reject", "transaction")])

BEATING, BEATEN = "before heartbeats.BEAT", "after heartbeats.BEAT"
SEEMS_DEAD = "UPDATE queue_subscriber_heartbeats SET liveness_lock = 'lanelog:of nobody'"
"""Whose lock is free in two looks is dead."""
UNDECIDED = ["after heartbeats.MEMBERS", "before heartbeats.LAST_SIGN"]
DECIDED = ["after heartbeats.LAST_SIGN", TAKING, "after COMMIT following leases.TAKE"]


@pytest.fixture
def turns(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Turns:
    """Those of the heir's keeper: each tries to get what is its share, and trusts its eyes."""
    paced(stage.client, keeper={"claim_seconds": 0.0})
    trust_heartbeats_at_once(monkeypatch.setattr)
    return Turns(monkeypatch)


def dying_owner(stage: Stage, how: str, point: str) -> Actor:
    """An owner of lanes `k` and `free`, stopped at this point of settling offset 2 of lane k, who seems to be dead."""
    zombie = settling(stage, how, point, "free", name="zombie")
    zombie.pause(HANG).paused(HANG)
    zombie.do("lose_authority")
    rows(stage.raw, "UPDATE queue_subscriber_heartbeats SET expires_at = heartbeat_at + 1")
    return zombie


def inherit(client: Client, seen: Record) -> lanelog.Subscription:
    """Subscribe as the heir does, with handlers that do as the messages say."""

    def handle(message: Message) -> None:
        how = message.json().get("how")
        seen((message.key, message.offset, message.attempt))
        if how == "reject":
            raise Reject("by the heir")
        if how == "transaction":
            with message.transaction() as connection:
                connection.cursor().execute(
                    "INSERT INTO effects (k, o, who, attempt) VALUES ('k', %s, 'heir', %s)",
                    (message.offset, message.attempt),
                )

    return client.subscribe("t", "g", handle, name="heir")


def wait_for_the_steal(stage: Stage) -> None:
    eventually(lambda: stage.owners() == {"k": "heir", "free": "heir"}, what="the steal")


def assert_settled_once(stage: Stage, how: str, second_by: str) -> None:
    """Both messages of lane k are settled, with what that means for each kind of settlement."""
    letters = rows(stage.raw, "SELECT `offset`, original_offset FROM queue_messages WHERE topic = 't_dlq' ORDER BY 1")
    assert letters == ([(1, 1), (2, 2)] if how == "reject" else [])
    assert effects(stage.raw, "o, who") == ([(1, "zombie"), (2, second_by)] if how == "transaction" else [])
    assert_nothing_left(stage)


def of_lane_k(seen: Record) -> list[tuple[int, int]]:
    return [item[1:] for item in seen.items if item[0] == "k"]


@HOW
@pytest.mark.usefixtures("turns")
def test_a_lane_that_is_stolen_before_the_fence_is_the_heirs_alone(stage: Stage, how: str) -> None:
    """The steal does not wait; the heir delivers the message again, and the old owner can write nothing any more."""
    seen, lease = Record(), "SELECT * FROM queue_partition_leases WHERE partition_key = 'k'"
    zombie = dying_owner(stage, how, BEFORE_THE_FENCE[how])
    subscription = inherit(stage.client, seen)
    wait_for_the_steal(stage)
    seen.until(lambda items: ("k", 2, 2) in items)
    if how == "reject":
        # Its head is in the old owner's hands: the heir comes back to it, and does other things meanwhile.
        stage.client.publish("t", "free", "{}")
        seen.until(lambda items: ("free", 2, 1) in items)
        assert len(stage.letters()) == 1
    else:
        stage.until_acked(2)
    written = rows(stage.raw, lease)
    zombie.go(BEFORE_THE_FENCE[how])
    zombie.is_refused(how)
    stage.until_acked(2)
    stage.client.publish("t", "k", "{}")
    stage.until_acked(3)
    assert of_lane_k(seen) == [(2, 2), (3, 1)]
    assert rows(stage.raw, lease) == written
    assert_settled_once(stage, how, "heir")
    assert subscription.stats().refused == 0


@pytest.mark.thorough
@pytest.mark.parametrize(("how", "point"), [AT_THE_FENCE[0], *AT_THE_FENCE[1:], *BEHIND_THE_FENCE.items()])
def test_a_lane_with_a_settlement_behind_its_fence_is_not_stolen_before_that_commits(
    stage: Stage, turns: Turns, how: str, point: str
) -> None:
    """The heir takes the other lanes without waiting, this one after the commit: the message is not delivered again."""
    seen = Record()
    zombie = dying_owner(stage, how, point)
    heir = inherit(stage.client, seen)
    eventually(lambda: stage.owners()["free"] == "heir", what="the steal of the other lane")
    stage.client.publish_many("t", [("free", "{}"), ("k", "{}")])
    seen.until(lambda items: ("free", 2, 1) in items)
    turns.pass_by([heir])
    turns.pass_by([heir])
    assert stage.owners()["k"] == "zombie"
    zombie.go(point)
    wait_for_the_steal(stage)
    stage.until_acked(3)
    assert of_lane_k(seen) == [(3, 1)]
    assert_settled_once(stage, how, "zombie")


@pytest.mark.thorough
@pytest.mark.usefixtures("turns")
@pytest.mark.parametrize(("how", "point"), COMMITTED)
def test_a_lane_that_is_stolen_right_after_the_commit_goes_on_behind_it(stage: Stage, how: str, point: str) -> None:
    """The settlement stands, whatever the old owner knows of it, and the next owner begins with the next message."""
    seen = Record()
    zombie = dying_owner(stage, how, point)
    inherit(stage.client, seen)
    wait_for_the_steal(stage)
    stage.client.publish("t", "k", "{}")
    seen.until(lambda items: ("k", 3, 1) in items)
    zombie.go(point)
    zombie.go(HANG)
    stage.until_acked(3)
    assert of_lane_k(seen) == [(3, 1)]
    assert_settled_once(stage, how, "zombie")


@DIES
@HOW
def test_a_settlement_that_meets_a_steal_waits_for_it_and_is_decided_by_it(stage: Stage, how: str, dies: bool) -> None:
    """The fence waits for the thief's COMMIT: refused when it comes, written when the thief dies over it."""
    point = BEFORE_THE_FENCE[how]
    thief = stage.actor("thief", trusting=True)
    zombie = dying_owner(stage, how, point)
    thief.pause(TAKING).do("subscribe", topic="t", group="g")
    thief.paused(TAKING)
    zombie.go(point)
    wait_until_blocked(stage.raw)
    if dies:
        thief.program.kill()
        stage.until_acked(2)
        zombie.go(HANG)
    else:
        thief.go(TAKING)
        thief.paused(HANDLING).go(HANDLING)
        assert thief.started() == [(2, 2)]
        stage.until_acked(2)
    settled_by = "zombie" if dies else "thief"
    stage.client.publish("t", "k", "{}")
    stage.until_acked(3)
    eventually(lambda: stage.owners() == {"k": settled_by, "free": settled_by})
    assert_settled_once(stage, how, settled_by)
    if dies:
        assert zombie.started() == [(1, 1), (2, 1), (3, 1)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("how", "point"), [*BEFORE_THE_FENCE.items(), AT_THE_FENCE[0], ("return", BEHIND_THE_FENCE["return"])]
)
def test_an_owner_that_stands_aside_keeps_a_lane_until_its_settlement_is_written(
    stage: Stage, turns: Turns, how: str, point: str
) -> None:
    """The next owner takes idle lanes at once, and this one after the COMMIT. Nothing is repeated."""
    seen = Record()
    owner = settling(stage, how, point, "free", name="zombie")
    owner.do("stand_aside")
    heir = inherit(stage.client, seen)
    eventually(lambda: stage.owners()["free"] == "heir", what="the lane that nothing is done in")
    turns.pass_by([heir])
    turns.pass_by([heir])
    assert stage.owners()["k"] == "zombie"
    owner.go(point)
    wait_for_the_steal(stage)
    stage.client.publish("t", "k", "{}")
    stage.until_acked(3)
    assert of_lane_k(seen) == [(3, 1)]
    assert_settled_once(stage, how, "zombie")


def judged(stage: Stage, point: str) -> tuple[Actor, Actor]:
    """An owner in the middle of offset 2 of lane k, and a thief that is stopped there.

    The owner seems to be dead, and its heartbeat is on its way: it comes when this returns.
    """
    thief = stage.actor("thief", trusting=True).pause(point)
    owner = stage.member("zombie", lease_renewal=0.5)
    stage.client.publish("t", "k", "{}")
    stage.until_acked(1)
    stage.client.publish("t", "k", json.dumps({"wait": HANDLING}))
    owner.paused(HANDLING).pause(BEATING).paused(BEATING)
    rows(stage.raw, SEEMS_DEAD)
    thief.do("subscribe", topic="t", group="g")
    thief.paused(point)
    owner.pause(BEATEN).go(BEATING)
    return owner.paused(BEATEN), thief


@pytest.mark.thorough
@pytest.mark.parametrize("point", UNDECIDED)
def test_an_owner_whose_heartbeat_comes_before_the_second_check_keeps_its_lane(stage: Stage, point: str) -> None:
    """The heartbeat counts, whatever the taking member has seen before: nothing is repeated, nothing is refused."""
    owner, thief = judged(stage, point)
    thief.go(point)
    thief.turn()
    assert stage.owners() == {"k": "zombie"}
    owner.go(HANDLING)
    stage.until_acked(2)
    owner.go(BEATEN)
    stage.client.publish("t", "k", "{}")
    stage.until_acked(3)
    assert sorted(owner.started() + thief.started()) == [(1, 1), (2, 1), (3, 1)]
    assert_nothing_left(stage)


@pytest.mark.thorough
@pytest.mark.parametrize("point", DECIDED)
def test_an_owner_whose_heartbeat_comes_behind_the_second_check_loses_its_lane_alone(stage: Stage, point: str) -> None:
    """Later writes of the old owner to the lane are refused; the new one begins it again. The old one keeps a share."""
    owner, thief = judged(stage, point)
    thief.go(point)
    thief.paused(HANDLING).go(HANDLING)
    stage.until_acked(2)
    thief.turn()
    assert rows(stage.raw, "SELECT COUNT(*) FROM queue_subscriber_heartbeats WHERE deregistered_at > 0") == [(0,)]
    owner.go(HANDLING)
    owner.go(BEATEN)
    owner.is_refused("return")
    stage.client.publish("t", "k", "{}")
    stage.until_acked(3)
    assert owner.started()[:2] == [(1, 1), (2, 1)]
    assert sorted(thief.started() + owner.started()[2:]) == [(2, 2), (3, 1)]
    assert_nothing_left(stage)


@pytest.mark.thorough
@pytest.mark.parametrize("point", ["before heartbeats.DEREGISTER_DEAD", "after heartbeats.DEREGISTER_DEAD"])
def test_an_owner_whose_heartbeat_meets_its_burial_stays_a_member(stage: Stage, point: str) -> None:
    """The thief has all lanes, and notes that the dead one has left: its heartbeat prevents that, or takes it back."""
    owner, thief = judged(stage, point)
    thief.go(point)
    thief.paused(HANDLING).go(HANDLING)
    thief.turn()
    assert rows(stage.raw, "SELECT COUNT(*) FROM queue_subscriber_heartbeats WHERE deregistered_at > 0") == [(0,)]
    owner.go(HANDLING)
    owner.go(BEATEN)
    owner.is_refused("return")
    stage.until_acked(2)
    assert thief.started() == [(2, 2)]
