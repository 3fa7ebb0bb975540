"""What happens to the lanes of a process that is killed."""

import statistics
from typing import Any

from lanelog import Client
from support.processes import Fleet, Line
from support.sql import owners
from support.traffic import shares, steady_load, wait_until_all_handled
from support.waiting import eventually

KEYS = [f"repo-{n:02}" for n in range(12)]


def first_elsewhere(lines: list[Line], dead: str, killed: float) -> dict[str, float]:
    """For each key: seconds from the kill to the first message that another process has handled."""
    first: dict[str, float] = {}
    for line in lines:
        if line.event == "handled" and line.at > killed and line.process != dead:
            first.setdefault(line["key"], line.at - killed)
    return first


def test_the_lanes_of_a_killed_process_run_elsewhere_within_seconds(
    fleet: Fleet, lanelog_client: Client, raw: Any
) -> None:
    """Three times one of three processes is killed with the default lease of 30 s: each lane moves on within 6 s."""
    workers = [fleet.worker(f"w{number}", sleep=0.01) for number in (1, 2, 3)]
    moved: list[float] = []
    with steady_load(lanelog_client, "t", KEYS) as traffic:
        for number in (4, 5, 6):
            balanced = {worker.name: 4 for worker in workers}
            eventually(lambda balanced=balanced: shares(raw) == balanced, within=10, what=f"the shares {balanced}")
            victim = workers.pop(0)
            orphans = {key for key, owner in owners(raw, "g", "t").items() if owner.startswith(victim.name + ":")}
            at = victim.kill()
            lines = fleet.journal.until(
                lambda lines, orphans=orphans, victim=victim, at=at: (
                    orphans <= first_elsewhere(lines, victim.name, at).keys()
                ),
                within=40,
                what="the move of every lane",
            )
            moved += [seconds for key, seconds in first_elsewhere(lines, victim.name, at).items() if key in orphans]
            workers.append(fleet.worker(f"w{number}", sleep=0.01))
    assert max(moved) <= 6, sorted(moved)
    assert statistics.median(moved) <= 3, sorted(moved)
    assert wait_until_all_handled(fleet, traffic) == traffic.offsets()
