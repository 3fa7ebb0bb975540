"""Processes that are stopped (SIGSTOP) and continued: a laptop's lid, a debugger, a paused virtual machine."""

import json
from typing import Any

import pytest

from lanelog import Client, Message
from support.elapsed import trust_heartbeats_at_once
from support.processes import Fleet
from support.settling import create_effects, effects
from support.sql import owners, rows, running, sessions, watermark
from support.traffic import shares
from support.waiting import Record, eventually

LANES = ("returns", "acks", "commits")
LEASES = "SELECT partition_key, lease_epoch, leased_by FROM queue_partition_leases"
WATERMARKS = "SELECT * FROM queue_offsets WHERE consumer_group = 'g' ORDER BY partition_key"


@pytest.mark.thorough
def test_a_process_that_slept_past_its_lease_changes_nothing_any_more(
    fleet: Fleet, lanelog_client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The late ack and transaction of its handlers raise LeaseLost; the new owner's outcomes stand."""
    trust_heartbeats_at_once(monkeypatch.setattr)
    create_effects(raw)
    rows(raw, "ALTER TABLE effects ADD topic VARCHAR(9)")
    seen = Record()

    def inherit(message: Message) -> None:
        seen((message.key, message.offset, message.attempt))
        if message.json()["how"] == "transaction":
            with message.transaction() as connection:
                connection.cursor().execute("INSERT INTO effects (o, who) VALUES (%s, 'heir')", (message.offset,))

    sleeper = fleet.worker("sleeper")
    for key, how in zip(LANES, ("", "ack", "transaction"), strict=True):
        lanelog_client.publish("t", key, json.dumps({"how": how, "wait": "sleeper"}))
        lanelog_client.publish("t", key, json.dumps({"how": how, "after": True}))
    sleeper.said("waiting", count=3)
    sleeper.freeze()
    rows(raw, "UPDATE queue_subscriber_heartbeats SET expires_at = heartbeat_at + 1")
    lanelog_client.subscribe("t", "g", inherit, name="heir")
    eventually(lambda: all(watermark(raw, "g", "t", key) == 2 for key in LANES))
    assert sorted(seen.items) == sorted((key, *what) for key in LANES for what in ((1, 2), (2, 1)))
    before, leases = rows(raw, WATERMARKS), rows(raw, LEASES)
    sleeper.tell("go")
    sleeper.thaw()
    lost = {line["key"] for line in sleeper.said("lost", count=2)}
    assert lost == {"acks", "commits"}
    eventually(lambda: [line for line in fleet.logged("settlement.refused") if line.process == "sleeper"])
    assert len(seen) == 6
    assert effects(raw, "o, who") == [(1, "heir"), (2, "heir")]
    assert rows(raw, WATERMARKS) == before
    # it is a member again and gets its share, by the rules: with higher epochs, and nothing of before
    eventually(lambda: shares(raw).keys() == {"sleeper", "heir"})
    after = {key: (epoch, owner) for key, epoch, owner in rows(raw, LEASES)}
    for key, epoch, owner in leases:
        assert after[key] == (epoch, owner) or after[key][0] > epoch
    assert not rows(raw, "SELECT * FROM queue_messages WHERE topic = 't_dlq'")


@pytest.mark.thorough
def test_a_process_that_is_stopped_in_the_middle_of_a_flush_blocks_nobody_for_long(
    fleet: Fleet, lanelog_client: Client, open_raw: Any, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open transaction holds locks on its lanes until the server drops the session; then others have them."""
    trust_heartbeats_at_once(monkeypatch.setattr)
    sleeper = fleet.worker("sleeper")
    keys = [f"k{number}" for number in range(4)]
    lanelog_client.publish_many("t", [(key, "{}") for key in keys])
    eventually(lambda: all(watermark(raw, "g", "t", key) == 1 for key in keys))
    holder = open_raw()
    lane = "consumer_group = 'g' AND topic = 't' AND partition_key = 'k0'"
    rows(holder, f"SELECT * FROM queue_offsets WHERE {lane} FOR UPDATE")
    lanelog_client.publish_many("t", [(key, "{}") for key in keys])
    eventually(lambda: waits_for_a_lock(raw), what="the sleeper's flush waiting for the lock")
    sleeper.freeze()
    holder.rollback()
    eventually(lambda: not waits_for_a_lock(raw), what="the locks in the sleeper's hands")
    lanelog_client.publish_many("t", [(key, "{}") for key in keys])
    assert holds_locks(raw)  # publishers have not waited for that
    rows(raw, "UPDATE queue_subscriber_heartbeats SET expires_at = heartbeat_at + 1")
    lanelog_client.subscribe("t", "g", lambda _: None, name="heir")
    eventually(lambda: all(watermark(raw, "g", "t", key) == 3 for key in keys), within=60, what="the heir's work")
    assert {owner.split(":")[0] for owner in owners(raw, "g", "t").values()} == {"heir"}
    sleeper.thaw()
    eventually(lambda: shares(raw) == {"heir": 2, "sleeper": 2})


def waits_for_a_lock(raw: Any) -> bool:
    """Whether some other session is in the middle of writing queue_offsets."""
    return any("INSERT INTO queue_offsets" in each.sql for each in running(raw))


def holds_locks(raw: Any) -> bool:
    """Whether some other session has a transaction open in which it has locked rows."""
    holding = rows(raw, "SELECT trx_mysql_thread_id FROM information_schema.innodb_trx WHERE trx_rows_locked > 0")
    return not {number for (number,) in holding}.isdisjoint(sessions(raw))
