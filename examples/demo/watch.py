"""The state of the run as administration shows it: how far each group is, and which worker owns which lane.

Only reads the database, and never asks the workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from attrs import frozen

import lanelog
from demo.rebuild import GROUPS, REBUILD

LANES: Final = 10_000
"""The most lanes that are read, by key."""


@frozen(kw_only=True)
class LaneRow:
    """One lane of group `rebuild`. `owner` is empty if it has none."""

    head: int
    acked: int
    in_flight: int
    owner: str
    epoch: int

    @property
    def in_progress(self) -> bool:
        """Whether its owner has handed out a message that is not settled yet."""
        return bool(self.owner) and self.in_flight > 0


@frozen(kw_only=True)
class Progress:
    """The run at one moment. Counts include the malformed job."""

    lanes: int = 0
    published: int = 0
    lags: Mapping[str, int]
    """Messages that a group has not settled yet. A group that is not registered is missing."""
    owners: Mapping[str, int]

    def lag(self, group: str) -> int:
        """Return how many messages the group has not settled yet."""
        return self.lags.get(group, self.published)

    def handled(self, group: str) -> int:
        """Return how many messages the group has settled."""
        return max(0, self.published - self.lag(group))

    @property
    def settled(self) -> bool:
        """Whether every group has settled all messages."""
        return all(self.lag(group) == 0 for group in GROUPS)


@frozen
class Watch:
    """Reads the state of one topic."""

    client: lanelog.Client
    topic: str

    def progress(self) -> Progress:
        """Return how far everything is."""
        admin = self.client.admin
        if self.topic not in admin.topic_names(self.topic):
            return Progress(lags={}, owners={})
        # The topic is read before the lags, so that `handled` never counts more messages than are handled.
        seen = admin.topic(self.topic)
        lags = {each.group: each.lag for each in admin.groups(self.topic)}
        owners: Counter[str] = Counter()
        if REBUILD in lags:
            for member in admin.members(self.topic, REBUILD):
                owners[worker_of(member.name)] += member.lanes
        return Progress(lanes=seen.lanes, published=seen.head, lags=lags, owners=+owners)

    def present(self) -> set[str]:
        """Return the workers that have registered and not left."""
        if REBUILD not in self.client.admin.group_names(self.topic):
            return set()
        members = self.client.admin.members(self.topic, REBUILD)
        return {worker_of(each.name) for each in members if each.stopped_at is None}

    def lanes(self) -> dict[str, LaneRow]:
        """Return the lanes as group `rebuild` sees them."""
        return {
            each.key: LaneRow(
                head=each.head,
                acked=each.watermark,
                in_flight=each.in_flight,
                owner=worker_of(each.owner or ""),
                epoch=each.lease_epoch,
            )
            for each in self.client.admin.lanes(self.topic, REBUILD, order_by="key", limit=LANES)
        }


def worker_of(owner: str) -> str:
    """Return the name of the worker, without the random part that the library adds."""
    return owner.partition(":")[0]
