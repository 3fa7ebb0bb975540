"""Deployments: processes that drain and leave while others come."""

from typing import Any

import pytest

from lanelog import Client
from support.processes import Fleet
from support.traffic import repeated, steady_load, wait_until_all_handled

KEYS = [f"repo-{n}" for n in range(8)]


@pytest.mark.thorough
def test_twenty_rolling_restarts_repeat_nothing(fleet: Fleet, lanelog_client: Client, raw: Any) -> None:
    """Under load, one process drains at SIGTERM while its successor starts: every attempt is 1, nothing is lost."""
    running = [fleet.worker(f"w{number}", sleep=0.004) for number in range(3)]
    with steady_load(lanelog_client, "t", KEYS, pause=0.1, burst=5) as traffic:
        for number in range(3, 23):
            before = len(fleet.heard("handled"))
            fleet.journal.until(
                lambda lines, before=before: sum(line.event == "handled" for line in lines) > before + 20,
                within=20,
                what="work going on",
            )
            leaving = running.pop(0)
            leaving.terminate()
            running.append(fleet.start(f"w{number}", sleep=0.004))
            assert leaving.ended(within=30) == 0
            running[-1].said("ready")
    assert wait_until_all_handled(fleet, traffic) == traffic.offsets()
    assert repeated(fleet.journal.items) == []
    assert {line["attempt"] for line in fleet.heard("handled")} == {1}
