"""Lanes that an operator paused: given back when idle, taken by nobody, and no part of the others' fair share."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import lanelog
from lanelog import Client, Message, Subscription
from support.pace import paced
from support.processes import Fleet
from support.sql import delivery_rows, leases, owners
from support.traffic import shares
from support.turns import Turns
from support.waiting import Record, accept, eventually

KEYS = [f"k{n}" for n in range(12)]
PAUSED = KEYS[:6]
SEVERAL = 10
"""Turns after which whoever wanted a lane would have it: the other periods are shorter than as many turns."""
PACE = {"turn_seconds": 0.04, "members_seconds": 0.1, "claim_seconds": 0.1}

Join = Callable[[str], Subscription]


@pytest.fixture(autouse=True)
def turns(lanelog_client: Client, monkeypatch: pytest.MonkeyPatch) -> Turns:
    """Those of keepers that turn, look at each other and claim lanes many times a second."""
    paced(lanelog_client, keeper=PACE)
    return Turns(monkeypatch)


@pytest.fixture
def seen() -> Record:
    """Key and attempt of what the members have handled."""
    return Record()


@pytest.fixture
def join(lanelog_url: str, seen: Record) -> Iterator[Join]:
    """Lets a member with a client of its own into the group."""
    with ExitStack() as stack:

        def join(name: str) -> Subscription:
            client = paced(stack.enter_context(lanelog.connect(lanelog_url)), keeper=PACE)
            return client.subscribe("t", "g", lambda m: seen((m.key, m.attempt)), name=name)

        yield join


def of_free(raw: Any) -> Counter[str]:
    """How many of the lanes that are not paused each member has, or nobody."""
    return Counter(owner.split(":")[0] for key, owner in owners(raw, "g", "t").items() if key not in PAUSED)


@pytest.mark.thorough
def test_paused_lanes_are_nobodys_and_the_rest_is_shared_out_evenly(
    join: Join, seen: Record, lanelog_client: Client, raw: Any, turns: Turns
) -> None:
    """Half of 12 lanes are paused: two members have 3 of the others each, then three have 2; nothing goes to and fro.

    The first keys are paused, which a member that looked for anything to take would find first. Resumed, they are
    owned again, and what came meanwhile is handled, with its first attempt.
    """
    lanelog_client.publish_many("t", [(key, b"1") for key in KEYS])
    members = [join("w1"), join("w2")]
    eventually(lambda: shares(raw) == {"w1": 6, "w2": 6})
    seen.wait(len(KEYS))
    for key in PAUSED:
        lanelog_client.admin.pause("t", "g", key=key)
    eventually(lambda: {owners(raw, "g", "t")[key] for key in PAUSED} == {""})
    eventually(lambda: of_free(raw) == {"w1": 3, "w2": 3})
    members.append(join("w3"))
    eventually(lambda: of_free(raw) == {"w1": 2, "w2": 2, "w3": 2})
    before = leases(raw)
    lanelog_client.publish_many("t", [(key, b"2") for key in KEYS])
    for _ in range(SEVERAL):
        turns.pass_by(members)
    assert leases(raw) == before
    for key in PAUSED:
        lanelog_client.admin.resume("t", "g", key=key)
    eventually(lambda: shares(raw) == {"w1": 4, "w2": 4, "w3": 4})
    assert sorted(seen.wait(2 * len(KEYS))) == sorted([(key, 1) for key in KEYS] * 2)


@pytest.mark.thorough
def test_a_paused_group_has_no_owners_until_it_is_resumed(
    join: Join, seen: Record, lanelog_client: Client, raw: Any, turns: Turns
) -> None:
    """Two members give back everything, take nothing, not even a new key, and share it out again when it resumes."""
    lanelog_client.publish_many("t", [(key, b"1") for key in KEYS])
    members = [join("w1"), join("w2")]
    eventually(lambda: shares(raw) == {"w1": 6, "w2": 6})
    lanelog_client.admin.pause("t", "g")
    eventually(lambda: shares(raw) == {"": 12})
    before = leases(raw)
    lanelog_client.publish_many("t", [(key, b"2") for key in (*KEYS, "new1", "new2")])
    for _ in range(SEVERAL):
        turns.pass_by(members)
    assert leases(raw) == before
    lanelog_client.admin.resume("t", "g")
    eventually(lambda: shares(raw) == {"w1": 7, "w2": 7})
    assert {attempt for _, attempt in seen.wait(26)} == {1}


@pytest.mark.thorough
def test_a_paused_lane_is_kept_while_its_handler_runs(lanelog_client: Client, raw: Any, turns: Turns) -> None:
    """A lane that is resumed while a long handler runs goes on at once, under the same token."""
    started, go = Record(), threading.Event()

    def handle(message: Message) -> None:
        started((message.key, message.offset, message.fencing_token))
        assert (message.key, message.offset) != ("k", 1) or go.wait(30)

    lanelog_client.publish("t", "k", b"x")
    subscription = lanelog_client.subscribe("t", "g", handle, order="concurrent")
    ((_, _, token),) = started.wait(1)
    lanelog_client.admin.pause("t", "g", key="k")
    for _ in range(2):
        turns.pass_by([subscription])
    lanelog_client.publish_many("t", [("k", b"x"), ("other", b"x")])
    assert started.wait(2)[1][0] == "other"
    for _ in range(SEVERAL):
        turns.pass_by([subscription])
    assert ("k", subscription.owner, token) in leases(raw)
    assert len(started) == 2
    lanelog_client.admin.resume("t", "g", key="k")
    assert started.wait(3)[2] == ("k", 2, token)
    lanelog_client.admin.pause("t", "g", key="k")
    go.set()
    eventually(lambda: owners(raw, "g", "t") == {"k": "", "other": subscription.owner})
    assert delivery_rows(raw, "g", "t") == []
    eventually(lambda: subscription.stats().lanes == 1)  # memory forgets the lane behind the commit


def test_a_subscription_that_pauses_itself_keeps_its_lanes(lanelog_client: Client, raw: Any, turns: Turns) -> None:
    """Only an operator's pause gives lanes back."""
    lanelog_client.publish_many("t", [(key, b"x") for key in KEYS])
    subscription = lanelog_client.subscribe("t", "g", accept)
    eventually(lambda: subscription.stats().acked == len(KEYS))
    before = leases(raw)
    subscription.pause()
    for _ in range(SEVERAL):
        turns.pass_by([subscription])
    assert leases(raw) == before
    assert {owner for _, owner, _ in before} == {subscription.owner}


@pytest.mark.thorough
def test_a_lane_that_a_dead_process_left_paused_is_taken_when_it_is_resumed(
    fleet: Fleet, join: Join, seen: Record, lanelog_client: Client, raw: Any, turns: Turns
) -> None:
    """While it is paused nobody takes it, and its owner is not forgotten; what it had in flight is a crash then."""
    worker = fleet.worker("w", starts=True)
    lanelog_client.publish_many("t", [("k", json.dumps({"sleep": 60})), ("other", json.dumps({}))])
    fleet.journal.until(lambda lines: {line["key"] for line in lines if line.event == "started"} == {"k", "other"})
    lanelog_client.admin.pause("t", "g", key="k")
    worker.kill()
    before = owners(raw, "g", "t")["k"]
    assert before.startswith("w:")
    heir = join("heir")
    lanelog_client.publish("t", "other", b"x")
    seen.until(lambda items: ("other", 1) in items)  # that one it has taken over
    for _ in range(SEVERAL):
        turns.pass_by([heir])
    assert owners(raw, "g", "t") == {"k": before, "other": heir.owner}
    lanelog_client.admin.resume("t", "g", key="k")
    seen.until(lambda items: ("k", 2) in items)
