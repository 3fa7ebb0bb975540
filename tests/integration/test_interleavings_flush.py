"""The flush of a lane and `message.transaction()`, against the lane's hand-over, a time-out and a sudden death.

One side is stopped in a process of its own, before and behind each of its locks, while the other side runs; then the
other way round. `test_timeouts.py` has time-outs in the handler's own time, `test_life_cycle.py` and
`test_fair_share.py` hand-overs that nobody disturbs, `test_slow_lock.py` a flush that meets a lock of somebody else.
"""

import json
from typing import Any

import pytest

from lanelog import Client
from lanelog._engine import membership_keeper
from support.sql import delivery_rows, owners, rows, watermark
from support.stage import Actor, Stage
from support.waiting import Record, eventually, never

HANDLING = "in the handler"
VISIBLE = {"visibility_timeout": 2.0, "auto_extend": False}  # time enough for a login and a claim on a busy machine
IN_FLIGHT = [
    ("return", "before leases.FENCE"),
    ("return", "before COMMIT following offsets.FLUSH"),
    ("return", "after COMMIT following offsets.FLUSH"),
    ("reject", "after moves.BURY"),
    ("transaction", "after deliveries.SETTLE_SAME"),
]
CLAIMED = [
    "before leases.FENCE following delivery.SET_PATIENCE",
    "after deliveries.SETTLE_SAME",
    "before COMMIT following deliveries.SETTLE_SAME",
    "after COMMIT following deliveries.SETTLE_SAME",
]


@pytest.fixture(autouse=True)
def _effects(raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_keeper, "CLAIM_EVERY", 0.2)
    rows(
        raw,
        "CREATE TABLE effects (n INT AUTO_INCREMENT PRIMARY KEY, k VARCHAR(9), o INT, who VARCHAR(9), attempt INT)",
    )


def names(raw: Any) -> dict[str, str]:
    return {key: owner.split(":")[0] for key, owner in owners(raw, "g", "t").items()}


def started(actor: Actor, key: str = "k") -> list[tuple[int, int]]:
    """(offset, attempt) of whatever this process has begun to handle."""
    lines = [line for line in actor.program.lines if line.event == "started" and line["key"] == key]
    return [(line["offset"], line["attempt"]) for line in lines]


def effects(raw: Any) -> list[tuple[int, int]]:
    return rows(raw, "SELECT o, attempt FROM effects ORDER BY n")


# -- release and flush ---------------------------------------------------------------------------------------------


def settling(stage: Stage, client: Client, raw: Any, how: str, point: str) -> Actor:
    """An owner of lanes `k` and `l`, stopped at this point of settling offset 2 of lane k."""
    owner = stage.actor("owner")
    owner.do("subscribe", topic="t", group="g")
    client.publish_many("t", [("k", json.dumps({"how": how})), ("l", "{}")])
    eventually(lambda: watermark(raw, "g", "t", "k") == watermark(raw, "g", "t", "l") == 1)
    client.publish("t", "k", json.dumps({"how": how, "wait": HANDLING}))
    owner.paused(HANDLING)
    owner.pause(point, "k").go(HANDLING)
    return owner.paused(point)


@pytest.mark.parametrize(("how", "point"), IN_FLIGHT)
def test_a_lane_is_not_released_by_a_stop_before_its_last_settlement_is_known(
    stage: Stage, lanelog_client: Client, raw: Any, how: str, point: str
) -> None:
    """The other lane goes at once, this one after the settlement; the next owner begins behind it, with attempt 1."""
    seen = Record()
    owner = settling(stage, lanelog_client, raw, how, point)
    stopping = owner.call("stop")
    lanelog_client.subscribe("t", "g", lambda m: seen((m.key, m.offset, m.attempt)), name="next")
    lanelog_client.publish_many("t", [("k", "{}"), ("l", "{}")])
    assert seen.wait(1) == [("l", 2, 1)]
    never(lambda: names(raw)["k"] != "owner", during=0.5, what="a release of what is being settled")
    assert not stopping.done
    owner.go(point)
    assert stopping.result() is True
    assert seen.wait(2) == [("l", 2, 1), ("k", 3, 1)]
    assert started(owner) == [(1, 1), (2, 1)]
    eventually(lambda: watermark(raw, "g", "t", "k") == 3)
    eventually(lambda: not delivery_rows(raw, "g", "t"))


