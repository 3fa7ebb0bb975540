"""What tests of the archive do with it: its fixtures are `conftest`'s of the Spark tests."""

from collections import Counter
from collections.abc import Callable

from lanelog.client import Client
from lanelog.spark.archive import Archived

Place = tuple[str, str, int]
"""Topic, key, offset."""
Archive = Callable[..., Archived]
Held = Callable[[], Counter[Place]]


def publish(client: Client, topic: str, count: int, lanes: int = 5) -> Counter[Place]:
    """Publish so many messages, and return what they must be in the archive."""
    keys = [f"k{n % lanes}" for n in range(count)]
    receipts = client.publish_many(topic, [(key, f"{topic} {n}") for n, key in enumerate(keys)])
    return Counter((topic, key, receipt.offset) for key, receipt in zip(keys, receipts, strict=True))
