"""The rows of `queue_offsets` as values, read and written; nothing here knows SQL."""

from __future__ import annotations

from typing import NamedTuple

from attrs import frozen


@frozen
class OffsetsRow:
    """A lane's offsets row for one group; `marked_age` in seconds."""

    offset_acked: int
    marked_through: int
    marked_epoch: int
    marked_age: float
    paused: bool


@frozen
class FloorRow:
    """How far a lane is released for collection, and how far the deletion got."""

    floor: int
    deleted_through: int


class OffsetsWrite(NamedTuple):
    """A row to flush; a NamedTuple because every flush of a lane makes one."""

    key: str
    offset_acked: int
    marked_through: int
    marked_epoch: int


@frozen
class LanePlace:
    """Where a group is in a lane, as the purge of the lane asks."""

    offset_acked: int
    paused: bool