@pytest.mark.parametrize(("how", "point"), IN_FLIGHT[1::2])
def test_a_lane_is_not_shed_before_its_last_settlement_is_known(
    stage: Stage, lanelog_client: Client, raw: Any, how: str, point: str
) -> None:
    """A second member is due one of the two lanes: it gets the settled one, and no message twice."""
    seen = Record()
    owner = settling(stage, lanelog_client, raw, how, point)
    lanelog_client.subscribe("t", "g", lambda m: seen((m.key, m.offset, m.attempt)), name="second")
    never(lambda: names(raw)["k"] != "owner", during=1.0, what="a release of what is being settled")
    lanelog_client.publish_many("t", [("k", "{}"), ("l", "{}")])
    owner.go(point)
    eventually(lambda: sorted(names(raw).values()) == ["owner", "second"], what="one lane for each")
    eventually(lambda: watermark(raw, "g", "t", "k") == 3 and watermark(raw, "g", "t", "l") == 2)
    mine = [item[1:] for item in seen.items if item[0] == "k"]
    assert started(owner) + mine == [(1, 1), (2, 1), (3, 1)]
    eventually(lambda: not delivery_rows(raw, "g", "t"))


@pytest.mark.parametrize(
    "point", ["after leases.RELEASE", "before COMMIT following leases.RELEASE", "after COMMIT following leases.RELEASE"]
)
def test_a_message_that_comes_while_its_lane_is_released_is_the_next_owners(
    stage: Stage, lanelog_client: Client, raw: Any, point: str
) -> None:
    """Who leaves starts nothing any more; who comes waits for nobody, and has the lane as soon as that commits."""
    seen = Record()
    owner = stage.actor("owner")
    owner.do("subscribe", topic="t", group="g")
    lanelog_client.publish("t", "k", "{}")
    owner.program.said("handled")
    owner.pause(point)
    stopping = owner.call("stop")
    owner.paused(point)
    lanelog_client.publish("t", "k", "{}")
    lanelog_client.publish("t", "new", "{}")
    lanelog_client.subscribe("t", "g", lambda m: seen((m.key, m.offset, m.attempt, m.fencing_token)), name="next")
    if "after COMMIT" in point:
        seen.until(lambda items: ("k", 2, 1, 3) in items)
    else:
        # It has its share of lanes to claim, and does not wait for the one that it cannot have.
        assert seen.wait(1) == [("new", 1, 1, 1)]
        assert names(raw)["k"] == "owner"
    assert not stopping.done
    owner.go(point)
    assert stopping.result() is True
    assert sorted(seen.wait(2)) == [("k", 2, 1, 3), ("new", 1, 1, 1)]
    assert started(owner) == [(1, 1)]


