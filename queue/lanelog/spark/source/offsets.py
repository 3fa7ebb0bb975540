"""Where a stream is: the positions in all lanes, how they advance, and their JSON in the checkpoint.

Pure: positions and what the database shows go in, positions come out. `stream` calls it.

The JSON is `{"": 1, "topic": {"": 1700000000000, "key": 7}}`: the next offset to be read in each lane, as the option
startingOffsets takes it. The reserved name "" holds the form's version, and per topic the creation time (epoch
milliseconds) of the youngest lane known: a lane that is younger than that and yet known was purged and came back.

A lane is first **pinned**, to the offset it starts at, and read by a later step only. So every range of offsets that is
ever read stands in the checkpoint with both its ends, before it is read: a restart reads the same messages, or says
which of them are gone. A lane that was purged leaves the positions, and is pinned anew when it comes back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from attrs import field, frozen

from lanelog.errors import ConfigurationError
from lanelog.spark.source.splits import LaneRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

FORM: Final = 1
"""Version of the JSON."""
_OURS = ""


@frozen
class LaneExtent:
    """What the database shows of a lane."""

    head: int
    """The highest offset published."""
    floor: int
    """The highest offset released for collection."""
    deleted: int
    """The highest offset that collection has deleted."""
    created_ms: int


Lanes = dict[str, dict[str, LaneExtent]]
"""Topic → key → what the database shows."""


@frozen
class TopicState:
    """What the database shows of a topic."""

    purged: int
    """The highest offset that a purged lane ended with: no lane began above it, because it never falls."""
    created_ms: int


@frozen
class Positions:
    """The next offset of every known lane."""

    lanes: dict[str, dict[str, int]] = field(factory=dict)
    youngest_ms: dict[str, int] = field(factory=dict)
    """By topic."""
    begun: bool = True
    """Whether the start has been pinned."""

    def json(self) -> dict[str, Any]:
        """For the checkpoint: equal positions are equal texts."""
        topics = {
            topic: {_OURS: self.youngest_ms[topic], **{key: lanes[key] for key in sorted(lanes)}}
            for topic, lanes in sorted(self.lanes.items())
        }
        return {_OURS: FORM, **topics} if self.begun else {}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Positions:
        """Read what `json` wrote. Raises ConfigurationError for a checkpoint of another version."""
        if not raw:
            return NOTHING
        if raw.get(_OURS) != FORM:
            raise ConfigurationError(
                f"the checkpoint is not one of this version of lanelog (form {raw.get(_OURS)!r}, not {FORM}): "
                "start with a new checkpointLocation"
            )
        lanes = {topic: dict(found) for topic, found in raw.items() if topic != _OURS}
        youngest = {topic: found.pop(_OURS) for topic, found in lanes.items()}
        return cls(lanes, youngest)


NOTHING: Final = Positions(begun=False)
"""Before the start is pinned; the same in every run, because Spark asks for it more than once."""


def pinned(starts: Mapping[str, Mapping[str, int]], seen: Lanes) -> Positions:
    """The first positions: the given next offsets of all lanes seen."""
    return Positions(
        {topic: dict(starts[topic]) for topic in seen},
        {topic: _youngest(lanes) for topic, lanes in seen.items()},
    )


def advance(
    start: Positions,
    seen: Lanes,
    *,
    limit: int | None = None,
    watermarks: Mapping[str, Mapping[str, int]] | None = None,
) -> Positions:
    """As far as the lanes go, by at most `limit` messages; `start` itself if there is nothing to do.

    A new lane is pinned to its oldest message; those of a new topic to what follows `watermarks`, if that is more.
    """
    known: dict[str, dict[str, int]] = {}
    behind: dict[tuple[str, str], int] = {}
    for topic, lanes in seen.items():
        old = start.lanes.get(topic, {})
        known[topic] = {}
        marks = {} if watermarks is None or topic in start.lanes else watermarks.get(topic, {})
        for key, lane in lanes.items():
            if key not in old:
                known[topic][key] = 1 + max(lane.floor, marks.get(key, 0))
            elif not came_back(start, topic, lane):
                known[topic][key] = old[key]
                behind[topic, key] = lane.head + 1 - old[key]
    # Grows by the limit with every step that is cut short, whatever is published meanwhile.
    turn = sum(following for lanes in start.lanes.values() for following in lanes.values())
    for (topic, key), rows in admit(behind, limit, turn).items():
        known[topic][key] += rows
    youngest = {topic: max(start.youngest_ms.get(topic, 0), _youngest(lanes)) for topic, lanes in seen.items()}
    end = Positions(known, youngest)
    return start if end == start else end


def ahead(start: Positions, seen: Lanes) -> list[LaneRange]:
    """What was read, or passed over, and the log has not got: it ends before, since a failover or a restored backup.

    Nobody can tell any more once as many have been published again. A replica that is behind looks the same.
    """
    return [
        LaneRange(topic, key, lane.head, following - 1)
        for topic, lanes in start.lanes.items()
        for key, following in lanes.items()
        if (lane := seen.get(topic, {}).get(key)) is not None
        and not came_back(start, topic, lane)
        and lane.head + 1 < following
    ]


def lowered(start: Positions, lost: Iterable[LaneRange]) -> Positions:
    """`start` without what the log has lost, and will number anew. A step to it reads nothing, as a pin."""
    lanes = {topic: dict(found) for topic, found in start.lanes.items()}
    for each in lost:
        lanes[each.topic][each.key] = each.after + 1
    return Positions(lanes, start.youngest_ms)


def came_back(start: Positions, topic: str, lane: LaneExtent) -> bool:
    """Whether a lane that `start` knows was purged since, and born again further up."""
    return lane.created_ms > start.youngest_ms.get(topic, 0)


def skipped(start: Positions, seen: Lanes, topics: Mapping[str, TopicState]) -> LaneRange | None:
    """Messages of a new lane that pinning it to its oldest one would pass over for certain.

    New is what was born after `start`: whatever a lane was given since its birth, the stream has not read. It was born
    with head and floor where the purged lanes of its topic ended, which is not above where they end now; so a floor
    above that has been raised over messages. One that is not may have been, too: nobody can tell any more.
    """
    for topic, state in topics.items():
        for key, lane in seen[topic].items():
            if lane.floor > state.purged and (key not in start.lanes.get(topic, {}) or came_back(start, topic, lane)):
                return LaneRange(topic, key, state.purged, lane.floor)
    return None


def admit(behind: Mapping[tuple[str, str], int], limit: int | None, turn: int) -> dict[tuple[str, str], int]:
    """How many messages of each lane, at most `limit` together: short lanes wholly, long ones share the rest evenly.

    With fewer messages than lanes, one of each of the next lanes in order, beginning with number `turn`.
    """
    waiting = {lane: rows for lane, rows in behind.items() if rows > 0}
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return waiting
    lanes = sorted(waiting)
    first = turn % len(lanes)
    lanes = lanes[first:] + lanes[:first]
    if limit < len(lanes):
        return dict.fromkeys(lanes[:limit], 1)
    admitted: dict[tuple[str, str], int] = {}
    for place, lane in enumerate(sorted(lanes, key=waiting.__getitem__)):
        admitted[lane] = min(waiting[lane], limit // (len(lanes) - place))
        limit -= admitted[lane]
    return admitted


def up_to(seen: Lanes, target: Lanes) -> Lanes:
    """What is seen, without what came after `target` was seen."""
    return {
        topic: {
            key: LaneExtent(min(lane.head, target[topic][key].head), lane.floor, lane.deleted, lane.created_ms)
            for key, lane in lanes.items()
            if key in target[topic]
        }
        for topic, lanes in seen.items()
        if topic in target
    }


def ranges(start: Positions, end: Positions) -> Iterator[LaneRange]:
    """The messages between two positions; a lane that only one of them knows has none."""
    for topic in sorted(end.lanes):
        old = start.lanes.get(topic, {})
        for key, after in sorted(end.lanes[topic].items()):
            if key in old and after > old[key]:
                yield LaneRange(topic, key, old[key] - 1, after - 1)


def _youngest(lanes: Mapping[str, LaneExtent]) -> int:
    return max((lane.created_ms for lane in lanes.values()), default=0)
