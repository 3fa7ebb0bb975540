"""Lanes that an operator paused: given back when idle, taken by nobody, and no part of the others' fair share."""

import json
import threading
from typing import Any

import pytest

from lanelog import Client, Message
from lanelog._engine.lane import Lane
from lanelog._engine.membership import Membership
from support.processes import Fleet
from support.sql import delivery_rows, owners, rows
from support.traffic import shares
from support.waiting import Record, accept, eventually, never

KEYS = [f"k{n}" for n in range(12)]
PAUSED = KEYS[:6]


def leases(raw: Any) -> list[tuple[Any, ...]]:
    return rows(raw, "SELECT partition_key, leased_by, lease_epoch FROM queue_partition_leases ORDER BY 1")


def of_free(raw: Any) -> dict[str, int]:
    """How many of the lanes that are not paused each process has."""
    found: dict[str, int] = {}
    for key, owner in owners(raw, "g", "t").items():
        if key not in PAUSED:
            name = owner.split(":")[0]
            found[name] = found.get(name, 0) + 1
    return found


def test_paused_lanes_are_nobodys_and_the_rest_is_shared_out_evenly(
    fleet: Fleet, lanelog_client: Client, raw: Any
) -> None:
    """Half of 12 lanes are paused: two processes have 3 of the others each, then three have 2; nothing goes to and fro.

    The first keys are paused, which a member that looked for anything to take would find first. Resumed, they are
    owned again, and what came meanwhile is handled, with its first attempt.
    """
    lanelog_client.publish_many("t", [(key, json.dumps({})) for key in KEYS])
    workers = [fleet.worker(name) for name in ("w1", "w2")]
    eventually(lambda: shares(raw) == {"w1": 6, "w2": 6})
    fleet.journal.until(lambda lines: sum(line.event == "handled" for line in lines) == len(KEYS))
    for key in PAUSED:
        lanelog_client.admin.pause("t", "g", key=key)
    eventually(lambda: {owners(raw, "g", "t")[key] for key in PAUSED} == {""})
    eventually(lambda: of_free(raw) == {"w1": 3, "w2": 3})
    workers.append(fleet.worker("w3"))
    eventually(lambda: of_free(raw) == {"w1": 2, "w2": 2, "w3": 2})
    before = leases(raw)
    lanelog_client.publish_many("t", [(key, json.dumps({})) for key in KEYS])
    never(lambda: leases(raw) != before, during=2.5, what="a lease that changes hands")
    for key in PAUSED:
        lanelog_client.admin.resume("t", "g", key=key)
    eventually(lambda: shares(raw) == {"w1": 4, "w2": 4, "w3": 4})
    lines = fleet.journal.until(lambda lines: sum(line.event == "handled" for line in lines) == 2 * len(KEYS))
    assert {line["attempt"] for line in lines if line.event == "handled"} == {1}
    for worker in workers:
        worker.terminate()
        assert worker.ended() == 0


def test_a_paused_group_has_no_owners_until_it_is_resumed(fleet: Fleet, lanelog_client: Client, raw: Any) -> None:
    """Two processes give back everything, take nothing, not even a new key, and share it out again when it resumes."""
    lanelog_client.publish_many("t", [(key, json.dumps({})) for key in KEYS])
    for name in ("w1", "w2"):
        fleet.worker(name)
    eventually(lambda: shares(raw) == {"w1": 6, "w2": 6})
    lanelog_client.admin.pause("t", "g")
    eventually(lambda: shares(raw) == {"": 12})
    before = leases(raw)
    lanelog_client.publish_many("t", [(key, json.dumps({})) for key in (*KEYS, "new1", "new2")])
    never(lambda: leases(raw) != before, during=2.0, what="a lease in a paused group")
    lanelog_client.admin.resume("t", "g")
    eventually(lambda: shares(raw) == {"w1": 7, "w2": 7})
    lines = fleet.journal.until(lambda lines: sum(line.event == "handled" for line in lines) == 26)
    assert {line["attempt"] for line in lines if line.event == "handled"} == {1}


def test_a_paused_lane_is_kept_while_its_handler_runs(
    lanelog_client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no prisoner of a long handler: resumed meanwhile, it goes on at once, under the same token."""
    started, obeyed, go = Record(), Record(), threading.Event()
    set_paused = Membership.set_paused

    def told(self: Membership, lane: Lane, *, paused: bool) -> None:
        set_paused(self, lane, paused=paused)
        obeyed(paused)

    monkeypatch.setattr(Membership, "set_paused", told)

    def handle(message: Message) -> None:
        started((message.offset, message.fencing_token))
        assert message.offset > 1 or go.wait(30)

    lanelog_client.publish("t", "k", b"x")
    subscription = lanelog_client.subscribe("t", "g", handle, order="concurrent")
    started.wait(1)
    before = leases(raw)
    lanelog_client.admin.pause("t", "g", key="k")
    obeyed.until(lambda items: items[-1:] == [True])
    lanelog_client.publish("t", "k", b"x")
    never(lambda: len(started) > 1 or leases(raw) != before, during=1.0)
    lanelog_client.admin.resume("t", "g", key="k")
    started.wait(2)
    lanelog_client.admin.pause("t", "g", key="k")
    go.set()
    eventually(lambda: owners(raw, "g", "t") == {"k": ""})
    assert [token for _, token in started.items] == [before[0][2]] * 2
    assert delivery_rows(raw, "g", "t") == []
    assert subscription.stats().lanes == 0
    assert subscription.stop(10)


def test_a_subscription_that_pauses_itself_keeps_its_lanes(lanelog_client: Client, raw: Any) -> None:
    """Only an operator's pause gives lanes back."""
    lanelog_client.publish_many("t", [(key, b"x") for key in KEYS])
    subscription = lanelog_client.subscribe("t", "g", accept)
    eventually(lambda: subscription.stats().acked == len(KEYS))
    before = leases(raw)
    subscription.pause()
    never(lambda: leases(raw) != before, during=1.0)
    assert {owner for _, owner, _ in before} == {subscription.owner}


def test_a_lane_that_a_dead_process_left_paused_is_taken_when_it_is_resumed(
    fleet: Fleet, lanelog_client: Client, raw: Any
) -> None:
    """While it is paused nobody takes it, and its owner is not forgotten; what it had in flight is a crash then."""
    worker = fleet.worker("w", starts=True)
    lanelog_client.publish("t", "k", json.dumps({"sleep": 60}))
    fleet.journal.until(lambda lines: any(line.event == "started" for line in lines))
    lanelog_client.admin.pause("t", "g", key="k")
    worker.kill()
    seen = Record()
    lanelog_client.subscribe("t", "g", lambda m: seen((m.key, m.attempt)))
    lanelog_client.publish("t", "other", b"x")
    seen.until(lambda items: ("other", 1) in items)
    before = owners(raw, "g", "t")["k"]
    assert before.startswith("w:")
    never(lambda: owners(raw, "g", "t")["k"] != before, during=4.0, what="somebody else's name on the paused lane")
    lanelog_client.admin.resume("t", "g", key="k")
    seen.until(lambda items: ("k", 2) in items)
