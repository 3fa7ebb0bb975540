"""What happens to the lanes of a process that is killed."""

from typing import Any

import pytest

from lanelog import Client
from support.processes import Fleet, Line
from support.sql import owners, rows
from support.traffic import shares, steady_load, wait_until_all_handled
from support.waiting import eventually

KEYS = [f"repo-{n:02}" for n in range(12)]
TAKEN_EARLY = (
    "SELECT l.partition_key FROM queue_partition_leases AS l JOIN queue_subscriber_heartbeats AS h"
    " USING (consumer_group, topic) WHERE l.leased_at < h.expires_at AND h.subscriber_name LIKE %s"
)


def moved(lines: list[Line], dead: str, killed: float) -> set[str]:
    """The keys of which another process has handled a message since the kill."""
    return {line["key"] for line in lines if line.event == "handled" and line.at > killed and line.process != dead}


@pytest.mark.thorough
def test_the_lanes_of_a_killed_process_run_elsewhere_before_its_lease_has_ended(
    fleet: Fleet, lanelog_client: Client, raw: Any
) -> None:
    """Three times one of three processes is killed with the default lease of 30 s: nobody waits for its end."""
    workers = [fleet.worker(f"w{number}", sleep=0.01) for number in (1, 2, 3)]
    with steady_load(lanelog_client, "t", KEYS) as traffic:
        for number in (4, 5, 6):
            balanced = {worker.name: 4 for worker in workers}
            eventually(lambda balanced=balanced: shares(raw) == balanced, what=f"the shares {balanced}")
            victim = workers.pop(0)
            orphans = {key for key, owner in owners(raw, "g", "t").items() if owner.startswith(victim.name + ":")}
            at = victim.kill()
            fleet.journal.until(
                lambda lines, orphans=orphans, victim=victim, at=at: orphans <= moved(lines, victim.name, at),
                within=40,
                what="the move of every lane",
            )
            # By the database's clock: each had its new owner when the dead one's heartbeat was still good.
            assert orphans <= {key for (key,) in rows(raw, TAKEN_EARLY, f"{victim.name}:%")}
            workers.append(fleet.worker(f"w{number}", sleep=0.01))
    assert wait_until_all_handled(fleet, traffic) == traffic.offsets()
