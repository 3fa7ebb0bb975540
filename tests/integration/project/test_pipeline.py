"""The main use: build, merge, notify, in order for each repository, through failures, a crash and a restart."""

from contextlib import closing
from typing import Any

import pytest

import lanelog
from lanelog import Outgoing
from lanelog.devserver import DevServer
from support.processes import Fleet
from support.sql import connect, one, rows
from support.waiting import eventually

REPOSITORIES = [f"repo-{number:02}" for number in range(50)]
EACH = 8
STAGES = ("build", "merge", "notify")


@pytest.mark.thorough
def test_three_stages_keep_the_order_and_each_effect_through_failures_a_crash_and_a_restart(
    private_server: DevServer,
) -> None:
    """Every repository's last stage equals its publish order; no effect is missing or there twice."""

    def raw() -> Any:
        return closing(connect(private_server.url, autocommit=True))

    def effects() -> int:
        with raw() as connection:
            return int(one(connection, "SELECT COUNT(*) FROM effects"))

    def publish(numbers: range) -> None:
        for number in numbers:
            client.publish_many("build", [Outgoing(repository, number, id=str(number)) for repository in REPOSITORIES])

    with closing(Fleet(private_server.url)) as fleet, lanelog.connect(private_server.url) as client:
        client.migrate()
        with raw() as connection:
            columns = "id BIGINT AUTO_INCREMENT PRIMARY KEY, stage VARCHAR(10), repository VARCHAR(10), number INT"
            rows(connection, f"CREATE TABLE effects ({columns})")
        workers = [fleet.start(f"w{number}", "pipeline.py", seed=number) for number in range(3)]
        for worker in workers:
            worker.said("ready")
        publish(range(EACH))
        total = len(REPOSITORIES) * 2 * EACH * len(STAGES)
        eventually(lambda: effects() > total * 0.1, within=30)
        workers[0].kill()
        fleet.start("w3", "pipeline.py", seed=3)
        with raw() as connection:
            eventually(lambda: not lanes_of(connection, "w0"), what="the take-over of the killed worker's lanes")
        # what is left to do grows again, so that the restart meets a busy pipeline
        publish(range(EACH, 2 * EACH))
        eventually(lambda: effects() > total * 0.7, within=30)
        private_server.kill()
        private_server.restart()
        eventually(lambda: effects() >= total, within=30, what=f"{total} effects")
        with raw() as connection:
            eventually(lambda: settled(connection) == total, within=15, what="everything settled")
            found = rows(connection, "SELECT stage, repository, number FROM effects ORDER BY id")
            assert one(connection, "SELECT COUNT(*) FROM queue_messages WHERE topic LIKE '%%_dlq'") == 0
        for stage in STAGES:
            order: dict[str, list[int]] = {}
            for _, repository, number in [row for row in found if row[0] == stage]:
                order.setdefault(repository, []).append(number)
            assert order == {repository: list(range(2 * EACH)) for repository in REPOSITORIES}, stage


def settled(connection: Any) -> int:
    """How many messages are behind the watermarks."""
    return int(one(connection, "SELECT COALESCE(SUM(offset_acked), 0) FROM queue_offsets WHERE consumer_group <> ''"))


def lanes_of(connection: Any, name: str) -> int:
    """How many leases stand in this name."""
    return int(one(connection, "SELECT COUNT(*) FROM queue_partition_leases WHERE leased_by LIKE %s", f"{name}:%"))
