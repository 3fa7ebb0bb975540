"""What the janitor remembers of lanes that are not there any more."""

from typing import Any

import lanelog
from lanelog import Client
from lanelog._engine.janitor import Janitor, Topic
from support.sql import one
from support.waiting import accept, eventually

JOBS = 100


def remembered(client: Client) -> Topic:
    assert client._engine is not None
    janitors = [turn.__self__ for loop in client._engine._loops if isinstance((turn := loop._turn).__self__, Janitor)]
    [janitor] = janitors
    return janitor._topics.get("t", Topic())


def test_lanes_that_another_client_purged_are_forgotten(lanelog_url: str, raw: Any) -> None:
    """With a key for every job, memory does not grow with the jobs of the past, whoever purged their lanes."""
    with (
        lanelog.connect(lanelog_url, lane_idle_purge=1.0) as one_of_two,
        lanelog.connect(lanelog_url, lane_idle_purge=1.0) as other,
        one_of_two.subscribe("t", "g", accept, retention=0),
        other.subscribe("t", "g", accept, retention=0),
    ):
        one_of_two.publish_many("t", [(f"job-{number}", b"x") for number in range(JOBS)])
        lanes = "SELECT COUNT(*) FROM queue_partitions WHERE topic = 't' AND partition_key <> ''"
        eventually(lambda: one(raw, lanes) == 0, within=40)
        for client in (one_of_two, other):
            eventually(
                lambda client=client: (
                    not (remembered(client).collected or remembered(client).waits or remembered(client).not_before)
                ),
                what="nothing remembered",
            )
