"""The original Go design's acceptance suite, re-told: what a killed process leaves. The table is in tests/README.md."""

from itertools import islice
from typing import Any

import pytest

from lanelog import Client, Outgoing
from support.processes import Fleet, Line, Program
from support.sql import watermark

CONCURRENT = {"order": "concurrent"}


def publish(client: Client, **what: dict[str, str]) -> None:
    """One message of key k for each name, with what its handler is to do."""
    client.publish_many("t", [Outgoing("k", {**each, "name": name}, id=f"msg-{name}") for name, each in what.items()])


def killed(fleet: Fleet, worker: Program, *, handled: list[tuple[str, int]], waiting: list[str]) -> None:
    """Wait until a worker has settled these attempts and holds these messages, then kill it."""

    def reached(lines: list[Line]) -> bool:
        held = sorted(line["id"] for line in lines if line.event == "waiting")
        return sorted(done(lines)) == handled and held == waiting

    fleet.journal.until(reached, within=30, what=f"{handled} handled and {waiting} waiting")
    worker.kill()


def done(lines: list[Line]) -> list[tuple[str, int]]:
    return [(line["id"], line["attempt"]) for line in lines if line.event == "handled"]


def recovered(client: Client, count: int, **options: Any) -> list[tuple[str, int]]:
    """What another member of the group gets, and acks: the id and attempt of so many messages.

    That nothing more would come the watermark says afterwards.
    """
    taken = []
    with client.deliveries("t", "g", timeout=20.0, **options) as deliveries:
        for message in islice(deliveries, count):
            taken.append((message.id, message.attempt))
            message.ack()
    return taken


def loses_nothing(fleet: Fleet, client: Client, raw: Any, b: str, handled: list[tuple[str, int]]) -> None:
    """Kill a worker that has acked A and is done with B, with a message before and one behind them in flight.

    What ends B moves no watermark past what is still in flight: both come again, and B, now a dead letter, does not.
    """

    def left() -> tuple[list[str], int]:
        letters = [letter.original_id for letter in client.admin.dead_letters("t")]
        return letters, watermark(raw, "g", "t", "k")

    publish(client, before={"wait": "w1"}, A={"how": "ack"}, B={"how": b}, C={"wait": "w1"})
    worker = fleet.worker("w1", options=CONCURRENT, attempts=2)
    killed(fleet, worker, handled=handled, waiting=["msg-C", "msg-before"])
    assert left() == (["msg-B"], 0)
    assert sorted(recovered(client, 2, **CONCURRENT)) == [("msg-C", 2), ("msg-before", 2)]
    assert left() == (["msg-B"], 4)


@pytest.mark.thorough
def test_crash_recovery(fleet: Fleet, lanelog_client: Client, raw: Any) -> None:
    """The message of a process that was killed over it is delivered to another as attempt 2."""
    publish(lanelog_client, crash={"wait": "w1"})
    killed(fleet, fleet.worker("w1"), handled=[], waiting=["msg-crash"])
    assert recovered(lanelog_client, 1) == [("msg-crash", 2)]
    assert watermark(raw, "g", "t", "k") == 1


@pytest.mark.thorough
def test_crash_after_reject_loses_nothing(fleet: Fleet, lanelog_client: Client, raw: Any) -> None:
    """A is acked and B rejected between two that are in flight at the kill: both come again, B is a dead letter."""
    loses_nothing(fleet, lanelog_client, raw, "reject", [("msg-A", 1), ("msg-B", 1)])


@pytest.mark.thorough
def test_crash_after_retry_limit_loses_nothing(fleet: Fleet, lanelog_client: Client, raw: Any) -> None:
    """A is acked and B out of attempts between two that are in flight at the kill: both come again, B does not."""
    loses_nothing(fleet, lanelog_client, raw, "nack", [("msg-A", 1), ("msg-B", 1), ("msg-B", 2)])
