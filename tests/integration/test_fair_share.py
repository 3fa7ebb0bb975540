"""How lanes are shared out between processes, as processes and keys come and go."""

import json
from typing import Any

import pytest

import lanelog
from lanelog import Client
from support.processes import Fleet
from support.sql import owners, rows
from support.traffic import shares
from support.turns import Turns
from support.waiting import Record, eventually, never


def counts(raw: Any) -> list[int]:
    return sorted(shares(raw).values(), reverse=True)


def publish(client: Client, *keys: str) -> None:
    client.publish_many("t", [(key, json.dumps({})) for key in keys])


def test_lanes_are_shared_out_evenly_as_processes_and_keys_come_and_go(
    fleet: Fleet, lanelog_client: Client, raw: Any
) -> None:
    """Four lanes: 4, then 2 + 2; a fifth: 3 + 2; who leaves leaves its lanes to the others, at once."""
    publish(lanelog_client, "a", "b", "c", "d")
    first = fleet.worker("w1")
    eventually(lambda: shares(raw) == {"w1": 4})
    second = fleet.worker("w2")
    eventually(lambda: counts(raw) == [2, 2])
    publish(lanelog_client, "e")
    eventually(lambda: counts(raw) == [3, 2])
    leases = rows(raw, "SELECT partition_key, leased_by, lease_epoch FROM queue_partition_leases ORDER BY 1")
    never(lambda: counts(raw) != [3, 2], during=1.5, what="a change although nobody came or went")
    assert rows(raw, "SELECT partition_key, leased_by, lease_epoch FROM queue_partition_leases ORDER BY 1") == leases
    second.terminate()
    assert second.ended() == 0
    assert "w2" not in shares(raw)
    eventually(lambda: shares(raw) == {"w1": 5})
    publish(lanelog_client, "a", "b", "c", "d", "e")
    fleet.journal.until(lambda lines: sum(line.event == "handled" for line in lines) == 10)
    assert {line["attempt"] for line in fleet.heard("handled")} == {1}
    first.terminate()
    assert first.ended() == 0
    assert shares(raw) == {"": 5}


def test_a_new_process_gets_its_share_of_busy_lanes_without_a_repetition(
    fleet: Fleet, lanelog_client: Client, raw: Any
) -> None:
    """A lane with a running handler is handed over when the handler has ended, not before."""
    keys = [f"k{number}" for number in range(4)]
    fleet.worker("w1", starts=True)
    for _ in range(10):
        lanelog_client.publish_many("t", [(key, json.dumps({"sleep": 0.2})) for key in keys])
    fleet.journal.until(lambda lines: sum(line.event == "started" for line in lines) >= 4)
    fleet.worker("w2", starts=True)
    eventually(lambda: counts(raw) == [2, 2])
    fleet.journal.until(lambda lines: sum(line.event == "handled" for line in lines) == 40)
    assert {line["attempt"] for line in fleet.heard("started")} == {1}
    for key in keys:
        mine = [line for line in fleet.journal.items if line.fields.get("key") == key]
        assert [line.event for line in mine] == ["started", "handled"] * 10, "two at once, or one twice"
        assert [line["offset"] for line in mine if line.event == "started"] == list(range(1, 11))


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
        for number in range(8):
            publish(lanelog_client, f"new-{number}")
            for _ in range(2):
                turns.pass_by(members)
            assert owners(raw, "g", "t").get(f"new-{number}")
            seen.until(lambda items, number=number: any(key == f"new-{number}" for _, key in items))
    assert {member for member, _ in seen.items} == {0, 1}
