"""Worker processes whose clocks are an hour fast and an hour slow."""

import time
from typing import Any

import pytest

from lanelog import Client
from support.clocks import clock, libfaketime
from support.processes import Fleet
from support.sql import owners, rows
from support.traffic import repeated, shares, steady_load, wait_until_all_handled
from support.waiting import eventually, never

KEYS = [f"k{number}" for number in range(4)]
SHORT = {"lease_duration": 4.0, "lease_renewal": 0.5}
"""Heartbeats are judged by a process that has been there for a lease; a slow commit does not lose one."""


@pytest.mark.thorough
def test_clocks_an_hour_wrong_make_no_difference(fleet: Fleet, lanelog_client: Client, raw: Any) -> None:
    """One process an hour ahead, one an hour behind: fair shares, no stealing, no repetition, fail-over as ever."""
    faketime = libfaketime()
    fast = fleet.worker("fast", environment=clock(faketime, "+1h"), options=SHORT, sleep=0.01)
    slow = fleet.worker("slow", environment=clock(faketime, "-1h"), options=SHORT, sleep=0.01)
    clocks = {worker.name: worker.said("ready")[0]["clock"] - time.time() for worker in (fast, slow)}
    assert clocks["fast"] == pytest.approx(3600, abs=60)
    assert clocks["slow"] == pytest.approx(-3600, abs=60)
    with steady_load(lanelog_client, "t", KEYS) as traffic:
        eventually(lambda: shares(raw) == {"fast": 2, "slow": 2})
        leases = "SELECT partition_key, leased_by, lease_epoch FROM queue_partition_leases ORDER BY partition_key"
        before = rows(raw, leases)
        never(lambda: rows(raw, leases) != before, during=1.5 * SHORT["lease_duration"], what="a change of leases")
        orphans = {key for key, owner in owners(raw, "g", "t").items() if owner.startswith("slow:")}
        killed = slow.kill()
        fleet.journal.until(
            lambda lines: (
                orphans
                <= {
                    line["key"]
                    for line in lines
                    if line.event == "handled" and line.at > killed and line.process == "fast"
                }
            ),
            within=20,
            what="the fast process working for the slow one",
        )
        third = fleet.worker("third", environment=clock(faketime, "-1h"), options=SHORT, sleep=0.01)
        eventually(lambda: shares(raw) == {"fast": 2, "third": 2})
    assert wait_until_all_handled(fleet, traffic) == traffic.offsets()
    in_the_dead_hands = {(line["key"], line["offset"]) for line in fleet.heard("started") if line.process == "slow"}
    # What was marked counts as an attempt, whether its handler had started when the process was killed or not.
    assert {line["key"] for line in fleet.heard("handled") if line["attempt"] > 1} <= orphans
    assert set(repeated(fleet.journal.items)) <= in_the_dead_hands
    for worker in (fast, third):
        worker.terminate()
        assert worker.ended() == 0
