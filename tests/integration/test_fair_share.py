"""How lanes are shared out between processes, as processes and keys come and go."""

import json
import time
from typing import Any

from lanelog import Client
from support.processes import Fleet
from support.sql import rows
from support.traffic import shares
from support.waiting import eventually, never


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
    eventually(lambda: shares(raw) == {"w1": 4}, within=5)
    second = fleet.worker("w2")
    eventually(lambda: counts(raw) == [2, 2], within=5)
    publish(lanelog_client, "e")
    eventually(lambda: counts(raw) == [3, 2], within=5)
    leases = rows(raw, "SELECT partition_key, leased_by, lease_epoch FROM queue_partition_leases ORDER BY 1")
    never(lambda: counts(raw) != [3, 2], during=1.5, what="a change although nobody came or went")
    assert rows(raw, "SELECT partition_key, leased_by, lease_epoch FROM queue_partition_leases ORDER BY 1") == leases
    left = time.monotonic()
    second.terminate()
    assert second.ended() == 0
    eventually(lambda: shares(raw) == {"w1": 5}, within=5)
    assert time.monotonic() - left < 5
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
    eventually(lambda: counts(raw) == [2, 2], within=5)
    fleet.journal.until(lambda lines: sum(line.event == "handled" for line in lines) == 40)
    assert {line["attempt"] for line in fleet.heard("started")} == {1}
    for key in keys:
        mine = [line for line in fleet.journal.items if line.fields.get("key") == key]
        assert [line.event for line in mine] == ["started", "handled"] * 10, "two at once, or one twice"
        assert [line["offset"] for line in mine if line.event == "started"] == list(range(1, 11))


def test_the_first_message_of_a_new_key_is_handled_within_a_second(
    fleet: Fleet, lanelog_client: Client, raw: Any
) -> None:
    """Whichever process has to take the new lane."""
    fleet.worker("w1")
    fleet.worker("w2")
    publish(lanelog_client, "a", "b")
    eventually(lambda: counts(raw) == [1, 1], within=5)
    waited = []
    for number in range(8):
        at = time.monotonic()
        publish(lanelog_client, f"new-{number}")
        lines = fleet.journal.until(
            lambda lines, number=number: any(
                line.event == "handled" and line["key"] == f"new-{number}" for line in lines
            ),
            within=10,
        )
        heard = next(line.at for line in lines if line.event == "handled" and line["key"] == f"new-{number}")
        waited.append(heard - at)
    assert max(waited) < 1.0, waited
    assert len({line.process for line in fleet.heard("handled")}) == 2
