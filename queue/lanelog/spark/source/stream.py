"""The streaming read: where a query starts, how far each micro-batch goes, and what it reads.

Keeps no state but Spark's checkpoint (see `offsets`), and advances no group. Spark runs one reader in a process of the
driver, and its `read` in the executors.
"""

from __future__ import annotations

import threading
import time
import warnings
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from lanelog._base.duty_cycle import DutyCycle
from lanelog.spark.errors import clear
from lanelog.spark.source.offsets import (
    NOTHING,
    Positions,
    advance,
    ahead,
    came_back,
    lowered,
    pinned,
    ranges,
    skipped,
    up_to,
)
from lanelog.spark.source.planning import Planner
from lanelog.spark.source.reading import DataLost, MessageSplit, Reading, read_split
from lanelog.spark.source.splits import plan_splits

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from lanelog.spark.source.offsets import Lanes, TopicState
    from lanelog.spark.source.options import ReadOptions
    from lanelog.spark.source.planning import Seen
    from lanelog.spark.source.splits import LaneRange

REST: Final = 0.1
"""The least seconds between two polls that find nothing. Spark asks for the latest offset 100 times a second."""
CYCLE: Final = DutyCycle(1 / 20)
"""For polls that find nothing."""
REST_MOST: Final = 5.0
"""The most seconds between two polls: the longest that Spark waits for a new message."""


class LanelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads new messages, micro-batch by micro-batch."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._reading = Reading.of(options)
        # Made at the first poll of the driver, so that the copies for the executors have no connection.
        self._planner: Planner | None = None
        self._target: Lanes | None = None
        self._rest_until = 0.0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return no positions. Spark asks in every run; the first micro-batch pins the start in the checkpoint once."""
        return NOTHING.json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of maxOffsetsPerTrigger."""
        limit = self._options.max_offsets
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Remember the heads. Later messages belong to another run."""
        with clear():
            self._target = self._opened().snapshot().lanes

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of the next micro-batch; `start` if there is nothing new.

        Raises DataLost, and as the planner does.
        """
        with clear():
            positions = Positions.from_json(start)
            end = self._next(positions, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
            return start if end is positions else end.json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the splits of a micro-batch.

        They follow from its two positions alone: a restart plans the same messages.
        """
        with clear():
            found = ranges(Positions.from_json(start), Positions.from_json(end))
            return [MessageSplit(split) for split in plan_splits(found, min_partitions=self._options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of one split, in an executor."""
        return read_split(self._reading, partition)

    def stop(self) -> None:
        """Close the driver's connection."""
        if self._planner is not None:
            self._planner.close()

    def _opened(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self._options)
        return self._planner

    def _next(self, start: Positions, limit: int | None) -> Positions:
        threading.Event().wait(max(0.0, self._rest_until - time.monotonic()))
        began = time.monotonic()
        planner = self._opened()
        seen = planner.snapshot()
        # A new topic is left out until the group is registered there. There are two refusals: a topic that was read
        # must not go missing, and a group that is registered nowhere at the start is a misspelt name.
        planner.refuse_unregistered(
            seen.unregistered & start.lanes.keys() if start.begun or seen.lanes else seen.unregistered
        )
        lost = ahead(start, seen.lanes)
        if self._options.fail_on_data_loss and start.begun:
            _check(start, seen.lanes, self._followed(start, seen), lost)
        if lost:  # judged by the present heads, not by those of a target: a lane may be pinned above the target
            for each in lost:
                warnings.warn(f"lanelog: {_went_back(each)}", RuntimeWarning, stacklevel=2)
            return lowered(start, lost)
        lanes = seen.lanes if self._target is None else up_to(seen.lanes, self._target)
        if not start.begun:
            starts = planner.starts(seen)
            return pinned({topic: {key: starts[topic][key] for key in found} for topic, found in lanes.items()}, lanes)
        end = advance(start, lanes, limit=limit, watermarks=seen.watermarks)
        if end is start:
            now = time.monotonic()
            self._rest_until = now + min(REST_MOST, max(REST, CYCLE.rest(now - began)))
        return end

    def _followed(self, start: Positions, seen: Seen) -> dict[str, TopicState]:
        """Return the topics whose new lanes the stream has to read from their first message on.

        These are the known topics, and new topics if the stream reads all that match a pattern. New topics do not count
        in three cases: with topics by name, the name was added to the options; with a group, it starts at its
        watermark; and a topic older than all known lanes existed under another pattern.
        """
        appear = self._options.pattern is not None and self._options.group is None
        youngest = max(start.youngest_ms.values(), default=0)
        return {
            topic: state
            for topic, state in seen.topics.items()
            if topic in start.lanes or (appear and state.created_ms >= youngest)
        }


def _check(start: Positions, seen: Lanes, followed: Mapping[str, TopicState], lost: Sequence[LaneRange]) -> None:
    """Raise DataLost if messages from a position on or of a new lane are gone, or the log does not reach a position."""
    for topic, lanes in start.lanes.items():
        for key, following in lanes.items():
            lane = seen.get(topic, {}).get(key)
            if lane is None or came_back(start, topic, lane):
                continue
            if lane.deleted >= following:
                raise DataLost(topic, key, following, lane.deleted)
    if lost:
        raise _went_back(lost[0])
    gone = skipped(start, seen, followed)
    if gone is not None:
        raise DataLost(gone.topic, gone.key, gone.after + 1, gone.through)


def _went_back(lost: LaneRange) -> DataLost:
    return DataLost(lost.topic, lost.key, lost.after + 1, lost.through, went_back=True)
