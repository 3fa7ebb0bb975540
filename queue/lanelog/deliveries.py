"""The pull style: messages one by one, settled by whoever takes them.

Owns the iterator and its end; everything else is its subscription's. Made by `client.deliveries()`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from attrs import define, field

from lanelog._checks import check_timeout
from lanelog._subscription import SubscriptionState
from lanelog.subscriber import Subscription

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from lanelog._checks import Duration
    from lanelog._subscription import SubscriptionCore
    from lanelog.message import Message


def _timeout(value: Duration | None) -> float | None:
    return check_timeout("timeout", value)


@define(eq=False, repr=False)
class Deliveries:
    """Messages one by one, to be settled by whoever takes them; an iterator and a context manager.

    A message that is neither settled nor extended within visibility_timeout is delivered again. The iterator ends after
    `timeout` seconds without a message, and stops its subscription when it ends or its block is left.
    """

    _core: SubscriptionCore
    _timeout: float | None = field(converter=_timeout)
    subscription: Subscription = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.subscription = Subscription(self._core)

    def __repr__(self) -> str:
        return f"<Deliveries of {self._core!r}>"

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        if self._core.state is SubscriptionState.NEW:
            self._core.start()  # else it runs, or it has ended, and so has this iterator
        message = self._core.pull(self._timeout)
        if message is None:
            self.close()
            raise StopIteration
        return message

    def __enter__(self) -> Self:
        self._core.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give everything back that was not settled; idempotent."""
        if self._core.inherited:
            return  # the parent's: nothing of it is ours to give back
        self._core.ask_to_stop()
        for member in self._core.members:
            member.attempts.hand_back()
        self._core.drain()
        self._core.stop()
