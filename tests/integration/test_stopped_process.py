"""Processes that are stopped (SIGSTOP) and continued: a laptop's lid, a debugger, a paused virtual machine."""

import json
from typing import Any

from lanelog import Client
from support.processes import Fleet
from support.sql import owners, rows, watermark
from support.traffic import handled, shares
from support.waiting import eventually

SHORT = {"lease_duration": 2.0, "lease_renewal": 0.5}
LANES = ("returns", "acks", "commits")


def test_a_process_that_slept_past_its_lease_changes_nothing_any_more(
    fleet: Fleet, lanelog_client: Client, raw: Any
) -> None:
    """Its handlers' late ack and transaction raise LeaseLost; what the new owner has done stands."""
    rows(
        raw,
        "CREATE TABLE effects"
        " (id INT AUTO_INCREMENT PRIMARY KEY, topic VARCHAR(9), k VARCHAR(9), o INT, who VARCHAR(9))",
    )
    sleeper = fleet.worker("sleeper", options=SHORT)
    for key, how in zip(LANES, ("", "ack", "transaction"), strict=True):
        lanelog_client.publish("t", key, json.dumps({"how": how, "wait": "sleeper"}))
        lanelog_client.publish("t", key, json.dumps({"how": how, "after": True}))
    sleeper.said("waiting", count=3)
    sleeper.freeze()
    fleet.worker("heir", options=SHORT)
    fleet.journal.until(
        lambda lines: sum(line.event == "handled" and line.process == "heir" for line in lines) == 6,
        within=20,
        what="the heir's work",
    )
    eventually(lambda: all(watermark(raw, "g", "t", key) == 2 for key in LANES))
    before = rows(raw, "SELECT * FROM queue_offsets WHERE consumer_group = 'g' ORDER BY partition_key")
    leases = rows(raw, "SELECT * FROM queue_partition_leases ORDER BY partition_key")
    sleeper.tell("go")
    sleeper.thaw()
    lost = {line["key"]: line["error"] for line in sleeper.said("lost", count=2, within=10)}
    assert lost.keys() == {"acks", "commits"}
    eventually(lambda: [line for line in fleet.logged("settlement.refused") if line.process == "sleeper"], within=10)
    assert {
        (line["key"], line["offset"], line["attempt"]) for line in fleet.heard("handled") if line.process == "heir"
    } == {(key, offset, attempt) for key in LANES for offset, attempt in ((1, 2), (2, 1))}
    assert rows(raw, "SELECT k, o, who FROM effects ORDER BY id") == [("commits", 1, "heir"), ("commits", 2, "heir")]
    assert rows(raw, "SELECT * FROM queue_offsets WHERE consumer_group = 'g' ORDER BY partition_key") == before
    # it is a member again and gets its share, by the rules: with higher epochs, and nothing of before
    eventually(lambda: shares(raw).keys() == {"sleeper", "heir"}, within=10)
    after = {key: (epoch, owner) for _, _, key, owner, epoch, _ in rows(raw, "SELECT * FROM queue_partition_leases")}
    for _, _, key, owner, epoch, _ in leases:
        assert after[key] == (epoch, owner) or after[key][0] > epoch
    assert not rows(raw, "SELECT * FROM queue_messages WHERE topic = 't_dlq'")
    assert sum(len(offsets) for offsets in handled(fleet.journal.items).values()) == 6


def test_a_process_that_is_stopped_in_the_middle_of_a_flush_blocks_nobody_for_long(
    fleet: Fleet, lanelog_client: Client, open_raw: Any, raw: Any
) -> None:
    """Its open transaction holds locks on its lanes until the server drops its session; then others have them."""
    sleeper = fleet.worker("sleeper", options=SHORT)
    keys = [f"k{number}" for number in range(4)]
    lanelog_client.publish_many("t", [(key, "{}") for key in keys])
    eventually(lambda: all(watermark(raw, "g", "t", key) == 1 for key in keys))
    holder = open_raw()
    rows(
        holder,
        "SELECT * FROM queue_offsets WHERE consumer_group = 'g' AND topic = 't' AND partition_key = 'k0' FOR UPDATE",
    )
    lanelog_client.publish_many("t", [(key, "{}") for key in keys])
    eventually(lambda: waits_for_a_lock(raw), what="the sleeper's flush waiting for the lock")
    sleeper.freeze()
    holder.rollback()
    eventually(lambda: not waits_for_a_lock(raw), what="the locks in the sleeper's hands")
    lanelog_client.publish_many("t", [(key, "{}") for key in keys])
    assert holds_locks(raw)  # publishers have not waited for that
    heir = fleet.worker("heir", options=SHORT)
    for key in keys:
        heir_has = fleet.journal.until(
            lambda lines, key=key: any(
                line.event == "handled" and line.process == "heir" and line["key"] == key for line in lines
            ),
            within=40,
            what=f"the heir working on {key}",
        )
        assert heir_has
    eventually(lambda: all(watermark(raw, "g", "t", key) == 3 for key in keys))
    assert {owner.split(":")[0] for owner in owners(raw, "g", "t").values()} == {"heir"}
    assert heir.popen.poll() is None
    sleeper.thaw()
    eventually(lambda: shares(raw) == {"heir": 2, "sleeper": 2})


def waits_for_a_lock(raw: Any) -> bool:
    """Whether some other session is in the middle of writing queue_offsets."""
    return bool(
        rows(
            raw,
            "SELECT 1 FROM information_schema.processlist"
            " WHERE info LIKE '%INSERT INTO queue_offsets%' AND id <> CONNECTION_ID()",
        )
    )


def holds_locks(raw: Any) -> bool:
    """Whether some other session has a transaction open in which it has locked rows."""
    return bool(
        rows(
            raw,
            "SELECT 1 FROM information_schema.innodb_trx AS t JOIN information_schema.processlist AS p"
            " ON p.id = t.trx_mysql_thread_id WHERE t.trx_rows_locked > 0 AND p.db = DATABASE()"
            " AND p.id <> CONNECTION_ID()",
        )
    )
