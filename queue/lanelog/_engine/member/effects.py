"""What a step of a member asks of others.

Owns what is to be carried out when the lock is released (`state.step`), and how. Never decides what changes.

An exception such as KeyboardInterrupt may strike after a step and before its effects. No run and no waiter is lost
then: the member holds them, not the frame that ends. The next step of any thread carries them out, and the keeper takes
a step in each of its turns. A lost wake-up delays its loop by one period.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from attrs import define, field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lanelog._engine.lane.flush_waiter import FlushWaiter


@define(eq=False)
class Effects:
    """The effects of steps that are not carried out yet. They are added under the member's lock."""

    put: Callable[[Any], object]  # into the workers' queue
    runs: deque[Any] = field(factory=deque)  # as the workers' queue has them
    waiters: dict[FlushWaiter, Exception | None] = field(factory=dict)  # to be resolved, and with which error
    needs: set[Callable[[], None]] = field(factory=set)  # wakes a loop; added after what the loop has to find

    def resolve(self, waiters: Iterable[FlushWaiter], error: Exception | None = None) -> None:
        """Resolve these waiters, with an error if there is one."""
        for waiter in waiters:
            self.waiters.setdefault(waiter, error)

    def carry_out(self) -> None:
        """Carry out what is there, without the lock. Two threads may do so at once."""
        if self.runs:
            with suppress(IndexError):  # none is left
                # Taken and put by C alone: an interrupt comes before both, or after both.
                deque(map(self.put, iter(self.runs.popleft, None)), maxlen=0)
        if self.waiters:
            for waiter, error in list(self.waiters.items()):
                waiter.resolve(error)  # a second call changes nothing
                self.waiters.pop(waiter, None)
        if self.needs:
            for wake in list(self.needs):
                self.needs.discard(wake)  # before the loop is woken: what is added meanwhile wakes it again
                wake()
