"""What a lane wants written: its part of the next flush, and messages on their way to the dead letters.

Owns the fields of these values. Never decides what is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field, frozen

if TYPE_CHECKING:
    from collections.abc import Collection

    from lanelog._engine.lane.flush_waiter import FlushWaiter
    from lanelog._engine.lane.run import Attempt, Run
    from lanelog._engine.lane.values import Term
    from lanelog._facts.log import ExcInfo
    from lanelog._stores.consumers._offset_rows import WrittenOffsets
    from lanelog._stores.consumers.deliveries import DeliveryWrite
    from lanelog._stores.consumers.history import Ended, HistoryWrite
    from lanelog._stores.log.fetches import Fetched


@define(eq=False)
class DeadLetterWrite:
    """One message on its way to the dead letters of this group."""

    term: Term
    offset: int
    failures: int
    error: str
    ended: Ended
    attempt: Attempt | None
    row: Fetched | None
    waiters: tuple[FlushWaiter, ...] = ()
    raised: ExcInfo | None = field(default=None, repr=False)  # the traceback, when the failure was in this process


@frozen(kw_only=True, eq=False)  # a flush of a thousand lanes makes a hundred thousand comparisons
class LaneWrite:
    """The part of a flush for one lane, with the runs and waiters that its commit releases."""

    term: Term
    watermark: int
    mark: int
    upserts: tuple[DeliveryWrite, ...]
    deletes: tuple[int, ...]
    offsets: Collection[int]
    runs: tuple[Run, ...]
    waiters: tuple[FlushWaiter, ...]
    buffer: dict[int, str]
    left: tuple[HistoryWrite, ...] = ()
    before: WrittenOffsets | None = None
    """What the lane's row of offsets says. None: there is none, or it is not known."""

    @property
    def moves_only(self) -> bool:
        """Whether it is a row of offsets alone: watermark and run mark."""
        return not self.upserts and not self.deletes and not self.left
