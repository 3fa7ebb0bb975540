"""The positions of a stream in all lanes, how they advance, and their JSON in the checkpoint.

Pure: it gets positions and values of the database, and returns positions.

The JSON is `{"": 1, "topic": {"": 1700000000000, "key": 7}}`: the next offset to read in each lane, in the form of the
option startingOffsets. The reserved name "" holds the version of the form, and for each topic the creation time (epoch
milliseconds) of the youngest known lane. A known lane that is younger than that was purged and came back.

A lane is first **pinned** to its first offset, and read by a later step. So both ends of every range of offsets stand
in the checkpoint before the range is read: a restart reads the same messages, or says which of them are gone. A purged
lane leaves the positions, and is pinned anew when it comes back.
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
    """What the database holds of a lane."""

    head: int
    """The highest offset published."""
    floor: int
    """The highest offset released for collection."""
    deleted: int
    """The highest offset that collection has deleted."""
    created_ms: int


Lanes = dict[str, dict[str, LaneExtent]]
"""Topic → key → extent."""


@frozen
class TopicState:
    """What the database holds of a topic."""

    purged: int
    """The highest offset at which a purged lane ended. It never falls, so no present lane began above it."""
    created_ms: int


@frozen
class Positions:
    """The next offset of every known lane."""

    lanes: dict[str, dict[str, int]] = field(factory=dict)
    youngest_ms: dict[str, int] = field(factory=dict)
    """The creation time of the youngest known lane, by topic."""
    begun: bool = True
    """Whether the start was pinned."""

    def json(self) -> dict[str, Any]:
        """Return the JSON for the checkpoint. Equal positions are equal texts."""
        topics = {
            topic: {_OURS: self.youngest_ms[topic], **{key: lanes[key] for key in sorted(lanes)}}
            for topic, lanes in sorted(self.lanes.items())
        }
        return {_OURS: FORM, **topics} if self.begun else {}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Positions:
        """Read the JSON of `json`. Raises ConfigurationError for a checkpoint of another version."""
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
"""The positions before the start is pinned. They are the same in every run, because Spark asks more than once."""


def pinned(starts: Mapping[str, Mapping[str, int]], seen: Lanes) -> Positions:
    """Return the first positions: the given next offsets of all lanes seen."""
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
    """Return the positions after at most `limit` more messages; `start` itself if there is nothing to do.

    A new lane is pinned to its oldest message. A lane of a new topic is pinned after its watermark, if that is higher.
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
    # A number that grows by the limit with every step that is cut short, whatever is published meanwhile.
    turn = sum(following for lanes in start.lanes.values() for following in lanes.values())
    for (topic, key), rows in admit(behind, limit, turn).items():
        known[topic][key] += rows
    youngest = {topic: max(start.youngest_ms.get(topic, 0), _youngest(lanes)) for topic, lanes in seen.items()}
    end = Positions(known, youngest)
    return start if end == start else end


def ahead(start: Positions, seen: Lanes) -> list[LaneRange]:
    """Return ranges that the stream has passed and the log does not have: the log ends before them.

    A failover or a restored backup causes that; a replica that lags gives the same picture. Once as many messages are
    published again, nothing shows it any more.
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
    """Return `start` without the lost offsets, which the log will give out again.

    A step to it reads nothing, like a pin.
    """
    lanes = {topic: dict(found) for topic, found in start.lanes.items()}
    for each in lost:
        lanes[each.topic][each.key] = each.after + 1
    return Positions(lanes, start.youngest_ms)


def came_back(start: Positions, topic: str, lane: LaneExtent) -> bool:
    """Return whether a known lane was purged since `start`, and born again with higher offsets."""
    return lane.created_ms > start.youngest_ms.get(topic, 0)


def skipped(start: Positions, seen: Lanes, topics: Mapping[str, TopicState]) -> LaneRange | None:
    """Return messages of a new lane that pinning it to its oldest message would certainly pass over; None: none known.

    A lane is new if it was born after `start`: the stream has read none of its messages. At its birth, head and floor
    were where the purged lanes of its topic had ended, so not above where they end now. A floor above that was raised
    over messages. A lower floor may have been raised, too, but nothing shows that any more.
    """
    for topic, state in topics.items():
        for key, lane in seen[topic].items():
            if lane.floor > state.purged and (key not in start.lanes.get(topic, {}) or came_back(start, topic, lane)):
                return LaneRange(topic, key, state.purged, lane.floor)
    return None


def admit(behind: Mapping[tuple[str, str], int], limit: int | None, turn: int) -> dict[tuple[str, str], int]:
    """Return how many messages of each lane to read, at most `limit` together.

    Short lanes are read completely, long ones share the rest evenly. If `limit` is less than the number of lanes, one
    message is read of each of the next `limit` lanes in order, beginning with number `turn`.
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
    for index, lane in enumerate(sorted(lanes, key=waiting.__getitem__)):
        admitted[lane] = min(waiting[lane], limit // (len(lanes) - index))
        limit -= admitted[lane]
    return admitted


def up_to(seen: Lanes, target: Lanes) -> Lanes:
    """Return the lanes seen, without messages published after `target` was seen."""
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
    """Yield the messages between two positions. A lane that only one of them knows has none."""
    for topic in sorted(end.lanes):
        old = start.lanes.get(topic, {})
        for key, after in sorted(end.lanes[topic].items()):
            if key in old and after > old[key]:
                yield LaneRange(topic, key, old[key] - 1, after - 1)


def _youngest(lanes: Mapping[str, LaneExtent]) -> int:
    return max((lane.created_ms for lane in lanes.values()), default=0)
