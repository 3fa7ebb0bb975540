"""The steal of a lane, against everything that its old owner may be in the middle of: flush, dead letter, transaction.

The old owner is a process whose keeper hangs before a heartbeat, so that its heartbeat runs out, and whose settlement
is stopped before, between and behind its statements; then the thief is the one that is stopped.
`test_stopped_process.py` has the process that is stopped as a whole, `test_failover.py` the one that dies.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

import lanelog
from lanelog import Client, Message, Reject
from lanelog._engine import membership_keeper
from support.sql import delivery_rows, one, owners, rows, watermark
from support.stage import Actor, Stage, wait_until_blocked
from support.waiting import Record, eventually, never

LEASE = {"lease_duration": 0.6, "lease_renewal": 0.15}
HANG = "before heartbeats.BEAT"
HANDLING = "in the handler"

BEFORE_THE_FENCE = [
    ("return", "before leases.FENCE"),
    ("reject", "after discovery.TRY_LOCK_HEAD"),
    ("transaction", "before leases.FENCE following delivery.SET_PATIENCE"),
]
BEHIND_THE_FENCE = [
    ("return", "after leases.FENCE"),
    ("return", "before COMMIT following offsets.FLUSH"),
    ("reject", "after leases.FENCE following discovery.TRY_LOCK_HEAD"),
    ("reject", "before COMMIT following moves.BURY"),
    ("transaction", "after leases.FENCE following delivery.SET_PATIENCE"),
    ("transaction", "before COMMIT following deliveries.SETTLE_SAME"),
]
COMMITTED = [
    ("return", "after COMMIT following offsets.FLUSH"),
    ("reject", "after COMMIT following moves.BURY"),
    ("transaction", "after COMMIT following deliveries.SETTLE_SAME"),
]


@pytest.fixture(autouse=True)
def _effects(raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_keeper, "CLAIM_EVERY", 0.2)
    rows(
        raw,
        "CREATE TABLE effects (n INT AUTO_INCREMENT PRIMARY KEY, k VARCHAR(9), o INT, who VARCHAR(9), attempt INT)",
    )


@pytest.fixture
def heir(lanelog_url: str) -> Iterator[Client]:
    """A client whose session is old enough to take an expired heartbeat for a death."""
    with lanelog.connect(lanelog_url) as client:
        client.subscribe("elsewhere", "g", lambda _: None, **LEASE)
        yield client


def dying_owner(stage: Stage, client: Client, raw: Any, how: str, point: str) -> Actor:
    """An owner of lanes `k` and `free` whose keeper hangs, stopped at this point of settling offset 2 of lane k.

    Offset 1 of both lanes is settled; so the dead letters' lane, if there is one, exists.
    """
    zombie = stage.actor("zombie")
    zombie.do("subscribe", topic="t", group="g", **LEASE)
    client.publish_many("t", [("k", json.dumps({"how": how})), ("free", "{}")])
    eventually(lambda: watermark(raw, "g", "t", "k") == watermark(raw, "g", "t", "free") == 1)
    client.publish("t", "k", json.dumps({"how": how, "wait": HANDLING}))
    zombie.paused(HANDLING)
    zombie.pause(point, "k").go(HANDLING)
    zombie.paused(point)
    zombie.pause(HANG).paused(HANG)
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

    return client.subscribe("t", "g", handle, name="heir", **LEASE)


def dead_letters(raw: Any) -> list[tuple[int, int]]:
    return rows(raw, "SELECT `offset`, original_offset FROM queue_messages WHERE topic = 't_dlq' ORDER BY 1")


def effects(raw: Any) -> list[tuple[int, str]]:
    return rows(raw, "SELECT o, who FROM effects ORDER BY n")


def names(raw: Any) -> dict[str, str]:
    return {key: owner.split(":")[0] for key, owner in owners(raw, "g", "t").items()}


def assert_settled_once(raw: Any, how: str, second_by: str) -> None:
    """Both messages of lane k are settled, with what that means for each kind of settlement."""
    assert dead_letters(raw) == ([(1, 1), (2, 2)] if how == "reject" else [])
    assert effects(raw) == ([(1, "zombie"), (2, second_by)] if how == "transaction" else [])


@pytest.mark.parametrize(("how", "point"), BEFORE_THE_FENCE)
def test_a_lane_that_is_stolen_before_the_fence_is_the_heirs_alone(
    stage: Stage, lanelog_client: Client, heir: Client, raw: Any, how: str, point: str
) -> None:
    """The steal does not wait; the heir delivers the message again, and the old owner can write nothing any more."""
    seen = Record()
    zombie = dying_owner(stage, lanelog_client, raw, how, point)
    subscription = inherit(heir, seen)
    eventually(lambda: names(raw) == {"k": "heir", "free": "heir"}, what="the steal")
    assert ("k", 2, 2) in seen.until(lambda items: ("k", 2, 2) in items)
    if how == "reject":
        # Its head is in the old owner's hands: the heir comes back to it, and does other things meanwhile.
        lanelog_client.publish("t", "free", "{}")
        seen.until(lambda items: ("free", 2, 1) in items)
        assert len(dead_letters(raw)) == 1
    else:
        eventually(lambda: watermark(raw, "g", "t", "k") == 2)
    written = rows(raw, "SELECT * FROM queue_partition_leases WHERE partition_key = 'k'")
    zombie.go(point)
    if how == "transaction":
        zombie.program.said("lost")
    else:
        eventually(lambda: stage.fleet.logged("lane.lost") or stage.fleet.logged("settlement.refused"))
    eventually(lambda: watermark(raw, "g", "t", "k") == 2)
    lanelog_client.publish("t", "k", "{}")
    eventually(lambda: watermark(raw, "g", "t", "k") == 3)
    assert [item for item in seen.items if item[0] == "k"] == [("k", 2, 2), ("k", 3, 1)]
    assert rows(raw, "SELECT * FROM queue_partition_leases WHERE partition_key = 'k'") == written
    assert_settled_once(raw, how, "heir")
    assert subscription.stats().refused == 0
    eventually(lambda: not delivery_rows(raw, "g", "t"))


@pytest.mark.parametrize(("how", "point"), BEHIND_THE_FENCE)
def test_a_lane_with_a_settlement_behind_its_fence_is_not_stolen_before_that_commits(
    stage: Stage, lanelog_client: Client, heir: Client, raw: Any, how: str, point: str
) -> None:
    """The heir takes the other lanes without waiting, this one after the commit: the message is not delivered again."""
    seen = Record()
    zombie = dying_owner(stage, lanelog_client, raw, how, point)
    inherit(heir, seen)
    eventually(lambda: names(raw)["free"] == "heir", what="the steal of the other lane")
    lanelog_client.publish_many("t", [("free", "{}"), ("k", "{}")])
    seen.until(lambda items: ("free", 2, 1) in items)
    # The heir has tried both lanes, and tries again and again.
    never(lambda: names(raw)["k"] != "zombie", during=0.5, what="a steal of what is being settled")
    zombie.go(point)
    eventually(lambda: names(raw)["k"] == "heir", what="the steal")
    seen.until(lambda items: ("k", 3, 1) in items)
    eventually(lambda: watermark(raw, "g", "t", "k") == 3)
    assert [item for item in seen.items if item[0] == "k"] == [("k", 3, 1)]
    assert_settled_once(raw, how, "zombie")
    eventually(lambda: not delivery_rows(raw, "g", "t"))


@pytest.mark.parametrize(("how", "point"), COMMITTED)
def test_a_lane_that_is_stolen_right_after_the_commit_goes_on_behind_it(
    stage: Stage, lanelog_client: Client, heir: Client, raw: Any, how: str, point: str
) -> None:
    """Whatever the old owner does not know yet: its settlement stands, and the heir begins with the next message."""
    seen = Record()
    zombie = dying_owner(stage, lanelog_client, raw, how, point)
    inherit(heir, seen)
    eventually(lambda: names(raw) == {"k": "heir", "free": "heir"}, what="the steal")
    lanelog_client.publish("t", "k", "{}")
    seen.until(lambda items: ("k", 3, 1) in items)
    zombie.go(point)
    zombie.go(HANG)
    eventually(lambda: watermark(raw, "g", "t", "k") == 3)
    assert [item for item in seen.items if item[0] == "k"] == [("k", 3, 1)]
    assert_settled_once(raw, how, "zombie")
    eventually(lambda: not delivery_rows(raw, "g", "t"))


@pytest.mark.parametrize("dies", [False, True], ids=["steals", "dies"])
@pytest.mark.parametrize(
    ("how", "point"),
    [
        ("return", "before COMMIT following leases.TAKE"),
        ("reject", "before COMMIT following leases.TAKE"),
        ("transaction", "before COMMIT following leases.TAKE"),
    ],
)
def test_a_settlement_that_meets_a_steal_waits_for_it_and_is_decided_by_it(
    stage: Stage, lanelog_client: Client, raw: Any, how: str, point: str, dies: bool
) -> None:
    """The fence waits for the thief's COMMIT: refused when it comes, written when the thief dies over it."""
    thief = stage.actor("thief")
    thief.do("subscribe", topic="elsewhere", group="g", **LEASE)
    before = dict(BEFORE_THE_FENCE)[how]
    zombie = dying_owner(stage, lanelog_client, raw, how, before)
    thief.pause(point)
    thief.do("subscribe", topic="t", group="g", **LEASE)
    thief.paused(point)
    zombie.go(before)
    wait_until_blocked(raw)
    if dies:
        thief.program.kill()
        eventually(lambda: watermark(raw, "g", "t", "k") == 2, what="the settlement of who stays")
        zombie.go(HANG)
        settled_by = "zombie"
    else:
        thief.go(point)
        settled_by = "thief"
        (line,) = [line for line in thief.program.said("started") if line["key"] == "k"]
        assert (line["offset"], line["attempt"]) == (2, 2)
        if "wait" in json.loads(one(raw, "SELECT payload FROM queue_messages WHERE topic = 't' AND `offset` = 2")):
            thief.paused(HANDLING).go(HANDLING)
        eventually(lambda: watermark(raw, "g", "t", "k") == 2, what="the settlement of the thief")
    lanelog_client.publish("t", "k", "{}")
    eventually(lambda: watermark(raw, "g", "t", "k") == 3)
    assert names(raw) == {"k": settled_by, "free": settled_by}
    assert_settled_once(raw, how, settled_by)
    eventually(lambda: not delivery_rows(raw, "g", "t"))
    if dies:
        started = [(line["key"], line["offset"], line["attempt"]) for line in zombie.program.said("started")]
        assert [item for item in started if item[0] == "k"] == [("k", 1, 1), ("k", 2, 1), ("k", 3, 1)]
