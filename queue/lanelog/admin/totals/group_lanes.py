"""All lanes of a topic as some groups see them, added up, and those in which nothing was settled for longest.

Owns these sums and this choice. Reads no message and no delivery row. Call it inside a snapshot.
"""

from __future__ import annotations

from itertools import compress
from operator import sub
from typing import TYPE_CHECKING, NamedTuple

from attrs import define, field

from lanelog._stores.log import lane_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._database import Executor
    from lanelog._stores.log.lane_columns import LaneOffsets, Lanes


class Still(NamedTuple):
    """A lane with something unsettled. Times in milliseconds. The smallest is unchanged for longest."""

    since: int
    """When its offsets row was changed last, or its birth, if it has none."""
    key: str
    watermark: int


@define
class GroupLanes:
    """All lanes of a topic as one group sees them, added up."""

    now: int = 0
    """The database's clock, in milliseconds."""
    count: int = 0
    marked: int = 0
    """Offsets rows that are paused, or have a mark above what is acked."""
    lagging: int = 0
    head: int = 0
    behind: int = 0
    """Messages above the watermark."""
    still: list[Still] = field(factory=list)
    """Lagging lanes in which nothing was settled for longest, in this order."""

    def add(self, lanes: Lanes, floors: Sequence[int], offsets: LaneOffsets, still: int) -> None:
        """Add some lanes; of all, keep `still` by name."""
        acked, since = offsets.beside(lanes)
        watermarks = list(map(max, acked, floors))
        lags = [max(0, lag) for lag in map(sub, lanes.heads, watermarks)]
        self.now = lanes.now
        self.count += len(lanes.keys)
        self.marked += offsets.marked
        self.lagging += len(lags) - lags.count(0)
        self.head += sum(lanes.heads)
        self.behind += sum(lags)
        # First by time alone: of many thousand lanes, most are never made a `Still`.
        times = sorted(compress(since, lags))
        latest = times[min(still, len(times)) - 1] if still and times else -1
        rows = zip(since, lanes.keys, watermarks, lags, strict=True)
        named = [Still(when, key, mark) for when, key, mark, lag in rows if when <= latest and lag]
        self.still = sorted([*self.still, *named])[:still]


def load(cx: Executor, topic: str, groups: Sequence[str], still: int = 0) -> dict[str, GroupLanes]:
    """Return the lanes of each of a few groups, added up, and at most `still` lagging ones by name."""
    found = {group: GroupLanes() for group in groups}
    for lanes, offsets in lane_columns.pages(cx, topic, ["", *groups]):
        floors, _ = offsets[""].beside(lanes)
        for group, sums in found.items():
            sums.add(lanes, floors, offsets[group], still)
    return found
