"""How busy and new lanes are shared out between processes; idle ones are in test_original_groups."""

import json
from typing import Any

import pytest

import lanelog
from lanelog import Client
from support.processes import Fleet
from support.sql import owners
from support.traffic import shares
from support.turns import Turns
from support.waiting import Record, eventually


def publish(client: Client, *keys: str) -> None:
    client.publish_many("t", [(key, json.dumps({})) for key in keys])


@pytest.mark.thorough
def test_a_new_process_gets_its_share_of_busy_lanes_without_a_repetition(
    fleet: Fleet, lanelog_client: Client, raw: Any
) -> None:
    """A lane with a running handler is handed over when the handler has ended, not before."""
    keys = [f"k{number}" for number in range(4)]
    fleet.worker("w1", starts=True)
    for _ in range(6):
        lanelog_client.publish_many("t", [(key, json.dumps({"sleep": 0.1})) for key in keys])
    fleet.journal.until(lambda lines: sum(line.event == "started" for line in lines) >= 4)
    fleet.worker("w2", starts=True)
    eventually(lambda: sorted(shares(raw).values()) == [2, 2])
    fleet.journal.until(lambda lines: sum(line.event == "handled" for line in lines) == 24)
    assert {line["attempt"] for line in fleet.heard("started")} == {1}
    for key in keys:
        mine = [line for line in fleet.journal.items if line.fields.get("key") == key]
        assert [line.event for line in mine] == ["started", "handled"] * 6, "two at once, or one twice"
        assert [line["offset"] for line in mine if line.event == "started"] == list(range(1, 7))


def test_a_new_key_has_an_owner_after_two_turns_of_the_keepers(
    lanelog_client: Client, lanelog_url: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever member has to take the new lane; a turn is a quarter of a second, and then its message is handled."""
    turns, seen = Turns(monkeypatch), Record()
    publish(lanelog_client, "a", "b")
    with lanelog.connect(lanelog_url) as one_client, lanelog.connect(lanelog_url) as another:
        members = [
            client.subscribe("t", "g", lambda message, n=number: seen((n, message.key)))
            for number, client in enumerate((one_client, another))
        ]
        eventually(lambda: set(owners(raw, "g", "t").values()) == {member.owner for member in members})
        for number in range(3):
            publish(lanelog_client, f"new-{number}")
            for _ in range(2):
                turns.pass_by(members)
            assert owners(raw, "g", "t").get(f"new-{number}")
            seen.until(lambda items, number=number: any(key == f"new-{number}" for _, key in items))
