"""The plan of the driver before a task runs: which topics, which lanes, from which offset to which.

Heads and floors come from one snapshot, held while they are read. Locks nothing, and writes nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from attrs import define, field, frozen

from lanelog import migrations
from lanelog._base.places import GroupTopic
from lanelog._database import Database
from lanelog._log.lookup.known import read, snapshot
from lanelog.errors import ConfigurationError
from lanelog.spark.source import queries
from lanelog.spark.source.options import EARLIEST
from lanelog.spark.source.reading import DataLost
from lanelog.spark.source.splits import LaneRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lanelog._database import Executor
    from lanelog.spark.source.offsets import LaneExtent, Lanes, TopicState
    from lanelog.spark.source.options import Offsets, ReadOptions

T = TypeVar("T")


@frozen
class Seen:
    """One snapshot of the log."""

    lanes: Lanes
    watermarks: Mapping[str, Mapping[str, int]]
    """Watermarks of the options' group by topic and key; empty without a group."""
    topics: Mapping[str, TopicState]
    """The state of the same topics."""
    unregistered: frozenset[str]
    """Topics that match the pattern and are left out, because the options' group is not registered for them."""


@define(eq=False)
class Planner:
    """Reads heads, floors and watermarks for one reader. `close` closes its connection."""

    options: ReadOptions
    sizes: queries.PageSizes = queries.USUAL
    _database: Database = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._database = Database(self.options.address.config())

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    def snapshot(self) -> Seen:
        """Return heads, floors and the group's watermarks, all of one moment.

        Raises ConfigurationError if a topic does not exist, or if the group is not registered for a named topic;
        SchemaError, DatabaseError.
        """
        return self._read(self._snapshot, "reading the heads")

    def group_topics(self) -> list[GroupTopic]:
        """Return the groups of topics whose rows of the table are to be read.

        Raises as `snapshot`, also for an unknown group.
        """
        return self._read(self._group_topics, "reading the groups")

    def starts(self, seen: Seen) -> Offsets:
        """Return the first offset to read in each lane: the options' starting point, or after the group's watermark.

        Raises ConfigurationError for starting offsets of a topic that is not read, or beyond the end of a lane, and
        DataLost.
        """
        options = self.options
        _all_read("startingOffsets", options.starting, seen)
        if options.starting_ms is not None:
            return {topic: self._since(topic, lanes) for topic, lanes in seen.lanes.items()}
        return {
            topic: {key: self._start(topic, key, lane, seen.watermarks) for key, lane in lanes.items()}
            for topic, lanes in seen.lanes.items()
        }

    def _start(self, topic: str, key: str, lane: LaneExtent, watermarks: Mapping[str, Mapping[str, int]]) -> int:
        """Return the first offset to read. A lane that the options do not name starts at its oldest message."""
        starting = self.options.starting
        if self.options.group is not None:
            return 1 + max(lane.floor, watermarks[topic].get(key, 0))
        if starting == "latest":
            return lane.head + 1
        given = EARLIEST if starting == "earliest" else starting.get(topic, {}).get(key, EARLIEST)
        if given < 0:
            return lane.floor + 1 if given == EARLIEST else lane.head + 1
        if given > lane.head + 1:
            raise ConfigurationError(
                f"startingOffsets begins at {given} in lane {topic!r} {key!r}, whose newest message has {lane.head}"
            )
        if given <= lane.deleted and self.options.fail_on_data_loss:
            raise DataLost(topic, key, given, lane.deleted)
        return max(given, lane.deleted + 1)

    def refuse_unregistered(self, topics: Iterable[str]) -> None:
        """Raise ConfigurationError for the first of these topics, for which the group is not registered."""
        topic = min(topics, default=None)
        if topic is not None:
            raise ConfigurationError(f"group {self.options.group!r} is not registered for topic {topic!r}")

    def ranges(self) -> list[LaneRange]:
        """Return the ranges that a batch reads."""
        seen = self.snapshot()
        self.refuse_unregistered(seen.unregistered)
        starts = self.starts(seen)
        _all_read("endingOffsets", self.options.ending, seen)
        return [
            LaneRange(topic, key, starts[topic][key] - 1, _end(topic, key, lane, self.options.ending))
            for topic, lanes in seen.lanes.items()
            for key, lane in lanes.items()
        ]

    def _read(self, op: Callable[[Executor], T], what: str) -> T:
        if not self._database.tables_version:
            migrations.check(self._database)
        return snapshot(self._database, op, what)

    def _snapshot(self, cx: Executor) -> Seen:
        group = self.options.group
        topics = self._topics(cx)
        unregistered: set[str] = set()
        if group is not None:
            unregistered = topics.keys() - queries.registered(cx, group)
            if self.options.topics:
                self.refuse_unregistered(unregistered)
        seen = {topic: state for topic, state in topics.items() if topic not in unregistered}
        names = list(seen)
        watermarks = {} if group is None else queries.watermarks(cx, group, names, self.sizes)
        return Seen(queries.lanes(cx, names, self.sizes), watermarks, seen, frozenset(unregistered))

    def _group_topics(self, cx: Executor) -> list[GroupTopic]:
        group, table = self.options.group, self.options.table
        topics = self._topics(cx)
        # Outcomes outlive their group.
        if group is not None and table != "history" and not queries.registered(cx, group):
            raise ConfigurationError(f"group {group!r} is not registered for any topic")
        return queries.group_topics(cx, list(topics), group, table)

    def _topics(self, cx: Executor) -> dict[str, TopicState]:
        named = self.options.topics
        pattern = None if self.options.pattern is None else re.compile(self.options.pattern, re.DOTALL)
        names = named or [each for each in queries.topics(cx, self.sizes) if pattern is None or pattern.fullmatch(each)]
        found = queries.states(cx, names, self.sizes)
        for topic in named:
            if topic not in found:
                raise ConfigurationError(f"topic {topic!r} does not exist")
        return {topic: found[topic] for topic in names if topic in found}

    def _since(self, topic: str, lanes: Mapping[str, LaneExtent]) -> dict[str, int]:
        """Return the first offset written at or after the starting timestamp, by binary search in all lanes at once."""
        # Offsets up to low were written before the instant; offsets above high were not.
        low = {key: lane.floor for key, lane in lanes.items()}
        high = {key: lane.head for key, lane in lanes.items()}
        while open_lanes := [key for key in lanes if low[key] < high[key]]:
            middles = [(key, (low[key] + high[key] + 1) // 2) for key in open_lanes]
            written = read(self._database, queries.written_at, "finding an instant", topic, middles)
            for key, middle in middles:
                # A missing message was collected just now, so it is older than the rest.
                if key not in written or written[key] < (self.options.starting_ms or 0):
                    low[key] = middle
                else:
                    high[key] = middle - 1
        return {key: low[key] + 1 for key in lanes}


def _all_read(option: str, offsets: str | Offsets, seen: Seen) -> None:
    """Refuse offsets of a topic that is not read. Otherwise a misspelt topic would be read from its default."""
    unread = offsets.keys() - seen.lanes.keys() if isinstance(offsets, dict) else set()
    if unread:
        raise ConfigurationError(
            f"{option} names topic {min(unread)!r}, which is not read: name the topics as they are"
        )


def _end(topic: str, key: str, lane: LaneExtent, ending: str | Offsets) -> int:
    """Return the last offset to read. A lane that the options do not name ends at its newest message."""
    given = ending.get(topic, {}).get(key, 0) if isinstance(ending, dict) else 0
    return min(lane.head, given - 1) if given > 0 else lane.head
