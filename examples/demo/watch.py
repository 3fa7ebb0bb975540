"""What the database says about the run: how far each group is, and who owns which lane.

It only reads, and never asks the workers. The run calls it several times a second.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from attrs import frozen

from demo.rebuild import GROUPS, REBUILD
from lanelog._database import Database, Executor

PATIENCE: Final = 30.0
"""Seconds for which a database that does not answer is asked again."""

T = TypeVar("T")

# How far each group is, in all lanes together (by_topic).
HANDLED = """
SELECT consumer_group, CAST(SUM(offset_acked) AS SIGNED) FROM queue_offsets FORCE INDEX (by_topic)
WHERE topic = %s AND consumer_group <> '' GROUP BY consumer_group
"""

# What was published, and in how many lanes (PRIMARY, prefix).
PUBLISHED = """
SELECT COUNT(*), CAST(COALESCE(SUM(head_offset), 0) AS SIGNED) FROM queue_partitions
WHERE topic = %s AND partition_key <> ''
"""

# How many lanes each owner has (by_owner, prefix).
OWNERS = """
SELECT leased_by, COUNT(*) FROM queue_partition_leases FORCE INDEX (by_owner)
WHERE consumer_group = %s AND topic = %s AND leased_by <> '' GROUP BY leased_by
"""

# Which workers have introduced themselves (PRIMARY, prefix).
PRESENT = """
SELECT subscriber_name FROM queue_subscriber_heartbeats
WHERE consumer_group = %s AND topic = %s AND deregistered_at = 0
"""

# Every lane of a group with its lease (queue_partitions PRIMARY, prefix; the others by full PRIMARY).
LANES = """
SELECT p.partition_key, p.head_offset, COALESCE(o.offset_acked, 0), COALESCE(o.marked_through, 0),
       COALESCE(o.marked_epoch, 0), l.leased_by, l.lease_epoch
FROM queue_partitions p
JOIN queue_partition_leases l
  ON l.consumer_group = %s AND l.topic = p.topic AND l.partition_key = p.partition_key
LEFT JOIN queue_offsets o
  ON o.consumer_group = l.consumer_group AND o.topic = p.topic AND o.partition_key = p.partition_key
WHERE p.topic = %s AND p.partition_key <> ''
"""


@frozen(kw_only=True)
class LaneRow:
    """One lane of group `rebuild`; `owner` is empty while nobody has it."""

    head: int
    acked: int
    marked: int
    marked_epoch: int
    owner: str
    epoch: int

    @property
    def in_progress(self) -> bool:
        """Whether its owner has handed out a message that is not settled yet."""
        return bool(self.owner) and self.marked_epoch == self.epoch and self.acked < self.marked


@frozen(kw_only=True)
class Progress:
    """The run at one moment; counts include the malformed job."""

    lanes: int
    published: int
    handled: Mapping[str, int]
    owners: Mapping[str, int]

    def lag(self, group: str) -> int:
        """How many messages the group has not settled yet."""
        return max(0, self.published - self.handled.get(group, 0))

    @property
    def settled(self) -> bool:
        """Whether every group has settled everything there is."""
        return all(self.lag(group) == 0 for group in GROUPS)


@frozen
class Watch:
    """Reads the state of one topic."""

    database: Database
    topic: str

    def progress(self) -> Progress:
        """How far everything is."""
        return self._reading(self._progress)

    def present(self) -> set[str]:
        """The workers that have introduced themselves and not left."""
        return self._reading(lambda cx: {worker_of(owner) for (owner,) in cx.query(PRESENT, (REBUILD, self.topic))})

    def lanes(self) -> dict[str, LaneRow]:
        """Every lane of group `rebuild` that has a lease row."""
        return self._reading(self._lanes)

    def _reading(self, read: Callable[[Executor], T]) -> T:
        def attempt() -> T:
            with self.database.transaction() as cx:
                return read(cx)

        return self.database.retry(attempt, deadline=time.monotonic() + PATIENCE, what="reading the progress")

    def _progress(self, cx: Executor) -> Progress:
        # What was handled first: it was published before, so no lag is negative.
        handled = {str(group): int(count) for group, count in cx.query(HANDLED, (self.topic,))}
        ((lanes, published),) = cx.query(PUBLISHED, (self.topic,))
        owners: Counter[str] = Counter()
        for owner, count in cx.query(OWNERS, (REBUILD, self.topic)):
            owners[worker_of(owner)] += count
        return Progress(lanes=lanes, published=published, handled=handled, owners=owners)

    def _lanes(self, cx: Executor) -> dict[str, LaneRow]:
        return {
            lane: LaneRow(
                head=head, acked=acked, marked=marked, marked_epoch=marked_epoch, owner=worker_of(owner), epoch=epoch
            )
            for lane, head, acked, marked, marked_epoch, owner, epoch in cx.query(LANES, (REBUILD, self.topic))
        }


def worker_of(owner: str) -> str:
    """The name of the worker, without the incarnation that the library adds."""
    return owner.partition(":")[0]
