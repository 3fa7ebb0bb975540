"""Seek, skip and release take a lane from its owner: against everything that the owner may be settling meanwhile.

The owner's settlement is stopped in a process of its own before its fence, behind it, or waits at it for an operator
who is stopped before his COMMIT. `test_admin_seek.py` and `test_admin_steer.py` have the verbs undisturbed,
`test_interleavings_steal.py` an owner that loses its lane because it seems to be dead.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lanelog import Client
from support.sql import delivery_rows, rows, watermark
from support.stage import Actor, Stage, wait_until_blocked
from support.waiting import eventually

HANDLING = "in the handler"
COMMITTING = "before COMMIT following fence.TAKE_AWAY"
BEFORE_THE_FENCE = {
    "return": "before leases.FENCE",
    "reject": "after discovery.TRY_LOCK_HEAD",
    "transaction": "before leases.FENCE following delivery.SET_PATIENCE",
}
BEHIND_THE_FENCE = {
    "return": "before COMMIT following offsets.FLUSH",
    "reject": "before COMMIT following moves.BURY",
    "transaction": "before COMMIT following deliveries.SETTLE_SAME",
}
VERBS: dict[str, dict[str, Any]] = {
    "seek": {"key": "k", "to": "earliest"},
    "release": {"key": "k"},
    "skip": {"key": "k", "offset": 2, "reason": "it hangs"},
}
PAIRS = [("seek", "return"), ("seek", "reject"), ("seek", "transaction"), ("release", "return"), ("skip", "return")]

FIRST = [(1, 1), (2, 1)]
"""(offset, attempt) of what the owner has begun before the operator comes."""

REFUSED = {"seek": [(1, 1), (2, 1)], "release": [(2, 2)], "skip": []}
"""What begins again when the verb came before the settlement of offset 2."""

SETTLED = {"seek": [(1, 1), (2, 1)], "release": [], "skip": []}
"""What begins again when the settlement came first."""


@pytest.fixture(autouse=True)
def _effects(raw: Any) -> None:
    rows(
        raw,
        "CREATE TABLE effects (n INT AUTO_INCREMENT PRIMARY KEY, k VARCHAR(9), o INT, who VARCHAR(9), attempt INT)",
    )


def settling(stage: Stage, client: Client, raw: Any, how: str, point: str) -> Actor:
    """An owner of lane k that has settled offset 1, stopped at this point of settling offset 2."""
    owner = stage.actor("owner")
    owner.do("subscribe", topic="t", group="g")
    client.publish("t", "k", json.dumps({"how": how}))
    eventually(lambda: watermark(raw, "g", "t", "k") == 1 and not delivery_rows(raw, "g", "t"))
    client.publish("t", "k", json.dumps({"how": how, "wait": HANDLING}))
    owner.paused(HANDLING)
    owner.pause(point, "k").go(HANDLING)
    return owner.paused(point)


def apply(client: Client, verb: str) -> Any:
    return getattr(client.admin, verb)("t", "g", **VERBS[verb])


def assert_went_on(owner: Actor, client: Client, raw: Any, how: str, again: list[tuple[int, int]]) -> None:
    """These begin again, then the next message; what is settled is settled as often as it was brought back."""
    client.publish("t", "k", json.dumps({"how": how}))
    eventually(lambda: watermark(raw, "g", "t", "k") == 3, within=20, what="going on")
    started = [(line["offset"], line["attempt"]) for line in owner.program.lines if line.event == "started"]
    assert started == [*FIRST, *again, (3, 1)]
    eventually(lambda: not delivery_rows(raw, "g", "t"))


def dead_letters(raw: Any) -> list[int]:
    return [
        o for (o,) in rows(raw, "SELECT original_offset FROM queue_messages WHERE topic = 't_dlq' ORDER BY `offset`")
    ]


def effects(raw: Any) -> list[int]:
    return [o for (o,) in rows(raw, "SELECT o FROM effects ORDER BY n")]


@pytest.mark.parametrize(("verb", "how"), PAIRS)
def test_a_settlement_that_has_not_reached_its_fence_is_refused(
    stage: Stage, lanelog_client: Client, raw: Any, verb: str, how: str
) -> None:
    """The operator waits for nobody; the settlement finds another epoch, and undoes nothing of what was done."""
    point = BEFORE_THE_FENCE[how]
    owner = settling(stage, lanelog_client, raw, how, point)
    changed = apply(lanelog_client, verb)
    assert changed.dry_run is False
    before = watermark(raw, "g", "t", "k")
    assert before == {"seek": 0, "release": 1, "skip": 2}[verb]
    owner.go(point)
    if how == "transaction":
        owner.program.said("lost")
    else:
        eventually(lambda: stage.fleet.logged("lane.lost") or stage.fleet.logged("settlement.refused"))
    assert_went_on(owner, lanelog_client, raw, how, REFUSED[verb])
    assert dead_letters(raw) == ([1, 2, 3] if how == "reject" else [])
    assert effects(raw) == ([1, 1, 2, 3] if how == "transaction" else [])


@pytest.mark.parametrize(("verb", "how"), PAIRS)
def test_a_settlement_behind_its_fence_comes_first(
    stage: Stage, lanelog_client: Client, raw: Any, verb: str, how: str
) -> None:
    """The operator waits for its COMMIT: a seek brings it back all the same, release and skip find it settled."""
    point = BEHIND_THE_FENCE[how]
    owner = settling(stage, lanelog_client, raw, how, point)
    with ThreadPoolExecutor(1) as thread:
        changing = thread.submit(apply, lanelog_client, verb)
        wait_until_blocked(raw)
        assert not changing.done()
        owner.go(point)
        changed = changing.result(20)
    if verb == "seek":
        assert changed.again == 2
    elif verb == "skip":
        assert not changed.changed
    assert_went_on(owner, lanelog_client, raw, how, SETTLED[verb])
    assert dead_letters(raw) == ([1, 2, 3] if how == "reject" else [])
    assert effects(raw) == ([1, 2, 1, 2, 3] if how == "transaction" else [])


@pytest.mark.parametrize(
    ("verb", "how", "dies"),
    [(verb, how, False) for verb, how in PAIRS] + [("seek", "return", True), ("seek", "transaction", True)],
)
def test_a_settlement_that_meets_the_operator_waits_and_is_decided_by_his_commit(
    stage: Stage, lanelog_client: Client, raw: Any, verb: str, how: str, dies: bool
) -> None:
    """Refused when he commits, written when he dies over it."""
    before = BEFORE_THE_FENCE[how]
    owner = settling(stage, lanelog_client, raw, how, before)
    operator, changing = stage.paused_in(
        COMMITTING, "admin", name="operator", verb=verb, topic="t", group="g", **VERBS[verb]
    )
    owner.go(before)
    wait_until_blocked(raw)
    if dies:
        operator.program.kill()
    else:
        operator.go(COMMITTING)
        changing.result()
    assert_went_on(owner, lanelog_client, raw, how, [] if dies else REFUSED[verb])
    assert dead_letters(raw) == ([1, 2, 3] if how == "reject" else [])
    assert effects(raw) == ([] if how != "transaction" else [1, 2, 3] if dies else [1, 1, 2, 3])
