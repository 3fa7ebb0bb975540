"""What tests of the archive do with it: its fixtures are `conftest`'s of the Spark tests."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from lanelog.client import Client
from lanelog.spark.archive import Archived
from lanelog.spark.replaying import rows
from support.waiting import eventually

Place = tuple[str, str, int]
"""Topic, key, offset."""
Archive = Callable[..., Archived]
Held = Callable[[], Counter[Place]]
WITHIN = 240.0
"""Seconds in which a job has begun or gone on, however busy the machine is."""


def publish(client: Client, topic: str, count: int, lanes: int = 5) -> Counter[Place]:
    """Publish so many messages, and return what they must be in the archive."""
    keys = [f"k{n % lanes}" for n in range(count)]
    receipts = client.publish_many(topic, [(key, f"{topic} {n}") for n, key in enumerate(keys)])
    return Counter((topic, key, receipt.offset) for key, receipt in zip(keys, receipts, strict=True))


def settled(client: Client, topic: str, *groups: str) -> None:
    """Wait until these groups of a topic, or all, have nothing left to do."""
    look = client.admin.groups
    eventually(lambda: all(each.lag == 0 for each in look(topic) if not groups or each.group in groups), within=WITHIN)


def dying_after(condition: str) -> Callable[..., None]:
    """How a run of a replay publishes that dies when it has published some of the messages."""
    publish = rows.publish

    def run_it(chosen: Any, *args: Any) -> None:
        publish(chosen.where(condition), *args)
        raise RuntimeError("this run dies here")

    return run_it