# -- flush and flush ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["transaction", "reject"])
def test_flushes_of_two_owners_do_not_meet_in_each_others_lanes(
    stage: Stage, lanelog_client: Client, raw: Any, how: str
) -> None:
    """One owner's delivery row is not committed; the other writes and deletes his own, in the same group, at once."""
    point = "after deliveries.SETTLE_SAME" if how == "transaction" else "after deliveries.SETTLE"
    first, second = stage.actor("first"), stage.actor("second")
    lanelog_client.publish_many("t", [("k", "{}"), ("l", "{}")])
    for actor in (first, second):
        actor.do("subscribe", topic="t", group="g")
    eventually(lambda: sorted(names(raw).values()) == ["first", "second"], what="one lane for each")
    eventually(lambda: watermark(raw, "g", "t", "k") == watermark(raw, "g", "t", "l") == 1)
    lanes = {owner: key for key, owner in names(raw).items()}
    first.pause(point)
    lanelog_client.publish("t", lanes["first"], json.dumps({"how": how}))
    first.paused(point)
    lanelog_client.publish_many("t", [(lanes["second"], json.dumps({"how": "transaction"}))] * 3)
    eventually(lambda: watermark(raw, "g", "t", lanes["second"]) == 4, what="the other owner's flush")
    eventually(lambda: not delivery_rows(raw, "g", "t"), what="the deletion of his rows")
    assert watermark(raw, "g", "t", lanes["first"]) == 1
    first.go(point)
    eventually(lambda: watermark(raw, "g", "t", lanes["first"]) == 2)
    assert not stage.fleet.logged("loop.failed")


# -- message.transaction() and time-out ----------------------------------------------------------------------------


def in_transaction(stage: Stage, client: Client, point: str) -> Actor:
    """A process whose handler is stopped at this point of its transaction, with a short time-out."""
    owner = stage.actor("owner").pause(point)
    owner.do("subscribe", topic="t", group="g", **VISIBLE)
    client.publish("t", "k", json.dumps({"how": "transaction"}))
    return owner.paused(point)


def test_a_time_out_before_the_claim_fences_the_transaction(stage: Stage, lanelog_client: Client, raw: Any) -> None:
    """Its block is through, its claim is not: attempt 2 commits, attempt 1 raises LeaseLost and leaves nothing."""
    point = "before RELEASE SAVEPOINT lanelog_start"
    owner = in_transaction(stage, lanelog_client, point)
    eventually(lambda: watermark(raw, "g", "t", "k") == 1, what="attempt 2")
    assert effects(raw) == [(1, 2)]
    owner.go(point)
    (line,) = owner.program.said("lost")
    assert line["attempt"] == 1
    assert started(owner) == [(1, 1), (1, 2)]
    assert effects(raw) == [(1, 2)]


@pytest.mark.parametrize("point", CLAIMED)
def test_a_claimed_settlement_is_not_given_up(stage: Stage, lanelog_client: Client, raw: Any, point: str) -> None:
    """Between the claim and the answer to its COMMIT no time-out counts: there is no attempt 2, and one effect."""
    owner = in_transaction(stage, lanelog_client, point)
    lanelog_client.publish("t", "k", "{}")
    lanelog_client.publish("t", "other", "{}")
    (line,) = owner.program.said("handled")
    assert line["key"] == "other"
    never(lambda: len(started(owner)) > 1, during=2.6, what="another attempt, or the next message")
    owner.go(point)
    eventually(lambda: watermark(raw, "g", "t", "k") == 2)
    assert started(owner) == [(1, 1), (2, 1)]
    assert effects(raw) == [(1, 1)]
    assert not owner.program.said("handled", count=3)[0]["attempt"] > 1
    eventually(lambda: not delivery_rows(raw, "g", "t"))


@pytest.mark.parametrize("point", CLAIMED[2:])
def test_a_death_around_the_commit_leaves_one_effect(
    stage: Stage, lanelog_client: Client, raw: Any, point: str
) -> None:
    """Killed before it: the next owner does it again, from nothing. Killed after it: the next owner goes on behind."""
    owner = in_transaction(stage, lanelog_client, point)
    heir = stage.actor("heir")
    heir.do("subscribe", topic="t", group="g")
    owner.program.kill()
    lanelog_client.publish("t", "k", "{}")
    eventually(lambda: watermark(raw, "g", "t", "k") == 2, within=30, what="the heir's work")
    committed = point.startswith("after")
    assert started(heir) == ([(2, 1)] if committed else [(1, 2), (2, 1)])
    assert effects(raw) == [(1, 1 if committed else 2)]
