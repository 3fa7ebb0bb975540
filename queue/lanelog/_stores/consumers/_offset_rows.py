"""The rows of `queue_offsets` as values. Never contains SQL."""

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
    """The floor of a lane, and the offset up to which its messages are deleted."""

    floor: int
    deleted_through: int


class OffsetsWrite(NamedTuple):
    """A row to flush. A NamedTuple, which is fast to make: every flush of a lane makes one."""

    key: str
    offset_acked: int
    marked_through: int
    marked_epoch: int


class WrittenOffsets(NamedTuple):
    """Watermark and run mark of a row, as the last flush left them."""

    offset_acked: int
    marked_through: int


@frozen
class LaneWatermark:
    """A group's watermark and pause in a lane that is to be purged."""

    offset_acked: int
    paused: bool
